"""Axes, colours and labels of figures in which scores are undefined, such as a rank correlation."""

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from probekit.report.figures.facets import curve_facets
from probekit.report.figures.layer_curve import layer_curve
from probekit.report.figures.line_labels import LABEL, name_traces
from probekit.report.maps.maps import colours, head_map
from tests.report.figures.test_facets import four_kinds

SCORE = ["value", "ci_low", "ci_high"]


def without(table, is_undefined):
    return table.assign(**{name: table[name].mask(is_undefined) for name in SCORE})


def labels(figure):
    notes = [note for note in figure.layout.annotations if note.name == LABEL]
    return {note.text.replace("<br>", " ").replace("\u00a0", " "): note.y for note in notes}


@pytest.mark.parametrize("depth", [0, 2, 5])
def test_an_undefined_score_does_not_change_the_axis_of_a_curve(table, depth):
    is_point = table["target"].eq("task") & table["site"].eq(table["site"].unique()[depth])
    whole, figure = layer_curve(table), layer_curve(without(table, is_point))
    assert figure.layout.yaxis.range == whole.layout.yaxis.range
    assert set(labels(figure)) == set(labels(whole))
    (line,) = [trace for trace in figure.data if trace.name == "task"]
    assert labels(figure)["task, 95 &#37; band"] == line.y[4 if depth == 5 else 5]
    facets = curve_facets(without(four_kinds(), four_kinds()["layer"].eq(1)))
    assert facets.layout.yaxis.range == curve_facets(four_kinds()).layout.yaxis.range


def test_the_label_of_a_line_starts_at_its_last_defined_point(table):
    figure = layer_curve(without(table, table["target"].eq("task") & table["layer"].isna()))
    leaders = [trace for trace in figure.data if trace.mode == "lines" and len(trace.x) == 2]
    assert [tuple(trace.y) for trace in leaders if trace.x[0] == 3] == [(0.922, 0.922)]


def test_the_ring_of_an_undefined_score_is_left_out(table):
    chosen = table["target"].eq("task") & table["layer"].eq(2) & table["split"].eq("test")
    figure = layer_curve(without(table, chosen))
    assert not [trace for trace in figure.data if trace.marker.symbol == "circle-open"]
    assert "nan" not in str(figure.layout.annotations)


def test_undefined_baselines_have_no_line(table):
    figure = layer_curve(without(table, table["target"].eq("word_identity")))
    assert not [text for text in labels(figure) if "word identity" in text or "nan" in text]


def test_a_curve_of_undefined_scores_is_empty(table, heads):
    figure = layer_curve(without(table, pd.Series(True, table.index)))
    low, high = figure.layout.yaxis.range
    assert (low, high) == (pytest.approx(0.48), pytest.approx(1.02))
    assert set(labels(figure)) == {"chance 0.50"}
    cells, _ = head_map(without(heads, pd.Series(True, heads.index))).data
    assert (cells.zmin, cells.zmax) == (0.5, 1.0)
    assert np.isnan(np.array(cells.z)).all()


def test_an_undefined_cell_does_not_change_the_colours_of_a_map(heads):
    is_cell = heads["layer"].eq(1) & heads["head"].eq(0) & heads["target"].eq("task")
    whole, figure = head_map(heads), head_map(without(heads, is_cell))
    assert (figure.data[0].zmin, figure.data[0].zmax) == (whole.data[0].zmin, whole.data[0].zmax)
    assert figure.data[1].text[0] == ""
    assert colours([math.nan, -0.3, 0.1], "selectivity", math.nan).low == -0.3
    assert colours([math.nan, 0.2, 0.3], "brier", math.nan).low == 0.2


@pytest.mark.parametrize("bars", [[math.nan] * 3, [0.1, math.nan, 0.1]], ids=["none", "some"])
def test_missing_error_bars_do_not_change_the_axis(bars):
    figure = go.Figure()
    error = {"array": bars, "arrayminus": bars}
    figure.add_scatter(x=[0, 1, 2], y=[0.2, 0.6, math.nan], error_y=error, name="a")
    figure.add_scatter(x=[0, 1, 2], y=[0.3, 0.4, 0.5], name="b")
    figure.add_scatter(x=[0, 1, 2], y=[math.nan] * 3, name="c")
    figure.update_traces(mode="lines+markers", line_color="#000000")
    figure.update_xaxes(range=[0, 2])
    name_traces(figure)
    low = 0.2 if math.isnan(bars[0]) else 0.1
    margin = 0.04 * (0.6 - low)
    assert list(figure.layout.yaxis.range) == pytest.approx([low - margin, 0.6 + margin])
    assert labels(figure) == {"a": 0.6, "b": 0.5}
