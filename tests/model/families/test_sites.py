"""Sites of the networks of every family: shapes, gradients, and heads."""

import pytest
import torch

from probekit.errors import ConfigError
from probekit.model import network
from probekit.model.families.from_transformers import from_transformers
from probekit.model.families.table import random_network
from tests.model.families.configurations import CONFIGURATIONS, by_day

TOKENS = torch.tensor([[3, 14, 15, 92, 65, 35, 89], [79, 32, 38, 46, 26, 43, 38]])


@pytest.fixture(scope="module", params=by_day(CONFIGURATIONS))
def model(request):
    return from_transformers(request.param.reference(torch.float64))


@pytest.fixture(scope="module")
def values(model):
    return model.run_with_cache(TOKENS, ["*", "blocks.*.attn.hook_result"])[1]


def test_every_site_is_reached_once_in_the_order_of_the_table(model):
    seen = []
    model(TOKENS, tap=lambda site, value: seen.append(site) or value, sites=list(model.sites))
    assert tuple(seen) == model.sites.names


def test_shapes_are_those_of_the_table(model, values):
    sizes = model.axis_sizes | {"batch": 2, "pos": 7, "query_pos": 7, "key_pos": 7}
    for site in model.sites:
        expected = tuple(sizes[axis] for axis in model.sites.describe(site).axes)
        assert tuple(values[site].shape) == expected, site


def test_reading_sites_changes_no_bit(model):
    by_site = [site for site in model.sites if "attn_scores" not in site and "pattern" not in site]
    read = model(TOKENS, tap=lambda _, value: value, sites=by_site)
    assert torch.equal(read, model(TOKENS))


def test_an_edit_at_every_site_changes_the_loss_by_the_gradient(model, values):
    """A value that is read is the value that a write changes: derivatives by edits and autograd."""
    sites, generator = list(model.sites), torch.Generator().manual_seed(2)
    logits, cache = model.run_with_cache(TOKENS, sites, grad=True)
    gradients = torch.autograd.grad(logits.logsumexp(-1).sum(), [cache[site] for site in sites])
    for site, gradient in zip(sites, gradients, strict=True):
        direction = torch.randn(values[site].shape, generator=generator, dtype=torch.float64)
        steps = 1e-6 * torch.cat([direction, -direction])
        edited = model(TOKENS.repeat(2, 1), tap=lambda _, x, steps=steps: x + steps, sites=[site])
        up, down = edited.logsumexp(-1).view(2, -1).sum(1)
        expected = (gradient.nan_to_num() * direction).sum().item()
        by_edits = ((up - down) / 2e-6).item()
        assert by_edits == pytest.approx(expected, rel=1e-4, abs=1e-6), site


def test_an_edit_in_place_equals_one_of_a_copy(model):
    sites = list(model.sites)
    in_place = model(TOKENS, tap=lambda _, x: x.mul_(0.9), sites=sites)
    assert torch.equal(in_place, model(TOKENS, tap=lambda _, x: x * 0.9, sites=sites))


def test_parts_of_a_site(model, values):
    n_kv, n_heads = model.config.n_kv_heads, model.config.n_heads
    axes = model.sites.describe("blocks.1.attn.hook_k").axes
    selector = "kv_head" if "n_kv_heads" in axes else "head"
    key = f"blocks.1.attn.hook_k[{selector}={n_kv - 1}]"
    head = f"blocks.1.attn.hook_z[head={n_heads - 1}]"
    if selector == "kv_head":
        with pytest.raises(ConfigError, match=r"Write \[kv_head=1\]"):
            model.sites.select(["blocks.0.attn.hook_k[head=1]"])
    _, cache = model.run_with_cache(TOKENS, [key, head])
    torch.testing.assert_close(cache[key], values["blocks.1.attn.hook_k"][:, :, -1])
    torch.testing.assert_close(cache[head], values["blocks.1.attn.hook_z"][:, :, -1])


def test_the_gain_of_a_norm_after_attention_is_known(model, values):
    """Attribution to heads relies on it."""
    gain = model.attention_norm_gain(1)
    assert (gain is not None) == ("blocks.1.ln1_post.hook_scale" in model.sites)
    if gain is not None:
        attn_out = values["blocks.1.ln1_post.hook_normalized"] * gain
        torch.testing.assert_close(values["blocks.1.hook_attn_out"], attn_out)


def test_the_stream_is_the_sum_of_its_parts(model, values):
    for layer in range(model.config.n_layers):
        parts = ("attn_out", "mlp_out")
        total = values["resid_pre", layer] + sum(values[part, layer] for part in parts)
        torch.testing.assert_close(total, values["resid_post", layer])
        weight, bias = model.head_output(layer)
        result = values["result", layer].sum(2)
        direct = values["z", layer].flatten(2) @ weight.T
        torch.testing.assert_close(result, direct)
        assert bias is None or bias.shape == (model.config.d_model,)


def test_random_weights_in_parts_and_in_another_dtype_are_the_same_draws(model, monkeypatch):
    whole = random_network(model.config, seed=1).to(torch.bfloat16)
    monkeypatch.setattr(network, "_DRAWN_AT_ONCE", 32)
    in_parts = random_network(model.config, seed=1, dtype=torch.bfloat16).state_dict()
    for name, weight in whole.state_dict().items():
        assert torch.equal(in_parts[name], weight), name


def test_random_weights_follow_the_seed_and_gains_are_one(model):
    state = torch.get_rng_state()
    first, again, other = (random_network(model.config, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first(TOKENS), again(TOKENS))
    assert not torch.equal(first(TOKENS), other(TOKENS))
    assert bool((first.last_norm.gain == 1).all())
    for name, parameter in first.named_parameters():
        if parameter.ndim == 1:
            is_one = name.endswith("weight") and type(first).__name__ != "Gemma"
            assert bool((parameter == is_one).all()), name


def test_components_are_the_parameters(model):
    layers = range(model.config.n_layers)
    counted = {
        name.format(l=layer, e=expert)
        for component in model.config.components
        for layer in (component.layers or layers if component.in_block else [0])
        for expert in range(model.axis_sizes.get("n_experts", 1))
        for name in component.tensors(model.config)
    }
    assert counted == model.state_dict().keys()
