"""Runs on rows in memory: the same results and caches as for a file with these rows."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from probekit.data.examples import Finding
from probekit.experiment.schema import Experiment
from probekit.pipeline.capture.jobs import Job, put_job
from probekit.pipeline.experiment.run import run
from probekit.pipeline.experiment.validate import ValidationReport, validate
from tests.pipeline.planted import YAML as PLANTED
from tests.pipeline.planted import write_rows


def settings(columns):
    values = YAML(typ="safe").load(PLANTED)
    values["data"] = {"name": "planted", "columns": columns}
    values["model"]["random_weights"] = 0
    values["capture"] = {"sites": ["blocks.3.hook_resid_post"]}
    values["probe"] = {"folds": 2, "C": [1], "control_draws": 1, "permutations": 0}
    return values | {"attention": {}}


GROUPED = settings({"group": "group"})


@pytest.fixture
def frame(tmp_path, monkeypatch):
    """The rows, which are in a file of the working folder, too."""
    monkeypatch.chdir(tmp_path)
    return write_rows(tmp_path / "rows.csv")


def go(values, **options):
    return run(values, out="runs", cache_root=Path("cache"), page=False, **options)


@pytest.mark.parametrize("columns", [{"group": "group"}, {}])
def test_results_are_those_of_the_file(frame, columns):
    values = settings(columns)
    of_file = go(values | {"data": values["data"] | {"format": "csv", "file": "rows.csv"}})
    of_frame = go(values, data=frame.set_index("text", drop=False))
    assert of_frame.results.read_bytes() == of_file.results.read_bytes()
    digests = of_frame.record["digests"]
    assert digests == of_file.record["digests"] | {"config": digests["config"]}
    assert of_frame.record["caches"] == of_file.record["caches"]
    assert len(list(Path("cache").iterdir())) == 1


def test_the_config_of_a_run_describes_its_rows(frame, call):
    report = validate(GROUPED, data=frame)
    assert (report.ok, report.n_examples) == (True, 96)
    first = go(GROUPED, data=frame)
    config = first.folder / "config.yaml"
    assert YAML(typ="safe").load(config.read_text())["data"]["format"] == "memory"
    assert go(config, data=frame).folder == first.folder
    for command in ("run", "validate"):
        shown = call(command, config).stderr
        assert "config.yaml, line" in shown
        assert "the rows of this run were passed in Python" in " ".join(shown.split())


def test_other_processes_cannot_read_rows_in_memory(frame, refused):
    in_memory = Experiment.from_dict(settings({})).with_data(frame)
    refused(put_job, Job(in_memory, "task"), None)


def test_a_report_shows_what_the_command_prints(snapshot):
    report = ValidationReport((Finding("warning", "a-code", "Rows are few."),), 2, 4, 3, 10**6, 0.5)
    assert repr(report) == snapshot
