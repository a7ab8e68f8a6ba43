"""Recipes: paths, and defaults that are those of the network."""

import dataclasses

import pytest

from probekit.experiment.document import dump_settings
from probekit.experiment.loader import load_recipe
from probekit.model.families.gpt2 import GPT2Config
from probekit.training.recipe import ShapeSection
from tests.experiment.files import RECIPE


@pytest.fixture
def write(tmp_path):
    def write(old="", new=""):
        assert old in RECIPE
        (tmp_path / "tiny.yaml").write_text(RECIPE.replace(old, new))
        return tmp_path / "tiny.yaml"

    return write


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
