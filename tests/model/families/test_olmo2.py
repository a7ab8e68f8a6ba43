"""OLMo 2: formulas of its sites, and what its config.json may contain."""

import json

import pytest
import torch
import torch.nn.functional as F

from probekit.errors import CheckpointError
from probekit.model.families.olmo2 import OLMo2Config
from probekit.model.families.rotary import RotaryPositions, frequencies
from probekit.model.families.table import config_of, from_transformers, model_config
from tests.model.families.configurations import CONFIGURATIONS
from tests.model.families.test_llama import rotated

TOKENS = torch.tensor([[3, 14, 15, 92, 65, 35, 89]])
ROWS = [row for row in CONFIGURATIONS if row.model_type == "olmo2"]
# config.json of allenai/OLMo-2-1124-7B
OLMO2_7B = {
    "architectures": ["Olmo2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 100257,
    "eos_token_id": 100257,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "olmo2",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pad_token_id": 100277,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 500000,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "transformers_version": "4.47.0.dev0",
    "use_cache": False,
    "vocab_size": 100352,
}


@pytest.fixture(scope="module", params=ROWS, ids=lambda row: row.name)
def model(request):
    return from_transformers(request.param.reference(torch.float64))


def test_sites_of_a_block_follow_their_formulas(model):
    _, cache = model.run_with_cache(TOKENS)
    block, config = model.layers[1], model.config
    group = config.n_heads // config.n_kv_heads

    def at(name):
        return cache[f"blocks.1.{name}"]

    def same(name, expected):
        torch.testing.assert_close(at(name), expected, atol=1e-6, rtol=1e-6)

    def norm(x, module, name):
        """Over all features of a token, whatever their axes."""
        flat = x.flatten(2)
        scale = (flat.square().mean(-1, keepdim=True) + config.rms_norm_eps).sqrt()
        same(f"{name}.hook_scale", scale)
        same(f"{name}.hook_normalized", (flat / scale).view(x.shape))
        return (flat / scale * module.weight).view(x.shape)

    attn, pre = block.self_attn, at("hook_resid_pre")
    for name in "qkv":
        linear = getattr(attn, f"{name}_proj")
        flat = F.linear(pre, linear.weight, linear.bias)
        same(f"attn.hook_{name}", flat.unflatten(-1, (-1, config.d_head)))
    frequency = frequencies(config.rotary, config.d_head)
    for name in "qk":
        normed = norm(at(f"attn.hook_{name}"), getattr(attn, f"{name}_norm"), f"attn.{name}_norm")
        same(f"attn.hook_rot_{name}", rotated(normed, frequency))
    q, k, v = (at(f"attn.hook_{name}").transpose(1, 2) for name in ("rot_q", "rot_k", "v"))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    same("attn.hook_attn_scores", (q @ k.mT / config.d_head**0.5).masked_fill(future, -torch.inf))
    same("attn.hook_pattern", at("attn.hook_attn_scores").softmax(-1))
    same("attn.hook_z", (at("attn.hook_pattern") @ v).transpose(1, 2))
    heads_out = F.linear(at("attn.hook_z").flatten(2), attn.o_proj.weight, attn.o_proj.bias)
    same("hook_attn_out", norm(heads_out, block.post_attention_layernorm, "ln1_post"))
    mid = pre + at("hook_attn_out")
    same("hook_resid_mid", mid)
    same("mlp.hook_pre", F.linear(mid, block.mlp.gate_proj.weight))
    same("mlp.hook_pre_linear", F.linear(mid, block.mlp.up_proj.weight))
    same("mlp.hook_post", F.silu(at("mlp.hook_pre")) * at("mlp.hook_pre_linear"))
    neurons_out = F.linear(at("mlp.hook_post"), block.mlp.down_proj.weight)
    same("hook_mlp_out", norm(neurons_out, block.post_feedforward_layernorm, "ln2_post"))
    same("hook_resid_post", mid + at("hook_mlp_out"))


def test_components_are_the_parameters(model):
    layers = range(model.config.n_layers)
    counted = {
        name.format(l=layer)
        for component in model.config.components
        for layer in (layers if component.in_block else [0])
        for name in component.tensors(model.config)
    }
    assert counted == model.state_dict().keys()


def test_the_published_config_is_read():
    config = config_of(OLMO2_7B)
    assert config == OLMo2Config(
        vocab_size=100352,
        num_key_value_heads=32,
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        rotary=RotaryPositions(rope_theta=500000),
    )
    assert config.eos_token_id == 100257


def test_a_config_survives_its_json():
    config = config_of(OLMO2_7B | {"num_key_value_heads": 8, "attention_bias": True})
    assert config_of(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'. Allowed: 'silu'"),
        ({"num_key_value_heads": 5}, "num_key_value_heads=5 does not divide"),
        ({"num_attention_heads": 7}, "num_attention_heads=7 does not divide hidden_size=4096"),
        ({"attention_bias": "no"}, "attention_bias must be true or false"),
        ({"clip_qkv": 8.0}, "unknown key 'clip_qkv'"),
        ({"head_dim": 64}, "unknown key 'head_dim'"),
        ({"sliding_window": 4096}, "unknown key 'sliding_window'"),
        ({"rope_scaling": {"type": "yarn", "factor": 2}}, "rope_type is 'yarn'"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a number between 0 and 1"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path, entries, message):
    (tmp_path / "config.json").write_text(json.dumps(OLMO2_7B | entries))
    with pytest.raises(CheckpointError, match=message):
        model_config(tmp_path)
