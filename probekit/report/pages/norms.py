"""Norms of the residual stream on a run's page: their figure, and massive activations."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from itertools import product
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from probekit.report.elements.page import FigurePart, figure_json
from probekit.report.elements.style import NORMS, TEMPLATE, layer_axis, plotly_text
from probekit.report.figures.layer_curve import end_labels, scatter
from probekit.report.figures.line_labels import name_lines
from probekit.results.record import Norms
from probekit.results.table import by_depth, ticks

# Ticks of a logarithmic axis: 1, 2 and 5 times each power of ten, or only the powers if that gives
# more than MOST_LOG_TICKS.
POWERS = [10.0**power for power in range(-3, 8)]
LOG_TICKS = [power * step for power in POWERS for step in (1, 2, 5)]
MOST_LOG_TICKS = 8


def norms_part(norms: list[Norms]) -> FigurePart:
    """Return the figure that compares activation norms at position 0 with those elsewhere."""
    rows = pd.DataFrame([norm.model_dump() for norm in norms])
    ratios = rows["first_position_norm"] / rows["other_norm"]
    return FigurePart(
        "Norm of position 0",
        figure_json(norm_curve(rows)),
        "Median norm of the activations at position 0 and at all other positions. Models may use "
        "the first position as an attention sink, and later tokens too: if their norms are much "
        "larger, means and scalers that include them do not represent the other tokens.",
        "Ratio of the norm at position 0 to that at other positions. "
        + ", ".join(f"{site} {r:.1f}" for site, r in zip(rows["site"], ratios, strict=True)),
    )


def massive_words(norms: Norms) -> str:
    """Return where the massive activations of a site are; "" if there are none.

    >>> facts = {"n_texts": 64, "massive": [("", 64, 0, 0), (" the", 45, 2, 12)]}
    >>> massive_words(Norms(site="x", layer=2, first_position_norm=9, other_norm=1, **facts))
    "any token at position 0 in 64 of 64 texts; ' the' at positions 2 to 12 in 45 of 64 texts"
    """
    return "; ".join(
        f"{repr(token) if token else 'any token'} at position{'s' * (low < high)} {low}"
        f"{f' to {high}' * (low < high)} in {n:,} of {norms.n_texts:,} texts"
        for token, n, low, high in norms.massive
    )


def norm_curve(norms: pd.DataFrame) -> go.Figure:
    """Return the figure of median norms by layer, at position 0 and at all other positions.

    Each component (residual stream, attn_out, ...) has its own two lines.

    Args:
        norms: Columns `site`, `first_position_norm` and `other_norm`.
    """
    rows = by_depth(norms.assign(head=math.nan))
    rows["ratio"] = rows["first_position_norm"] / rows["other_norm"]
    figure = go.Figure(layout={"template": TEMPLATE})
    lines = rows.groupby("line", sort=False)
    for number, ((name, points), (column, style)) in enumerate(product(lines, NORMS.items())):
        label = style.label if len(lines) == 1 else f"{style.label} · {name}"
        hover = [
            f"<b>{plotly_text(row['site'])}</b><br>{style.label}: {row[column]:,.1f}"
            f"<br>position 0 / others: {row['ratio']:,.1f}"
            for _, row in points.iterrows()
        ]
        figure.add_trace(scatter(points["depth"], points[column], style, number, label, hover))
    layer_axis(figure, ticks(rows))
    figure.update_yaxes(
        title_text="median norm", **log_axis(rows.melt(value_vars=list(NORMS))["value"])
    )
    name_lines(figure, end_labels(figure.data))
    return figure


def log_axis(values: pd.Series[float]) -> dict[str, Any]:
    """Return the settings of a logarithmic axis with at least two ticks around positive values.

    By default plotly labels only powers of ten, and a range may contain only one of them. Without
    positive values, the ticks are those of plotly. The axis has no room for values beyond the first
    and the last of `LOG_TICKS`.

    >>> log_axis(pd.Series([60.0, 300.0]))["ticktext"]
    ['50', '100', '200', '500']
    """
    positive = values[values > 0]
    if positive.empty:
        return {"type": "log"}
    # From the tick at or below all values (-1 if there is none) to the one at or above them.
    first = bisect_right(LOG_TICKS, positive.min()) - 1
    last = max(bisect_left(LOG_TICKS, positive.max()), first + 1)
    around = LOG_TICKS[max(first, 0) : last + 1]
    powers = [tick for tick in around if tick in POWERS]
    shown = around if len(around) <= MOST_LOG_TICKS else powers
    return {
        "type": "log",
        "tickvals": shown,
        "ticktext": [f"{tick:,g}" for tick in shown],
        "range": [math.log10(around[0]) - 0.03, math.log10(around[-1]) + 0.03],
    }
