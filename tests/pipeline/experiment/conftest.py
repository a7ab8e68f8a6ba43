"""The planted experiment, and its run in a folder of the test."""

import pytest

from probekit.experiment.loader import load_experiment
from probekit.pipeline.experiment.run import run
from tests.pipeline.planted import YAML, write_rows


@pytest.fixture
def experiment(tmp_path):
    write_rows(tmp_path / "rows.csv")
    (tmp_path / "planted.yaml").write_text(YAML)

    def load(*overrides):
        return load_experiment(tmp_path / "planted.yaml", overrides)

    return load


@pytest.fixture
def go(tmp_path):
    def go(experiment, **options):
        return run(experiment, out=tmp_path / "runs", cache_root=tmp_path / "cache", **options)

    return go
