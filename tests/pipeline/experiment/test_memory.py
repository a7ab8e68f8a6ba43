"""Runs on rows in memory: the same results and caches as for a file with these rows."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from probekit.cli.main import cli
from probekit.data.examples import Finding
from probekit.errors import ConfigError
from probekit.experiment.document import dump_settings
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


@pytest.fixture
def in_memory(frame):
    return Experiment.from_dict(settings({})).with_data(frame)


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


def test_the_config_of_a_run_describes_its_rows(frame):
    first = go(GROUPED, data=frame)
    config = first.folder / "config.yaml"
    assert YAML(typ="safe").load(config.read_text())["data"]["format"] == "memory"
    assert go(config, data=frame).folder == first.folder
    with pytest.raises(ConfigError, match=r"config\.yaml, line \d+: these are not the rows"):
        go(config, data=frame.iloc[1:])


@pytest.mark.parametrize("command", ["run", "validate"])
def test_the_command_line_reports_rows_that_are_not_stored(in_memory, command):
    Path("config.yaml").write_text(dump_settings(in_memory))
    result = CliRunner().invoke(cli, [command, "config.yaml"])
    assert isinstance(result.exception, ConfigError)
    assert "config.yaml, line" in str(result.exception)
    assert "the rows of this run were passed in Python" in str(result.exception)


def test_rows_in_memory_are_validated(frame):
    report = validate(GROUPED, data=frame)
    assert report.ok
    assert report.n_examples == 96


def test_other_processes_cannot_read_rows_in_memory(in_memory):
    with pytest.raises(ConfigError, match="Other processes cannot read rows that were passed in P"):
        put_job(Job(in_memory, "task"), None)


def test_a_report_shows_what_the_command_prints():
    report = ValidationReport((Finding("warning", "a-code", "Rows are few."),), 2, 4, 3, 10**6, 0.5)
    cost = "2 examples, 4 rows at each of 3 sites, 1.0 MB, about 30 seconds to capture"
    assert repr(report) == f"warning: Rows are few.\n{cost} on this machine, plus probing.\nok"
