"""Dropout: in training only, each rate in its place, and the same on both attention paths."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from probekit.activations.capture import capture
from probekit.errors import ConfigError
from probekit.model.families.gpt2 import GPT2
from tests.activations.captures import SITES, last_and_mean, make_tokens
from tests.model.reference import TINY

TOKENS = torch.randint(TINY.vocab_size, (7, 19), generator=torch.Generator().manual_seed(4))
NONE = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
RATES = tuple(NONE)
EXPLICIT = "blocks.*.attn.hook_pattern"


def training_model(**rates):
    model = GPT2(replace(TINY, **(NONE | rates), initializer_range=0.3), seed=1).double()
    return model.train().requires_grad_(False)


def look(site: str, value: Tensor) -> Tensor:
    return value


@pytest.mark.parametrize("rate", RATES)
def test_each_rate_acts_in_training_and_nowhere_else(rate):
    plain, model = training_model(), training_model(**{rate: 0.5})
    assert not torch.equal(model(TOKENS), plain(TOKENS))
    assert torch.equal(model.eval()(TOKENS), plain(TOKENS))


def test_a_new_model_is_in_evaluation_mode():
    model = GPT2(TINY, seed=1)
    assert not model.training
    assert torch.equal(model(TOKENS), model(TOKENS))


@pytest.mark.parametrize("sites", [None, [EXPLICIT]], ids=["fused", "explicit"])
def test_attention_is_dropped_on_both_paths_by_the_same_share(sites):
    """With v all ones, z is the sum of the remaining pattern: mean 1, spread set by p."""
    model, p = training_model(attn_pdrop=0.4), 0.4
    seen = {}

    def ones(site, value):
        seen[site] = value
        return torch.ones_like(value) if site.endswith("hook_v") else value

    asked = ["blocks.0.attn.hook_v", "blocks.0.attn.hook_z", *(sites or [])]
    torch.manual_seed(0)
    model(TOKENS.repeat(60, 1), tap=ones, sites=asked)
    z = seen["blocks.0.attn.hook_z"][..., 0]  # [batch pos n_heads]
    first = z[:, 0]  # a single key with weight 1: scaled by 1 / (1 - p) or dropped
    values = {round(value, 6) for value in first.unique().tolist()}
    assert values == {0.0, round(1 / (1 - p), 6)}
    assert abs((first == 0).double().mean().item() - p) < 0.05
    assert abs(z[:, 10:].mean().item() - 1) < 0.02


@pytest.mark.parametrize(
    ("rate", "site", "also"),
    [
        ("resid_pdrop", "blocks.1.hook_attn_out", "blocks.1.hook_resid_mid"),
        ("resid_pdrop", "blocks.1.hook_mlp_out", "blocks.1.hook_resid_post"),
        ("embd_pdrop", "blocks.0.hook_resid_pre", "blocks.0.ln1.hook_normalized"),
    ],
)
def test_the_share_of_zeros_is_the_rate_and_the_rest_is_scaled(rate, site, also):
    torch.manual_seed(0)
    _, cache = training_model(**{rate: 0.25}).run_with_cache(TOKENS.repeat(20, 1), [site, also])
    _, plain = training_model().run_with_cache(TOKENS.repeat(20, 1), [site])
    kept = cache[site] != 0
    assert abs(kept.double().mean().item() - 0.75) < 0.01
    if rate == "embd_pdrop":  # no dropout before it
        torch.testing.assert_close(cache[site][kept], plain[site][kept] / 0.75)


def test_the_value_at_a_site_is_the_one_that_is_added():
    """Dropout is applied before the site: the residual stream is the sum of the site values."""
    _, cache = training_model(resid_pdrop=0.3).run_with_cache(TOKENS)
    added = cache["resid_pre", 2] + cache["attn_out", 2]
    assert torch.equal(cache["resid_mid", 2], added)


def test_reading_a_site_does_not_change_the_dropout_masks():
    model = training_model(resid_pdrop=0.3, embd_pdrop=0.1)
    torch.manual_seed(5)
    plain = model(TOKENS)
    torch.manual_seed(5)
    assert torch.allclose(model(TOKENS, tap=look, sites=["*"]), plain, atol=1e-12)


def test_capture_from_a_model_in_training_is_refused(tmp_path):
    tokens = make_tokens()
    with pytest.raises(ConfigError, match=r"training mode.*model\.eval\(\)"):
        capture(training_model(), "t", tokens, last_and_mean(tokens), SITES, root=tmp_path)
