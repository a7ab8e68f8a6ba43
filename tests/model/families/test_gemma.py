"""Gemma 2 and 3: formulas of their sites, softcaps, and what their config.json may contain."""

import json
import math

import pytest
import torch
import torch.nn.functional as F

from probekit.analysis.logits import logit_attribution, logit_lens, logits_of
from probekit.errors import CheckpointError
from probekit.model.families.gemma import Gemma, GemmaConfig
from probekit.model.families.rotary import RotaryPositions, frequencies
from probekit.model.families.table import config_of, from_transformers, model_config
from tests.model.families.configurations import CONFIGURATIONS
from tests.model.families.test_llama import rotated

TOKENS = torch.tensor([[3, 14, 15, 92, 65, 35, 89]])
ROWS = {row.name: row for row in CONFIGURATIONS if row.name.startswith("gemma")}
ENTRIES = {
    "model_type": "gemma2",
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 11,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "hidden_activation": "gelu_pytorch_tanh",
}
ENTRIES3 = ENTRIES | {"model_type": "gemma3_text", "num_hidden_layers": 7}
FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.fixture(
    scope="module", params=["gemma2 with biases", "gemma3", "gemma3 with a cap of logits"]
)
def model(request):
    return from_transformers(ROWS[request.param].reference(torch.float64))


def rms(x, norm):
    scale = (x.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt()
    return scale, x / scale, x / scale * (1 + norm.weight)


def test_sites_of_a_block_follow_their_formulas(model):
    _, cache = model.run_with_cache(TOKENS)
    config = model.config
    for layer, block in enumerate(model.layers):
        check_block(cache, config, layer, block)
    embed = model.embed_tokens.weight[TOKENS] * math.sqrt(config.d_model)
    torch.testing.assert_close(cache["hook_embed"], embed)


def check_block(cache, config, layer, block):
    def at(name):
        return cache[f"blocks.{layer}.{name}"]

    def same(name, expected):
        torch.testing.assert_close(at(name), expected, atol=1e-6, rtol=1e-6)

    def norm(site, x, module):
        scale, normalized, out = rms(x, module)
        same(f"{site}.hook_scale", scale)
        same(f"{site}.hook_normalized", normalized)
        return out

    attn, mlp = block.self_attn, block.mlp
    x = norm("ln1", at("hook_resid_pre"), block.input_layernorm)
    for name in ("q", "k", "v"):
        module = getattr(attn, f"{name}_proj")
        heads = F.linear(x, module.weight, module.bias).unflatten(-1, (-1, config.d_head))
        same(f"attn.hook_{name}", heads)
    q, k = at("attn.hook_q"), at("attn.hook_k")
    if config.has_norms_of_heads:
        q, k = norm("attn.q_norm", q, attn.q_norm), norm("attn.k_norm", k, attn.k_norm)
    window = config.windows[layer]
    rotary = config.rotary if window is None else config.rotary_in_windows
    frequency = frequencies(rotary, config.d_head)
    same("attn.hook_rot_q", rotated(q, frequency))
    same("attn.hook_rot_k", rotated(k, frequency))
    group = config.n_heads // config.n_kv_heads
    keys, values = (
        at(f"attn.hook_{name}").repeat_interleave(group, 2).transpose(1, 2)
        for name in ("rot_k", "v")
    )
    scores = at("attn.hook_rot_q").transpose(1, 2) @ keys.mT / config.query_pre_attn_scalar**0.5
    cap = config.attn_logit_softcapping
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    places = torch.arange(7)
    distance = places[:, None] - places
    hidden = (distance < 0) | (distance >= (window or 7))
    same("attn.hook_attn_scores", scores.masked_fill(hidden, -torch.inf))
    same("attn.hook_pattern", at("attn.hook_attn_scores").softmax(-1))
    same("attn.hook_z", (at("attn.hook_pattern") @ values).transpose(1, 2))
    out = F.linear(at("attn.hook_z").flatten(2), attn.o_proj.weight, attn.o_proj.bias)
    same("hook_attn_out", norm("ln1_post", out, block.post_attention_layernorm))
    same("hook_resid_mid", at("hook_resid_pre") + at("hook_attn_out"))
    y = norm("ln2", at("hook_resid_mid"), block.pre_feedforward_layernorm)
    same("mlp.hook_pre", y @ mlp.gate_proj.weight.T)
    same("mlp.hook_pre_linear", y @ mlp.up_proj.weight.T)
    activation = F.gelu(at("mlp.hook_pre"), approximate="tanh")
    same("mlp.hook_post", activation * at("mlp.hook_pre_linear"))
    out = at("mlp.hook_post") @ mlp.down_proj.weight.T
    same("hook_mlp_out", norm("ln2_post", out, block.post_feedforward_layernorm))
    same("hook_resid_post", at("hook_resid_mid") + at("hook_mlp_out"))


def test_components_are_the_parameters(model):
    shapes = {name: tensor.numel() for name, tensor in model.state_dict().items()}
    counted = set()
    for component in model.config.components:
        layers = range(model.config.n_layers) if component.in_block else [0]
        for layer in layers:
            counted |= {name.format(l=layer) for name in component.tensors(model.config)}
    assert counted == shapes.keys()


def test_the_caps_of_the_references_change_their_numbers():
    """Configurations whose caps do nothing would prove nothing."""
    reference = ROWS["gemma2"].reference(torch.float64)
    ours = from_transformers(reference)
    capped = ours(TOKENS)
    assert capped.abs().max() <= 3
    reference.config.final_logit_softcapping = None
    assert (from_transformers(reference)(TOKENS) - capped).abs().max() > 1
    reference.config.final_logit_softcapping = 3.0
    reference.config.attn_logit_softcapping = None
    assert (from_transformers(reference)(TOKENS) - capped).abs().max() > 1e-3


def test_the_lens_respects_the_cap(model):
    _, cache = model.run_with_cache(TOKENS, [("resid_post", -1)])
    torch.testing.assert_close(logits_of(model, cache["resid_post", -1]), model(TOKENS))
    probability = logit_lens(model, TOKENS[0], top_k=1)["top_probability"][-1, :, 0]
    expected = model(TOKENS)[0].softmax(-1).amax(-1).float()
    torch.testing.assert_close(probability.float(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("minus", [{}, {"minus": 9}, {"minus_mean": True}])
def test_contributions_sum_to_the_logit_before_the_cap(model, minus):
    attribution = logit_attribution(model, TOKENS[0], 8, **minus, position=4)
    _, cache = model.run_with_cache(TOKENS[:, :5], [("resid_post", -1)])
    logits = model.final_norm(cache["resid_post", -1])[0, -1] @ model.unembedding.T
    subtracted = logits[9] if "minus" in minus else logits.mean() if minus else 0.0
    assert attribution.logit == pytest.approx(float(logits[8] - subtracted))
    assert attribution.remainder == pytest.approx(0, abs=1e-9)


def test_the_loss_is_that_of_the_capped_logits(model):
    logits = model(TOKENS)
    expected = F.cross_entropy(logits[0, :-1], TOKENS[0, 1:])
    torch.testing.assert_close(model.loss(TOKENS), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_scale_of_embeddings_is_rounded_to_the_dtype(dtype):
    reference = ROWS["gemma3"].reference(dtype)
    _, cache = from_transformers(reference).run_with_cache(TOKENS, ["hook_embed"])
    assert torch.equal(cache["hook_embed"], reference.model.embed_tokens(TOKENS))


def test_random_weights_follow_the_seed_and_gains_are_one():
    config = read({})
    first, again, other = (Gemma(config, seed) for seed in (1, 1, 2))
    assert torch.equal(first(TOKENS), again(TOKENS))
    assert not torch.equal(first(TOKENS), other(TOKENS))
    assert bool((first.final_norm_gain == 1).all())


def read(entries, base=ENTRIES):
    return config_of(base | entries, "config.json")


@pytest.mark.parametrize("base", [ENTRIES, ENTRIES3])
def test_a_config_survives_its_json(base):
    config = read({"rope_theta": 5e5}, base)
    again = config_of(json.loads(json.dumps(config.to_json())))
    assert again.to_json() == config.to_json()
    assert again.windows == config.windows
    assert again.rotary.rope_theta == 5e5


def test_the_default_windows_are_those_of_the_published_models():
    assert read({}).types_of_layers == (SLIDING, FULL, SLIDING)
    assert read({}, ENTRIES3).types_of_layers == (*[SLIDING] * 5, FULL, SLIDING)
    every_third = read({"sliding_window_pattern": 3}, ENTRIES3).types_of_layers
    assert [kind == FULL for kind in every_third] == [False, False, True] * 2 + [False]


def test_caps_that_are_absent_have_the_hub_s_defaults():
    gemma2, gemma3 = read({}), read({}, ENTRIES3)
    assert (gemma2.attn_logit_softcapping, gemma2.final_logit_softcapping) == (50, 30)
    assert (gemma3.attn_logit_softcapping, gemma3.final_logit_softcapping) == (None, None)


def test_both_spellings_of_rotary_positions_are_read():
    scaling = {"rope_type": "linear", "factor": 8.0}
    old = {"rope_theta": 5e5, "rope_scaling": scaling, "rope_local_base_freq": 100.0}
    sections = {
        FULL: scaling | {"rope_theta": 5e5},
        SLIDING: {"rope_type": "default", "rope_theta": 100.0},
    }
    assert read(old, ENTRIES3) == read({"rope_parameters": sections}, ENTRIES3)
    assert read(old, ENTRIES3).rotary_in_windows == RotaryPositions(100.0)
    default = read({}, ENTRIES3)
    assert (default.rotary.rope_theta, default.rotary_in_windows.rope_theta) == (1e6, 1e4)


@pytest.mark.parametrize(
    ("base", "entries", "message"),
    [
        (ENTRIES, {"hidden_activation": "gelu"}, "hidden_activation is 'gelu'"),
        (ENTRIES, {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        (ENTRIES, {"logit_scale": 0.5}, "unknown key 'logit_scale'"),
        (ENTRIES, {"rope_local_base_freq": 5.0}, "unknown key 'rope_local_base_freq'"),
        (ENTRIES, {"sliding_window": 4, "sliding_window_size": 5}, "sliding_window_size is 5"),
        (ENTRIES, {"final_logit_softcapping": 0}, "final_logit_softcapping must be a positive"),
        (ENTRIES, {"query_pre_attn_scalar": None}, "query_pre_attn_scalar must be a positive"),
        (ENTRIES, {"num_key_value_heads": 4}, "num_key_value_heads=4 does not divide"),
        (ENTRIES, {"layer_types": [FULL]}, "layer_types must be a list of"),
        (ENTRIES, {"layer_types": "full"}, "layer_types must be a list"),
        (ENTRIES, {"layer_types": [[]] * 3}, "layer_types must be a list"),
        (ENTRIES, {"final_logit_softcapping": 10**30}, "final_logit_softcapping must be a pos"),
        (ENTRIES3, {"num_hidden_layers": 10**12, "sliding_window_pattern": 2}, "from 1 to 1,000"),
        (ENTRIES, {"partial_rotary_factor": 0.5}, "unknown key 'partial_rotary_factor'"),
        (ENTRIES3, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        (ENTRIES3, {"sliding_window_pattern": 0}, "sliding_window_pattern must be a positive"),
        (ENTRIES3, {"rope_parameters": {"rope_theta": 5.0}}, "rope_parameters must have the"),
        (ENTRIES3, {"quantization_config": {"bits": 4}}, "quantised"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path, base, entries, message):
    (tmp_path / "config.json").write_text(json.dumps(base | entries))
    with pytest.raises(CheckpointError, match=message):
        model_config(tmp_path)


def test_default_sizes_are_those_of_gemma_2_2b():
    assert GemmaConfig() == config_of({"model_type": "gemma2"})
