"""Runs with several kinds of probe and other metrics: figures, captions and tables."""

import math

import pandas as pd
import plotly.graph_objects as go
import pytest

from probekit.report.figures.layer_curve import curve_figure, layer_curve
from probekit.report.figures.views import curve_rows
from probekit.report.pages.further_figures import (
    decodable_from,
    learning_part,
    share_parts,
    sparse_part,
)
from probekit.report.pages.parts import result_parts
from probekit.report.sentences.answer import method
from probekit.report.sentences.tables import filled_columns, site_rows
from probekit.results.scores import Scores
from tests.report.conftest import judged, make_sweep, make_table, row
from tests.report.sentences.cases import with_kinds, with_p
from tests.stored import changed, drawn

TABLE, SWEEP = make_table(), make_sweep()
SIZES = (1, 4, 16, 64)


def learning(table):
    """The table with scores of probes on fewer training rows."""
    rows = table[(table["split"] == "test") & (table["metric"] == "accuracy")]
    rows = rows[rows["target"] == "task"]
    parts = [
        rows.assign(split="learning", n_train=n, value=rows["value"] - less)
        for n, less in ((30, 0.2), (300, 0.1), (3000, 0.0))
    ]
    return pd.concat([table, *parts], ignore_index=True)


def described(table):
    """The table with compression."""
    rows = table[(table["split"] == "test") & (table["metric"] == "accuracy")]
    rows = rows[rows["site"] != ""]
    online = rows.assign(split="online", metric="compression", chance=1.0, value=rows["value"] * 2)
    return pd.concat([table, online], ignore_index=True)


KINDS = with_kinds(**{"mass_mean": 0.1, "lda": 0.02, "svm": 0.03, "mlp:64": 0.04})
SPARSE = with_kinds(**{f"k_sparse:{k}": 0.3 / k for k in SIZES})
TWO_SIZES = SPARSE[~SPARSE["probe"].isin(["k_sparse:1", "k_sparse:4"])]
SWEPT = SWEEP.assign(
    value=SWEEP["position"]
    .map({"word:last-1": 0.33, "word:last": 0.71, "word:last+2": 0.44})
    .where((SWEEP["site"] == "") & (SWEEP["target"] == "word_identity"), SWEEP["value"])
)
NOWHERE = pd.DataFrame([row("", "bag_of_words", 0.66, position="")])
MOVED = pd.concat([SWEPT, NOWHERE])
NUMBERS = {"accuracy": "r2", "macro_f1": "spearman"}
OF_NUMBERS = (
    TABLE[TABLE["metric"].isin([*NUMBERS, "selectivity"])]
    .replace({"metric": NUMBERS, "probe": {"logistic": "ridge_regression"}})
    .assign(main_metric="r2")
)
TREES = TABLE[TABLE["target"].isin(["task", "random_weights"]) & (TABLE["split"] == "test")]
TREES = TREES[TREES["metric"] == "accuracy"].assign(chance=0.4, C=math.nan)
TREES = TREES.assign(main_metric="uuas root_accuracy")
OF_TREES = pd.concat(
    [
        TREES.assign(probe="structural_distance:64", metric="uuas"),
        TREES.assign(probe="structural_depth:64", metric="root_accuracy"),
    ],
    ignore_index=True,
)
_SHARES = {"word:last-1": "share:0", "word:last": "share:0.5", "word:last+2": "share:1"}
SHARES = SWEPT.replace({"position": _SHARES, "target": {"word_identity": "length"}})
CALIBRATED = TABLE.replace({"metric": {"macro_f1": "brier", "auroc": "ece"}})


def part(yielded, table):
    """Return the first part of the page that a function yields for the scores in a table."""
    return next(yielded(Scores.of(table), judged(table)))


def figure(yielded, table):
    return go.Figure(part(yielded, table).figure)


FIGURES = {
    "a panel for every kind": lambda: curve_figure(curve_rows(Scores.of(KINDS))),
    "a band of the chosen one alone": lambda: layer_curve(curve_rows(Scores.of(KINDS))),
    "score against k": lambda: figure(sparse_part, SPARSE),
    "learning: chosen site and embedding": lambda: go.Figure(
        part(learning_part, learning(KINDS)).figure
    ),
    "learning: baselines of its position": lambda: go.Figure(
        part(learning_part, learning(MOVED)).figure
    ),
    "by share of the reply": lambda: figure(share_parts, SHARES),
    "compression": lambda: layer_curve(Scores.of(described(TABLE)), "compression"),
    "a linear chain for trees": lambda: layer_curve(Scores.of(OF_TREES), "uuas"),
    "the Brier score is better if lower": lambda: layer_curve(Scores.of(CALIBRATED), "brier"),
    "so is the calibration error": lambda: layer_curve(Scores.of(CALIBRATED), "ece"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_those_that_are_stored(snapshot, name):
    assert drawn(FIGURES[name]()) == snapshot


TABLES = {
    "several kinds": learning(KINDS),
    "compression": described(TABLE),
    "sizes": SPARSE,
    "shares of a reply": SHARES,
    "two sizes do not make a curve": TWO_SIZES,
    "p-values with their null": with_p(TABLE, 0.004).assign(null="random signs of whole groups"),
    "p-values without": with_p(TABLE, 0.004),
    "numbers": OF_NUMBERS,
    "trees have two main metrics": OF_TREES,
    "lower is better": CALIBRATED,
    "a penalty has its name": TABLE.replace({"probe": {"logistic": "ridge"}}).assign(C=10.0),
}


def words_of(table):
    """Figures with captions, columns of the table with its first cells, and the method."""
    v = judged(table)
    rows = site_rows(Scores.of(table), v)
    parts = [
        f"{'' if part.is_open else '+ '}{part.title}\n{part.caption}"
        for part in result_parts(Scores.of(table), v)
    ]
    cells = [f"{column}: {rows[0].cells.get(column)}" for column in filled_columns(rows)]
    return "\n".join([*parts, *cells, *method(v)]).replace(". ", ".\n")


@pytest.fixture(scope="module")
def usual():
    """The words of the synthetic run."""
    return words_of(TABLE)


@pytest.mark.parametrize("name", TABLES)
def test_parts_columns_and_methods_change_with_the_results(usual, snapshot, name):
    assert changed(usual, words_of(TABLES[name])) == snapshot


def test_of_many_sizes_a_curve_shows_the_best():
    assert Scores.of(SPARSE).hidden_kinds == ["k_sparse:1", "k_sparse:4", "k_sparse:16"]
    assert set(curve_rows(Scores.of(SPARSE)).rows["probe"]) == {"logistic", "k_sparse:64"}
    assert Scores.of(TWO_SIZES).hidden_kinds == []


@pytest.mark.parametrize(
    ("p", "words"),
    [
        ({"share:0.5": 0.01, "share:1": 0.02}, "From 50 % of the reply on, the score is above"),
        ({"share:0": 0.01, "share:1": 0.02}, "From 100 % of the reply on, the score is above"),
        ({"share:0.5": 0.01}, "At the last share the score is not above"),
    ],
)
def test_the_answer_names_the_share_from_which_the_label_is_decodable(p, words):
    tested = SHARES[SHARES["split"].eq("test") & SHARES["target"].eq("task")]
    tested = tested[tested["metric"].eq(tested["main_metric"])]
    tested = tested.assign(metric="p_holm", value=tested["position"].map(p).fillna(0.5))
    shares = pd.concat([SHARES, tested], ignore_index=True)
    text, is_useless = decodable_from(Scores.of(shares))
    assert text.startswith(words)
    assert is_useless == words.startswith("At the last")
    assert decodable_from(Scores.of(SHARES)) == ("", False)


def test_the_curve_by_k_has_its_numbers_in_words(snapshot):
    assert part(sparse_part, SPARSE).description == snapshot


def test_unconverged_fits_are_counted_by_kind_and_target():
    table = described(learning(KINDS))
    table["converged"] = table["converged"].astype("boolean")
    of_mlp = (table["probe"] == "mlp:64") & (table["target"] == "task")
    table.loc[of_mlp & table["split"].isin(["learning", "online"]), "converged"] = False
    fits = judged(table).unconverged
    assert (fits.probes, fits.splits) == ({"mlp:64": 24}, {"learning": 18, "online": 6})


@pytest.mark.parametrize(
    ("n", "share", "lead"), [(12, 22, 28), (20, 14, 16), (40, 7, 8), (99, 3, 3), (100, None, None)]
)
def test_below_100_groups_the_method_names_the_sorts_that_may_be_absent(n, share, lead):
    text = " ".join(method(judged(TABLE.assign(n_groups=n))))
    if share is None:
        assert "absent" not in text
    else:
        assert f"below {share} % is absent from {n} groups" in text
        assert f"a lead of less than {lead} % of a rival's score" in text
