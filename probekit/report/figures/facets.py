"""Layer curve with one panel per kind of site, stacked vertically on a common scale."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from probekit.report.figures.layer_curve import (
    chosen_points,
    curve_lines,
    layer_axis,
    layer_ends,
    measured_rows,
    name_lines,
    ring,
)
from probekit.report.figures.levels import level_line, levels, value_range
from probekit.report.figures.style import LEVELS, TEMPLATE, axis_title, plotly_text
from probekit.results.table import placed, ticks

MOST_KINDS = 3  # kinds of site in one panel, each with its control, random weights and band
PANEL_HEIGHT = 9.5  # rem
MARGIN_HEIGHT = 7  # rem, for the legend and the layer axis
_GAP = 1.9  # rem between panels, for the title of the lower one


def panels(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return title and rows of each panel: one per kind of site, or one for all if there are few.

    >>> sites = [f"blocks.0.{name}" for name in ("hook_attn_out", "hook_mlp_out", "attn.hook_q")]
    >>> few = placed(pd.DataFrame({"site": sites, "head": None}))
    >>> many = placed(pd.DataFrame({"site": [*sites, "hook_embed"], "head": None}))
    >>> len(panels(few)), [name for name, _ in panels(many)]
    (1, ['residual stream', 'attn_out', 'mlp_out', 'attn.q'])
    """
    kinds = _by_kind(rows)
    return kinds if len(kinds) > MOST_KINDS else [("", rows)]


def _by_kind(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(str(kind), own) for kind, own in rows.groupby("part", sort=False)]


def facets_height(table: pd.DataFrame, metric: str) -> float | None:
    """Return the total height of the panels in rem, or None for a single panel."""
    n_panels = len(panels(placed(measured_rows(table, metric))))
    return MARGIN_HEIGHT + PANEL_HEIGHT * n_panels if n_panels > 1 else None


def site_facets(table: pd.DataFrame, metric: str = "accuracy") -> go.Figure:
    """Return the layer curve of a metric with one panel per kind of site.

    Every panel shows the lines and baselines of `layer_curve`, and all panels share the ranges of
    both axes. The title of one panel names the selected site.

    Raises:
        UnknownNameError: The table has no test rows of this metric.
    """
    measured = measured_rows(table, metric)
    rows = placed(measured)
    parts = _by_kind(rows)
    chosen = chosen_points(table, rows)
    labels = ticks(rows)
    figure = make_subplots(
        rows=len(parts),
        shared_xaxes=True,
        vertical_spacing=_GAP / (MARGIN_HEIGHT + PANEL_HEIGHT * len(parts)),
        subplot_titles=[
            _name(part, any(row["part"] == part for row in chosen)) for part, _ in parts
        ],
        y_title=axis_title(metric),
    )
    figure.update_layout(template=TEMPLATE, margin={"l": 64, "r": 16})
    figure.update_annotations(font_size=13)
    for annotation in figure.layout.annotations[: len(parts)]:
        annotation.update(x=0, xanchor="left")
    for number, (part, points) in enumerate(parts, start=1):
        traces = [
            *curve_lines(table, points),
            *_level_lines(measured, layer_ends(labels)),
            *(ring(row) for row in chosen if row["part"] == part),
        ]
        figure.add_traces(traces, rows=number, cols=1)
    layer_axis(figure, labels)
    figure.update_xaxes(title_text=None)
    figure.update_xaxes(title_text="layer", row=len(parts), col=1)
    name_lines(figure)
    figure.update_yaxes(range=value_range(figure))
    return figure


def _name(part: str, has_chosen: bool) -> str:
    chosen = " · the ring is chosen by cross-validation" if has_chosen else ""
    return f"<b>{plotly_text(part)}</b>{chosen}"


def _level_lines(measured: pd.DataFrame, ends: list[float]) -> list[go.Scatter]:
    """Return the horizontal lines, labelled in the legend: panels have no margin for labels."""
    drawn = [level_line(LEVELS[target], row, ends) for target, row in levels(measured)]
    return [line.update(showlegend=True, legendgroup=line.name, legendrank=4) for line in drawn]
