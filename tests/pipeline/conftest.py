"""Fixtures: runs of the planted experiment, and a probe that one of them has saved."""

from functools import cache

import pytest

from probekit.probes.saved_probe import SavedProbe
from tests.pipeline.planted import QUICK, QUICK_SITES, Planted


@pytest.fixture(scope="session")
def planted(tmp_path_factory):
    """The planted experiment, whose runs are made once; tests copy what they change."""
    shared = Planted(tmp_path_factory.mktemp("planted"))
    shared.run = cache(shared.run)
    return shared


@pytest.fixture
def own(planted, tmp_path):
    """The planted experiment in a folder of the test, with the shared activations."""
    return Planted(tmp_path, planted.cache)


@pytest.fixture(scope="session")
def probe(planted):
    """The probe of the colour at the residual stream of block 3."""
    return SavedProbe.load(planted.run(*QUICK).folder / "probes" / QUICK_SITES[1] / "logistic")
