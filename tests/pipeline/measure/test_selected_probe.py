"""Files of the selected probe: projections, cosines, and the worst errors of each probe."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from probekit.experiment.loader import load_experiment
from probekit.pipeline.measure.selected_probe import (
    MOST_CHARACTERS,
    MOST_OF_A_PROBE,
    NULL_DRAWS,
    excerpt,
    worst_errors,
)
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.scored import Predictor
from probekit.provenance import pretty_json
from probekit.report.figures.layer_curve import layer_curve
from probekit.results.finished_run import FinishedRun
from probekit.results.selection import site_with_head
from probekit.results.table import load_table, only
from tests.pipeline.planted import FAST, MIXED
from tests.pipeline.scale import Heard


@pytest.mark.parametrize(
    ("index", "methods"),
    [(0, set()), (1, {"PCA"}), (2, {"PCA"})],
    ids=["all rows are one word", "a word for each label", "the same words under each label"],
)
def test_projections_are_omitted_if_labels_cannot_be_separated(planted, index, methods):
    place = f"tokens.position={{at: index, index: {index}}}"
    folder = planted.run(place, "capture.sites=[hook_embed]", *FAST, page=False).folder
    path = folder / "scatter.csv"
    found = set(pd.read_csv(path)["method"]) if path.exists() else set()
    assert found == methods


def test_cosines_of_sites_have_a_null_distribution_of_permuted_labels(planted):
    sites, heard = "capture.sites=[blocks.2.hook_resid_post, blocks.3.hook_resid_post]", Heard()
    folder = planted.run(sites, *FAST, watcher=heard, page=False).folder
    assert heard.steps[-2:] == [("probes of permuted labels", n, 2) for n in (1, 2)]
    cosines = pd.read_csv(folder / "cosines.csv")
    assert cosines["n_null"].tolist() == [NULL_DRAWS, 2 * NULL_DRAWS, 2 * NULL_DRAWS, NULL_DRAWS]
    assert cosines["null_high"].between(0.02, 0.98).all()
    assert cosines["null_high"][1] == cosines["null_high"][2]


@pytest.fixture(
    scope="module", params=["split.folds=null", "split.folds=3"], ids=["single", "nested"]
)
def finished(request, planted):
    """A run on random labels, so that every probe has errors."""
    sites = "capture.sites=[blocks.0.hook_resid_post, 'blocks.2.attn.hook_z[head=1]']"
    kinds = "probe.kinds=[{kind: logistic}, {kind: mass_mean}]"
    return planted.run(MIXED, request.param, sites, kinds, *FAST, page=False).folder


def test_tokens_of_errors_are_stored_unchanged(finished):
    examples = json.loads((finished / "wrong.json").read_text())["examples"]
    assert examples
    for example in examples:
        shown = [example["text"][slice(*token["span"])].strip() for token in example["tokens"]]
        assert shown == [token["token"].strip() for token in example["tokens"]]
        assert " ".join(filter(None, shown)).startswith("The ")


def test_projections_show_held_out_rows_only(finished):
    points = pd.read_csv(finished / "scatter.csv")
    held_out = only(load_table(finished / "results.csv"), split="test")["n_test"].max()
    # Under folds those of the first of three.
    n_shown = points["method"].eq("PCA").sum()
    assert n_shown == held_out if held_out < 96 else 0 < n_shown < held_out / 2
    axes = points.groupby("method")[["axis_x", "axis_y"]].first()
    assert list(axes.loc["LDA"]) == ["discriminant 1", "component 1 of PCA"]
    assert axes.loc["PCA", "axis_x"].startswith("component 1 (")


def test_errors_are_those_of_the_stored_predictions(finished):
    stored = FinishedRun.open(finished, load_experiment)
    wrong = json.loads((finished / "wrong.json").read_text())
    assert len(wrong["probes"]) == 4
    groups = stored.test_rows["group"].to_numpy(dtype=str)
    for one in wrong["probes"]:
        site = site_with_head(one["site"], one["head"])
        own = stored.predictions(site, one["position"])[Predictor(one["probe"], "task")]
        is_wrong = own.guess != own.truth
        assert (one["n_wrong"], one["n_rows"]) == (is_wrong.sum(), len(own.guess))
        rows = np.arange(len(own.guess))
        margin = own.scores[rows, own.guess] - own.scores[rows, own.truth]
        best = pd.Series(margin[is_wrong]).groupby(groups[is_wrong]).max()
        best = best.sort_values(ascending=False).head(MOST_OF_A_PROBE)
        assert [error["ahead"] for error in one["errors"]] == pytest.approx(list(best), abs=1e-3)
        for error in one["errors"]:
            row = wrong["rows"][error["row"]]
            assert row["label"] != error["guess"]
            same = (groups == row["group"]) & is_wrong
            labels = np.array(stored.classes)[own.truth[same]]
            assert row["label"] in labels
            assert row["text"].startswith("The ")


def test_every_point_of_the_curve_has_its_errors(finished):
    wrong = json.loads((finished / "wrong.json").read_text())
    stored = FinishedRun.open(finished, load_experiment)
    figure = layer_curve(stored.table, "accuracy")
    points = {name for trace in figure.data for name in trace.customdata or ()}
    assert points == {one["name"] for one in wrong["probes"]}


@pytest.mark.parametrize(
    ("span", "ends"),
    [
        ((0, 4), ("word", "…")),
        ((500, 504), ("…", "…")),
        ((996, 1000), ("…", "word")),
        (None, ("…", "x")),
    ],
)
def test_long_texts_are_cut_around_the_span(span, ends):
    text = list("x" * 1000)
    if span is not None:
        text[slice(*span)] = "word"
    cut, moved = excerpt("".join(text), span)
    assert MOST_CHARACTERS < len(cut) <= MOST_CHARACTERS + 2
    assert (cut.startswith(ends[0]), cut.endswith(ends[1])) == (True, True)
    if span is not None:
        assert cut[slice(*moved)] == "word"


def test_a_label_that_a_probe_was_not_fitted_on_has_no_margin_and_comes_first():
    scores = np.array([[0.0, 3.0, -np.inf], [0.0, 1.0, -np.inf], [0.5, 2.0, -np.inf]])
    truth, guess = np.array([0, 2, 0]), np.array([1, 1, 1])
    data = SimpleNamespace(groups=np.array(["a", "b", "c"]))
    chosen = SimpleNamespace(prober=SimpleNamespace(test_rows=np.arange(3), data=data))
    worst = worst_errors(chosen, ClassPredictions(truth, guess, 3, scores), 3)
    assert list(worst.items()) == [(1, None), (0, 3.0), (2, 1.5)]
    assert "null" in pretty_json(worst)
