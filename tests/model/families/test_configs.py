"""What a config.json may contain, by family: both spellings, defaults, and what is refused."""

import json
from pathlib import Path

import pytest

from probekit.errors import CheckpointError
from probekit.model.families.gemma import GemmaConfig
from probekit.model.families.neox import NeoXConfig
from probekit.model.families.olmo2 import OLMo2Config
from probekit.model.families.rotary import RotaryPositions
from probekit.model.families.table import config_of, model_config

PUBLISHED = Path(__file__).with_name("published")  # config.json of models on the hub
LLAMA = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 11,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
}
QWEN2 = LLAMA | {"model_type": "qwen2"}
GEMMA2 = LLAMA | {
    "model_type": "gemma2",
    "head_dim": 10,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
}
GEMMA3 = GEMMA2 | {"model_type": "gemma3_text", "num_hidden_layers": 7}
PYTHIA = json.loads((PUBLISHED / "pythia-70m.json").read_text())  # of EleutherAI/pythia-70m
OLMO2 = json.loads((PUBLISHED / "OLMo-2-1124-7B.json").read_text())  # of allenai/OLMo-2-1124-7B
FULL, SLIDING = "full_attention", "sliding_attention"


def read(base, **entries):
    return config_of(base | entries, "config.json")


@pytest.mark.parametrize(
    ("base", "entries"),
    [
        *((LLAMA, {"model_type": kind}) for kind in ("llama", "mistral", "qwen2", "qwen3")),
        (GEMMA2, {}),
        (GEMMA3, {}),
        (PYTHIA, {"rotary_pct": 0.5, "rotary_emb_base": 5e5, "hidden_act": "gelu_new"}),
        (OLMO2, {"num_key_value_heads": 8, "attention_bias": True}),
    ],
)
def test_a_config_survives_its_json(base, entries):
    theta = {} if base is PYTHIA else {"rope_theta": 5e5}
    config = read(base, **entries, **theta)
    again = config_of(json.loads(json.dumps(config.to_json())))
    assert (again.to_json(), again.windows) == (config.to_json(), config.windows)
    assert config.rotary.rope_theta == 5e5
    assert config.rotary.partial_rotary_factor == entries.get("rotary_pct", 1)


def test_the_published_configs_are_read():
    assert GemmaConfig() == config_of({"model_type": "gemma2"})  # of Gemma 2 2B
    pythia, olmo2 = config_of(PYTHIA), config_of(OLMO2)
    assert pythia == NeoXConfig()
    assert pythia.rotary == RotaryPositions(partial_rotary_factor=0.25)
    assert olmo2 == OLMo2Config(
        vocab_size=100352,
        num_key_value_heads=32,
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        rotary=RotaryPositions(rope_theta=500000),
    )
    assert (pythia.eos_token_id, olmo2.eos_token_id) == (0, 100257)


def test_the_default_windows_and_caps_of_gemma_are_those_of_the_published_models():
    gemma2, gemma3 = read(GEMMA2), read(GEMMA3)
    assert gemma2.types_of_layers == (SLIDING, FULL, SLIDING)
    assert gemma3.types_of_layers == (*[SLIDING] * 5, FULL, SLIDING)
    every_third = read(GEMMA3, sliding_window_pattern=3).types_of_layers
    assert [kind == FULL for kind in every_third] == [False, False, True] * 2 + [False]
    assert (gemma2.attn_logit_softcapping, gemma2.final_logit_softcapping) == (50, 30)
    assert (gemma3.attn_logit_softcapping, gemma3.final_logit_softcapping) == (None, None)
    assert (gemma3.rotary.rope_theta, gemma3.rotary_in_windows.rope_theta) == (1e6, 1e4)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LINEAR = {"rope_type": "linear", "factor": 8.0}
LOCAL = {"rope_type": "default", "rope_theta": 100.0}
WHOLE = {"rope_type": "default", "rope_theta": 25000, "partial_rotary_factor": 1.0}


@pytest.mark.parametrize(
    ("base", "old", "new"),
    [
        (LLAMA, {"rope_theta": 5e5, "rope_scaling": LLAMA3}, LLAMA3 | {"rope_theta": 5e5}),
        (
            GEMMA3,
            {"rope_theta": 5e5, "rope_scaling": LINEAR, "rope_local_base_freq": 100.0},
            {FULL: LINEAR | {"rope_theta": 5e5}, SLIDING: LOCAL},
        ),
        (PYTHIA, {"rotary_pct": 1.0, "rotary_emb_base": 25000}, WHOLE),
    ],
)
def test_both_spellings_of_rotary_positions_are_read(base, old, new):
    others = {key: value for key, value in base.items() if not key.startswith("rotary")}
    assert read(base, **old) == read(others, rope_parameters=new)


def test_the_old_name_of_the_type_of_rotary_positions_is_read():
    linear = read(LLAMA, rope_scaling={"type": "linear", "factor": 2.0})
    assert linear.rotary == RotaryPositions(rope_type="linear", factor=2.0)
    assert read(LLAMA, logit_scale=None, rope_scaling=None) == read(LLAMA)


GPT2 = {"model_type": "gpt2"}
REFUSED = [
    (GPT2, {"activation_function": "gelu"}, "activation_function is 'gelu'"),
    (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
    (GPT2, {"n_head": 5}, "n_head=5 does not divide"),
    (LLAMA, {"model_type": "mixtral"}, r"'mixtral'.*GPT-2 \(gpt2\), Llama \(llama, mistral"),
    (LLAMA, {"hidden_act": "gelu"}, "hidden_act is 'gelu'. Allowed: 'silu'"),
    (LLAMA, {"logit_scale": 0.5}, "unknown key 'logit_scale' with the value 0.5"),
    (LLAMA, {"sliding_window": 4}, "unknown key 'sliding_window'"),
    (LLAMA, {"rope_scaling": {"type": "yarn", "factor": 4}}, "rope_type is 'yarn'"),
    (LLAMA, {"rope_scaling": {"type": "linear", "factr": 4}}, "Unknown key 'factr'.*factor"),
    (LLAMA, {"rope_scaling": {"type": "linear"}}, "factor .* must be a positive number, not None"),
    (LLAMA, {"num_key_value_heads": 4}, "num_key_value_heads=4 does not divide"),
    (LLAMA, {"hidden_size": 25}, "does not divide hidden_size=25"),
    (LLAMA, {"quantization_config": {"bits": 4}}, "quantised"),
    (QWEN2, {"layer_types": ["chunked"] * 3}, "layer_types must be a list of"),
    (LLAMA, {"rms_norm_eps": 0}, "rms_norm_eps must be a number between 0 and 1"),
    (LLAMA, {"eos_token_id": -1}, "eos_token_id is -1. Allowed: null, or integers from 0"),
    (LLAMA, {"eos_token_id": [1, 10**30]}, "eos_token_id is"),
    (LLAMA, {"bos_token_id": "<s>"}, "bos_token_id is '<s>'"),
    (LLAMA, {"rope_theta": 10**400}, "rope_theta .* must be a positive number"),
    (LLAMA, {"rope_theta": 1e400}, "rope_theta .* must be a positive number, not inf"),
    (LLAMA, {"rope_scaling": {"rope_type": {}}}, "rope_type is {}"),
    (LLAMA, {"rope_scaling": {"type": [1]}}, r"rope_type is \[1\]"),
    (QWEN2, {"layer_types": 5}, "layer_types must be a list of"),
    (QWEN2, {"layer_types": [[]] * 3}, "layer_types must be a list of"),
    (QWEN2, {"max_window_layers": []}, "max_window_layers must be a number"),
    (GEMMA2, {"hidden_activation": "gelu"}, "hidden_activation is 'gelu'"),
    (GEMMA2, {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
    (GEMMA2, {"logit_scale": 0.5}, "unknown key 'logit_scale'"),
    (GEMMA2, {"rope_local_base_freq": 5.0}, "unknown key 'rope_local_base_freq'"),
    (GEMMA2, {"sliding_window": 4, "sliding_window_size": 5}, "sliding_window_size is 5"),
    (GEMMA2, {"final_logit_softcapping": 0}, "final_logit_softcapping must be a positive"),
    (GEMMA2, {"query_pre_attn_scalar": None}, "query_pre_attn_scalar must be a positive"),
    (GEMMA2, {"num_key_value_heads": 4}, "num_key_value_heads=4 does not divide"),
    (GEMMA2, {"layer_types": [FULL]}, "layer_types must be a list of"),
    (GEMMA2, {"layer_types": "full"}, "layer_types must be a list"),
    (GEMMA2, {"layer_types": [[]] * 3}, "layer_types must be a list"),
    (GEMMA2, {"final_logit_softcapping": 10**30}, "final_logit_softcapping must be a pos"),
    (GEMMA3, {"num_hidden_layers": 10**12, "sliding_window_pattern": 2}, "from 1 to 1,000"),
    (GEMMA2, {"partial_rotary_factor": 0.5}, "unknown key 'partial_rotary_factor'"),
    (GEMMA3, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
    (GEMMA3, {"sliding_window_pattern": 0}, "sliding_window_pattern must be a positive"),
    (GEMMA3, {"rope_parameters": {"rope_theta": 5.0}}, "rope_parameters must have the"),
    (GEMMA3, {"quantization_config": {"bits": 4}}, "quantised"),
    (PYTHIA, {"hidden_act": "relu"}, "hidden_act is 'relu'. Allowed: gelu, gelu_fast"),
    (PYTHIA, {"rotary_pct": 1.5}, "partial_rotary_factor is 1.5"),
    (PYTHIA, {"rotary_pct": 0}, "must be a positive number, not 0"),
    (PYTHIA, {"num_attention_heads": 7}, "num_attention_heads=7 does not divide"),
    (PYTHIA, {"use_parallel_residual": "yes"}, "use_parallel_residual"),
    (PYTHIA, {"rope_scaling": {"type": "dynamic", "factor": 2}}, "rope_type is 'dynamic'"),
    (PYTHIA, {"logit_scale": 2.0}, "unknown key 'logit_scale'"),
    (PYTHIA, {"layer_norm_eps": 2}, "layer_norm_eps must be a number between 0 and 1"),
    (PYTHIA, {"num_key_value_heads": 2}, "unknown key 'num_key_value_heads'"),
    (OLMO2, {"hidden_act": "gelu"}, "hidden_act is 'gelu'. Allowed: 'silu'"),
    (OLMO2, {"num_key_value_heads": 5}, "num_key_value_heads=5 does not divide"),
    (OLMO2, {"num_attention_heads": 7}, "num_attention_heads=7 does not divide hidden_size=4096"),
    (OLMO2, {"attention_bias": "no"}, "attention_bias must be true or false"),
    (OLMO2, {"clip_qkv": 8.0}, "unknown key 'clip_qkv'"),
    (OLMO2, {"head_dim": 64}, "unknown key 'head_dim'"),
    (OLMO2, {"sliding_window": 4096}, "unknown key 'sliding_window'"),
    (OLMO2, {"rope_scaling": {"type": "yarn", "factor": 2}}, "rope_type is 'yarn'"),
    (OLMO2, {"rms_norm_eps": 0}, "rms_norm_eps must be a number between 0 and 1"),
]


@pytest.mark.parametrize(("base", "entries", "message"), REFUSED)
def test_what_is_not_computed_is_refused(tmp_path, base, entries, message):
    (tmp_path / "config.json").write_text(json.dumps(base | entries))
    with pytest.raises(CheckpointError, match=message):
        model_config(tmp_path)
