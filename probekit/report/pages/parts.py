"""Figures of a run's page: scores by layer, training, confidence, and the selected probe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import format_number
from probekit.chosen.registry import doors
from probekit.probes.score.metric_table import METRICS
from probekit.report.figures import curves, views
from probekit.report.figures.layer_curve import curve_figure, facets_height
from probekit.report.maps.maps import head_maps, layer_map, map_cells
from probekit.report.pages.page import FigurePart, figure_json
from probekit.report.sentences import captions
from probekit.report.texts import capitalised
from probekit.results.record import BY_WORD, Control, Norms, RunRecord
from probekit.results.selection import hidden_kinds, measured_metrics
from probekit.results.table import RESULTS, TableColumn, load_table, metric_name, page_table, placed
from probekit.results.verdict import Verdict

LEAST_MAP = 24.0  # height of a map in rem, next to a table of comparisons


def result_parts(
    table: pd.DataFrame, v: Verdict, control: Control = BY_WORD
) -> Iterator[FigurePart]:
    """Yield the figures of a run: main metrics, then curves by size, then other metrics, folded.

    Curves by size are those by number of features and by number of training rows, if there are any.
    Each figure is drawn only when the iteration reaches it. The first one is the layer curve of the
    main metric, if there is one.

    Args:
        table: rows of results.csv.
        v: the verdict of the run.
        control: describes the control task.
    """
    measured = measured_metrics(table)
    drawn = [name for name in METRICS if name in measured and METRICS[name].is_drawn]
    first = [name for name in v.main_metrics if name in drawn]
    curve, position = views.curve_rows(table), views.curve_position(table)
    # One figure has the heads at the shown position, another one, folded, those at all others.
    heads: dict[bool, list[pd.DataFrame]] = {True: [], False: []}
    for part, is_shown, rows in views.head_tables(table):
        heads[is_shown].append(placed(rows.assign(title=part)))
    positions = [(part, placed(rows)) for part, rows in views.position_tables(table)]
    of_curve = measured_metrics(curve)

    def of_metric(metric: str, *, is_open: bool) -> Iterator[FigurePart]:
        """Yield the layer curve of a metric, then its maps of heads and of positions."""
        name = title(metric)
        maps = []  # of each map: place, heading, figure, cells, whether it is open
        if metric in of_curve:
            figure = curve_figure(curve, metric)
            yield FigurePart(
                f"{name} by layer{f' · {views.position_words(position)}' if position else ''}",
                figure_json(figure),
                captions.caption(curve, v, metric, control),
                captions.description(curve, metric),
                is_open=is_open,
                height=facets_height(figure),
                metric=name,
                place="curve",
            )
        for is_shown, of_parts in heads.items():
            tables = [rows for rows in of_parts if metric in measured_metrics(rows)]
            if tables:
                cells = map_cells(pd.concat(tables), metric, "head")
                named = ", ".join(rows["title"].iloc[0] for rows in tables)
                heading = f"{name} by layer and head · {named}"
                opened = is_open and is_shown
                maps.append((f"heads {is_shown}", heading, head_maps(cells), cells, opened))
        for part, rows in positions:
            if metric in measured_metrics(rows):
                cells = map_cells(rows, metric, "offset")
                heading = f"{name} by layer and position · {part}"
                maps.append((part, heading, layer_map(cells, "offset"), cells, is_open))
        for place, heading, figure, cells, opened in maps:
            caption = captions.map_caption(cells, v, control)
            description = captions.map_description(cells)
            a_map = map_part(heading, figure, caption, description, is_open=opened, least=LEAST_MAP)
            yield replace(a_map, metric=name, place=place)

    for number, metric in enumerate(first):
        yield from of_metric(metric, is_open=True)
        if number == 0 and (lines := curves.share_lines(table)):
            yield FigurePart(
                f"{title(v.metric)} by share of the reply",
                figure_json(curves.share_curve(lines)),
                captions.share_caption(lines),
                captions.share_description(lines),
            )
    if not curves.sparse_rows(table).empty:
        yield FigurePart(
            f"{title(v.metric)} by number of features",
            figure_json(curves.sparse_curve(table)),
            captions.sparse_caption(table, v),
            captions.sparse_description(table, v),
        )
    if list(curves.learning_curve_lines(table)):
        yield FigurePart(
            f"{title(v.metric)} by number of training rows",
            figure_json(curves.learning_curve(table)),
            captions.learning_curve_caption(table, v),
            captions.learning_curve_description(table, v),
        )
    for metric in drawn:
        if metric not in first:
            yield from of_metric(metric, is_open=False)


def with_choices(figures: Sequence[FigurePart]) -> list[FigurePart]:
    """Return the figures, in which folded ones become choices of the open one in their place."""
    shown = {part.place: part for part in reversed(figures) if part.place and part.is_open}
    others = {place: [p for p in figures if p.place == place and not p.is_open] for place in shown}
    return [
        replace(part, others=others[part.place]) if part is shown.get(part.place) else part
        for part in figures
        if part.is_open or part.place not in shown
    ]


def reliability_part(bins: pd.DataFrame, table: pd.DataFrame, v: Verdict) -> FigurePart:
    """Return the reliability diagram: accuracy by confidence for each kind of probe.

    Of a kind with many sizes only the best size is shown, as in the layer curves.
    """
    bins = bins[~bins["probe"].isin(hidden_kinds(table))]
    return FigurePart(
        "Confidence and accuracy",
        figure_json(curves.reliability_figure(bins)),
        captions.reliability_caption(bins, table, v),
        captions.reliability_description(bins),
        is_open=False,
    )


class Shown(NamedTuple):
    """The numbers of a run that its page shows.

    Attributes:
        folder: the folder of the run.
        table: rows of results.csv.
        record: the record of the run.
    """

    folder: Path
    table: pd.DataFrame
    record: RunRecord

    @property
    def verdict(self) -> Verdict:
        """The verdict of the run."""
        return self.record.verdict

    @property
    def probe(self) -> str:
        """The selected probe in a sentence."""
        best = self.verdict.best
        if self.verdict.is_nested or best is None:
            return "the probes that the folds chose"
        return f"the {best.probe} probe at {best.name}"

    def rows(self, file: str) -> pd.DataFrame | None:
        """Return the rows of another file, see `page_table`; None if the run has none."""
        return page_table(self.folder, file)


def of_analyses(door: str, run: Shown) -> Iterator[Any]:
    """Yield what the analyses of the selected probe show at a place of the page.

    Args:
        door: the name of the place; see `probekit.chosen.registry`.
        run: the numbers of the run.
    """
    for _, shown in doors("page", door):
        yield from shown(run)


def title(metric: str) -> str:
    """Return the name of a metric with a capital first letter."""
    return capitalised(metric_name(metric))


def map_part(
    heading: str,
    figure: go.Figure,
    caption: str,
    description: str,
    is_open: bool = True,
    least: float = 0.0,
) -> FigurePart:
    """Return a heat map as a part of the page, with a height that fits its number of rows.

    The height is at least `least` rem, and at least that of a map with four rows.
    """
    height = max(7 + 1.75 * max(len(figure.data[0].z), 4), least)
    return FigurePart(heading, figure_json(figure), caption, description, is_open, height)


def norms_part(norms: list[Norms]) -> FigurePart:
    """Return the figure that compares activation norms at position 0 with those elsewhere."""
    rows = pd.DataFrame([norm.model_dump() for norm in norms])
    ratios = rows["first_position_norm"] / rows["other_norm"]
    return FigurePart(
        "Norm of position 0",
        figure_json(curves.norm_curve(rows)),
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


def load_training(path: Path) -> pd.DataFrame | None:
    """Return the rows of all checkpoints with an integer column `step`; None if no file exists.

    Raises:
        DataError: The file cannot be read, or `step` is missing or not an integer.
    """
    step = TableColumn("step", "training step of the checkpoint", "count")
    return load_table(path, (*RESULTS, step)) if path.is_file() else None


def step_parts(table: pd.DataFrame | None, v: Verdict) -> Iterator[FigurePart]:
    """Yield a map of the main metric by layer and step for each series that has this metric.

    The table is that of `load_training`; without one there is no map. A series is a line of the
    layer curve.
    """
    if table is None:
        return
    metric = v.metric
    for name, rows in views.step_tables(table):
        if metric in measured_metrics(rows):
            cells = map_cells(rows, metric, "step")
            highest = cells.sort_values("value", kind="stable", na_position="first").iloc[-1]
            yield map_part(
                f"{title(metric)} by layer and step of training · {name}",
                layer_map(cells, "step"),
                "Each column is a checkpoint, labelled with its training step. "
                + captions.map_caption(cells, v),
                f"{metric_name(metric)} by layer and step of training, {cells['step'].nunique()} "
                f"checkpoints, from {format_number(cells['value'].min())} to "
                f"{format_number(highest['value'])}; the highest is at {highest['site']} after "
                f"{highest['step']:,} steps.",
            )
