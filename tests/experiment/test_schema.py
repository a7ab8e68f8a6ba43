"""The committed JSON schema is the one that the models give, and describes every key."""

import dataclasses
import json

from probekit.data.positions import PositionRule
from probekit.experiment.schema import Position, Probe, json_schema
from probekit.probes.curve import ProbeSettings


def test_the_committed_schema_is_up_to_date(repository):
    committed = (repository / "experiments/experiment.schema.json").read_text()
    assert committed == json_schema(), "run `make schema`"


def test_every_key_is_described():
    schema = json.loads(json_schema())
    for name, section in schema["$defs"].items():
        for key, entry in section["properties"].items():
            assert "description" in entry or "$ref" in entry, f"{name}.{key}"


def names(settings):
    return {field.name for field in dataclasses.fields(settings)}


def test_the_sections_have_the_fields_of_what_they_configure():
    # A fit knows its device, which is no science; the permutations come after all fits.
    assert set(Probe.model_fields) - {"permutations"} == names(ProbeSettings) - {"device"}
    assert set(Position.model_fields) == names(PositionRule)


def test_the_defaults_are_those_of_what_they_configure():
    assert Probe().settings() == ProbeSettings()
    rule = PositionRule(**Position(at="last").model_dump())
    assert rule == PositionRule("last")
