"""Curve of a logit lens: share of correct and of final predictions by layer."""

from __future__ import annotations

import math

import pandas as pd
import plotly.graph_objects as go

from probekit.report.figures.style import SERIES_COLOURS, TEMPLATE

# Column of the summary -> label of the line, column of its number of positions, and dash.
_LINES = {
    "as_output": ("equals the final<br>prediction", "n", "solid"),
    "right": ("equals the next<br>token of the text", "n_next", "dot"),
}
_LEAST_GAP = 0.16  # distance of two labels of two lines each, in units of the vertical axis


def lens_curve(summary: pd.DataFrame) -> go.Figure:
    """Return the curve of `lens_summary`: shares of positions by layer, labelled at their ends."""
    figure = go.Figure(layout={"template": TEMPLATE})
    shares = {name: summary[name] / summary[n] for name, (_, n, _) in _LINES.items()}
    for (name, (label, n, dash)), colour in zip(_LINES.items(), SERIES_COLOURS, strict=False):
        words = label.replace("<br>", " ")
        figure.add_scatter(
            x=list(range(len(summary))),
            y=shares[name].tolist(),
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2.5},
            hovertext=[
                f"<b>{row['layer']}</b><br>{words} at {row[name]} of {row[n]} positions"
                for _, row in summary.iterrows()
            ],
            hoverinfo="text",
        )
    ends = {name: float(share.iloc[-1]) for name, share in shares.items()}
    for name, end in _spread(ends).items():
        figure.add_annotation(
            text=_LINES[name][0],
            x=len(summary) - 1,
            y=end,
            xshift=10,
            xanchor="left",
            align="left",
            showarrow=False,
            font={"size": 12},  # in the colour of the page's text: line colours have less contrast
        )
    figure.update_xaxes(
        title_text="layer",
        tickvals=list(range(len(summary))),
        ticktext=[text if text.isdigit() else f"<br>{text}" for text in summary["layer"]],
        tickangle=0,
        range=[-0.3, len(summary) - 0.9],  # the labels are in the margin
    )
    figure.update_yaxes(title_text="share of positions", range=[-0.03, 1.05], tickformat=".0%")
    figure.update_layout(showlegend=False, margin={"r": 130})
    return figure


def _spread(ends: dict[str, float]) -> dict[str, float]:
    """Return the heights of two labels, apart enough to be read, and without missing values.

    >>> _spread({"as_output": 1.0, "right": 0.95})
    {'as_output': 1.0, 'right': 0.84}
    """
    top, second = ends["as_output"], ends["right"]
    if math.isnan(second):
        return {"as_output": top}
    return {"as_output": top, "right": min(second, top - _LEAST_GAP)}
