"""Runs with several kinds of probe: readable curves, and every kind in the table."""

import math

import pandas as pd
import pytest

from probekit.report.figures.curves import learning_curve, spaced, sparse_curve
from probekit.report.figures.layer_curve import TITLE, curve_figure, layer_curve
from probekit.report.figures.style import LINES
from probekit.report.figures.views import curve_rows
from probekit.report.pages.parts import result_parts
from probekit.report.sentences.captions import caption, learning_curve_caption, sparse_description
from probekit.report.sentences.method import method
from probekit.report.sentences.tables import filled_columns, site_rows
from probekit.results.selection import hidden_kinds
from tests.report.conftest import judged, row

SIZES = (1, 4, 16, 64)


def with_kinds(table, kinds):
    """The table with rows of further kinds of probe, whose scores are lower than logistic."""
    sited = table[table["site"] != ""]
    others = []
    for kind, less in kinds.items():
        other = sited.assign(probe=kind)
        is_task = other["target"] == "task"
        other.loc[is_task, ["value", "ci_low", "ci_high"]] -= less
        others.append(other)
    return pd.concat([table, *others], ignore_index=True)


@pytest.fixture
def kinds(table):
    return with_kinds(table, {"mass_mean": 0.1, "lda": 0.02, "svm": 0.03, "mlp:64": 0.04})


@pytest.fixture
def sparse(table):
    return with_kinds(table, {f"k_sparse:{k}": 0.3 / k for k in SIZES})


def names(figure):
    return [trace.name for trace in figure.data if trace.showlegend is not False]


def test_every_kind_has_a_panel_with_its_task_and_its_controls(kinds):
    figure = curve_figure(curve_rows(kinds))
    panels = [note.text for note in figure.layout.annotations if note.name == TITLE]
    assert panels == ["logistic ○", "mass_mean", "lda", "svm", "mlp:64"]
    drawn = [(trace.yaxis, trace.name) for trace in figure.data if trace.mode == "lines+markers"]
    assert len(drawn) == len(set(drawn)) == len(panels) * len(LINES)
    assert "One panel for each kind of probe" in caption(curve_rows(kinds), judged(kinds))
    assert "for the chosen line only" not in caption(curve_rows(kinds), judged(kinds))


def test_of_many_lines_the_chosen_one_alone_has_a_band(kinds):
    (band,) = [trace for trace in layer_curve(curve_rows(kinds)).data if trace.fill]
    assert max(band.y) == pytest.approx(0.961)


def test_of_many_sizes_a_curve_shows_the_best(sparse):
    assert hidden_kinds(sparse) == ["k_sparse:1", "k_sparse:4", "k_sparse:16"]
    assert set(curve_rows(sparse)["probe"]) == {"logistic", "k_sparse:64"}
    two = sparse[~sparse["probe"].isin(["k_sparse:1", "k_sparse:4"])]
    assert hidden_kinds(two) == []


def test_the_score_against_k_has_the_best_sites_control_and_all_features(sparse):
    figure = sparse_curve(sparse)
    assert names(figure) == [
        "blocks.2.hook_resid_post",
        "control task at the best site",
        "blocks.3.hook_resid_post",
        "ln_final.hook_normalized",
    ]
    best = next(trace for trace in figure.data if trace.name == "blocks.2.hook_resid_post")
    assert list(best.x) == list(SIZES)
    assert list(best.y) == pytest.approx([0.641, 0.866, 0.92225, 0.9363125])
    assert figure.layout.xaxis.type == "log"
    assert "all\u00a0features\u00a00.94" in [note.text for note in figure.layout.annotations]
    assert "blocks.2.hook_resid_post: 1 0.641, 4 0.866" in sparse_description(
        sparse, judged(sparse)
    )


def test_two_sizes_do_not_make_a_curve(sparse):
    two = sparse[~sparse["probe"].isin(["k_sparse:1", "k_sparse:4"])]
    titles = [part.title for part in result_parts(two, judged(two))]
    assert not [title for title in titles if "number of features" in title]


def learning(table):
    rows = table[(table["split"] == "test") & (table["metric"] == "accuracy")]
    rows = rows[rows["target"] == "task"]
    parts = [
        rows.assign(split="learning", n_train=n, value=rows["value"] - less)
        for n, less in ((30, 0.2), (300, 0.1), (3000, 0.0))
    ]
    return pd.concat([table, *parts], ignore_index=True)


def test_learning_curves_are_of_the_chosen_site_its_kinds_and_the_embedding(kinds):
    figure = learning_curve(learning(kinds))
    assert names(figure) == [
        "logistic",
        "mass_mean",
        "lda",
        "svm",
        "mlp:64",
        "logistic at the embedding",
    ]
    own = next(trace for trace in figure.data if trace.name == "logistic")
    assert list(own.x) == [30, 300, 3000]
    assert list(own.y) == pytest.approx([0.741, 0.841, 0.941])
    text = learning_curve_caption(learning(kinds), judged(kinds))
    assert "at blocks.2.hook_resid_post on 1,039 held-out rows in" in text


def test_ticks_of_a_learning_curve_are_its_sizes_and_do_not_overlap(kinds):
    curve = learning_curve(learning(kinds))
    sizes = {n for trace in curve.data if trace.mode == "lines+markers" for n in trace.x}
    axis = curve.layout.xaxis
    assert set(axis.tickvals) <= sizes
    assert max(axis.tickvals) == max(sizes)
    assert [text.replace(",", "") for text in axis.ticktext] == [f"{n:.0f}" for n in axis.tickvals]
    assert spaced([10, 12, 14, 1000]) == [14, 1000]


def test_baselines_of_a_learning_curve_are_those_of_the_chosen_position(sweep):
    known = (sweep["site"] == "") & (sweep["target"] == "word_identity")
    sweep.loc[known, "value"] = sweep.loc[known, "position"].map(
        {"word:last-1": 0.33, "word:last": 0.71, "word:last+2": 0.44}
    )
    nowhere = row("", "bag_of_words", 0.66, position="")
    figure = learning_curve(learning(pd.concat([sweep, pd.DataFrame([nowhere])])))
    told = " ".join(note.text for note in figure.layout.annotations)
    assert "0.71" in told
    assert "0.66" in told
    assert "0.33" not in told
    assert "0.44" not in told


def described(table):
    rows = table[(table["split"] == "test") & (table["metric"] == "accuracy")]
    rows = rows[rows["site"] != ""]
    online = rows.assign(split="online", metric="compression", chance=1.0, value=rows["value"] * 2)
    return pd.concat([table, online], ignore_index=True)


def test_compression_has_a_curve_a_meaning_and_a_column(table):
    both = described(table)
    (part,) = [
        part for part in result_parts(both, judged(both)) if part.title == "Compression by layer"
    ]
    assert not part.is_open
    assert "1 = no compression" in part.caption
    assert "Measured on 1,039 training rows in 15 groups" in part.caption
    figure = layer_curve(both, "compression")
    assert "no compression<br>1.00" in [note.text for note in figure.layout.annotations]
    assert site_rows(both, judged(both))[3].cells["compression"][0] == "1.882"


def with_p(table, p, null="random signs of whole groups"):
    rows = table[(table["split"] == "test") & (table["metric"] == "accuracy")]
    rows = rows[rows["target"] == "task"]
    p_rows = rows.assign(metric="p_best", value=p, ci_low=math.nan, ci_high=math.nan, null=null)
    return pd.concat([table, p_rows], ignore_index=True)


def test_the_null_of_the_p_values_is_in_the_closed_part(table):
    for null, named in (("random signs of whole groups", True), ("", False)):
        text = " ".join(method(judged(with_p(table, 0.004, null=null))))
        assert ("t statistic over groups (random signs of whole groups)." in text) == named


def test_unconverged_fits_are_counted_by_kind_and_target(kinds):
    table = described(learning(kinds))
    table["converged"] = table["converged"].astype("boolean")
    of_mlp = (table["probe"] == "mlp:64") & (table["target"] == "task")
    table.loc[of_mlp & table["split"].isin(["learning", "online"]), "converged"] = False
    fits = judged(table).unconverged
    assert (fits.probes, fits.splits) == ({"mlp:64": 24}, {"learning": 18, "online": 6})


def test_a_penalty_has_its_name_in_the_table_of_sites(table):
    of_ridge = table.assign(probe=table["probe"].where(table["site"] == "", "ridge"), C=10.0)
    assert site_rows(of_ridge, judged(of_ridge))[0].cells["C"] == ("alpha 10", "")


NUMBERS = {"accuracy": "r2", "macro_f1": "spearman"}


@pytest.fixture
def numbers(table):
    kept = table["metric"].isin([*NUMBERS, "selectivity"])
    renamed = table[kept].replace({"metric": NUMBERS}).assign(main_metric="r2")
    return renamed.replace({"probe": {"logistic": "ridge_regression"}})


def test_a_run_on_numbers_shows_its_main_metric_first(numbers):
    assert [part.title for part in result_parts(numbers, judged(numbers))] == [
        "R² by layer",
        "Spearman's ρ by layer",
        "Selectivity by layer",
    ]
    assert "best cross-validated R² on" in caption(numbers, judged(numbers), "r2")
    assert filled_columns(site_rows(numbers, judged(numbers)))[0] == "R²"


@pytest.fixture
def trees(table):
    kept = table["target"].isin(["task", "random_weights"]) & (table["split"] == "test")
    rows = table[kept & (table["metric"] == "accuracy")].assign(chance=0.4, C=math.nan)
    rows = rows.assign(main_metric="uuas root_accuracy")
    distance = rows.assign(probe="structural_distance:64", metric="uuas")
    depth = rows.assign(probe="structural_depth:64", metric="root_accuracy")
    return pd.concat([distance, depth], ignore_index=True)


def test_a_run_on_trees_has_two_main_metrics_and_a_linear_chain(trees):
    assert [part.title for part in result_parts(trees, judged(trees))] == [
        "UUAS by layer",
        "Root accuracy by layer",
    ]
    notes = [note.text for note in layer_curve(trees, "uuas").layout.annotations]
    assert "linear\u00a0chain\u00a00.40" in notes
    assert filled_columns(site_rows(trees, judged(trees)))[:2] == ("UUAS", "root accuracy")


@pytest.mark.parametrize("metric", ["brier", "ece"])
def test_captions_state_if_lower_is_better(table, metric):
    rows = table.replace({"metric": {"macro_f1": metric}})
    assert layer_curve(rows, metric).layout.yaxis.title.text.endswith("(lower is better)")
    assert "Lower is better" in caption(rows, judged(rows), metric)
