"""Attribution sums to the logit; the lens equals its definitions."""

import numpy as np
import pytest
import torch

from probekit.analysis.logits import SITES, lens_rows, lens_sites, logit_attribution, logit_lens
from probekit.model.families.from_transformers import from_transformers
from probekit.model.families.gpt2 import GPT2
from probekit.model.text.tokenizer import Tokenizer
from tests.model.families.configurations import TYPICAL, rows
from tests.model.gpt2_sites import sites_of
from tests.model.reference import TINY, our_model, reference_model

IDS = torch.tensor([3, 14, 15, 92, 6, 5, 35])
TEXT = "The old key near the dark windows was on the table, and nobody had seen it there before."


@pytest.fixture(scope="module")
def model():
    """A float64 model whose every parameter is random, biases and norms included."""
    return our_model(reference_model(TINY, torch.float64), TINY).double().requires_grad_(False)


def mini(text, bos):
    """The shipped model, its tokenizer and the tokens of a text."""
    tokenizer = Tokenizer.from_pretrained("mini")
    ids = torch.from_numpy(tokenizer.encode(text, bos=bos).ids)
    return GPT2.from_pretrained("mini"), tokenizer, ids


@pytest.mark.parametrize("name", [*TYPICAL, "gpt2"])
def test_the_parts_sum_to_the_logit_before_any_cap(name):
    (row,) = rows([name])
    model = from_transformers(row.reference(torch.float64))
    _, cache = model.run_with_cache(IDS[None], [("resid_post", -1)])
    logits = (model.final_norm(cache["resid_post", -1]) @ model.unembedding.T)[0]
    for position in (0, 4, -1):
        own = logits[position]
        for choice, less in (({}, 0), ({"minus": 5}, own[5]), ({"minus_mean": True}, own.mean())):
            found = logit_attribution(model, IDS, 41, position=position, **choice)
            assert found.logit == pytest.approx(float(own[41] - less), abs=1e-10)
            assert found.rows["value"].sum() == pytest.approx(found.logit, abs=1e-10)
            assert found.remainder == pytest.approx(0, abs=1e-10)


def test_contributions_are_those_of_the_sites_under_the_final_scale(model):
    found = logit_attribution(model, IDS, 41, minus=5)
    _, cache = model.run_with_cache(IDS[None], ["*", "blocks.*.attn.hook_result"])
    towards = (model.wte.weight[41] - model.wte.weight[5]) * model.ln_f.weight

    def read(resid):
        return float((resid - resid.mean()) / cache["ln_final.hook_scale"][0, -1] @ towards)

    layers = range(4)
    expected = {
        "embed": [cache["hook_embed"][0, -1]],
        "pos_embed": [cache["hook_pos_embed"][0, -1]],
        "head": [own for layer in layers for own in cache["result", layer][0, -1]],
        "mlp": [cache["mlp_out", layer][0, -1] for layer in layers],
        "attn_bias": [model.h[layer].attn.c_proj.bias for layer in layers],
    }
    for part, sites in expected.items():
        own = found.rows[found.rows["part"] == part].sort_values(["layer", "head"])
        assert own["value"].tolist() == pytest.approx(list(map(read, sites))), part


def test_in_float32_the_remainder_is_small_at_every_position():
    model, _, ids = mini(TEXT, bos=True)
    for position in range(len(ids)):
        for choice in ({}, {"minus": 1000}, {"minus_mean": True}):
            found = logit_attribution(model, ids, 300, position=position, **choice)
            assert abs(found.remainder) < 1e-4


def test_a_model_with_gradients_is_accepted():
    assert abs(logit_attribution(GPT2(TINY, seed=1), IDS, 41).remainder) < 1e-5


@pytest.mark.parametrize(
    "call",
    [
        "logit_attribution(model, IDS, 97)",
        "logit_attribution(model, IDS, -1)",
        "logit_attribution(model, IDS, 4, minus=97)",
        "logit_attribution(model, IDS, 4, minus=5, minus_mean=True)",
        "logit_attribution(model, IDS, 4, position=7)",
        "logit_attribution(model, IDS, 4, position=-8)",
        "logit_attribution(model, IDS[:0], 4)",
        "logit_lens(model, IDS, 'blocks.0.attn.hook_z')",
        "logit_lens(model, IDS, 'ln_final.hook_normalized')",
        "logit_lens(model, IDS, 'blocks.*.attn.hook_result')",
        "logit_lens(model, IDS, 'blocks.9.hook_resid_post')",
        "logit_lens(model, IDS, top_k=0)",
        "logit_lens(model, IDS, top_k=98)",
        "logit_lens(model, IDS[:0])",
        "logit_lens(model, IDS.repeat(4))",
    ],
)
def test_mistakes_are_refused(model, call, refused):
    refused(eval, call, globals() | {"model": model})


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
        np.testing.assert_allclose(here["kl"], (output * np.log(output / p)).sum(-1), atol=1e-5)
        after = p[range(6), IDS[1:]]
        np.testing.assert_allclose(here["next_probability"][:-1], after, atol=1e-6)
        np.testing.assert_array_equal(here["next_rank"][:-1], 1 + (p[:6] > after[:, None]).sum(-1))
        assert np.isnan(here["next_rank"][-1])
        assert np.isnan(here["next_probability"][-1])


def test_at_the_last_block_it_is_the_output_of_the_network(model):
    found = logit_lens(model, IDS, "blocks.3.hook_resid_post", top_k=97)
    probabilities = model(IDS[None])[0].softmax(-1)
    top = found["top_probability"][0].double()
    shown = torch.zeros_like(probabilities).scatter(1, found["top_ids"][0], top)
    torch.testing.assert_close(shown, probabilities, atol=1e-6, rtol=0)
    assert found["kl"].eq(0).all()


def test_chunks_of_positions_give_the_same_measures(monkeypatch, model):
    whole = logit_lens(model, IDS)
    monkeypatch.setattr("probekit.analysis.logits._CHUNK", 3)
    for name, values in logit_lens(model, IDS).items():
        torch.testing.assert_close(values, whole[name], equal_nan=True)


def test_rows_have_the_tokens_of_their_site_and_position():
    model, tokenizer, ids = mini("The keys to the old", bos=False)
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
