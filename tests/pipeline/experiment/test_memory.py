"""Runs on rows in memory: the same results and caches as for a file with these rows."""

from pathlib import Path

import datasets
import pandas as pd
import polars as pl
import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from probekit.cli.main import cli
from probekit.data.examples import Finding
from probekit.errors import ConfigError
from probekit.experiment.document import dump_settings
from probekit.experiment.schema import Experiment
from probekit.pipeline.capture.jobs import Job, put_job
from probekit.pipeline.experiment.record import run_key
from probekit.pipeline.experiment.run import run
from probekit.pipeline.experiment.source import model_source
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


def test_runs_on_the_same_rows_have_the_same_key(frame):
    tables = {
        "pandas": frame,
        "polars": pl.read_csv("rows.csv"),
        "dicts": frame.to_dict("records"),
        "dataset": datasets.Dataset.from_pandas(frame),
        "other index": frame.set_index("text", drop=False).assign(unused=1),
    }

    def key(table):
        return run_key(model_source(Experiment.from_dict(GROUPED).with_data(table), "cpu"), None)

    assert len({key(table) for table in tables.values()}) == 1
    assert key(frame.iloc[:-2]) != key(frame)


def test_the_config_of_a_run_describes_its_rows(frame):
    first = go(GROUPED, data=frame)
    config = first.folder / "config.yaml"
    saved = YAML(typ="safe").load(config.read_text())["data"]
    digest = first.record["digests"]["dataset"]
    rows = {"kind": "pandas DataFrame", "n_rows": 96, "digest": digest, "is_split": False}
    assert (saved["format"], saved["memory"]) == ("memory", rows)
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


def test_rows_in_memory_are_validated_and_findings_name_the_index(frame):
    report = validate(GROUPED, data=frame)
    assert report.ok
    assert report.n_examples == 96
    frame.loc[17, "text"] = ""
    report = validate(GROUPED, data=frame)
    assert [finding.message for finding in report.findings if finding.level == "error"] == [
        "DataFrame index 17: The text is empty. Fill it in, or leave the example out."
    ]
    frame.loc[17, "text"] = "The red\0"
    named = frame.set_index(pd.Index([f"q{n}" for n in range(96)]))
    messages = [finding.message for finding in validate(GROUPED, data=named).findings]
    assert any("DataFrame index 'q17'" in message for message in messages)


def test_other_processes_cannot_read_rows_in_memory(in_memory):
    with pytest.raises(ConfigError, match="Other processes cannot read rows that were passed in P"):
        put_job(Job(in_memory, "task"), None)


def test_a_report_shows_what_the_command_prints():
    report = ValidationReport((Finding("warning", "a-code", "Rows are few."),), 2, 4, 3, 10**6, 0.5)
    cost = "2 examples, 4 rows at each of 3 sites, 1.0 MB, about 30 seconds to capture"
    assert repr(report) == f"warning: Rows are few.\n{cost} on this machine, plus probing.\nok"
