"""The committed JSON schema matches the models and describes every key."""

import dataclasses
import json

import pytest

from probekit.data.positions import PositionRule
from probekit.experiment.loader import schemas
from probekit.experiment.model import ModelSection, PositionSection
from probekit.experiment.probe import ProbeSection
from probekit.probes.settings import ProbeSettings

SCHEMAS = schemas()


@pytest.mark.parametrize("name", SCHEMAS)
def test_committed_schema_is_up_to_date(repository, name):
    assert (repository / "experiments" / name).read_text() == SCHEMAS[name], "run `make schema`"


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_key_has_a_description(name):
    schema = json.loads(SCHEMAS[name])
    for name, section in schema["$defs"].items():
        for key, entry in section["properties"].items():
            assert "description" in entry or "$ref" in entry, f"{name}.{key}"


def names(settings):
    return {field.name for field in dataclasses.fields(settings)}


def test_sections_have_the_fields_of_their_target():
    # The device of a fit is not a setting of the experiment; permutations follow all fits.
    others = {"permutations"}
    assert set(ProbeSection.model_fields) - others == names(ProbeSettings) - {"device"}
    assert set(PositionSection.model_fields) == names(PositionRule)


def test_sections_have_the_defaults_of_their_target():
    assert ProbeSection().settings() == ProbeSettings()
    rule = PositionRule(**PositionSection(at="last").model_dump())
    assert rule == PositionRule("last")


@pytest.mark.parametrize(("given", "number"), [("true", 3), ("false", 0), ("5", 5), ("0", 0)])
def test_random_weights_is_a_switch_or_a_number_of_networks(given, number):
    values = {"source": "mini", "random_weights": json.loads(given)}
    assert ModelSection.model_validate(values).random_weights == number
    assert ModelSection(source="mini").random_weights == 3
