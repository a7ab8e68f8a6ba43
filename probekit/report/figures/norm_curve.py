"""Norm of activations by layer, at position 0 and at all other positions."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from itertools import product
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from probekit.report.figures.axes import layer_axis
from probekit.report.figures.layer_curve import end_labels, scatter
from probekit.report.figures.line_labels import name_lines
from probekit.report.figures.style import NORMS, TEMPLATE, plotly_text
from probekit.results.table import placed, ticks

# Ticks of a logarithmic axis: 1, 2 and 5 times each power of ten, or only the powers if that gives
# more than MOST_LOG_TICKS.
POWERS = [10.0**power for power in range(-3, 8)]
LOG_TICKS = [power * step for power in POWERS for step in (1, 2, 5)]
MOST_LOG_TICKS = 8


def norm_curve(norms: pd.DataFrame) -> go.Figure:
    """Return the figure of mean norms by layer, at position 0 and at all other positions.

    Each component (residual stream, attn_out, ...) has its own two lines.

    Args:
        norms: Columns `site`, `first_position_norm` and `other_norm`.
    """
    rows = placed(norms.assign(head=math.nan))
    rows["ratio"] = rows["first_position_norm"] / rows["other_norm"]
    figure = go.Figure(layout={"template": TEMPLATE})
    lines = rows.groupby("line", sort=False)
    parts = product(lines, NORMS.items())
    for number, ((name, points), (column, style)) in enumerate(parts):
        label = style.label if len(lines) == 1 else f"{style.label} · {name}"
        hover = [
            f"<b>{plotly_text(row['site'])}</b><br>{style.label}: {row[column]:,.1f}"
            f"<br>position 0 / others: {row['ratio']:,.1f}"
            for _, row in points.iterrows()
        ]
        figure.add_trace(scatter(points["depth"], points[column], style, number, label, hover))
    layer_axis(figure, ticks(rows))
    figure.update_yaxes(
        title_text="mean norm", **log_axis(rows.melt(value_vars=list(NORMS))["value"])
    )
    name_lines(figure, end_labels(figure.data))
    return figure


def log_axis(values: pd.Series[float]) -> dict[str, Any]:
    """Return the settings of a logarithmic axis with at least two ticks around positive values.

    By default plotly labels only powers of ten, and a range may contain only one of them.

    >>> log_axis(pd.Series([60.0, 300.0]))["ticktext"]
    ['50', '100', '200', '500']
    """
    positive = values[values > 0]
    if positive.empty:
        return {"type": "log"}
    start = bisect_right(LOG_TICKS, positive.min()) - 1
    around = LOG_TICKS[max(start, 0) : max(bisect_left(LOG_TICKS, positive.max()), start + 1) + 1]
    named = around if len(around) <= MOST_LOG_TICKS else [t for t in around if t in POWERS]
    return {
        "type": "log",
        "tickvals": named,
        "ticktext": [f"{tick:,g}" for tick in named],
        "range": [math.log10(around[0]) - 0.03, math.log10(around[-1]) + 0.03],
    }
