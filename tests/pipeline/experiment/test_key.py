"""The run key covers all imported code that affects the results."""

import pytest

from probekit.model.families.table import FAMILIES
from probekit.pipeline.experiment.record import TABLES
from probekit.provenance import closure


@pytest.fixture(scope="module")
def modules():
    return set(closure(TABLES))


@pytest.mark.parametrize(
    "name",
    [
        "probes.solve.solver",  # through the probers
        "probes.kinds.mlp",  # declared in the table of kinds
        "probes.score.metrics",
        "data.splits",
        "activations.store",
        "model.text.tokenizer",
        "results.selection",
        "pipeline.measure.significance",
    ],
)
def test_modules_that_affect_numbers_are_in_the_key(modules, name):
    assert f"probekit.{name}" in modules


@pytest.mark.parametrize(
    "room",
    [
        "report",
        "cli",
        "pipeline.compare",
        "pipeline.selftest",
        "pipeline.capture.local_workers",
        "pipeline.capture.ray_workers",
        "pipeline.capture.jobs",
    ],
)
def test_report_launchers_and_upkeep_are_not_in_the_key(modules, room):
    assert not [name for name in modules if name.startswith(f"probekit.{room}")]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.title)
def test_the_code_of_a_network_covers_its_random_weights(family):
    """The key has no digest of these weights: they follow from code, seed and config."""
    assert "probekit.model.network" in closure(family.network.partition(":")[0])
