"""The figures of a run's page, in order: curves, maps of heads, maps of positions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from probekit.report import words
from probekit.report.figures import layer_curve, norm_curve
from probekit.report.maps import head_map, position_map
from probekit.report.record import Norms
from probekit.report.style import METRICS
from probekit.report.table import measured_metrics
from probekit.report.views import curve_rows, head_tables, position_tables, shown_position

# Figures of these metrics stand open on the page, those of others folded below them.
OPEN_METRICS = ("accuracy", "selectivity")


@dataclass(frozen=True)
class FigurePart:
    """A figure as the page embeds it, with its caption and its numbers in words.

    `height` is in rem; None leaves it to the style sheet.
    """

    title: str
    figure: dict[str, Any]
    caption: str
    description: str
    is_open: bool = True
    height: float | None = None


def result_parts(table: pd.DataFrame) -> list[FigurePart]:
    """Return the figures of every metric that the table holds test rows of."""
    found = measured_metrics(table)
    metrics = sorted(
        (metric for metric in METRICS if metric in found),
        key=lambda metric: metric not in OPEN_METRICS,
    )
    return [part for metric in metrics for part in _metric_parts(table, metric)]


def _metric_parts(table: pd.DataFrame, metric: str) -> Iterator[FigurePart]:
    is_open = metric in OPEN_METRICS
    name = METRICS[metric][0].upper() + METRICS[metric][1:]
    curve, position = curve_rows(table), shown_position(table)
    if metric in measured_metrics(curve):
        yield FigurePart(
            f"{name} by layer{f' · {position}' if position else ''}",
            _json(layer_curve(curve, metric)),
            words.caption(curve, metric),
            words.description(curve, metric),
            is_open,
        )
    for part, is_shown, rows in head_tables(table):
        if metric in measured_metrics(rows):
            title = f"{name} by layer and head · {part}"
            yield _map(title, rows, metric, head_map(rows, metric), is_open and is_shown)
    for part, rows in position_tables(table):
        if metric in measured_metrics(rows):
            title = f"{name} by layer and position · {part}"
            yield _map(title, rows, metric, position_map(rows, metric), is_open)


def _map(
    title: str, rows: pd.DataFrame, metric: str, figure: go.Figure, is_open: bool
) -> FigurePart:
    n_rows = len(figure.data[0].z)
    return FigurePart(
        title,
        _json(figure),
        words.map_caption(rows, metric),
        words.map_description(rows, metric),
        is_open,
        height=7 + 1.75 * max(n_rows, 4),
    )


def norms_part(norms: list[Norms]) -> FigurePart:
    """Return the figure of the norm of position 0."""
    rows = pd.DataFrame([norm.model_dump() for norm in norms])
    ratios = rows["first_position_norm"] / rows["other_norm"]
    return FigurePart(
        "Norm of position 0",
        _json(norm_curve(rows)),
        "Mean norm of the activations at position 0 and at all others. A model may use its first "
        "position as a resting place for attention: where its norm stands out, means and scalers "
        "that include it say little about the rest.",
        "Norm of position 0 against the others. "
        + ", ".join(f"{site} {r:.1f} times" for site, r in zip(rows["site"], ratios, strict=True)),
    )


def _json(figure: go.Figure) -> dict[str, Any]:
    """Return the figure as plain JSON values, NaN as null."""
    return json.loads(figure.to_json())  # type: ignore[no-any-return]  # plotly is untyped
