"""Figures of weights: heat maps of matrices, curves of columns, spectra of heads, norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import plotly.colors
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from probekit.report.figures.line_labels import name_traces
from probekit.report.figures.style import (
    SERIES_COLOURS,
    SERIES_MARKERS,
    TEMPLATE,
    finite_ends,
    plotly_text,
)
from probekit.report.maps.text_map import Colours, text_map

# Quantile of the absolute weights at which colours end; an outlier would wash out all others.
QUANTILE = 0.995
_COLOURBAR = {"thickness": 12, "outlinewidth": 0, "nticks": 6}

Floats = NDArray[np.float32]


def colour_end(values: Floats) -> float:
    """Return the absolute weight at which the colours of a heat map end; never 0.

    >>> colour_end(np.array([[0.0, 0.0, -2.0]], np.float32)) > 1.9
    True
    """
    return float(np.quantile(np.abs(values), QUANTILE)) or float(np.abs(values).max()) or 1.0


def matrix_map(values: Floats, down: str, across: str) -> go.Figure:
    """Return the heat map of a matrix, rows down, with diverging colours centred on 0.

    Args:
        values: shape (n_rows, n_columns).
        down: Title of the row axis.
        across: Title of the column axis.
    """
    figure = go.Figure(layout={"template": TEMPLATE})
    figure.add_trace(_heatmap(values, colour_end(values), down, across))
    figure.update_xaxes(title_text=across, showgrid=False)
    figure.update_yaxes(title_text=down, showgrid=False, autorange="reversed")
    return figure


def _heatmap(values: Floats, end: float, down: str, across: str) -> go.Heatmap:
    return go.Heatmap(
        z=np.ascontiguousarray(values, np.float32),  # plotly stores arrays as bytes, not digits
        zmin=-end,
        zmax=end,
        colorscale=plotly.colors.diverging.PuOr_r,
        colorbar=_COLOURBAR,
        hovertemplate=f"{down} %{{y}}, {across} %{{x}}: %{{z:.4f}}<extra></extra>",
    )


def column_curves(values: Floats, columns: Sequence[int], down: str) -> go.Figure:
    """Return the figure of the given columns of a matrix as curves, one point per row."""
    figure = go.Figure(layout={"template": TEMPLATE})
    for number, column in enumerate(columns):
        figure.add_scatter(
            y=np.ascontiguousarray(values[:, column], np.float32),
            mode="lines",
            name=f"column {column}",
            line={"color": SERIES_COLOURS[number % len(SERIES_COLOURS)], "width": 1.5},
            hovertemplate=f"column {column}, {down} %{{x}}: %{{y:.4f}}<extra></extra>",
        )
    figure.update_layout(showlegend=True)
    figure.update_xaxes(title_text=down)
    figure.update_yaxes(title_text="weight")
    return figure


def vector_curve(values: Floats) -> go.Figure:
    """Return the scatter plot of a vector by index."""
    figure = go.Figure(layout={"template": TEMPLATE})
    figure.add_scatter(
        y=np.ascontiguousarray(values, np.float32),
        mode="markers",
        marker={"size": 4, "color": SERIES_COLOURS[0]},
        hovertemplate="%{x}: %{y:.4f}<extra></extra>",
    )
    figure.update_xaxes(title_text="index")
    figure.update_yaxes(title_text="weight")
    return figure


def norm_map(norms: NDArray[np.float64], parts: Sequence[str]) -> go.Figure:
    """Return the map of weight norms, matrices down and heads across, with numbers in the cells.

    Args:
        norms: shape (n_parts, n_heads).
        parts: Names of the matrices, e.g. "query".
    """
    names = [f"W_{part[0].upper()}" for part in parts]
    figure = text_map(
        norms,
        [f"{norm:.1f}" for norm in norms.ravel()],
        [
            f"{name} of head {head}: {norm:.3f}"
            for name, row in zip(names, norms, strict=True)
            for head, norm in enumerate(row)
        ],
        Colours(0.0, float(norms.max()), plotly.colors.sequential.Viridis, is_diverging=False),
        across=[str(head) for head in range(norms.shape[1])],
        down=names,
        title="head",
    )
    return figure.update_yaxes(title_text=None)


def weight_head_map(parts: Mapping[str, Floats], end: float) -> go.Figure:
    """Return heat maps of the matrices of one head side by side, on one colour scale."""
    titles = [f"W_{part[0].upper()}" for part in parts]
    figure = make_subplots(1, len(parts), subplot_titles=titles, horizontal_spacing=0.06)
    figure.update_layout(template=TEMPLATE)
    for number, values in enumerate(parts.values(), start=1):
        trace = _heatmap(values, end, "row", "column")
        figure.add_trace(trace.update(showscale=number == len(parts)), row=1, col=number)
    figure.update_xaxes(showgrid=False)
    figure.update_yaxes(showgrid=False, autorange="reversed")
    return figure


def spectrum_curves(spectra: NDArray[np.float64]) -> go.Figure:
    """Return the figure of singular values by rank, one curve per head.

    Args:
        spectra: shape (n_heads, n_singular_values), in descending order.
    """
    figure = go.Figure(layout={"template": TEMPLATE})
    shades = np.linspace(0, 0.9, len(spectra)).tolist()
    colours = plotly.colors.sample_colorscale(plotly.colors.sequential.Viridis, shades)
    for head, (values, colour) in enumerate(zip(spectra, colours, strict=True)):
        figure.add_scatter(
            x=list(range(1, len(values) + 1)),
            y=values.tolist(),
            mode="lines",
            line={"color": colour, "width": 1.5},
            name=f"head {head}",
            hovertemplate=f"head {head}, rank %{{x}}: %{{y:.3f}}<extra></extra>",
        )
    figure.update_layout(showlegend=True)
    figure.update_xaxes(title_text="rank")
    figure.update_yaxes(title_text="singular value", rangemode="tozero")
    return figure


def norms_by_block(rows: pd.DataFrame) -> go.Figure:
    """Return the figure of norms by block, one line per kind of matrix.

    Args:
        rows: One row per tensor, with columns `name`, `shape` and `norm`.
    """
    named = rows["name"].str.extract(r"^h\.(?P<block>[0-9]{1,6})\.(?P<kind>.*)$")
    is_shown = named["kind"].notna() & (rows["shape"].map(len) == 2)
    matrices = rows.assign(**named)[is_shown].astype({"block": int}).sort_values("block")
    figure = go.Figure(layout={"template": TEMPLATE})
    for number, (kind, points) in enumerate(matrices.groupby("kind", sort=False)):
        figure.add_scatter(
            x=points["block"].tolist(),
            y=points["norm"].tolist(),
            mode="lines+markers",
            name=plotly_text(kind),
            line={"color": SERIES_COLOURS[number % len(SERIES_COLOURS)]},
            marker={"symbol": SERIES_MARKERS[number % len(SERIES_MARKERS)], "size": 8},
            hovertemplate=f"{plotly_text(kind)} of block %{{x}}: %{{y:.1f}}<extra></extra>",
        )
    last, highest = matrices["block"].max(), finite_ends(matrices["norm"])[1]
    figure.update_xaxes(title_text="block", dtick=1 + last // 16, range=[-0.3, last + 0.3])
    figure.update_yaxes(title_text="norm", range=[0, 1.04 * highest])
    name_traces(figure)
    return figure
