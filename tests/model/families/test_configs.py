"""What a config.json may contain, by family: both spellings, defaults, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML

from probekit.errors import ConfigError, DataError, UnknownNameError
from probekit.model.config import count_parameters
from probekit.model.families.gemma import GemmaConfig
from probekit.model.families.mixtral import MixtralConfig
from probekit.model.families.neox import NeoXConfig
from probekit.model.families.olmo2 import OLMo2Config
from probekit.model.families.olmoe import OLMoEConfig
from probekit.model.families.opt import OPTConfig
from probekit.model.families.phi3 import Phi3, Phi3Config
from probekit.model.families.rotary import RotaryPositions
from probekit.model.families.table import config_of, model_config

PUBLISHED = Path(__file__).with_name("published")  # config.json of models on the hub
CONFIGS = YAML(typ="safe").load(Path(__file__).with_name("refused_configs.yaml"))
PYTHIA = json.loads((PUBLISHED / "pythia-70m.json").read_text())  # of EleutherAI/pythia-70m
OLMO2 = json.loads((PUBLISHED / "OLMo-2-1124-7B.json").read_text())  # of allenai/OLMo-2-1124-7B
OPT = json.loads((PUBLISHED / "opt-125m.json").read_text())  # of facebook/opt-125m
PHI3 = json.loads((PUBLISHED / "Phi-3-mini-4k-instruct.json").read_text())  # of Microsoft
OLMOE = json.loads((PUBLISHED / "OLMoE-1B-7B-0924.json").read_text())  # of allenai
MIXTRAL = json.loads((PUBLISHED / "Mixtral-8x7B-v0.1.json").read_text())  # of mistralai
# Sizes of the language model of Gemma 3 4B, of OLMo 3 7B and of Qwen3-30B-A3B.
SIZES = {
    "gemma3": {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34},
    "olmo3": {"vocab_size": 100278, "num_key_value_heads": 32},
    "qwen3_moe": {"num_hidden_layers": 48, "head_dim": 128},
}
BASES = CONFIGS["bases"] | {"pythia": PYTHIA, "olmo2": OLMO2, "opt": OPT, "phi3": PHI3}
BASES["olmoe"] = OLMOE
LLAMA, GEMMA2, GEMMA3 = (BASES[name] for name in ("llama", "gemma2", "gemma3"))
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
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
        (PHI3, {}),
        (OLMOE, {"norm_topk_prob": True, "num_experts_per_tok": 64}),
        (MIXTRAL, {"sliding_window": 7}),
        (BASES["qwen3_moe"], {"mlp_only_layers": [1], "use_sliding_window": True}),
        (LLAMA, {"rope_scaling": YARN | {"truncate": False}}),
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
    sizes = {"vocab_size": 100352, "num_key_value_heads": 32, "max_position_embeddings": 4096}
    rotary = RotaryPositions(rope_theta=500000)
    assert olmo2 == OLMo2Config(**sizes, rms_norm_eps=1e-6, rotary=rotary)
    assert (pythia.eos_token_id, olmo2.eos_token_id) == (0, 100257)
    assert config_of(OPT) == OPTConfig()
    assert config_of(OLMOE) == OLMoEConfig(num_key_value_heads=16, intermediate_size=1024)
    assert config_of(MIXTRAL) == MixtralConfig(max_position_embeddings=32768)
    assert config_of(PHI3) == Phi3Config(num_key_value_heads=32, sliding_window=2047)
    with pytest.raises(ConfigError, match="rotary must be Phi3Positions"):
        Phi3Config(rotary=RotaryPositions(rope_type="linear", factor=2.0))


@pytest.mark.parametrize(
    ("config", "number"),
    [
        *((PYTHIA, 70_426_624), (OPT, 125_239_296), (PHI3, 3_821_079_552), (OLMOE, 6_919_161_856)),
        ({"model_type": "gemma3", "text_config": SIZES["gemma3"]}, 3_880_263_168),
        ({"model_type": "olmo3", **SIZES["olmo3"]}, 7_298_011_136),
        (MIXTRAL, 46_702_792_704),
        ({"model_type": "qwen3_moe", **SIZES["qwen3_moe"]}, 30_532_122_624),
    ],
)
def test_published_networks_have_the_published_numbers_of_parameters(config, number):
    assert count_parameters(config_of(config)) == number


def test_the_default_windows_and_caps_are_those_of_the_published_models():
    gemma2, gemma3 = read(GEMMA2), read(GEMMA3)
    assert gemma2.types_of_layers == (SLIDING, FULL, SLIDING)
    assert gemma3.types_of_layers == (*[SLIDING] * 5, FULL, SLIDING)
    assert read(BASES["olmo3"], num_hidden_layers=5).types_of_layers == (
        *[SLIDING] * 3,
        FULL,
        SLIDING,
    )
    every_third = read(GEMMA3, sliding_window_pattern=3).types_of_layers
    assert [kind == FULL for kind in every_third] == [False, False, True] * 2 + [False]
    assert (gemma2.attn_logit_softcapping, gemma2.final_logit_softcapping) == (50, 30)
    assert (gemma3.attn_logit_softcapping, gemma3.final_logit_softcapping) == (None, None)
    assert (gemma3.rotary.rope_theta, gemma3.rotary_in_windows.rope_theta) == (1e6, 1e4)


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
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
        (LLAMA, {"rope_theta": 5e5, "rope_scaling": YARN}, YARN | {"rope_theta": 5e5}),
        (BASES["olmo3"], {"rope_theta": 500000, "rope_scaling": YARN}, {FULL: YARN}),
    ],
)
def test_both_spellings_of_rotary_positions_are_read(base, old, new):
    others = {key: value for key, value in base.items() if not key.startswith("rotary")}
    assert read(base, **old) == read(others, rope_parameters=new)


def test_a_gemma3_with_images_is_read_as_its_language_model():
    published = {"boi_token_index": 4, "image_token_index": 5, "eos_token_id": [1, 106]}
    published |= {"torch_dtype": "bfloat16", "initializer_range": 0.02}
    images = read(BASES["images"], **published)
    assert images == read(GEMMA3, tie_word_embeddings=True)
    assert (images.model_type, images.eos_token_id) == ("gemma3_text", [1, 106])
    assert not read(BASES["images"], tie_word_embeddings=False).tie_word_embeddings
    # An entry outside that repeats one of the language model changes nothing.
    assert read(BASES["images"], hidden_size=24) == images
    with_others = BASES["images"] | {"audio_config": {"hidden_size": 5}}
    assert config_of(with_others, ignore=["gemma3.audio_config"]) == images


def test_blocks_without_experts_are_those_of_both_keys():
    config = read(BASES["qwen3_moe"], num_hidden_layers=7, decoder_sparse_step=3)
    assert (config.with_experts, config.dense) == ((2, 5), (0, 1, 3, 4, 6))
    config = replace(config, mlp_only_layers=(5,))
    assert config.with_experts == (2,)
    names = config.sites.expand("*.mlp.hook_*")
    chosen = [name for name in names if "chosen" in name or "router" in name]
    assert {name.split(".")[1] for name in chosen} == {"2"}
    assert len(names) == 3 + 3 * 6  # three in each block
    with pytest.raises(UnknownNameError, match=r"Nearest: blocks\.2\.mlp\.hook_router"):
        config.sites.expand("blocks.1.mlp.hook_router")


def test_the_old_name_of_the_type_of_rotary_positions_is_read():
    linear = read(LLAMA, rope_scaling={"type": "linear", "factor": 2.0})
    assert linear.rotary == RotaryPositions(rope_type="linear", factor=2.0)
    assert read(LLAMA, logit_scale=None, rope_scaling=None) == read(LLAMA)


FACTORS = {"short_factor": [1.5, 2.0], "long_factor": [2.0, 3.0]}


def test_longrope_is_read_from_old_and_new_files_and_ends_at_the_length_of_short_texts():
    sizes = {"hidden_size": 24, "num_attention_heads": 6, "num_key_value_heads": 6}
    sizes |= {"max_position_embeddings": 64, "original_max_position_embeddings": 16}
    sizes["rope_theta"] = 9
    new = read(PHI3, **sizes, rope_parameters=FACTORS | {"rope_type": "longrope", "rope_theta": 9})
    for name in ("su", "longrope"):
        old = read(PHI3, **sizes, rope_scaling=FACTORS | {"type": name})
        assert old == new
    assert read(json.loads(json.dumps(new.to_hub()))) == new
    assert (new.n_ctx, new.rotary.rope_theta) == (16, 9)
    assert new.attention_factor == pytest.approx(1.5**0.5)  # sqrt(1 + log(4) / log(16))
    model = Phi3(replace(new, vocab_size=97, intermediate_size=11, num_hidden_layers=1))
    assert model(torch.zeros(1, 16, dtype=torch.int64)).shape == (1, 16, 97)
    with pytest.raises(DataError, match="17"):
        model(torch.zeros(1, 17, dtype=torch.int64))


REFUSED = [(base, entries) for base in BASES for entries in CONFIGS["refused"][base]]


@pytest.mark.parametrize(
    ("base", "entries"), [*REFUSED, ("llama", {"rope_theta": 10**400})], ids=lambda x: str(x)[:60]
)
def test_what_is_not_computed_is_refused(tmp_path, refused, base, entries):
    (tmp_path / "config.json").write_text(json.dumps(BASES[base] | entries))
    refused(model_config, tmp_path)
