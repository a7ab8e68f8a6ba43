"""Experiments over checkpoints: each one is probed as in a single run, and shown on the page."""

import shutil
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from probekit.experiment.loader import load_experiment
from probekit.pipeline.experiment.run import run
from probekit.pipeline.measure import run_folder
from probekit.pipeline.pretrain import pretrain
from probekit.results.table import only
from tests.model.hub import connect, serving
from tests.pipeline.planted import YAML, helped, write_rows
from tests.pipeline.texts import text_of
from tests.training.recipes import tiny_recipe, write_corpus

EDITS = text_of("edits.yaml")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the rows, and checkpoints of steps 0, 6 and 12 in `trained/tiny`."""
    folder = tmp_path_factory.mktemp("over")
    pretrain(tiny_recipe(write_corpus(folder / "texts")), out=folder / "trained", progress=False)
    write_rows(folder / "rows.csv")
    return folder


@pytest.fixture(scope="module")
def load(place):
    """A function that loads the experiment with another model section."""

    def load(model="{path: trained/tiny, checkpoints: all}", more=""):
        text = YAML.replace("{source: mini}", model).replace("[03]", "[01]")
        (place / "over.yaml").write_text(text + more)
        return load_experiment(place / "over.yaml")

    return load


@pytest.fixture(scope="module")
def go(place):
    return lambda experiment, name: run(experiment, out=place / name, cache_root=place / "cache")


@pytest.fixture(scope="module")
def over(load, go):
    """The run over all checkpoints, with an edit."""
    return go(load(more=EDITS), "over")


def test_checkpoint_scores_equal_those_of_single_runs(load, go, over):
    training = pd.read_csv(over.folder / "training.csv")
    assert "Accuracy by layer and step of training" in over.report.read_text()
    assert sorted(training["step"].unique()) == [0, 6, 12]
    alone = go(load("{source: trained/tiny/checkpoints/step-0000006}"), "alone")
    assert not (alone.folder / "training.csv").exists()
    assert "step of training" not in alone.report.read_text()
    keys = ["site", "metric", "split"]
    for step, single in ((6, alone), (12, over)):
        task = only(single.table, target="task").set_index(keys)["value"]
        ours = only(training, step=step).set_index(keys)["value"]
        assert len(ours) > 10
        pd.testing.assert_series_equal(ours, task[ours.index], check_index_type=False)


def test_workers_also_probe_the_earlier_checkpoints(load, over, place, monkeypatch):
    monkeypatch.setattr(run_folder, "PAUSE", 0.05)
    options = {"out": place / "shared", "cache_root": place / "cache", "page": False}
    shared, (done,) = helped(partial(run, load(), workers=0, **options), place / "shared")
    names = {Path(task.run).parent.name for task in done}
    assert names == {"step-0", "step-6", over.folder.parent.name}
    tables = [(one.folder / "training.csv").read_bytes() for one in (shared, over)]
    assert tables[0] == tables[1]


def test_revisions_of_a_hub_model_equal_checkpoints(load, go, place, tmp_path, monkeypatch):
    for step in (6, 12):
        folder = place / "trained" / "tiny" / "checkpoints" / f"step-{step:07}"
        shutil.copytree(folder, tmp_path / "hub" / "org" / f"name@step{step}")
    path = go(load("{path: trained/tiny, checkpoints: [6, 12]}"), "path")
    with serving(tmp_path / "hub") as (address, asked):
        connect(monkeypatch, address, tmp_path / "hub_cache")
        experiment = load("{source: org/name, checkpoints: [6, 12]}")
        assert experiment.model.source == "org/name@step12"
        hub = go(experiment, "hub_run")
    assert asked.count("model.safetensors") == 2
    for name in ("training.csv", "results.csv"):
        pair = [pd.read_csv(run.folder / name).drop(columns="model") for run in (hub, path)]
        pd.testing.assert_frame_equal(*pair)
    assert load_experiment(hub.folder / "config.yaml") == experiment.on_device("cpu")
    model = load("{source: org/name, revision: step6}").model  # a part of the name
    assert (model.source, model.revision) == ("org/name@step6", None)
    assert model == load("{source: org/name@step6}").model


def test_saved_settings_list_the_steps_and_only_the_last_is_edited(load, over, place):
    experiment = load(more=EDITS)
    assert experiment.model.checkpoints == (0, 6, 12)
    assert load_experiment(over.folder / "config.yaml") == experiment.on_device("cpu")
    assert list(over.folder.rglob("effects.csv")) == [over.folder / "causes" / "effects.csv"]
    last = place / "trained" / "tiny" / "checkpoints" / "step-0000012"
    assert load("{path: trained/tiny}").model.source == str(last)  # the default


@pytest.mark.parametrize("more", ["[0, 7]", "[-1]", "some", "[[0], a]", "all, source: mini"])
def test_mistakes_about_checkpoints_are_reported_with_their_line(place, tmp_path, more, refused):
    shutil.copytree(place / "trained" / "tiny", tmp_path / "tiny")
    for model in ("{path: none}", f"{{path: tiny, checkpoints: {more}}}"):
        (tmp_path / "over.yaml").write_text(YAML.replace("{source: mini}", model))
        refused(load_experiment, tmp_path / "over.yaml")
