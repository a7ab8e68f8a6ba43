"""Curves of norms, the reliability diagram, and the axis and labels of lines with error bars."""

import math

import pandas as pd
import plotly.graph_objects as go
import pytest

from probekit.report.figures.line_labels import name_traces
from probekit.report.pages.further_figures import norm_curve, reliability_figure
from tests.stored import drawn

BINS = pd.DataFrame(
    [
        (0.6, 0.8, 40, 0.71, 0.55, 0.4, 0.7),
        (0.4, 0.6, 25, 0.52, 0.5, 0.3, 0.65),
        (0.8, 1.0, 1900, 0.97, 0.8, 0.75, 0.86),
    ],
    columns=["low", "high", "n_rows", "confidence", "accuracy", "ci_low", "ci_high"],
)


def norms(*rows):
    """Return norms at a site of position 0 and of all others."""
    return pd.DataFrame(rows, columns=["site", "first_position_norm", "other_norm"])


def with_error_bars(bars):
    """Return three lines: one with error bars, one without, and one without values."""
    figure = go.Figure()
    error = {"array": bars, "arrayminus": bars}
    figure.add_scatter(x=[0, 1, 2], y=[0.2, 0.6, math.nan], error_y=error, name="a")
    figure.add_scatter(x=[0, 1, 2], y=[0.3, 0.4, 0.5], name="b")
    figure.add_scatter(x=[0, 1, 2], y=[math.nan] * 3, name="c")
    figure.update_traces(mode="lines+markers", line_color="#000000")
    name_traces(figure.update_xaxes(range=[0, 2]))
    return figure


FIGURES = {
    "bins are in order, with intervals, counts and diagonal": lambda: reliability_figure(
        BINS.assign(probe="all")
    ),
    "several reliabilities have labels and styles": lambda: reliability_figure(
        pd.concat([BINS.assign(probe="layer 3"), BINS.assign(probe="<b>%{x}")])
    ),
    "norms are drawn by depth": lambda: norm_curve(
        norms(("blocks.1.hook_resid_pre", 3000.0, 100.0), ("hook_embed", 60.0, 50.0))
    ),
    "norms of other parts are not joined to the residual stream": lambda: norm_curve(
        norms(
            ("blocks.0.hook_attn_out", 9.0, 1.0),
            ("blocks.0.hook_resid_post", 9.0, 2.0),
            ("blocks.1.hook_attn_out", 9.0, 3.0),
            ("blocks.1.hook_resid_post", 9.0, 4.0),
        )
    ),
    **{
        f"ticks around norms of {low} and {high}": lambda low=low, high=high: norm_curve(
            norms(("blocks.0.hook_resid_post", high, low))
        )
        for low, high in ((60, 70), (50, 3000), (0.3, 20_000), (0, 0))
    },
    "missing error bars do not change the axis": lambda: with_error_bars([math.nan] * 3),
    "some error bars widen the axis": lambda: with_error_bars([0.1, math.nan, 0.1]),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_curve(name, snapshot):
    assert drawn(FIGURES[name]()) == snapshot


def test_names_in_a_reliability_diagram_are_never_markup(hostile):
    text = reliability_figure(BINS.assign(probe=hostile)).to_json()
    assert "%{" not in text
    assert "</script" not in text
