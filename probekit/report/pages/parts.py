"""Figures of a run's page, in order: curves and maps by metric, feature counts, learning curve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd
import plotly.graph_objects as go

from probekit.probes.score.metric_table import METRICS
from probekit.report.figures.chosen_figures import reliability_figure
from probekit.report.figures.curves import (
    learning_curve,
    learning_curve_lines,
    norm_curve,
    sparse_curve,
    sparse_rows,
)
from probekit.report.figures.layer_curve import curve_figure, facets_height
from probekit.report.figures.views import curve_position, curve_rows, head_tables, position_tables
from probekit.report.maps.maps import head_maps, layer_map
from probekit.report.pages.page import FigurePart, figure_json
from probekit.report.sentences import captions
from probekit.report.sentences.captions import reliability_caption, reliability_description
from probekit.report.texts import capitalised
from probekit.results.record import BY_WORD, Control, Norms
from probekit.results.selection import hidden_kinds, measured_metrics
from probekit.results.table import metric_name
from probekit.results.verdict import Verdict

LEAST_MAP = 24.0  # height of a map in rem, next to a table of comparisons


def result_parts(table: pd.DataFrame, v: Verdict, control: Control = BY_WORD) -> list[FigurePart]:
    """Return the figures of a run: main metrics first, then the other metrics, folded.

    Args:
        table: rows of results.csv.
        v: the verdict of the run.
        control: describes the control task.
    """
    return list(_result_parts(table, v, control))


def first_part(table: pd.DataFrame, v: Verdict, control: Control = BY_WORD) -> FigurePart | None:
    """Return the first of `result_parts`, the layer curve of the main metric; None without any."""
    return next(_result_parts(table, v, control), None)


def _result_parts(table: pd.DataFrame, v: Verdict, control: Control) -> Iterator[FigurePart]:
    measured = measured_metrics(table)
    drawn = [name for name in METRICS if name in measured and METRICS[name].is_drawn]
    first = [name for name in v.main_metrics if name in drawn]
    for metric in first:
        yield from _metric_parts(table, v, metric, control, True)
    yield from (*_size_parts(table, v), *_learning_curve_parts(table, v))
    for metric in drawn:
        if metric not in first:
            yield from _metric_parts(table, v, metric, control, False)


def _size_parts(table: pd.DataFrame, v: Verdict) -> Iterator[FigurePart]:
    if not sparse_rows(table).empty:
        yield FigurePart(
            f"{title(v.metric)} by number of features",
            figure_json(sparse_curve(table)),
            captions.sparse_caption(table, v),
            captions.sparse_description(table, v),
        )


def _learning_curve_parts(table: pd.DataFrame, v: Verdict) -> Iterator[FigurePart]:
    if any(True for _ in learning_curve_lines(table)):
        yield FigurePart(
            f"{title(v.metric)} by number of training rows",
            figure_json(learning_curve(table)),
            captions.learning_curve_caption(table, v),
            captions.learning_curve_description(table, v),
        )


def reliability_part(bins: pd.DataFrame, table: pd.DataFrame, v: Verdict) -> FigurePart:
    """Return the reliability diagram: accuracy by confidence for each kind of probe.

    Of probes with several sizes only the best size is shown, as in the layer curves.
    """
    bins = bins[~bins["probe"].isin(hidden_kinds(table))]
    return FigurePart(
        "Confidence and accuracy",
        figure_json(reliability_figure(bins)),
        reliability_caption(bins, table, v),
        reliability_description(bins),
        is_open=False,
    )


def title(metric: str) -> str:
    """Return the name of a metric with a capital first letter."""
    return capitalised(metric_name(metric))


def _metric_parts(
    table: pd.DataFrame, v: Verdict, metric: str, control: Control, is_open: bool
) -> Iterator[FigurePart]:
    name = title(metric)
    curve, position = curve_rows(table), curve_position(table)
    if metric in measured_metrics(curve):
        height = facets_height(curve, metric)
        yield FigurePart(
            f"{name} by layer{f' · {position}' if position else ''}",
            figure_json(curve_figure(curve, metric)),
            captions.caption(curve, v, metric, control),
            captions.description(curve, metric),
            is_open,
            height,
        )
    of_heads = [own for own in head_tables(table) if metric in measured_metrics(own[2])]
    for is_shown in (True, False):
        maps = {part: rows for part, at_shown, rows in of_heads if at_shown is is_shown}
        if maps:
            heading = f"{name} by layer and head · {', '.join(maps)}"
            figure = head_maps(maps, metric)
            rows = pd.concat(maps.values())
            yield _map(heading, rows, v, metric, figure, is_open and is_shown, control)
    for part, rows in position_tables(table):
        if metric in measured_metrics(rows):
            heading = f"{name} by layer and position · {part}"
            figure = layer_map(rows, metric, "offset")
            yield _map(heading, rows, v, metric, figure, is_open, control)


def _map(
    heading: str,
    rows: pd.DataFrame,
    v: Verdict,
    metric: str,
    figure: go.Figure,
    is_open: bool,
    control: Control,
) -> FigurePart:
    caption = captions.map_caption(rows, v, metric, control)
    part = map_part(heading, figure, caption, captions.map_description(rows, metric), is_open)
    # A map of few layers has the height of the table next to it.
    return replace(part, height=max(part.height or 0, LEAST_MAP))


def map_part(
    heading: str, figure: go.Figure, caption: str, description: str, is_open: bool = True
) -> FigurePart:
    """Return a heat map as a part of the page, with a height that fits its number of rows."""
    n_rows = len(figure.data[0].z)
    height = 7 + 1.75 * max(n_rows, 4)
    return FigurePart(heading, figure_json(figure), caption, description, is_open, height)


def norms_part(norms: list[Norms]) -> FigurePart:
    """Return the figure that compares activation norms at position 0 with those elsewhere."""
    rows = pd.DataFrame([norm.model_dump() for norm in norms])
    ratios = rows["first_position_norm"] / rows["other_norm"]
    return FigurePart(
        "Norm of position 0",
        figure_json(norm_curve(rows)),
        "Mean norm of the activations at position 0 and at all other positions. Models may use the "
        "first position as an attention sink: if its norm is much larger, means and scalers that "
        "include it do not represent the other positions.",
        "Ratio of the norm at position 0 to that at other positions. "
        + ", ".join(f"{site} {r:.1f}" for site, r in zip(rows["site"], ratios, strict=True)),
    )
