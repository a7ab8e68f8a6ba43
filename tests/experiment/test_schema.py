"""The committed JSON schema matches the models, and sections have the keys of their targets."""

import dataclasses
import json

import pytest

from probekit.experiment.loader import schemas
from probekit.experiment.model import ModelSection
from probekit.experiment.replies import GenerateSection
from probekit.model.families.gpt2 import GPT2Config
from probekit.training.recipe import ShapeSection

SCHEMAS = schemas()


@pytest.mark.parametrize("name", SCHEMAS)
def test_committed_schema_is_up_to_date_and_describes_every_key(repository, name):
    assert (repository / "experiments" / name).read_text() == SCHEMAS[name], "run `make schema`"
    for section_name, section in json.loads(SCHEMAS[name])["$defs"].items():
        for key, entry in section["properties"].items():
            assert "description" in entry or "$ref" in entry, f"{section_name}.{key}"


def defaults(settings):
    return {field.name: field.default for field in dataclasses.fields(settings)}


def test_sections_have_the_fields_and_defaults_of_their_target():
    own = defaults(GPT2Config)
    keys = {k: f for k, f in ShapeSection.model_fields.items() if k != "position_waves"}
    for key, field in keys.items():
        assert field.is_required() or field.default == own[key], key
    of_the_vocabulary = {"vocab_size", "bos_token_id", "eos_token_id"}
    assert set(own) - set(keys) == {*of_the_vocabulary, "layer_norm_epsilon"}


@pytest.mark.parametrize(("given", "number"), [("true", 3), ("false", 0), ("5", 5), ("0", 0)])
def test_random_weights_is_a_switch_or_a_number_of_networks(given, number):
    values = {"source": "mini", "random_weights": json.loads(given)}
    assert ModelSection.model_validate(values).random_weights == number
    assert ModelSection(source="mini").random_weights == 3


def test_the_guide_of_replies_states_the_defaults(repository):
    text = " ".join((repository / "docs/howto/replies.md").read_text().split())
    defaults = GenerateSection(max_new_tokens=1)
    stated = (f"`{key}: {getattr(defaults, key)}`" for key in ("temperature", "samples", "seed"))
    assert "The defaults are {}, {} and {}, without `top_p` and `top_k`".format(*stated) in text
    assert defaults.top_p is None
    assert defaults.top_k is None
