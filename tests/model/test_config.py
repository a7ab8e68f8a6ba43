"""Keys of a config.json that change nothing are ignored, and all others are refused."""

import json
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from probekit import load_model
from probekit.errors import CheckpointError, ConfigError
from probekit.experiment.model import ModelSection
from probekit.model.config import is_harmless
from probekit.model.families.from_transformers import from_transformers
from probekit.model.families.table import config_of, find_config
from probekit.model.weights.sources import at_revision, ignored_keys, ignoring
from tests.model.families.configurations import ONE_PER_NETWORK, rows

TOKENS = torch.tensor([[3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26]])
KEYS = YAML(typ="safe").load(Path(__file__).with_name("config_keys.yaml"))
OTHERS = ("gemma3", "gpt2", "llama3", "phi3 with longrope", "olmo3 with yarn", "gemma3 with images")
ROWS = rows([*ONE_PER_NETWORK, *OTHERS])


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
    added = {key: value for key, value in KEYS["harmless"].items() if key not in row.settings}
    assert differs(row, folder_of(row, added)) < 5e-5


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_changes_numbers_is_computed_or_refused(row, folder_of):
    folder = folder_of(row, {})
    entries = json.loads((folder / "config.json").read_text())
    config, computed = config_of(entries), []
    for key, value in KEYS["changing"].items():
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


@pytest.mark.parametrize(
    ("name", "added", "removed", "is_read"),
    [(name, *case) for name, cases in KEYS["spellings"].items() for case in cases],
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
    for entries in ({"rope_theta": 77.0}, {"rope_scaling": KEYS["rotary"]["linear"]}):
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
        plain = {"model_type": model_type}
        assert config_of(plain | entries) == config_of(plain)
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


@pytest.mark.nightly
def test_of_all_fields_of_transformers_only_reviewed_ones_are_ignored():
    configs = [CONFIG_MAPPING[name] for name in CONFIG_MAPPING.keys()]  # noqa: SIM118
    names = {name for one in configs for name in getattr(one, "attribute_map", {})}
    names |= {field.name for one in configs if is_dataclass(one) for field in fields(one)}
    assert len(names) > 2000
    reviewed = KEYS["reviewed"].split()
    names = {name for name in names if "_token_i" not in name}
    assert sorted(name for name in names if is_harmless(name, 1.5)) == reviewed
    off = {name for name in names if is_harmless(name, False)}
    assert sorted(off - set(reviewed)) == KEYS["switches"]


def test_the_configs_of_transformers_have_no_key_that_is_unknown():
    for row in ROWS:
        entries = AutoConfig.for_model(row.model_type).to_dict()
        assert config_of(entries).TITLE
