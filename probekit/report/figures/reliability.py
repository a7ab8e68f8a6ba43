"""Reliability diagram: accuracy against confidence of a probe's predictions."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import plotly.graph_objects as go

from probekit.errors import DataError
from probekit.report.figures.line_labels import name_traces
from probekit.report.figures.style import (
    LEVELS,
    SERIES_COLOURS,
    SERIES_MARKERS,
    TEMPLATE,
    format_number,
    plotly_text,
)

COLUMNS = ("low", "high", "n_rows", "confidence", "accuracy", "ci_low", "ci_high")
# Vertical domains: bars of row counts below, on their own axis, accuracy curves above.
COUNTS, CURVES = (0.0, 0.2), (0.28, 1.0)


def reliability_figure(bins: pd.DataFrame) -> go.Figure:
    """Return the reliability diagram, with bars for the number of rows in each bin.

    A calibrated probe lies on the dashed diagonal; below it, the probe is overconfident.

    Args:
        bins: One row for each non-empty bin: edges `low` and `high`, `n_rows`, mean `confidence`,
            `accuracy`, and its interval `ci_low` and `ci_high`. An optional column `series` names
            the lines.

    Raises:
        DataError: A column is missing, or there are no bins.

    >>> figure = reliability_figure(pd.DataFrame([dict(low=0.5, high=0.6, n_rows=9, confidence=0.55,
    ...     accuracy=0.4, ci_low=0.3, ci_high=0.5)]))
    >>> [trace.name for trace in figure.data]
    ['perfectly calibrated', 'all', 'rows: all']
    """
    _check(bins)
    figure = go.Figure(layout={"template": TEMPLATE})
    figure.add_trace(_diagonal())
    lines = list(_series(bins))
    for number, (name, points) in enumerate(lines):
        figure.add_traces([_line(name, points, number), _counts(name, points, number)])
    figure.update_layout(
        showlegend=False,
        barmode="group",
        xaxis={"title_text": "confidence in the prediction", "range": [0, 1.02], "anchor": "y2"},
        yaxis={"title_text": "accuracy", "range": [0, 1.04], "domain": CURVES},
        yaxis2={"title_text": "rows", "domain": COUNTS, "rangemode": "tozero", "nticks": 3},
    )
    if len(lines) > 1:
        name_traces(figure)
    return figure


def _check(bins: pd.DataFrame) -> None:
    missing = [name for name in COLUMNS if name not in bins.columns]
    if missing:
        raise DataError(
            f"The bins have no column {', '.join(map(repr, missing))}. Required: "
            f"{', '.join(COLUMNS)}."
        )
    if bins.empty:
        raise DataError("There are no bins to draw. Give the bins of at least one probe.")


def _series(bins: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield name and bins of each line, in ascending order of confidence."""
    names = bins["series"] if "series" in bins.columns else pd.Series("all", index=bins.index)
    for name, points in bins.groupby(names, sort=False):
        yield plotly_text(name), points.sort_values("confidence")


def _diagonal() -> go.Scatter:
    style = LEVELS["chance"]
    return go.Scatter(
        x=[0, 1],
        y=[0, 1],
        name="perfectly calibrated",
        mode="lines",
        line={"color": style.colour, "dash": style.dash, "width": style.width},
        showlegend=False,
        hoverinfo="skip",
    )


def _line(name: str, points: pd.DataFrame, number: int) -> go.Scatter:
    """Return the line of accuracy by confidence, with intervals as error bars."""
    colour = SERIES_COLOURS[number % len(SERIES_COLOURS)]
    return go.Scatter(
        x=points["confidence"].tolist(),
        y=points["accuracy"].tolist(),
        error_y={
            "type": "data",
            "array": (points["ci_high"] - points["accuracy"]).tolist(),
            "arrayminus": (points["accuracy"] - points["ci_low"]).tolist(),
            "thickness": 1,
            "width": 3,
        },
        name=name,
        legendgroup=name,
        mode="lines+markers",
        line={"color": colour, "width": 2},
        marker={"symbol": SERIES_MARKERS[number % len(SERIES_MARKERS)], "size": 8},
        hovertext=[_hover(row) for _, row in points.iterrows()],
        hoverinfo="text",
    )


def _counts(name: str, points: pd.DataFrame, number: int) -> go.Bar:
    """Return the bars of row counts, centred on the bins."""
    return go.Bar(
        x=((points["low"] + points["high"]) / 2).tolist(),
        y=points["n_rows"].tolist(),
        yaxis="y2",
        name=f"rows: {name}",
        legendgroup=name,
        showlegend=False,
        marker={"color": SERIES_COLOURS[number % len(SERIES_COLOURS)], "line": {"width": 0}},
        opacity=0.6,
        hovertext=[_hover(row) for _, row in points.iterrows()],
        hoverinfo="text",
    )


def _hover(row: pd.Series) -> str:
    accuracy = format_number(row["accuracy"], row["ci_low"], row["ci_high"])
    return (
        f"<b>confidence above {row['low']:.2f} to {row['high']:.2f}</b><br>"
        f"mean confidence: {format_number(row['confidence'])}<br>accuracy: {accuracy}<br>"
        f"test rows: {row['n_rows']:,.0f}"
    )
