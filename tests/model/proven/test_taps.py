"""Passes with taps, and the states in which models are loaded."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.tiny_networks import tiny_network
from probekit.model.proven.doors import NotProvenError, apart_rows, same
from probekit.model.proven.proof import prove

MID, Z, POST = "blocks.2.hook_resid_mid", "blocks.1.attn.hook_z", "blocks.3.hook_resid_post"


def ids_of(*shape):
    return torch.randint(20, 98, shape, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def llama():
    return prove(tiny_network("llama"))


def features(proven):
    return {name for name in proven.refused if not name.startswith("blocks.")}


def test_a_tap_gets_and_replaces_values(llama):
    ids, seen = ids_of(2, 7), []

    def ablate(name, value):
        seen.append(name)
        return torch.zeros_like(value) if name == Z else value

    logits, cache = llama.run(ids, sites=[MID, Z, POST], tap=ablate, check=True)
    assert seen == [Z, MID, POST]
    assert not cache[Z].any()
    clean, values = llama.run(ids, sites=[MID, Z, POST])
    assert values[Z].shape == (2, 7, 4, 8)
    assert apart_rows(cache[MID], values[MID]) > 1e-3
    assert same(llama.unembed(cache[POST]), logits)
    assert not same(logits, clean)


def test_a_pass_without_logits_ends_after_the_last_site(llama):
    calls = []
    handle = llama.modules["model.layers.3"].register_forward_hook(lambda *_: calls.append(1))
    logits, cache = llama.run(ids_of(1, 5), sites=[MID], logits=False)
    handle.remove()
    assert logits is None
    assert set(cache) == {MID}
    assert not calls


def test_a_site_that_is_not_proven_is_refused(llama):
    with pytest.raises(NotProvenError, match=r"blocks\.0\.hook_mixer_out is not proven"):
        llama.run(ids_of(1, 5), sites=["blocks.0.hook_mixer_out"])
    with pytest.raises(NotProvenError, match="is not proven in a generation"):
        llama.run(None, sites=["blocks.0.attn.hook_pattern"], via=lambda: None)


def test_values_of_a_generation_are_joined(llama):
    ids, written = ids_of(1, 5), []

    def steer(_, value):
        written.append(value.shape[1])
        return value + 1

    def generate():
        return llama.model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0)

    new, cache = llama.run(None, sites=[MID], tap=steer, via=generate, check=True)
    assert written == [5, 1, 1]
    _, whole = llama.run(new[:, :-1], sites=[MID], tap=lambda _, value: value + 1)
    assert apart_rows(cache[MID], whole[MID]) < 1e-5


def test_gradients_flow_to_every_requested_site(llama):
    logits, cache = llama.run(ids_of(1, 5), sites=llama.sites, grad=True)
    slopes = torch.autograd.grad(logits.sum(), list(cache.values()))
    assert all(slope.any() for slope in slopes)


@pytest.mark.parametrize("model_type", ["llama", "minicpm3", "falcon", "falcon_h1"])
def test_a_tap_that_only_reads_changes_no_bit(model_type):
    proven = prove(tiny_network(model_type))
    ids = ids_of(2, 7)
    clean, values = proven.run(ids, sites=proven.sites)
    for given in ({"grad": True}, {"tap": lambda _, value: value.clone()}):
        logits, cache = proven.run(ids, sites=proven.sites, check=True, **given)
        assert same(logits, clean)
        assert all(same(cache[site], values[site]) for site in cache)


def test_checks_allow_writes_at_every_site(llama):
    ids = ids_of(2, 7)
    for site in llama.sites:
        llama.run(ids, sites=[site], tap=lambda _, value: value * 1.5, check=True)


def test_output_maps_that_are_added_without_a_norm(llama):
    assert llama.direct == llama.linears.keys() == {(n, k) for n in range(4) for k in ("z", "post")}
    assert not prove(tiny_network("gemma3_text")).direct


def test_training_mode_is_restored_and_not_used():
    model = tiny_network("gpt2").train()  # with dropout
    model.transformer.h[1].eval()
    before = [module.training for module in model.modules()]
    proven = prove(model)
    ids = ids_of(1, 5)
    logits, _ = proven.run(ids, sites=[POST])
    assert [module.training for module in model.modules()] == before
    assert not features(proven)
    assert same(logits, model.eval()(ids).logits)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.compile
def test_wrappers_are_removed(llama):
    model = llama.model
    assert prove(torch.compile(model), sites=()).model is model
    assert prove(nn.DataParallel(model), sites=()).model is model


def test_gradient_checkpointing_changes_nothing():
    model = tiny_network("llama").train()
    model.activation_checkpointing_enable()
    assert not prove(model).refused


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    proven = prove(tiny_network("gemma3_text").to(dtype))
    assert features(proven) == {"gradients"}
    assert len(proven.sites) == 4 * 11


def test_float64():
    """transformers 5 gives NaN at left padding, and every later token attends to it a little."""
    assert features(prove(tiny_network("llama").double())) <= {"padding on the left"}


class Adapter(nn.Module):
    """A low-rank adapter next to a linear map, as libraries of adapters insert it."""

    def __init__(self, base):
        super().__init__()
        self.base_layer = base
        self.a = nn.Linear(base.in_features, 2, bias=False)
        self.b = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.b(self.a(x))


def test_an_adapter_is_part_of_the_output_map():
    model = tiny_network("llama")
    torch.manual_seed(1)
    for block in model.model.layers:
        block.mlp.down_proj = Adapter(block.mlp.down_proj)
        block.self_attn.o_proj = Adapter(block.self_attn.o_proj)
        block.self_attn.q_proj = Adapter(block.self_attn.q_proj)
    proven = prove(model)
    assert not proven.refused
    assert proven.linears[1, "post"] == "model.layers.1.mlp.down_proj"
    assert proven.linears[1, "z"] == "model.layers.1.self_attn.o_proj"


class Packed(nn.Module):
    """A linear map with 8-bit weights and a scale per row."""

    def __init__(self, linear):
        super().__init__()
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("packed", (linear.weight.detach() / scale).round().to(torch.int8))

    def forward(self, x):
        return F.linear(x, self.packed * self.scale)


def test_quantised_maps_are_proven_as_they_compute():
    model = tiny_network("llama")
    for block in model.model.layers:
        block.mlp.down_proj = Packed(block.mlp.down_proj)
        block.self_attn.o_proj = Packed(block.self_attn.o_proj)
    assert not prove(model).refused


def test_weights_that_are_not_in_memory_are_refused():
    model = tiny_network("llama")
    model.model.layers[1].mlp.to("meta")
    assert "meta device" in prove(model).refused["all"]


def test_a_multimodal_model_is_proven_as_a_model_of_texts():
    proven = prove(tiny_network("gemma3"))
    assert not proven.refused
    assert proven.config.model_type == "gemma3_text"
    assert proven.list_name == "model.language_model.layers"


def test_fused_attention_has_no_pattern():
    proven = prove(tiny_network("llama", "sdpa"))
    assert features(proven) == {"patterns"}
    kinds = set(proven.sites.values())
    assert "attn.hook_pattern" not in kinds
    assert {"attn.hook_rot_q", "attn.hook_z"} <= kinds


def test_only_wanted_sites_are_proven():
    model = tiny_network("llama")
    some = prove(model, sites=["hook_mlp_out", "blocks.1.attn.hook_z"])
    streams = {"hook_resid_pre", "hook_resid_post"}
    assert set(some.sites.values()) == {*streams, "hook_mlp_out", "attn.hook_z"}
    assert [s for s in some.sites if "hook_z" in s] == ["blocks.1.attn.hook_z"]


class Progress:
    def __init__(self):
        self.steps = []

    def progress(self, step, done, total):
        self.steps.append((step, done, total))


def test_progress_is_reported():
    watcher = Progress()
    prove(tiny_network("llama"), watcher=watcher)
    names, done, totals = zip(*watcher.steps, strict=True)
    assert set(names) == {"proof"}
    assert list(done) == sorted(done)
    assert (done[0], done[-1]) == (0, totals[0])
    assert any(one % 1 > 0 for one in done)  # the part with the writes has steps of its own
