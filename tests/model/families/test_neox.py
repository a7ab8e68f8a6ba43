"""Pythia and GPT-NeoX: formulas of their sites, checkpoints, and what config.json may contain."""

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from probekit.analysis.attribution import logit_attribution
from probekit.analysis.logit_lens import logit_lens
from probekit.errors import CheckpointError
from probekit.model.families.neox import NeoXConfig
from probekit.model.families.table import config_of, model_config
from probekit.model.load import from_transformers, load_model
from probekit.model.neox import NeoX
from probekit.model.parameters import count_parameters
from tests.model.families.configurations import CONFIGURATIONS

ROWS = {row.name: row for row in CONFIGURATIONS if row.model_type == "gpt_neox"}
TOKENS = torch.tensor([[3, 14, 15, 92, 65, 35, 89]])
ENTRIES = {
    "model_type": "gpt_neox",
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 11,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
}
# config.json of EleutherAI/pythia-12b at step6000, as published.
PYTHIA_12B = {
    "architectures": ["GPTNeoXForCausalLM"],
    "bos_token_id": 0,
    "classifier_dropout": 0.1,
    "eos_token_id": 0,
    "hidden_act": "gelu",
    "hidden_size": 5120,
    "initializer_range": 0.02,
    "intermediate_size": 20480,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 40,
    "num_hidden_layers": 36,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.30.2",
    "use_cache": True,
    "use_parallel_residual": True,
    "vocab_size": 50688,
}
# The others of the suite differ from it in the sizes; v0 leaves use_parallel_residual out.
PUBLISHED = {
    "70m": ((512, 2048, 8, 6, 50304), 70_426_624),
    "160m": ((768, 3072, 12, 12, 50304), 162_322_944),
    "1b": ((2048, 8192, 8, 16, 50304), 1_011_781_632),
    "6.9b": ((4096, 16384, 32, 32, 50432), 6_857_302_016),
    "12b": ((5120, 20480, 40, 36, 50688), 11_846_072_320),
}
SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers")


@pytest.fixture(scope="module", params=["neox", "neox, sequential with scaling"])
def model(request):
    return from_transformers(ROWS[request.param].reference(torch.float64))


def rotated(x, config):
    """The first features as complex numbers, multiplied by exp(i position frequency)."""
    size = int(config.d_head * config.rotary.partial_rotary_factor)
    exponents = torch.arange(0, size, 2, dtype=torch.float32) / size
    frequency = config.rotary.rope_theta**-exponents / (config.rotary.factor or 1)
    angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None] * frequency
    turn = torch.polar(torch.ones_like(angles), angles)[None, :, None]
    pairs = torch.complex(x[..., : size // 2], x[..., size // 2 : size]) * turn
    return torch.cat([pairs.real, pairs.imag, x[..., size:]], -1)


def test_sites_of_a_block_follow_their_formulas(model):
    _, cache = model.run_with_cache(TOKENS)
    block, config, eps = model.layers[1], model.config, model.config.layer_norm_eps

    def at(name):
        return cache[f"blocks.1.{name}"]

    def same(name, expected):
        torch.testing.assert_close(at(name), expected, atol=1e-6, rtol=1e-6)

    def check_norm(name, x, module):
        scale = (x.var(-1, correction=0, keepdim=True) + eps).sqrt()
        same(f"{name}.hook_scale", scale)
        same(f"{name}.hook_normalized", (x - x.mean(-1, keepdim=True)) / scale)
        return at(f"{name}.hook_normalized") * module.weight + module.bias

    x = check_norm("ln1", at("hook_resid_pre"), block.input_layernorm)
    fused, bias = block.attention.query_key_value.weight, block.attention.query_key_value.bias
    d = config.d_head
    for number, name in enumerate("qkv"):
        for head in range(config.n_heads):
            rows = slice((3 * head + number) * d, (3 * head + number + 1) * d)
            expected = F.linear(x, fused[rows], bias[rows])
            torch.testing.assert_close(at(f"attn.hook_{name}")[:, :, head], expected)
    same("attn.hook_rot_q", rotated(at("attn.hook_q"), config))
    same("attn.hook_rot_k", rotated(at("attn.hook_k"), config))
    q, k, v = (at(f"attn.hook_{name}").transpose(1, 2) for name in ("rot_q", "rot_k", "v"))
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    same("attn.hook_attn_scores", (q @ k.mT / d**0.5).masked_fill(future, -torch.inf))
    same("attn.hook_pattern", at("attn.hook_attn_scores").softmax(-1))
    same("attn.hook_z", (at("attn.hook_pattern") @ v).transpose(1, 2))
    dense, mlp = block.attention.dense, block.mlp
    same("hook_attn_out", F.linear(at("attn.hook_z").flatten(2), dense.weight, dense.bias))
    read, after_attention = at("hook_resid_pre"), at("hook_resid_pre") + at("hook_attn_out")
    if not config.use_parallel_residual:
        same("hook_resid_mid", after_attention)
        read = after_attention
    y = check_norm("ln2", read, block.post_attention_layernorm)
    same("mlp.hook_pre", F.linear(y, mlp.dense_h_to_4h.weight, mlp.dense_h_to_4h.bias))
    pre = at("mlp.hook_pre")
    same("mlp.hook_post", pre * (1 + torch.erf(pre / 2**0.5)) / 2)
    out = mlp.dense_4h_to_h
    same("hook_mlp_out", F.linear(at("mlp.hook_post"), out.weight, out.bias))
    same("hook_resid_post", after_attention + at("hook_mlp_out"))


def test_parallel_blocks_have_no_stream_between_attention_and_mlp(model):
    has_mid = "blocks.0.hook_resid_mid" in model.sites
    assert has_mid is not model.config.use_parallel_residual
    assert "hook_pos_embed" not in model.sites


def test_attribution_sums_to_the_logit_and_the_lens_ends_in_the_logits(model):
    logits = model(TOKENS)[0, -1]
    attribution = logit_attribution(model, TOKENS[0], 8, minus=9)
    assert attribution.logit == pytest.approx((logits[8] - logits[9]).item())
    assert abs(attribution.remainder) < 1e-9
    parts = set(attribution.rows.part)
    assert {"embed", "head", "attn_bias", "mlp", "final_bias"} == parts
    read = logit_lens(model, TOKENS[0], ["blocks.*.hook_attn_out", "blocks.*.hook_resid_post"])
    assert read["kl"][-1].abs().max() < 1e-9 < read["kl"][-2].min()


def test_components_are_the_parameters(model):
    assert count_parameters(model.config) == sum(one.numel() for one in model.parameters())


def test_random_weights_follow_the_seed():
    config = config_of(ENTRIES)
    first, again, other = (NeoX(config, seed) for seed in (1, 1, 2))
    assert torch.equal(first(TOKENS), again(TOKENS))
    assert not torch.equal(first(TOKENS), other(TOKENS))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_read(name):
    (*sizes, vocabulary), n_parameters = PUBLISHED[name]
    entries = PYTHIA_12B | dict(zip(SIZES, sizes, strict=True)) | {"vocab_size": vocabulary}
    config = config_of(entries)
    assert count_parameters(config) == n_parameters
    assert config.d_head * config.rotary.partial_rotary_factor == sizes[0] / sizes[2] / 4
    assert config.rotary.rope_theta == 10000
    assert config.end_of_text == 0
    del entries["use_parallel_residual"]
    assert config_of(entries) == config


def test_checkpoints_as_they_are_on_the_hub_are_read(tmp_path):
    """With the old name of the unembedding, causal masks and frequencies, in float16."""
    reference = ROWS["neox"].reference()
    tensors = {
        name.replace("lm_head", "embed_out"): tensor.half()
        for name, tensor in reference.state_dict().items()
    }
    for layer in range(3):
        prefix = f"gpt_neox.layers.{layer}.attention."
        tensors[prefix + "bias"] = torch.ones(1, 1, 160, 160, dtype=torch.bool).tril()
        tensors[prefix + "masked_bias"] = torch.tensor(-1e9)
        tensors[prefix + "rotary_emb.inv_freq"] = torch.ones(1)
    save_file(tensors, tmp_path / "model.safetensors")
    reference.config.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.dtype == torch.float32
    names = loaded.state_dict().keys()
    assert "embed_out.weight" in names
    assert not any("inv_freq" in name or "masked" in name for name in names)
    torch.testing.assert_close(loaded(TOKENS), reference.half().float()(TOKENS).logits)


@pytest.mark.parametrize("name", ROWS)
def test_a_config_survives_its_json(name):
    config = config_of(ROWS[name].reference().config.to_dict())
    assert config_of(json.loads(json.dumps(config.to_json()))) == config


def test_all_names_of_rotary_positions_are_read():
    old = config_of(ENTRIES | {"rotary_pct": 0.5, "rotary_emb_base": 300})
    new = config_of(ENTRIES | {"partial_rotary_factor": 0.5, "rope_theta": 300})
    inner = {"rope_type": "default", "partial_rotary_factor": 0.5, "rope_theta": 300}
    assert old == new == config_of(ENTRIES | {"rope_parameters": inner})
    assert config_of(ENTRIES).rotary.partial_rotary_factor == 0.25
    both = {"rotary_pct": 0.25, "partial_rotary_factor": 0.25, "rope_scaling": None}
    assert config_of(ENTRIES | both) == config_of(ENTRIES)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"hidden_act": "relu"}, r"hidden_act is 'relu'.*no other activation in a GPT-NeoX"),
        ({"rotary_pct": 0.5, "partial_rotary_factor": 0.25}, "two names of one number"),
        ({"rotary_pct": 1.5}, r"\(rotary_pct\) must be at most 1, not 1.5"),
        ({"num_attention_heads": 5}, "num_attention_heads=5 does not divide hidden_size=24"),
        ({"use_parallel_residual": 1}, "use_parallel_residual must be true or false, not 1"),
        ({"num_key_value_heads": 1}, "unknown key 'num_key_value_heads'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "rope_type is 'dynamic'"),
        ({"layer_norm_eps": 2}, "layer_norm_eps must be a number between 0 and 1"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path, entries, message):
    (tmp_path / "config.json").write_text(json.dumps(ENTRIES | entries))
    with pytest.raises(CheckpointError, match=message):
        model_config(tmp_path)


def test_the_defaults_are_those_of_the_hub():
    assert config_of({"model_type": "gpt_neox"}) == NeoXConfig()
