"""Recipes: paths, and defaults that are those of the network."""

import dataclasses

from probekit.experiment.loader import load_recipe
from probekit.model.families.gpt2 import GPT2Config
from probekit.training.recipe import ShapeSection
from tests.experiment.files import RECIPE


def test_paths_are_relative_to_the_folder_of_the_recipe(write, tmp_path):
    assert load_recipe(write(RECIPE)).corpus.source == str(tmp_path / "books")
    (tmp_path / "other").mkdir()
    for given, source in {"other": str(tmp_path / "other"), "mini": "mini"}.items():
        recipe = load_recipe(write(f"{RECIPE}vocabulary: {{source: {given}}}\n"))
        assert recipe.vocabulary.source == source


def test_network_section_has_the_keys_and_defaults_of_gpt2_config():
    own = {field.name: field.default for field in dataclasses.fields(GPT2Config)}
    keys = {k: f for k, f in ShapeSection.model_fields.items() if k != "position_waves"}
    for key, field in keys.items():
        assert field.is_required() or field.default == own[key], key
    of_the_vocabulary = {"vocab_size", "bos_token_id", "eos_token_id"}
    assert set(own) - set(keys) == {*of_the_vocabulary, "layer_norm_epsilon"}
