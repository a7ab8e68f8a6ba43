"""Pythia and GPT-NeoX: formulas of their sites, and what their config.json may contain."""

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from probekit.errors import CheckpointError
from probekit.model.families.neox import NeoXConfig
from probekit.model.families.rotary import RotaryPositions, frequencies
from probekit.model.families.table import config_of, from_transformers, load_model, model_config
from tests.model.families.configurations import CONFIGURATIONS
from tests.model.families.test_llama import rotated

TOKENS = torch.tensor([[3, 14, 15, 92, 65, 35, 89]])
ROWS = [row for row in CONFIGURATIONS if row.model_type == "gpt_neox"]
# config.json of EleutherAI/pythia-70m
PYTHIA = {
    "architectures": ["GPTNeoXForCausalLM"],
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_act": "gelu",
    "hidden_size": 512,
    "initializer_range": 0.02,
    "intermediate_size": 2048,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 8,
    "num_hidden_layers": 6,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.24.0",
    "use_cache": True,
    "use_parallel_residual": True,
    "vocab_size": 50304,
}


@pytest.fixture(scope="module", params=ROWS, ids=lambda row: row.name)
def model(request):
    return from_transformers(request.param.reference(torch.float64))


def test_sites_of_a_block_follow_their_formulas(model):
    _, cache = model.run_with_cache(TOKENS)
    block, config, layer = model.layers[1], model.config, 1

    def at(name):
        return cache[f"blocks.{layer}.{name}"]

    def same(name, expected):
        torch.testing.assert_close(at(name), expected, atol=1e-6, rtol=1e-6)

    def norm(x, module, name):
        scale = (x.var(-1, correction=0, keepdim=True) + config.layer_norm_eps).sqrt()
        same(f"{name}.hook_scale", scale)
        same(f"{name}.hook_normalized", (x - x.mean(-1, keepdim=True)) / scale)
        return F.layer_norm(x, x.shape[-1:], module.weight, module.bias, config.layer_norm_eps)

    attn, pre = block.attention, at("hook_resid_pre")
    x = norm(pre, block.input_layernorm, "ln1")
    # The checkpoint lists query, key and value of one head before those of the next.
    weight = attn.query_key_value.weight.view(config.n_heads, 3, config.d_head, -1)
    bias = attn.query_key_value.bias
    bias = torch.zeros(weight.shape[:3]).double() if bias is None else bias.view(weight.shape[:3])
    for number, name in enumerate("qkv"):
        expected = torch.einsum("bpm,ndm->bpnd", x, weight[:, number]) + bias[:, number]
        same(f"attn.hook_{name}", expected)
    frequency = frequencies(config.rotary, config.d_head)
    assert len(frequency) == int(config.d_head * config.rotary.partial_rotary_factor + 1) // 2
    for name in "qk":
        same(f"attn.hook_rot_{name}", rotated(at(f"attn.hook_{name}"), frequency))
    q, k, v = (at(f"attn.hook_{name}").transpose(1, 2) for name in ("rot_q", "rot_k", "v"))
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    same("attn.hook_attn_scores", (q @ k.mT / config.d_head**0.5).masked_fill(future, -torch.inf))
    same("attn.hook_pattern", at("attn.hook_attn_scores").softmax(-1))
    same("attn.hook_z", (at("attn.hook_pattern") @ v).transpose(1, 2))
    z = at("attn.hook_z").flatten(2)
    same("hook_attn_out", F.linear(z, attn.dense.weight, attn.dense.bias))
    mid = pre + at("hook_attn_out")
    if config.use_parallel_residual:
        assert "blocks.1.hook_resid_mid" not in model.sites
    else:
        same("hook_resid_mid", mid)
    read = pre if config.use_parallel_residual else mid
    y, mlp = norm(read, block.post_attention_layernorm, "ln2"), block.mlp
    same("mlp.hook_pre", F.linear(y, mlp.dense_h_to_4h.weight, mlp.dense_h_to_4h.bias))
    approximation = "none" if config.hidden_act == "gelu" else "tanh"
    same("mlp.hook_post", F.gelu(at("mlp.hook_pre"), approximate=approximation))
    post, down = at("mlp.hook_post"), mlp.dense_4h_to_h
    same("hook_mlp_out", F.linear(post, down.weight, down.bias))
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
    config = config_of(PYTHIA)
    assert config == NeoXConfig()
    assert config.rotary == RotaryPositions(partial_rotary_factor=0.25)
    assert config.eos_token_id == 0


def test_a_config_survives_its_json():
    config = config_of(
        PYTHIA | {"rotary_pct": 0.5, "rotary_emb_base": 500, "hidden_act": "gelu_new"}
    )
    assert config_of(json.loads(json.dumps(config.to_json()))) == config
    assert config.rotary.partial_rotary_factor == 0.5
    assert config.rotary.rope_theta == 500


def test_both_spellings_of_rotary_positions_are_read():
    old = config_of(PYTHIA | {"rotary_pct": 1.0, "rotary_emb_base": 25000})
    new = {key: value for key, value in PYTHIA.items() if not key.startswith("rotary")}
    rope = {"rope_type": "default", "rope_theta": 25000, "partial_rotary_factor": 1.0}
    assert config_of(new | {"rope_parameters": rope}) == old


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"hidden_act": "relu"}, "hidden_act is 'relu'. Allowed: gelu, gelu_fast"),
        ({"rotary_pct": 1.5}, "partial_rotary_factor is 1.5"),
        ({"rotary_pct": 0}, "must be a positive number, not 0"),
        ({"num_attention_heads": 7}, "num_attention_heads=7 does not divide"),
        ({"use_parallel_residual": "yes"}, "use_parallel_residual"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "rope_type is 'dynamic'"),
        ({"logit_scale": 2.0}, "unknown key 'logit_scale'"),
        ({"layer_norm_eps": 2}, "layer_norm_eps must be a number between 0 and 1"),
        ({"num_key_value_heads": 2}, "unknown key 'num_key_value_heads'"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path, entries, message):
    (tmp_path / "config.json").write_text(json.dumps(PYTHIA | entries))
    with pytest.raises(CheckpointError, match=message):
        model_config(tmp_path)


def test_both_names_of_the_unembedding_are_read(tmp_path):
    ROWS[0].reference().save_pretrained(tmp_path)
    [path] = tmp_path.glob("*.safetensors")
    tensors, expected = load_file(path), load_model(tmp_path)(TOKENS)
    tensors["lm_head.weight"] = tensors.pop("embed_out.weight")
    save_file(tensors, path, metadata={"format": "pt"})
    assert torch.equal(load_model(tmp_path)(TOKENS), expected)


def test_masks_and_frequencies_of_old_checkpoints_are_ignored(tmp_path):
    ROWS[0].reference().save_pretrained(tmp_path)
    [path] = tmp_path.glob("*.safetensors")
    tensors = load_file(path)
    expected = load_model(tmp_path)(TOKENS)
    for layer in range(3):
        prefix = f"gpt_neox.layers.{layer}.attention."
        tensors[prefix + "bias"] = torch.ones(1, 1, 160, 160, dtype=torch.bool).tril()
        tensors[prefix + "masked_bias"] = torch.tensor(-1e9)
        tensors[prefix + "rotary_emb.inv_freq"] = torch.ones(1)
    save_file(tensors, path, metadata={"format": "pt"})
    assert torch.equal(load_model(tmp_path)(TOKENS), expected)
