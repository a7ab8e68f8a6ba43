"""Experiments over checkpoints: each one is probed as in a single run, and shown on the page."""

import shutil

import pandas as pd
import pytest

from probekit.errors import ConfigError, MissingError
from probekit.experiment.loader import load_experiment
from probekit.pipeline.experiment.run import run
from probekit.pipeline.pretrain import pretrain
from probekit.report.pages.run_page import write_report
from tests.model.hub import connect, serving
from tests.pipeline.planted import YAML, write_rows


@pytest.fixture
def trained(tmp_path, make_recipe):
    return pretrain(make_recipe(), out=tmp_path / "trained").folder


@pytest.fixture
def load(tmp_path, trained):
    """A function that loads the experiment with another model section."""
    write_rows(tmp_path / "rows.csv")

    def load(model="{path: trained/tiny, checkpoints: all}"):
        text = YAML.replace("{source: mini}", model).replace("[03]", "[01]")
        (tmp_path / "over.yaml").write_text(text)
        return load_experiment(tmp_path / "over.yaml")

    return load


def go(experiment, tmp_path, name):
    return run(experiment, out=tmp_path / name, cache_root=tmp_path / "cache")


def test_checkpoint_scores_equal_those_of_single_runs(load, tmp_path):
    over = go(load(), tmp_path, "over")
    training = pd.read_csv(over.folder / "training.csv")
    assert sorted(training["step"].unique()) == [0, 6, 12]
    alone = go(load("{source: trained/tiny/checkpoints/step-0000006}"), tmp_path, "alone")
    keys = ["site", "metric", "split"]
    task = alone.table[alone.table["target"] == "task"].set_index(keys)["value"]
    ours = training[training["step"] == 6].set_index(keys)["value"]
    assert len(ours) > 10
    pd.testing.assert_series_equal(ours, task[ours.index])
    last = training[training["step"] == 12].set_index(keys)["value"]
    main = over.table[over.table["target"] == "task"].set_index(keys)["value"]
    pd.testing.assert_series_equal(last, main[last.index])


def test_only_the_last_checkpoint_is_edited(load, tmp_path):
    load()
    path = tmp_path / "over.yaml"
    edit = "interventions: [{do: ablate, with: zero, sites: blocks.0.hook_resid_post}]\n"
    measure = "measure: [{logit_difference: {answer: a, wrong: b}}]\n"
    path.write_text(path.read_text() + edit + measure)
    over = go(load_experiment(path), tmp_path, "over")
    assert (over.folder / "causes" / "effects.csv").exists()
    assert len(list(tmp_path.rglob("effects.csv"))) == 1


def test_revisions_of_a_hub_model_equal_checkpoints(load, tmp_path, trained, monkeypatch):
    for step in (6, 12):
        folder = trained / "checkpoints" / f"step-{step:07}"
        shutil.copytree(folder, tmp_path / "hub" / "org" / f"name@step{step}")
    path = go(load("{path: trained/tiny, checkpoints: [6, 12]}"), tmp_path, "path")
    with serving(tmp_path / "hub") as (address, asked):
        connect(monkeypatch, address, tmp_path / "hub_cache")
        experiment = load("{source: org/name, checkpoints: [6, 12]}")
        assert experiment.model.source == "org/name@step12"
        hub = go(experiment, tmp_path, "hub_run")
    assert asked.count("model.safetensors") == 2
    for name in ("training.csv", "results.csv"):
        ours, expected = (
            pd.read_csv(run.folder / name).drop(columns="model") for run in (hub, path)
        )
        pd.testing.assert_frame_equal(ours, expected)
    assert load_experiment(hub.folder / "config.yaml") == experiment


def test_a_revision_is_a_part_of_the_name(load):
    model = load("{source: org/name, revision: step6}").model
    assert (model.source, model.revision) == ("org/name@step6", None)
    assert model == load("{source: org/name@step6}").model


def test_page_has_a_map_of_layers_by_steps(load, tmp_path):
    over = go(load("{path: trained/tiny, checkpoints: [0, 12]}"), tmp_path, "over")
    page = over.report.read_text()
    assert "Accuracy by layer and step of training" in page
    (over.folder / "training.csv").write_text("site,metric\n")
    with pytest.raises(Exception, match=r"training.csv"):
        write_report(over.folder)


def test_last_checkpoint_is_the_default(load, tmp_path, trained):
    experiment = load("{path: trained/tiny}")
    assert experiment.model.source == str(trained / "checkpoints" / "step-0000012")
    result = go(experiment, tmp_path, "one")
    assert not (result.folder / "training.csv").exists()
    assert "step of training" not in result.report.read_text()


def test_saved_settings_list_the_steps(load, tmp_path):
    experiment = load()
    assert experiment.model.checkpoints == (0, 6, 12)
    result = go(experiment, tmp_path, "over")
    assert load_experiment(result.folder / "config.yaml") == experiment


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ("{path: trained/none}", MissingError, r"line 3: .*has no checkpoints"),
        ("{path: trained/tiny, checkpoints: [0, 7]}", MissingError, "no checkpoint of step 7; it "),
        ("{path: trained/tiny, checkpoints: some}", ConfigError, "model.checkpoints"),
        ("{path: trained/tiny, checkpoints: [-1]}", MissingError, "no checkpoint of step -1"),
        ("{path: trained/tiny, checkpoints: [[0], a]}", ConfigError, "must be an integer"),
        ("{path: trained/tiny, source: mini}", ConfigError, "either `source` or `path`"),
        ("{source: mini, checkpoints: all}", ConfigError, "requires the `path`"),
        ("{source: org/name, checkpoints: all}", ConfigError, "requires the `path`"),
        ("{source: mini, checkpoints: [3]}", ConfigError, "is a folder.* no revision 'step3'"),
        ("{source: mini, revision: main}", ConfigError, r"line 3: .*is a folder"),
        ("{source: org/name, revision: a, checkpoints: [3]}", ConfigError, "without `revision`"),
        ("{checkpoints: all}", ConfigError, "'model.source' is missing"),
    ],
)
def test_each_error_is_reported_with_its_line(load, model, error, message):
    with pytest.raises(error, match=message):
        load(model)
