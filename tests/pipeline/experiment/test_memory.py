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
    values["attention"] = {}
    return values


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.csv")
    return tmp_path


def go(values, **options):
    return run(values, out="runs", cache_root=Path("cache"), page=False, **options)


@pytest.mark.parametrize("columns", [{"group": "group"}, {}])
def test_results_are_those_of_the_file(folder, columns):
    values = settings(columns)
    of_file = go(values | {"data": values["data"] | {"format": "csv", "file": "rows.csv"}})
    frame = pd.read_csv("rows.csv")
    of_frame = go(values, data=frame.set_index("text", drop=False))
    assert of_frame.results.read_bytes() == of_file.results.read_bytes()
    assert of_frame.record["digests"] == of_file.record["digests"] | {
        "config": of_frame.record["digests"]["config"]
    }
    assert of_frame.record["caches"] == of_file.record["caches"]
    assert len(list(Path("cache").iterdir())) == 1


def test_runs_on_the_same_rows_have_the_same_key(folder):
    frame = pd.read_csv("rows.csv")
    tables = {
        "pandas": frame,
        "polars": pl.read_csv("rows.csv"),
        "dicts": frame.to_dict("records"),
        "dataset": datasets.Dataset.from_pandas(frame),
        "other index": frame.set_index("text", drop=False).assign(unused=1),
    }
    columns = Experiment.from_dict(settings({"group": "group"}))

    def key(table):
        return run_key(model_source(columns.with_data(table), "cpu"), None)

    assert len({key(table) for table in tables.values()}) == 1
    assert key(frame.iloc[:-2]) != key(frame)


def test_the_config_of_a_run_describes_its_rows(folder):
    frame = pd.read_csv("rows.csv")
    first = go(settings({"group": "group"}), data=frame)
    config = first.folder / "config.yaml"
    saved = YAML(typ="safe").load(config.read_text())["data"]
    assert saved["format"] == "memory"
    assert saved["memory"] == {
        "kind": "pandas DataFrame",
        "n_rows": 96,
        "digest": first.record["digests"]["dataset"],
        "is_split": False,
    }
    assert go(config, data=frame).folder == first.folder
    with pytest.raises(ConfigError, match=r"config\.yaml, line \d+: these are not the rows"):
        go(config, data=frame.iloc[1:])


def test_the_command_line_reports_rows_that_are_not_stored(folder):
    experiment = Experiment.from_dict(settings({})).with_data(pd.read_csv("rows.csv"))
    Path("config.yaml").write_text(dump_settings(experiment))
    for command in ("run", "validate"):
        result = CliRunner().invoke(cli, [command, "config.yaml"])
        assert isinstance(result.exception, ConfigError)
        assert "config.yaml, line" in str(result.exception)
        assert "the rows of this run were passed in Python" in str(result.exception)


def test_rows_in_memory_are_validated(folder):
    frame = pd.read_csv("rows.csv")
    report = validate(settings({"group": "group"}), data=frame)
    assert report.ok
    assert report.n_examples == 96
    frame.loc[17, "text"] = ""
    report = validate(settings({"group": "group"}), data=frame)
    assert [finding.message for finding in report.findings if finding.level == "error"] == [
        "DataFrame index 17: The text is empty. Fill it in, or leave the example out."
    ]


def test_findings_name_the_index(folder):
    frame = pd.read_csv("rows.csv").set_index(pd.Index([f"q{n}" for n in range(96)]))
    frame.loc["q17", "text"] = "The red\0"
    findings = validate(settings({"group": "group"}), data=frame).findings
    assert any("DataFrame index 'q17'" in finding.message for finding in findings)


def test_other_processes_cannot_read_rows_in_memory(folder):
    experiment = Experiment.from_dict(settings({})).with_data(pd.read_csv("rows.csv"))
    with pytest.raises(ConfigError, match="Other processes cannot read rows that were passed in P"):
        put_job(Job(experiment, "task"), None)


def test_a_report_shows_what_the_command_prints():
    report = ValidationReport((Finding("warning", "a-code", "Rows are few."),), 2, 4, 3, 10**6, 0.5)
    cost = "2 examples, 4 rows at each of 3 sites, 1.0 MB, about 30 seconds to capture"
    assert repr(report) == f"warning: Rows are few.\n{cost} on this machine, plus probing.\nok"
