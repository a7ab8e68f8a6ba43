"""Figures of a run's page: scores by layer, number of features and number of training rows."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

from probekit.files import inside
from probekit.probes.score.metric_table import METRICS
from probekit.report.elements.page import FigurePart, figure_json
from probekit.report.elements.texts import capitalised
from probekit.report.figures import maps, views
from probekit.report.figures.layer_curve import curve_figure, facets_height
from probekit.report.pages.further_figures import learning_part, sparse_part
from probekit.report.sentences import captions
from probekit.results.record import BY_WORD, Control, reading_run_file
from probekit.results.scores import Scores
from probekit.results.table import metric_name
from probekit.results.verdict import Verdict

LEAST_MAP = 24.0  # height of a map in rem, next to a table of comparisons


def result_parts(scores: Scores, v: Verdict, control: Control = BY_WORD) -> Iterator[FigurePart]:
    """Yield the figures of a run: main metrics, then curves by size, then other metrics, folded.

    Curves by size are those by number of features and by number of training rows, if there are any.
    Each figure is drawn only when the iteration reaches it. The first one is the layer curve of the
    main metric, if there is one.

    Args:
        scores: the scores of the run.
        v: the verdict of the run.
        control: describes the control task.
    """
    drawn = [name for name in METRICS if name in scores.metrics and METRICS[name].is_drawn]
    first = [name for name in v.main_metrics if name in drawn]
    curve, position = views.curve_rows(scores), views.curve_position(scores)
    # One figure has the heads at the shown position, another one, folded, those at all others.
    heads: dict[bool, list[pd.DataFrame]] = {}
    for named, is_shown, rows in maps.head_tables(scores):
        heads.setdefault(is_shown, []).append(rows.assign(title=named))
    # Of each map: place, columns, rows, and whether it may be open.
    pictures = [
        (f"heads {is_shown}", "head", Scores(pd.concat(heads[is_shown])), is_shown)
        for is_shown in sorted(heads, reverse=True)
    ]
    pictures += [
        (named, "offset", Scores(rows.assign(title=named)), True)
        for named, rows in maps.position_tables(scores)
    ]

    def of_metric(metric: str, *, is_open: bool) -> Iterator[FigurePart]:
        """Yield the layer curve of a metric, then its maps of heads and of positions."""
        name = title(metric)
        if metric in curve.metrics:
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
        for place, across, drawn_rows, is_shown in pictures:
            if metric in drawn_rows.metrics:
                cells = maps.map_cells(drawn_rows, metric, across)
                named = [
                    one for one in drawn_rows.rows["title"].unique() if one in set(cells["title"])
                ]
                unit = "position" if across == "offset" else "head"
                a_map = map_part(
                    f"{name} by layer and {unit} · {', '.join(named)}",
                    maps.layer_maps(cells, across),
                    captions.map_caption(cells, v, control),
                    maps.map_description(cells),
                    is_open=is_open and is_shown,
                    least=LEAST_MAP,
                )
                yield replace(a_map, metric=name, place=place)

    for metric in first:
        yield from of_metric(metric, is_open=True)
    yield from sparse_part(scores, v)
    yield from learning_part(scores, v)
    for metric in drawn:
        if metric not in first:
            yield from of_metric(metric, is_open=metric == "selectivity" and bool(heads))


def with_choices(figures: Sequence[FigurePart]) -> list[FigurePart]:
    """Return the figures, in which folded ones become choices of the open one in their place."""
    shown = {part.place: part for part in reversed(figures) if part.place and part.is_open}
    others = {place: [p for p in figures if p.place == place and not p.is_open] for place in shown}
    return [
        replace(part, others=others[part.place]) if part is shown.get(part.place) else part
        for part in figures
        if part.is_open or part.place not in shown
    ]


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


def file_text(path: Path) -> str:
    """Return the text of a file of a run.

    Raises:
        MissingError: The file is missing.
        DataError: The file cannot be read.
    """
    with reading_run_file(path):
        return inside(path).read_text("utf-8")
