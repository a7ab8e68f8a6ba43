"""The parts are those of the network, and their sum is the logit."""

import pytest
import torch

from probekit.analysis.logits import logit_attribution
from probekit.errors import ConfigError, DataError
from probekit.model.gpt2 import GPT2
from probekit.model.load import from_transformers
from probekit.model.text.tokenizer import Tokenizer
from tests.model.families.configurations import TYPICAL, rows
from tests.model.reference import TINY, our_model, reference_model

IDS = torch.tensor([3, 14, 15, 92, 6, 5, 35])
TEXT = "The old key near the dark windows was on the table, and nobody had seen it there before."


@pytest.fixture(scope="module")
def model():
    """A float64 model whose every parameter is random, biases and norms included."""
    return our_model(reference_model(TINY, torch.float64), TINY).double().requires_grad_(False)


def values(found, part):
    return found.rows.loc[found.rows["part"] == part, "value"].tolist()


@pytest.mark.parametrize(
    "choice", [{}, {"minus": 5}, {"minus_mean": True}], ids=["alone", "less a token", "less all"]
)
@pytest.mark.parametrize("position", [0, 4, -1])
def test_the_parts_sum_to_the_logit(model, choice, position):
    found = logit_attribution(model, IDS, 41, position=position, **choice)
    logits = model(IDS[None])[0, position]
    less = {"minus": logits[5], "minus_mean": logits.mean()}
    expected = float(logits[41] - (less[next(iter(choice))] if choice else 0))
    assert found.logit == pytest.approx(expected, abs=1e-12)
    assert found.rows["value"].sum() == pytest.approx(expected, abs=1e-10)
    assert found.remainder == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("row", rows(TYPICAL), ids=lambda row: row.name)
def test_the_parts_sum_to_the_logit_in_every_family(row):
    model = from_transformers(row.reference(torch.float64))
    for minus in (None, 11):
        attribution = logit_attribution(model, torch.tensor([3, 14, 15, 92]), 7, minus=minus)
        assert abs(attribution.remainder) < 1e-12


def test_contributions_are_those_of_the_sites_under_the_final_scale(model):
    found = logit_attribution(model, IDS, 41, minus=5)
    _, cache = model.run_with_cache(IDS[None], ["*", "blocks.*.attn.hook_result"])
    towards = (model.wte.weight[41] - model.wte.weight[5]) * model.ln_f.weight

    def read(resid):
        return float((resid - resid.mean()) / cache["ln_final.hook_scale"][0, -1] @ towards)

    assert values(found, "embed") == [pytest.approx(read(cache["hook_embed"][0, -1]))]
    assert values(found, "pos_embed") == [pytest.approx(read(cache["hook_pos_embed"][0, -1]))]
    heads = found.rows[found.rows["part"] == "head"].set_index(["layer", "head"])["value"]
    assert len(heads) == 12
    for layer in range(4):
        for head in range(3):
            own = cache["result", layer][0, -1, head]
            assert heads[layer, head] == pytest.approx(read(own)), (layer, head)
        assert values(found, "mlp")[layer] == pytest.approx(read(cache["mlp_out", layer][0, -1]))
        bias = model.h[layer].attn.c_proj.bias
        assert values(found, "attn_bias")[layer] == pytest.approx(read(bias))


def test_in_float32_the_remainder_is_small_at_every_position():
    model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    ids = torch.from_numpy(tokenizer.encode(TEXT, bos=True).ids)
    for position in range(len(ids)):
        for choice in ({}, {"minus": 1000}, {"minus_mean": True}):
            found = logit_attribution(model, ids, 300, position=position, **choice)
            assert abs(found.remainder) < 1e-4


def test_later_tokens_change_nothing(model):
    whole = logit_attribution(model, IDS, 41, position=3)
    cut = logit_attribution(model, IDS[:4], 41)
    assert whole.rows["value"].tolist() == pytest.approx(cut.rows["value"].tolist())


def test_a_model_with_gradients_is_accepted():
    found = logit_attribution(GPT2(TINY, seed=1), IDS, 41)
    assert abs(found.remainder) < 1e-5


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"token": 97}, "0 to 96"),
        ({"token": -1}, "0 to 96"),
        ({"token": 4, "minus": 97}, "0 to 96"),
        ({"token": 4, "minus": 5, "minus_mean": True}, "not both"),
        ({"token": 4, "position": 7}, "0 to 6, or -7 to -1"),
        ({"token": 4, "position": -8}, "0 to 6, or -7 to -1"),
    ],
)
def test_mistakes_are_refused(model, choice, message):
    with pytest.raises(ConfigError, match=message):
        logit_attribution(model, IDS, **choice)


def test_a_text_without_tokens_is_refused(model):
    with pytest.raises(DataError, match="pos at least 1"):
        logit_attribution(model, IDS[:0], 4)
