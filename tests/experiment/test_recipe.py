"""Recipes: each error names its line, and all defaults are written."""

import dataclasses
from pathlib import Path

import pytest

from probekit.errors import ConfigError, MissingError
from probekit.experiment.document import dump_settings
from probekit.experiment.loader import load_recipe
from probekit.model.families.gpt2 import GPT2Config
from probekit.training.recipe import ShapeSection

TEXT = """\
name: tiny
corpus: {source: books}
model: {n_layer: 2, n_head: 2, n_embd: 16, n_positions: 32}
training: {steps: 10, batch: 4}
"""


@pytest.fixture
def write(tmp_path):
    def write(old="", new=""):
        assert old in TEXT
        (tmp_path / "tiny.yaml").write_text(TEXT.replace(old, new))
        return tmp_path / "tiny.yaml"

    return write


def shipped():
    return sorted((Path(__file__).parents[2] / "experiments").glob("pretrain_*.yaml"))


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.stem)
def test_included_recipes_load_and_name_their_schema(path):
    assert load_recipe(path).corpus.files
    first = path.read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=recipe.schema.json"


def test_paths_are_relative_to_the_folder_of_the_recipe(write, tmp_path):
    assert load_recipe(write()).corpus.source == str(tmp_path / "books")
    (tmp_path / "other").mkdir()
    recipe = load_recipe(write("training:", "vocabulary: {source: other}\ntraining:"))
    assert recipe.vocabulary.source == str(tmp_path / "other")
    named = load_recipe(write("training:", "vocabulary: {source: mini}\ntraining:"))
    assert named.vocabulary.source == "mini"


def test_written_recipe_loads_as_the_same(write, tmp_path):
    recipe = load_recipe(write())
    (tmp_path / "again.yaml").write_text(dump_settings(recipe))
    assert load_recipe(tmp_path / "again.yaml") == recipe


def test_network_section_has_the_keys_and_defaults_of_gpt2_config():
    own = {field.name: field.default for field in dataclasses.fields(GPT2Config)}
    keys = {k: f for k, f in ShapeSection.model_fields.items() if k != "position_waves"}
    for key, field in keys.items():
        assert field.is_required() or field.default == own[key], key
    of_the_vocabulary = {"vocab_size", "bos_token_id", "eos_token_id"}
    assert set(own) - set(keys) == {*of_the_vocabulary, "layer_norm_epsilon"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("steps: 10", "steps: 0", "line 4: training.steps is 0. It must be at least 1."),
        ("steps: 10", "step: 10", "unknown key 'training.step'. Nearest: steps."),
        ("n_head: 2", "n_head: 3", "line 3: .*n_head=3 does not divide n_embd=16"),
        ("batch: 4", "batch: 4, accumulate: 3", r"accumulate \(3\) does not divide batch \(4\)"),
        ("batch: 4", "batch: 4, warm_up: 11", "warm_up and decay_steps add up to more than steps"),
        ("batch: 4", "batch: 4, optimizer: adam", "Nearest: adamw"),
        ("batch: 4", "batch: 4, betas: [0.9, 1.0]", "must be less than 1"),
        ("batch: 4", "batch: 4, learning_rate: -1", "learning_rate is -1"),
        ("n_layer: 2", "n_layer: 2, resid_pdrop: -0.1", "resid_pdrop is -0.1"),
        ("{source: books}", "{source: ''}", "corpus.source"),
        ("{source: books}", "{source: books, held_out: 0}", "held_out is 0"),
        ("training:", "vocabulary: {size: 100}\ntraining:", "size is 100"),
        ("training:", "repeats: {share: [0.5, 0.1]}\ntraining:", "the maximum is 16"),
        ("training:", "repeats: {period: [9, 3]}\ntraining:", r"period is \[shortest, longest\]"),
        ("training:", "checkpoints: {at: [11]}\ntraining:", "after the last step, 10"),
        ("name: tiny", "name: a/b", "name is 'a/b'"),
    ],
)
def test_each_error_is_reported_with_its_line(write, old, new, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe(write(old, new))


def test_invalid_override_is_named_as_override(write):
    with pytest.raises(ConfigError, match=r"--set: training.steps is -1"):
        load_recipe(write(), ["training.steps=-1"])


def test_missing_recipe_is_reported(tmp_path):
    with pytest.raises(MissingError, match=r"none.yaml"):
        load_recipe(tmp_path / "none.yaml")
