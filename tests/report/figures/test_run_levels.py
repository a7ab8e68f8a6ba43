"""Layer curve of several runs in one panel."""

import numpy as np
import pandas as pd
import pytest

from probekit.probes.targets import HEADLINE
from probekit.report.figures.layer_curve import layer_curve
from probekit.report.figures.levels import NULL_BAND
from probekit.report.figures.line_labels import LABEL
from probekit.report.figures.style import SERIES_COLOURS
from tests.report.conftest import make_table, row

RUNS = ["last · folds 5", "last · no folds", "mean · folds 5"]


def three_runs():
    """Return three runs; the first and the third have a nested choice, and equal baselines."""
    tables = []
    for run in RUNS:
        table = make_table().assign(run=run)
        table = table[~table["target"].isin(["control", "random_weights"])]
        if "no folds" in run:
            table.loc[table["target"] == "word_identity", "value"] = 0.62
        else:
            nested = row("", HEADLINE, 0.93, run=run)
            table = pd.concat([table, pd.DataFrame([nested])], ignore_index=True)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


@pytest.fixture(scope="module")
def figure():
    return layer_curve(three_runs())


def labels(figure):
    return {
        note.text.replace("<br>", " ").replace("\u00a0", " "): note.arrowcolor
        for note in figure.layout.annotations
        if note.name == LABEL
    }


def test_lines_of_runs_are_labelled_at_their_ends(figure):
    assert not figure.layout.showlegend
    named = labels(figure)
    assert [named[run] for run in RUNS] == list(SERIES_COLOURS[:3])


def test_a_baseline_of_a_single_run_names_what_only_this_run_has(figure):
    assert {"majority 0.50", "word identity 0.71", "word identity of no folds 0.62"} < set(
        labels(figure)
    )


def test_each_nested_choice_has_the_colour_of_its_run(figure):
    nested = [t for t in figure.data if (t.name or "").startswith("fold choice")]
    assert [t.line.color for t in nested] == [SERIES_COLOURS[0], SERIES_COLOURS[2]]
    assert len([n for n in figure.layout.annotations if "fold choice" in n.text]) == 2


def test_many_runs_have_no_bands_and_two_have_one_each(figure):
    assert not [t for t in figure.data if t.fill]
    table = three_runs()
    two = layer_curve(table[table["run"] != RUNS[1]])
    assert len([t for t in two.data if t.fill]) == 2


def test_the_band_of_the_null_contains_those_of_all_runs():
    table = three_runs()
    tested = table[table["target"].eq("task") & table["split"].eq("test")]
    tested = tested[tested["metric"] == "accuracy"].assign(metric="p_value")
    number = tested["run"].map(RUNS.index)
    tested = tested.assign(null_low=0.4 - 0.1 * number, null_high=0.6 + 0.1 * number)
    figure = layer_curve(pd.concat([table, tested], ignore_index=True))
    (band,) = [t for t in figure.data if t.legendgroup == NULL_BAND]
    assert (np.min(band.y), np.max(band.y)) == pytest.approx((0.2, 0.8))
