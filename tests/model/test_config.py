"""Keys of a config.json that change nothing are ignored, and all others are refused."""

import json
from dataclasses import fields, is_dataclass

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from probekit import load_model
from probekit.errors import CheckpointError, ConfigError
from probekit.experiment.model import ModelSection
from probekit.model.config import is_harmless
from probekit.model.families.table import config_of, find_config, from_transformers
from probekit.model.weights.sources import at_revision, ignored_keys, ignoring
from tests.model.families.configurations import ONE_PER_NETWORK, rows

TOKENS = torch.tensor([[3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26]])
ROWS = rows([*ONE_PER_NETWORK, "gemma3", "gpt2", "llama3", "phi3 with longrope"])
HARMLESS = {
    "_model_name_or_path": "Another 3B",
    "_sliding_window_pattern": 2,
    "_commit_hash": "0123",
    "unk_token_id": 3,
    "mask_token_id": 96,
    "image_token_index": 4,
    "name_or_path": "org/name",
    "model_version": "1.2",
    "unsloth_version": "2026.1",
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
    "num_labels": 3,
    "is_llama_config": True,
    "rope_interleaved": False,
    "logit_scale": None,
}
# Entries that change the numbers of some family; those that a family computes are another config.
CHANGING = {
    "logit_scale": 2.0,
    "logits_scaling": 2.0,
    "embedding_multiplier": 2.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.5,
    "attn_logit_softcapping": 30.0,
    "final_logit_softcapping": 5.0,
    "clip_qkv": 1.0,
    "query_pre_attn_scalar": 4,
    "rope_theta": 77.0,
    "rope_local_base_freq": 5.0,
    "partial_rotary_factor": 0.5,
    "rotary_pct": 0.5,
    "rotary_emb_base": 77.0,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "rope_interleaved": True,
    "use_mrope": True,
    "sliding_window": 2,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "no_rope_layers": [0, 1, 1],
    "max_window_layers": 1,
    "use_bidirectional_attention": True,
    "attention_bias": True,
    "mlp_bias": True,
    "add_cross_attention": True,
    "scale_attn_weights": False,
    "scale_attn_by_inverse_layer_idx": True,
    "use_parallel_residual": False,
    "do_layer_norm_before": False,
    "_remove_final_layer_norm": True,
    "word_embed_proj_dim": 12,
    "num_experts_per_tok": 1,
    "norm_topk_prob": True,
    "head_dim": 2,
    "hidden_act": "relu",
    "hidden_activation": "relu",
    "activation_function": "relu6",
    "per_layer_config": {"0": {"sliding_window": 2}},
    "quantization_config": {"bits": 4},
    "rms_norm_eps": 0.5,
    "layer_norm_eps": 0.5,
    "layer_norm_epsilon": 0.5,
}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """A function that saves the reference of a row, with other entries in its config.json."""
    saved = {row.name: tmp_path_factory.mktemp("saved") for row in ROWS}

    def folder(row, entries, removed=()):
        path = saved[row.name]
        if not (path / "own.json").exists():
            row.reference().save_pretrained(path)
            (path / "config.json").rename(path / "own.json")
        own = json.loads((path / "own.json").read_text())
        left = {key: value for key, value in own.items() if key not in removed}
        (path / "config.json").write_text(json.dumps(left | entries))
        return path

    return folder


def differs(row, folder):
    """Largest difference of the logits of a folder from those of transformers."""
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation=row.attention, experts_implementation="eager"
    )
    return (load_model(folder)(TOKENS) - theirs(TOKENS).logits).abs().max().item()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_changes_nothing_is_ignored(row, folder_of):
    added = {key: value for key, value in HARMLESS.items() if key not in row.settings}
    assert differs(row, folder_of(row, added)) < 5e-5


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_changes_numbers_is_computed_or_refused(row, folder_of):
    folder = folder_of(row, {})
    entries = json.loads((folder / "config.json").read_text())
    config, computed = config_of(entries), []
    for key, value in CHANGING.items():
        try:
            changed = config_of(entries | {key: value})
        except CheckpointError:
            continue
        # Equal only where it is what transformers computes anyway.
        if changed == config:
            assert differs(row, folder_of(row, {key: value})) < 5e-5, key
        else:
            computed.append(key)
    assert len(computed) < 12


LINEAR = {"rope_type": "linear", "factor": 2.0}
LLAMA3 = dict(rows(["llama3"])[0].settings["rope_parameters"])
LLAMA3_OLD = {"type" if key == "rope_type" else key: one for key, one in LLAMA3.items()}
NO_THETA = {key: value for key, value in LLAMA3_OLD.items() if key != "rope_theta"}
THETA = LLAMA3["rope_theta"]
LONGROPE = dict(rows(["phi3 with longrope"])[0].settings["rope_parameters"])
# Of each row: entries that are added, entries that are removed first, and whether it is read.
SPELLINGS = {
    "llama3": [
        ({"rope_scaling": LINEAR}, (), False),
        ({"rope_scaling": LINEAR, "rope_theta": THETA}, (), False),
        ({"rope_scaling": LLAMA3}, (), True),
        ({"rope_scaling": LLAMA3_OLD}, (), True),
        ({"rope_scaling": NO_THETA, "rope_theta": THETA}, (), True),
        ({"rope_scaling": NO_THETA, "rope_theta": THETA}, ("rope_parameters",), True),
        ({"rope_scaling": NO_THETA}, (), False),
        ({"rope_scaling": LINEAR | {"rope_theta": 9.0}, "rope_parameters": None}, (), True),
        ({"rope_scaling": LINEAR, "rope_parameters": {"rope_theta": 9.0}}, (), False),
        ({"rope_theta": THETA}, (), True),
        ({"rope_theta": 77.0}, (), False),
        ({"rope_theta": 77.0}, ("rope_parameters",), True),
        ({"rope_parameters": LINEAR | {"type": "default"}}, (), False),
        ({"rope_parameters": LINEAR | {"type": "linear"}}, (), True),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, (), False),
        ({"dtype": "float32", "torch_dtype": "float32"}, (), True),
        ({"torch_dtype": "float32"}, ("dtype",), True),
        ({"dtype": "float32", "torch_dtype": "bfloat16"}, (), False),
    ],
    "neox": [
        ({"rotary_emb_base": 10000, "rotary_pct": 0.5}, (), True),
        ({"rotary_emb_base": 77}, (), False),
        ({"rotary_pct": 0.25}, (), False),
        ({"rotary_emb_base": 77, "rotary_pct": 0.75}, ("rope_parameters",), True),
        ({"rotary_emb_base": 77, "rope_theta": 77}, ("rope_parameters",), True),
        ({"rope_theta": 10000, "partial_rotary_factor": 0.5}, (), True),
        ({"rope_theta": 77}, ("rope_parameters",), False),
        ({"partial_rotary_factor": 0.75}, ("rope_parameters",), False),
        ({"rope_scaling": LINEAR}, (), False),
        ({"rope_scaling": LINEAR, "rotary_emb_base": 77}, ("rope_parameters",), True),
    ],
    "gemma3": [
        ({"rope_theta": 1e6, "rope_local_base_freq": 1e4}, (), True),
        ({"rope_theta": 77.0}, (), False),
        ({"rope_local_base_freq": 77.0}, (), False),
        ({"rope_theta": 9.0, "rope_local_base_freq": 77.0}, ("rope_parameters",), True),
        ({"rope_scaling": LINEAR}, (), False),
        ({"rope_scaling": LINEAR}, ("rope_parameters",), True),
        ({"sliding_window_pattern": 3}, (), True),
        ({"sliding_window_pattern": 2}, (), False),
        ({"sliding_window_pattern": 2}, ("layer_types",), True),
        ({"hidden_act": "gelu_pytorch_tanh"}, (), True),
        ({"hidden_act": "gelu"}, (), False),
        ({"sliding_window_size": 4}, (), False),
        ({"rope_parameters": {"rope_theta": 9.0}}, (), False),
    ],
    "gemma2": [({"rope_scaling": LINEAR}, (), False), ({"rope_theta": 77.0}, (), False)],
    "phi3": [
        ({"rope_scaling": LONGROPE}, (), False),
        ({"rope_theta": 77.0}, (), False),
        ({"partial_rotary_factor": 0.5}, (), False),
        ({"partial_rotary_factor": 0.5}, ("rope_parameters",), True),
        ({"rope_parameters": {"original_max_position_embeddings": 16}}, (), False),
    ],
    "phi3 with longrope": [
        ({"rope_scaling": LONGROPE}, (), True),
        ({"original_max_position_embeddings": 24}, (), False),
        ({}, ("original_max_position_embeddings",), False),
        ({"rope_scaling": {"rope_type": "default"}}, (), False),
    ],
    "gpt2": [
        ({"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 6}, (), True),
        ({"hidden_size": 24, "max_position_embeddings": 160}, ("n_embd", "n_positions"), True),
        ({"num_attention_heads": 3}, (), False),
        ({"num_attention_heads": 3}, ("n_head",), True),
    ],
    "olmoe": [
        ({"num_local_experts": 5}, (), True),
        ({"num_local_experts": 5}, ("num_experts",), True),
        ({"num_local_experts": 4}, (), False),
    ],
    "olmo2": [({"head_dim": 4}, (), True), ({"head_dim": 2}, (), False)],
}


@pytest.mark.parametrize(
    ("name", "added", "removed", "is_read"),
    [(name, *case) for name, cases in SPELLINGS.items() for case in cases],
)
def test_two_spellings_of_a_key_agree_or_are_refused(name, added, removed, is_read, folder_of):
    (row,) = rows([name])
    folder = folder_of(row, added, removed)
    if is_read:
        assert differs(row, folder) < 5e-5
    else:
        with pytest.raises(CheckpointError):
            load_model(folder)


def test_a_conflict_names_both_keys_and_their_values(folder_of, tmp_path, refused):
    (row,) = rows(["llama3"])
    for entries in ({"rope_theta": 77.0}, {"rope_scaling": LINEAR}):
        text = (folder_of(row, entries) / "config.json").read_text()
        (tmp_path / "config.json").write_text(text)
        refused(find_config, tmp_path)


def test_all_unknown_keys_are_named_at_once_with_the_way_to_ignore_them(tmp_path, refused):
    entries = {"model_type": "llama", "logit_scale": 2.0, "note": "x" * 99, "unk_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps(entries))
    refused(find_config, tmp_path)
    refused(find_config, ignoring(tmp_path, ["note", "rope_theta", "nothing"]))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    refused(find_config, ignoring(tmp_path, ["rms_norm_eps"]))


def test_keys_of_published_files_are_read_at_their_usual_values_only():
    phi4 = {"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False}
    usual = {"phi3": phi4, "gpt2": {"output_past": True, "pruned_heads": {}}}
    usual["gpt_neox"] = {"custom_pipelines": {"text": {"impl": "x"}}}
    usual["llama"] = {"max_sequence_length": 2048, "tokenizer_model_max_length": 5}
    usual["llama"] |= {"tokenizer_padding_side": "right"}
    for model_type, entries in usual.items():
        assert config_of({"model_type": model_type, **entries}) == config_of(
            {"model_type": model_type}
        )
    for entries in (
        *({"model_type": "phi3", key: 2} for key in phi4),
        {"pruned_heads": {"0": [1]}},
    ):
        with pytest.raises(CheckpointError, match=[*entries][-1]):
            config_of(entries)


def test_ignored_keys_reach_every_reader_of_a_model(folder_of):
    (row,) = rows(["qwen3"])
    expected = load_model(folder_of(row, {}))(TOKENS)
    folder = folder_of(row, {"note": 1, "logit_scale": 2.0})
    named = f"{folder}?ignore=note,logit_scale"
    assert torch.equal(load_model(folder_of(row, {}), ignore=None)(TOKENS), expected)
    folder_of(row, {"note": 1, "logit_scale": 2.0})
    for network in (load_model(folder, ignore=["note", "logit_scale"]), load_model(named)):
        assert torch.equal(network(TOKENS), expected)
    with pytest.raises(CheckpointError, match=r"logit_scale \(2.0\); in `ignore`: note"):
        load_model(folder, ignore=["note"])
    reference = row.reference()
    reference.config.note = 1
    with pytest.raises(CheckpointError, match="unknown keys: note"):
        from_transformers(reference)
    assert torch.equal(from_transformers(reference, ignore=["note"])(TOKENS), expected)
    model = ModelSection(source=str(folder), ignore=("note", "logit_scale"))
    assert (model.name, model.source) == (named, str(folder))


def test_a_revision_and_ignored_keys_are_both_kept():
    both = "org/name@main?ignore=a,b"
    assert at_revision(ignoring("org/name", ["a", "b"]), "main") == both
    assert ignoring(at_revision("org/name", "main"), ["a", "b", "a"]) == both
    assert ignored_keys(both) == ("a", "b")
    with pytest.raises(ConfigError, match="contains the revision 'main'"):
        at_revision(both, "other")


# Of the fields of every config in transformers; a new one is read here before it is ignored.
REVIEWED = """_label_trainable_num_channels _out_features _out_indices _remove_final_layer_norm
activation_dropout architectures attention_dropout attention_probs_dropout_prob
begin_suppress_tokens chunk_size_feed_forward classifier_dropout dropout dtype early_stopping
embd_pdrop encoder_no_repeat_ngram_size hidden_dropout hidden_dropout_prob id2label init_std
initializer_range is_decoder is_encoder_decoder label2id layerdrop length_penalty max_length
num_beams num_labels output_hidden_states output_router_logits prefix pretraining_tp
problem_type reorder_and_upcast_attn resid_pdrop return_dict router_aux_loss_coef
summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
suppress_tokens temperature transformers_version use_cache"""
SWITCHES = ["add_cross_attention", "attention_bias", "mlp_bias", "use_bidirectional_attention"]


@pytest.mark.nightly
def test_of_all_fields_of_transformers_only_reviewed_ones_are_ignored():
    configs = [CONFIG_MAPPING[name] for name in CONFIG_MAPPING.keys()]  # noqa: SIM118
    names = {name for one in configs for name in getattr(one, "attribute_map", {})}
    names |= {field.name for one in configs if is_dataclass(one) for field in fields(one)}
    assert len(names) > 2000
    names = {name for name in names if "_token_i" not in name}
    assert sorted(name for name in names if is_harmless(name, 1.5)) == REVIEWED.split()
    off = {name for name in names if is_harmless(name, False)}
    assert sorted(off - set(REVIEWED.split())) == SWITCHES


def test_the_configs_of_transformers_have_no_key_that_is_unknown():
    for row in ROWS:
        entries = AutoConfig.for_model(row.model_type).to_dict()
        assert config_of(entries).TITLE
