"""Causal curve: recovery or effect of patches and ablations by layer."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probekit.report.causes.edits import RECOVERY, EditSet, edit_hover
from probekit.report.figures.layer_curve import MOST_BANDS, WIDTH, band, end_labels, scatter
from probekit.report.figures.line_labels import name_lines
from probekit.report.figures.style import (
    GREY,
    TEMPLATE,
    LineStyle,
    finite_ends,
    layer_axis,
    layer_ends,
)
from probekit.report.figures.views import MOST_NEURONS
from probekit.results.table import ticks

_LINE = LineStyle("", "solid", width=2.6, marker_size=8)
STREAM = "residual stream"


def curve_lines_of(one: EditSet) -> pd.DataFrame:
    """Return the rows that a causal curve shows: all but heads and long lists of neurons."""
    rows = one.rows[one.rows["head"].isna()]
    neurons = rows["site"].str.contains("[neuron=", regex=False)
    if rows.loc[neurons, "line"].nunique() > MOST_NEURONS:
        rows = rows[~neurons]
    return rows


def cause_curve(one: EditSet, layers: dict[int, str] | None = None) -> go.Figure:
    """Return the figure of recovery or effect by layer, with a line for each kind of site.

    Intervals are bands, or error bars if there are more than `MOST_BANDS` lines.

    Args:
        one: edits at the same tokens.
        layers: labels of the layer axis by depth; by default those of the edited sites.
    """
    rows = curve_lines_of(one)
    axis = axis_labels(rows, layers)
    figure = go.Figure(layout={"template": TEMPLATE})
    figure.add_trace(zero_line(layer_ends(axis)))
    lines = [(str(name), own) for name, own in rows.groupby("line", sort=False)]
    lines.sort(key=lambda line: line[0] != STREAM)  # its colour does not depend on other lines
    for number, (name, points) in enumerate(lines):
        hover = [edit_hover(one, row) for _, row in points.iterrows()]
        line = scatter(points["depth"], points["value"], _LINE, number, name, hover)
        if len(lines) > MOST_BANDS:
            line.update(error_y=error_bars(points), marker_size=7)
            figure.add_trace(line)
        else:
            figure.add_traces([*band(points["depth"], points, line, WIDTH), line])
    layer_axis(figure, axis)
    figure.update_yaxes(title_text=one.axis, range=_range(rows, one.shown))
    name_lines(figure, end_labels(figure.data) if len(lines) > 1 else [])
    figure.update_layout(showlegend=figure.layout.showlegend or False)
    return figure


def axis_labels(rows: pd.DataFrame, layers: dict[int, str] | None) -> dict[int, str]:
    """Return the labels of the layer axis: those of the run's layer curve and of the rows.

    If they contradict each other, because the run probes no deeper block, only those of the rows.
    """
    own = ticks(rows)
    if not layers or any(layers.get(depth, label) != label for depth, label in own.items()):
        return own
    both = {**own, **layers}
    return {depth: both.get(depth, str(depth)) for depth in range(min(both), max(both) + 1)}


def zero_line(ends: list[float]) -> go.Scatter:
    """Return the horizontal line of no effect."""
    return go.Scatter(
        x=list(ends),
        y=[0, 0],
        mode="lines",
        line={"color": GREY, "width": 1},
        showlegend=False,
        hoverinfo="skip",
    )


def error_bars(points: pd.DataFrame) -> dict[str, object]:
    """Return the settings of error bars for the intervals of the points."""
    lengths = {
        "array": points["ci_high"] - points["value"],
        "arrayminus": points["value"] - points["ci_low"],
    }
    bars = {name: length.fillna(0).clip(lower=0).tolist() for name, length in lengths.items()}
    return {"type": "data", "thickness": 1, "width": 3, **bars}


def _range(rows: pd.DataFrame, shown: str) -> list[float]:
    """Return a range that contains all intervals and 0, and for recovery 1."""
    values = rows[["value", "ci_low", "ci_high"]].to_numpy().ravel().tolist()
    low, high = finite_ends([*values, 0.0, *([1.0] if shown == RECOVERY else [])])
    margin = 0.04 * (high - low) or 0.05
    return [low - margin, high + margin]


def most_of(one: EditSet, share: float = 0.5) -> pd.Series | None:
    """Return the first row of the residual stream whose recovery is at least `share`, if any."""
    stream = one.rows[one.rows["line"].eq(STREAM) & one.rows["value"].ge(share)]
    return None if one.shown != RECOVERY or stream.empty else stream.iloc[0]


def strongest(rows: pd.DataFrame) -> pd.Series | None:
    """Return the row with the largest absolute value; None without rows."""
    return None if rows.empty else rows.iloc[int(np.argmax(rows["value"].abs()))]
