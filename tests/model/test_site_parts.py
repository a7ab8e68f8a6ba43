"""Taps at single heads and neurons."""

import pytest
import torch

from probekit.errors import ConfigError, UnknownNameError
from probekit.model.families.gpt2 import GPT2, GPT2Config
from probekit.model.generation import generate
from probekit.model.passes.cache import Recording
from tests.model.gpt2_sites import describe

TOKENS = torch.tensor([[3, 14, 15, 92, 65], [35, 89, 79, 32, 38]])
HEAD, NEURON = "blocks.1.attn.hook_z[head=2]", "blocks.2.mlp.hook_post[neuron=10]"


@pytest.fixture(scope="module")
def model():
    config = GPT2Config(n_layer=4, n_head=3, n_embd=21, n_inner=11, vocab_size=97, n_positions=16)
    return GPT2(config).requires_grad_(False)


def test_a_captured_part_is_that_part_of_the_whole_site(model):
    names = [HEAD, NEURON, "blocks.0.attn.hook_pattern[head=1]"]
    logits, parts = model.run_with_cache(TOKENS, names)
    # Attention is fused or not in both passes.
    plain, whole = model.run_with_cache(TOKENS, [("z", 1), ("post", 2), ("pattern", 0)])
    assert list(parts) == [names[2], names[0], names[1]]
    assert torch.equal(parts[HEAD], whole["z", 1][:, :, 2])
    assert torch.equal(parts[NEURON], whole["post", 2][..., 10])
    assert torch.equal(parts[names[2]], whole["pattern", 0][:, 1])
    assert torch.equal(logits, plain)


def test_a_cache_of_a_whole_site_contains_its_parts(model):
    _, cache = model.run_with_cache(TOKENS)
    assert torch.equal(cache[HEAD], cache["z", 1][:, :, 2])
    assert torch.equal(cache["z[head=2]", -3], cache[HEAD])
    every = cache.stack("blocks.1.attn.hook_z[head=*]")
    assert torch.equal(every, cache["z", 1].permute(2, 0, 1, 3))
    assert torch.equal(cache["pattern", -1], cache["pattern", 3])
    _, few = model.run_with_cache(TOKENS, [HEAD])
    with pytest.raises(UnknownNameError, match=r"hook_z\[head=1\]\. Nearest: .*\[head=2\]"):
        few["blocks.1.attn.hook_z[head=1]"]
    with pytest.raises(UnknownNameError, match="does not contain"):
        few[NEURON]


@pytest.mark.parametrize(("name", "axis", "index"), [(HEAD, 2, 2), (NEURON, 2, 10)])
def test_a_change_of_a_part_equals_that_change_of_the_whole_site(model, name, axis, index):
    def zero_in_whole(_, value):
        value.select(axis, index).zero_()
        return value

    expected = model(TOKENS, tap=zero_in_whole, sites=name.partition("[")[0])
    assert not torch.equal(expected, model(TOKENS))
    assert torch.equal(model(TOKENS, tap=lambda _, v: v * 0, sites=name), expected)
    in_place = model(TOKENS, tap=lambda _, v: v.zero_(), sites=name)
    assert torch.equal(in_place, expected)


def test_whole_sites_come_before_their_parts_and_all_changes_count(model):
    seen = []

    def add(site, value):
        seen.append(site)
        return value + 1

    parts = ["blocks.1.attn.hook_z[head=0,2]", "blocks.1.attn.hook_z"]
    changed = model(TOKENS, tap=add, sites=parts)
    z = "blocks.1.attn.hook_z"
    assert seen == [z, f"{z}[head=0]", f"{z}[head=2]"]
    steps = torch.tensor([2.0, 1.0, 2.0])[:, None]
    expected = model(TOKENS, tap=lambda _, value: value + 1 + (steps - 1), sites=z)
    torch.testing.assert_close(changed, expected)


def test_gradients_flow_through_a_part(model):
    logits, cache = model.run_with_cache(TOKENS, [HEAD], grad=True)
    (own,) = torch.autograd.grad(logits[0, -1, 5], cache[HEAD])
    whole_logits, whole = model.run_with_cache(TOKENS, [("z", 1)], grad=True)
    (expected,) = torch.autograd.grad(whole_logits[0, -1, 5], whole["z", 1])
    torch.testing.assert_close(own, expected[:, :, 2])
    assert own.abs().sum() > 0


def test_generation_records_parts(model):
    record = Recording()
    names = [HEAD, "blocks.0.attn.hook_pattern[head=1]"]
    new = generate(model, TOKENS, 3, tap=record, sites=names)
    _, cache = model.run_with_cache(torch.cat([TOKENS, new[:, :-1]], 1), names)
    recorded = record.cache(model.sites)
    for name in names:
        torch.testing.assert_close(recorded[name], cache[name])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("blocks.0.attn.hook_z[head=3]", "integer from 0 to 2"),
        ("blocks.0.hook_resid_post[head=0]", "has no heads"),
        ("blocks.0.attn.hook_z[nose=0]", "unknown axis"),
    ],
)
def test_impossible_parts_are_refused(model, name, message):
    with pytest.raises(ConfigError, match=message):
        model.run_with_cache(TOKENS, [name])


def test_a_tap_that_returns_another_shape_is_refused(model):
    with pytest.raises(ConfigError, match=r"\(2, 5, 3\) and .*hook_z\[head=2\].*\(2, 5, 7\)"):
        model(TOKENS, tap=lambda _, value: value[..., :3], sites=HEAD)


def test_axes_of_a_part_lack_the_selected_one():
    assert (
        GPT2Config().sites.axes_of("blocks.0.attn.hook_z") == describe("blocks.0.attn.hook_z").axes
    )
    assert GPT2Config().sites.axes_of(NEURON) == ("batch", "pos")


def test_functions_of_the_name_select_sites_of_a_pass(model):
    _, cache = model.run_with_cache(TOKENS, sites=lambda name: name.endswith("resid_post"))
    assert list(cache) == [f"blocks.{layer}.hook_resid_post" for layer in range(4)]
    assert cache.stack(lambda name: "post" in name).shape == (4, 2, 5, 21)


def test_what_is_no_pattern_is_refused(model):
    _, cache = model.run_with_cache(TOKENS, ["hook_embed"])
    with pytest.raises(UnknownNameError, match=r"No site matches 3\. Give a name, a glob"):
        _ = cache[3]
    with pytest.raises(UnknownNameError, match=r"No site matches None\. Give a name, a glob"):
        model.run_with_cache(TOKENS, ["hook_embed", None])


def test_number_is_no_pattern(model):
    with pytest.raises(UnknownNameError, match=r"No site matches 5\. Give a name"):
        model.run_with_cache(TOKENS, 5)
