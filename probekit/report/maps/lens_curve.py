"""Curve of a logit lens: share of correct and of final predictions by layer."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from probekit.report.figures.line_labels import label_at_end, label_lines
from probekit.report.figures.style import SERIES_COLOURS, TEMPLATE

# Column of the summary -> label of the line, column of its number of positions, and dash.
_LINES = {
    "as_output": ("equals the final prediction", "n", "solid"),
    "right": ("equals the next token of the text", "n_next", "dot"),
}


def lens_curve(summary: pd.DataFrame) -> go.Figure:
    """Return the curve of `lens_summary`: shares of positions by layer, labelled at their ends."""
    figure = go.Figure(layout={"template": TEMPLATE})
    shares = {name: summary[name] / summary[n] for name, (_, n, _) in _LINES.items()}
    for (name, (label, n, dash)), colour in zip(_LINES.items(), SERIES_COLOURS, strict=False):
        figure.add_scatter(
            x=list(range(len(summary))),
            y=shares[name].tolist(),
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 2.5},
            hovertext=[
                f"<b>{row['layer']}</b><br>{label} at {row[name]} of {row[n]} positions"
                for _, row in summary.iterrows()
            ],
            hoverinfo="text",
        )
    figure.update_xaxes(
        title_text="layer",
        tickvals=list(range(len(summary))),
        ticktext=[text if text.isdigit() else f"<br>{text}" for text in summary["layer"]],
        tickangle=0,
        range=[-0.3, len(summary) - 0.9],
    )
    figure.update_yaxes(title_text="share of positions", range=[-0.03, 1.05], tickformat=".0%")
    names = (label for label, _, _ in _LINES.values())
    ends = [
        label
        for line, name in zip(figure.data, names, strict=True)
        for label in label_at_end(line, name, line.line.color)
    ]
    label_lines(figure, ends)
    return figure
