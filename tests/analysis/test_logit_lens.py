"""The lens equals final norm and unembedding computed by hand."""

import numpy as np
import pytest
import torch

from probekit.analysis.logits import SITES, lens_rows, lens_sites, logit_lens
from probekit.errors import ConfigError, DataError, UnknownNameError
from probekit.model.gpt2 import GPT2
from probekit.model.text.tokenizer import Tokenizer
from tests.model.gpt2_sites import sites_of
from tests.model.reference import TINY, our_model, reference_model

IDS = torch.tensor([3, 14, 15, 92, 6, 5, 35])


@pytest.fixture(scope="module")
def model():
    """A model whose every parameter is random, norms included: nothing is 1 or 0 by chance."""
    return our_model(reference_model(TINY, torch.float64), TINY).double()


def by_hand(model, resid):
    """The probabilities that a residual stream of shape (n_tokens, d_model) is read as."""
    x = resid.numpy()
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + TINY.layer_norm_epsilon)
    x = x * model.ln_f.weight.numpy() + model.ln_f.bias.numpy()
    odds = np.exp(x @ model.wte.weight.numpy().T)
    return odds / odds.sum(-1, keepdims=True)


def test_measures_equal_their_definitions(model):
    sites = lens_sites(["hook_embed", *SITES, "blocks.*.hook_attn_out"], sites_of(4))
    found = logit_lens(model, IDS, sites, top_k=4)
    _, cache = model.run_with_cache(IDS[None])
    output = by_hand(model, cache["resid_post", 3][0])
    for number, site in enumerate(sites):
        p = by_hand(model, cache[site][0])
        here = {name: values[number].numpy() for name, values in found.items()}
        np.testing.assert_array_equal(here["top_ids"], np.argsort(-p)[:, :4])
        np.testing.assert_allclose(here["top_probability"], -np.sort(-p)[:, :4], atol=1e-6)
        np.testing.assert_allclose(here["entropy"], -(p * np.log(p)).sum(-1), atol=1e-5)
        kl = (output * np.log(output / p)).sum(-1)
        np.testing.assert_allclose(here["kl"], kl, atol=1e-5)
        after = p[range(6), IDS[1:]]
        np.testing.assert_allclose(here["next_probability"][:-1], after, atol=1e-6)
        rank = 1 + (p[:6] > after[:, None]).sum(-1)
        np.testing.assert_array_equal(here["next_rank"][:-1], rank)
        assert np.isnan(here["next_rank"][-1])
        assert np.isnan(here["next_probability"][-1])


def test_at_the_last_block_it_is_the_output_of_the_network(model):
    found = logit_lens(model, IDS, "blocks.3.hook_resid_post", top_k=97)
    probabilities = model(IDS[None])[0].softmax(-1)
    shown = torch.zeros_like(probabilities).scatter(
        1, found["top_ids"][0], found["top_probability"][0].double()
    )
    torch.testing.assert_close(shown, probabilities, atol=1e-6, rtol=0)
    assert found["kl"].eq(0).all()


def test_chunks_of_positions_give_the_same_measures(monkeypatch, model):
    whole = logit_lens(model, IDS)
    monkeypatch.setattr("probekit.analysis.logits._CHUNK", 3)
    for name, values in logit_lens(model, IDS).items():
        torch.testing.assert_close(values, whole[name], equal_nan=True)


def test_sites_are_in_forward_order(model):
    wanted = ["blocks.2.hook_resid_mid", ("resid_pre", 0)]
    one, two = (logit_lens(model, IDS, name) for name in reversed(wanted))
    both = logit_lens(model, IDS, wanted)
    torch.testing.assert_close(both["kl"], torch.cat([one["kl"], two["kl"]]))


@pytest.mark.parametrize(
    ("sites", "error"),
    [
        ("blocks.0.attn.hook_z", ConfigError),
        ("ln_final.hook_normalized", ConfigError),
        ("blocks.*.attn.hook_result", ConfigError),
        ("blocks.9.hook_resid_post", UnknownNameError),
    ],
)
def test_sites_outside_the_residual_stream_are_refused(model, sites, error):
    with pytest.raises(error, match=r"blocks"):
        logit_lens(model, IDS, sites)


def test_other_mistakes_are_refused(model):
    for top_k in (0, 98):
        with pytest.raises(ConfigError, match="1 to 97"):
            logit_lens(model, IDS, top_k=top_k)
    with pytest.raises(DataError, match="pos at least 1"):
        logit_lens(model, IDS[:0])
    with pytest.raises(DataError, match="context of 23"):
        logit_lens(model, IDS.repeat(4))


def test_rows_have_the_tokens_of_their_site_and_position():
    model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    ids = torch.from_numpy(tokenizer.encode("The keys to the old", bos=False).ids)
    found = logit_lens(model, ids, top_k=2)
    rows = lens_rows(found, lens_sites(SITES, sites_of(6)), ids, tokenizer)
    assert len(rows) == 7 * 5
    row = rows[(rows["site"] == "blocks.3.hook_resid_post") & (rows["position"] == 2)].iloc[0]
    assert (row["layer"], row["token"], row["next_token"]) == (3, " to", " the")
    assert row["token_2"] == tokenizer.strings([int(found["top_ids"][4, 2, 1])])[0]
    assert row["probability_2"] == pytest.approx(float(found["top_probability"][4, 2, 1]))
    assert row["kl"] == pytest.approx(float(found["kl"][4, 2]))
    last = rows[rows["position"] == 4]
    assert last["next_token"].isna().all()
    assert last["next_rank"].isna().all()
    assert rows["layer"].tolist() == [0] * 5 + [layer for layer in range(6) for _ in range(5)]
