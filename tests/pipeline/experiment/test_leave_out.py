"""Runs under `split.leave_out`: planted shortcuts are found, and sources stay whole."""

import numpy as np
import pandas as pd
import pytest

from probekit.errors import ConfigError, DataError
from probekit.experiment.loader import load_any_experiment
from probekit.pipeline.engines.table import prepare
from probekit.pipeline.experiment.run import run
from probekit.pipeline.measure.probing import make_probers
from probekit.probes.score.metrics import ClassPredictions, auroc
from probekit.probes.score.scored import Predictor
from probekit.report.pages.run_page import run_figures
from probekit.results.table import load_table, only
from tests.pipeline.planted import QUICK

SOURCES = ("cities", "films", "numbers", "odd")
YAML = """
name: shortcut
activations: {folder: acts}
data: {name: made, format: csv, file: rows.csv, columns: {group: group}}
split: {leave_out: source, folds: 3}
probe: {folds: 2, C: [0.1], metric: auroc, control_draws: 0, description: false, permutations: 0}
"""


class Made:
    """An experiment on activations with a feature that predicts the label, except in `odd`."""

    def __init__(self, folder):
        self.folder, rng = folder, np.random.default_rng(0)
        rows = [(one, f"{one} {n // 2}") for one in (*SOURCES, "single") for n in range(40)]
        self.rows = pd.DataFrame(rows, columns=["source", "group"])
        sign = 2 * rng.integers(2, size=len(rows)) - 1
        sign[self.rows["source"] == "single"] = 1
        self.rows["label"] = np.where(sign > 0, "yes", "no")
        X = rng.normal(size=(len(rows), 6)).astype(np.float32)
        X[:, 0] += 0.9 * sign
        X[:, 1] += 3 * sign * np.where(self.rows["source"] == "odd", -1, 1)
        (folder / "acts").mkdir()
        np.save(folder / "acts" / "layer_0.npy", X)
        (folder / "made.yaml").write_text(YAML)
        self.write(self.rows)

    def write(self, rows):
        rows.to_csv(self.folder / "rows.csv", index=False)

    def load(self, *overrides):
        return load_any_experiment(self.folder / "made.yaml", overrides)


@pytest.fixture
def made(tmp_path):
    return Made(tmp_path)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    made = Made(tmp_path_factory.mktemp("made"))
    return run(made.load(), out=made.folder / "runs", workers=1)


@pytest.fixture(scope="module")
def sources(result):
    return pd.read_csv(result.folder / "sources.csv", keep_default_na=False, na_values=[""])


def test_the_source_in_which_a_shortcut_is_reversed_is_the_worst(result, sources, snapshot):
    assert sources["source"].iloc[[0, -1]].tolist() == ["odd", "single"]
    by_source = sources.set_index("source")
    assert by_source.loc["odd", "ci_high"] < 0.5 < 0.6 < by_source.loc["odd", "within"]
    assert (by_source.loc[["cities", "films", "numbers"], "value"] > 0.9).all()
    assert result.answers[0] == snapshot


def test_sources_of_one_class_are_reported_and_not_averaged(result, sources):
    v, counted = result._record.verdict.sources, sources[sources["left_out"].isna()]
    assert v.left_out == {"single": "only yes"}
    assert (v.n, v.n_above) == (4, (counted["lead_low"] > 0).sum())
    assert v.mean[0] == pytest.approx(counted["value"].mean())
    assert v.within[0] == pytest.approx(counted["within"].mean())
    low, high = v.mean[1:]
    assert low < v.mean[0] < high
    table = load_table(result.results)
    assert set(only(table, target="task", split="validation")["fold"].dropna()) == set(range(5))


def test_the_page_draws_each_source_with_its_score_inside(result, sources):
    (figure,) = [one for one in run_figures(result.folder) if "left out whole" in one.title]
    assert figure.is_open
    assert "odd 0." in figure.description
    assert "single (only yes)" in result.report.read_text()


def test_scores_inside_the_sources_are_of_the_same_rows(made):
    source = prepare(made.load())
    (prober,) = make_probers(source.experiment, source.design)
    site = prober.site(source.activations.block(source.selections[0]))
    inside = site.predictions[Predictor("logistic", "within_sources")]
    assert np.array_equal(inside.truth, prober.truth_of("logistic"))
    # Each row is predicted by the fit that was not fitted on its fold of groups.
    assert len(set(inside.folds)) == 3
    assert np.array_equal(inside.folds, prober.fold_of("logistic", within=True))
    task = site.predictions[Predictor("logistic", "task")]
    odd = np.flatnonzero(task.folds == SOURCES.index("odd"))
    for predictions, is_low in ((task, True), (inside, False)):
        scores = predictions.scores[odd]
        own = ClassPredictions(predictions.truth[odd], predictions.guess[odd], 2, scores)
        assert (auroc(own, prober.resamples_of("logistic").of_rows(odd))[0] < 0.5) == is_low


@pytest.mark.parametrize("drop", [False, True])
def test_each_source_is_tested_once_by_probes_of_the_others(planted, own, drop):
    rows = planted.rows.assign(verb=planted.rows["text"].str.split().str[-1])
    rows["group"] += " " + rows["verb"]
    rows.to_csv(own.folder / "verbs.csv", index=False)
    change = ("data.file=verbs.csv", "split.leave_out=verb", f"split.drop_repeated={drop}")
    experiment = own.load(*QUICK, *change)
    assert experiment.split.folds == 5
    prepared = prepare(experiment)
    verbs = rows["verb"].to_numpy()
    assert [set(verbs[split.test]) for split in prepared.design.splits] == [
        {verb} for verb in sorted(set(verbs))
    ]
    for split in prepared.design.splits:
        assert not set(verbs[split.test]) & set(verbs[split.train])
        assert len(split.test) + len(split.train) == len(rows)
    tested = np.concatenate([split.test for split in prepared.design.within])
    assert np.array_equal(np.sort(tested), np.arange(len(rows)))
    assert all(len(set(verbs[split.test])) == 4 for split in prepared.design.within)
    in_memory = own.load(*QUICK, "split.leave_out=verb", "data.format=memory", "data.file=null")
    assert len(prepare(in_memory.with_data(rows)).design.splits) == 4


MISTAKES = {
    "a group in two sources": lambda rows: rows.assign(group=rows.index % 40),
    "a label in one source": lambda rows: rows.assign(
        label=rows["label"].mask(rows["source"] == "odd", "maybe")
    ),
    "one source": lambda rows: rows.assign(source="a"),
    "empty cells": lambda rows: rows.assign(source=rows["source"].mask(rows.index < 2, "")),
    "no such column": lambda rows: rows.rename(columns={"source": "origin"}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_sources_that_cannot_be_left_out_are_refused(made, mistake, snapshot):
    made.write(MISTAKES[mistake](made.rows))
    with pytest.raises(DataError) as error:
        prepare(made.load())
    assert str(error.value).replace(str(made.folder), "") == snapshot


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.columns.split=source", "`split.leave_out` requires data without a given split"),
        ("split.word_disjoint=true", "`leave_out` cannot be combined with `word_disjoint`"),
    ],
)
def test_other_splits_are_refused(made, change, message):
    with pytest.raises(ConfigError, match=message):
        made.load(change)
