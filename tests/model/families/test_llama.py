"""Llama, Mistral and Qwen: formulas of their sites, and what their config.json may contain."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from probekit.errors import CheckpointError, ConfigError
from probekit.model.families.llama import Llama, LlamaConfig
from probekit.model.families.rotary import RotaryPositions, frequencies
from probekit.model.families.table import config_of, from_transformers, model_config
from tests.model.families.configurations import CONFIGURATIONS

TOKENS = torch.tensor([[3, 14, 15, 92, 65, 35, 89]])
ENTRIES = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 11,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
}


@pytest.fixture(
    scope="module",
    params=[row for row in CONFIGURATIONS if row.name in ("llama2 with biases", "llama3", "qwen3")],
    ids=lambda row: row.name,
)
def model(request):
    return from_transformers(request.param.reference(torch.float64))


def rms(x, gain, eps):
    scale = (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()
    return scale, x / scale, x / scale * gain


def rotated(x, frequency):
    """The features as complex numbers, multiplied by exp(i position frequency)."""
    n = len(frequency)
    angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None] * frequency
    turn = torch.polar(torch.ones_like(angles), angles)[None, :, None]
    pairs = torch.complex(x[..., :n], x[..., n : 2 * n]) * turn
    return torch.cat([pairs.real, pairs.imag, x[..., 2 * n :]], -1)


def test_sites_of_a_block_follow_their_formulas(model):
    _, cache = model.run_with_cache(TOKENS)
    block, config, layer = model.layers[1], model.config, 1

    def at(name):
        return cache[f"blocks.{layer}.{name}"]

    def same(name, expected):
        torch.testing.assert_close(at(name), expected, atol=1e-6, rtol=1e-6)

    eps = config.rms_norm_eps
    scale, normalized, x = rms(at("hook_resid_pre"), block.input_layernorm.weight, eps)
    same("ln1.hook_scale", scale)
    same("ln1.hook_normalized", normalized)
    attn, heads = block.self_attn, (-1, config.d_head)
    for name in ("q", "k", "v"):
        module = getattr(attn, f"{name}_proj")
        same(f"attn.hook_{name}", F.linear(x, module.weight, module.bias).unflatten(-1, heads))
    q, k = at("attn.hook_q"), at("attn.hook_k")
    if config.has_norms_of_heads:
        scale, normalized, q = rms(q, attn.q_norm.weight, eps)
        same("attn.q_norm.hook_scale", scale)
        same("attn.q_norm.hook_normalized", normalized)
        k = rms(k, attn.k_norm.weight, eps)[2]
    frequency = frequencies(config.rotary, config.d_head)
    same("attn.hook_rot_q", rotated(q, frequency))
    same("attn.hook_rot_k", rotated(k, frequency))
    group = config.n_heads // config.n_kv_heads
    keys, values = (
        at(f"attn.hook_{name}").repeat_interleave(group, 2).transpose(1, 2)
        for name in ("rot_k", "v")
    )
    scores = at("attn.hook_rot_q").transpose(1, 2) @ keys.mT / config.d_head**0.5
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    same("attn.hook_attn_scores", scores.masked_fill(future, -torch.inf))
    same("attn.hook_pattern", at("attn.hook_attn_scores").softmax(-1))
    same("attn.hook_z", (at("attn.hook_pattern") @ values).transpose(1, 2))
    same(
        "hook_attn_out",
        F.linear(at("attn.hook_z").flatten(2), attn.o_proj.weight, attn.o_proj.bias),
    )
    same("hook_resid_mid", at("hook_resid_pre") + at("hook_attn_out"))
    y = rms(at("hook_resid_mid"), block.post_attention_layernorm.weight, eps)[2]
    mlp = block.mlp
    same("mlp.hook_pre", F.linear(y, mlp.gate_proj.weight, mlp.gate_proj.bias))
    same("mlp.hook_pre_linear", F.linear(y, mlp.up_proj.weight, mlp.up_proj.bias))
    same("mlp.hook_post", F.silu(at("mlp.hook_pre")) * at("mlp.hook_pre_linear"))
    same("hook_mlp_out", F.linear(at("mlp.hook_post"), mlp.down_proj.weight, mlp.down_proj.bias))


def test_tensors_of_a_loaded_model_are_shared():
    reference = CONFIGURATIONS[0].reference()
    ours = from_transformers(reference)
    theirs = reference.state_dict()
    for name, tensor in ours.state_dict().items():
        other = theirs.get(f"model.{name}", theirs.get(name))
        assert tensor.data_ptr() == other.data_ptr(), name


def test_components_are_the_parameters(model):
    shapes = {name: tensor.numel() for name, tensor in model.state_dict().items()}
    counted = {}
    for component in model.config.components:
        layers = range(model.config.n_layers) if component.in_block else [0]
        for layer in layers:
            counted |= dict.fromkeys(
                name.format(l=layer) for name in component.tensors(model.config)
            )
    assert counted.keys() == shapes.keys()


def test_random_weights_follow_the_seed():
    config = LlamaConfig(**{k: v for k, v in ENTRIES.items() if k != "hidden_act"})
    first, again, other = (Llama(config, seed) for seed in (1, 1, 2))
    assert torch.equal(first(TOKENS), again(TOKENS))
    assert not torch.equal(first(TOKENS), other(TOKENS))
    norms = [module for module in first.modules() if type(module).__name__ == "RMSNorm"]
    assert len(norms) == 7
    assert all(bool((norm.weight == 1).all()) for norm in norms)


def read(entries):
    return config_of(ENTRIES | entries, "config.json")


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_config_survives_its_json(kind):
    config = read({"model_type": kind, "rope_theta": 5e5})
    again = config_of(json.loads(json.dumps(config.to_json())))
    assert again == config
    assert again.rotary.rope_theta == 5e5


def test_both_spellings_of_rotary_scaling_are_read():
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    old = read({"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **scaling}})
    new = read({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **scaling}})
    assert old == new
    linear = {"type": "linear", "factor": 2.0}
    assert read({"rope_scaling": linear}).rotary == RotaryPositions(rope_type="linear", factor=2.0)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"model_type": "mixtral"}, r"'mixtral'.*GPT-2 \(gpt2\), Llama \(llama, mistral"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'. Allowed: 'silu'"),
        ({"logit_scale": 0.5}, "unknown key 'logit_scale' with the value 0.5"),
        ({"sliding_window": 4}, "unknown key 'sliding_window'"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "rope_type is 'yarn'"),
        ({"rope_scaling": {"type": "linear", "factr": 4}}, "Unknown key 'factr'.*factor"),
        ({"rope_scaling": {"type": "linear"}}, "factor .* must be a positive number, not None"),
        ({"num_key_value_heads": 4}, "num_key_value_heads=4 does not divide"),
        ({"hidden_size": 25}, "does not divide hidden_size=25"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"model_type": "qwen2", "layer_types": ["chunked"] * 3}, "layer_types must be a list of"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a number between 0 and 1"),
        ({"eos_token_id": -1}, "eos_token_id is -1. Allowed: null, or integers from 0"),
        ({"eos_token_id": [1, 10**30]}, "eos_token_id is"),
        ({"bos_token_id": "<s>"}, "bos_token_id is '<s>'"),
        ({"rope_theta": 10**400}, "rope_theta .* must be a positive number"),
        ({"rope_theta": 1e400}, "rope_theta .* must be a positive number, not inf"),
        ({"rope_scaling": {"rope_type": {}}}, "rope_type is {}"),
        ({"rope_scaling": {"type": [1]}}, r"rope_type is \[1\]"),
        ({"model_type": "qwen2", "layer_types": 5}, "layer_types must be a list of"),
        ({"model_type": "qwen2", "layer_types": [[]] * 3}, "layer_types must be a list of"),
        ({"model_type": "qwen2", "max_window_layers": []}, "max_window_layers must be a number"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path, entries, message):
    (tmp_path / "config.json").write_text(json.dumps(ENTRIES | entries))
    with pytest.raises(CheckpointError, match=message):
        model_config(tmp_path)


def test_keys_without_a_value_change_nothing():
    assert read({"logit_scale": None, "rope_scaling": None}) == read({})


def test_a_selector_of_heads_names_the_one_to_use(model):
    with pytest.raises(ConfigError, match=r"Write \[kv_head=1\]"):
        model.sites.select(["blocks.0.attn.hook_k[head=1]"])


def test_the_final_norm_is_not_centred(model):
    resid = torch.randn(2, 24, dtype=torch.float64)
    norm = nn.RMSNorm(24, model.config.norm_epsilon, dtype=torch.float64)
    norm.weight = nn.Parameter(model.final_norm_gain)
    torch.testing.assert_close(model.final_norm(resid), norm(resid))
