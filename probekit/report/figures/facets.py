"""Layer curve as small multiples: one panel for each series, on a common scale."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from probekit.probes.targets import HEADLINE
from probekit.report.figures.layer_curve import (
    chosen_points,
    curve_lines,
    end_labels,
    layer_curve,
    measured_rows,
    ring,
    series_of,
)
from probekit.report.figures.levels import LevelLine, draw_levels, levels, value_range
from probekit.report.figures.line_labels import (
    LEAST_HEIGHT,
    LineLabel,
    label_lines,
    labels_that_fit,
)
from probekit.report.figures.style import (
    GREY,
    LARGE,
    SERIES_COLOURS,
    SMALL,
    STACKS,
    TEMPLATE,
    TITLE_MARGIN,
    axis_title,
    label_colour,
    layer_axis,
    layer_ends,
    plotly_text,
)
from probekit.report.figures.views import position_words
from probekit.results.selection import chosen_row
from probekit.results.table import SERIES, differs, only, placed, same_features, ticks

MOST_PANELS = 9
# Series that differ only in these columns are compared in one panel, if they have enough colours.
COMPARED = {"run", "model", "dataset", "seed"}
UNITS = {"line": "kind of site", "probe": "kind of probe", "view": "scaling of rows"}
MOST_ROWS = 2  # rows of panels in a figure of the usual height
PANEL_HEIGHT, FIGURE_HEIGHT, MARGIN_HEIGHT = 11.0, 30.0, 7.5  # rem
TITLE_HEIGHT = 18  # pixels above each panel
TITLE = "panel title"  # name of the annotations
LONGEST_TITLE = 28  # characters in a line
OTHERS, RING = "others", " ○"
_MARKER = 5  # pixels


def curve_figure(table: pd.DataFrame, metric: str = "accuracy") -> go.Figure:
    """Return the layer curve of a metric, as small multiples if there are several series.

    Raises:
        UnknownNameError: The table has no test rows of this metric.
    """
    is_single = len(panels(placed(measured_rows(table, metric)))) == 1
    return (layer_curve if is_single else curve_facets)(table, metric)


def panels(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return title and rows of each panel, or one panel without a title.

    >>> sites = ["blocks.0.hook_attn_out", "blocks.0.hook_mlp_out"]
    >>> same = dict.fromkeys([name for name in SERIES if name != "line"], "")
    >>> rows = pd.DataFrame({"site": sites, "head": None, "target": "task"} | same, index=[0, 1])
    >>> [name for name, _ in panels(placed(rows))]
    ['attn_out', 'mlp_out']
    """
    columns = panel_columns(rows)
    if not columns:
        return [("", rows)]
    titled = []
    for values, own in rows.groupby(columns, sort=False):
        names = dict(zip(columns, map(str, values), strict=True))
        names |= {name: position_words(text) for name, text in names.items() if name == "position"}
        titled.append((" · ".join(names.values()), own))
    return titled


def panel_columns(rows: pd.DataFrame) -> list[str]:
    """Return the columns of `SERIES` by which series have panels of their own; [] for one panel.

    If there would be more than `MOST_PANELS`, series that differ in the last columns share panels.
    """
    task = only(rows, target="task")
    columns = [name for name in SERIES if differs(task[name])]
    n_series = len(task[columns].drop_duplicates())
    if set(columns) <= COMPARED and n_series <= len(SERIES_COLOURS):
        return []
    while len(columns) > 1 and len(task[columns].drop_duplicates()) > MOST_PANELS:
        columns.pop()
    return columns


def panel_unit(rows: pd.DataFrame) -> str:
    """Return the name of the unit that has a panel, in the singular.

    >>> same = dict.fromkeys([*SERIES, "target"], "task")
    >>> panel_unit(pd.DataFrame([same | {"line": "attn_out"}, same | {"line": "mlp_out"}]))
    'kind of site'
    """
    return " and ".join(UNITS.get(column, column) for column in panel_columns(rows))


def n_columns(n_panels: int) -> int:
    """Return the number of panels side by side."""
    return 2 if n_panels <= 2 * MOST_ROWS else 3


def panels_height(n_panels: int) -> float:
    """Return the height of a figure of panels in rem."""
    n_rows = math.ceil(n_panels / n_columns(n_panels))
    return max(FIGURE_HEIGHT, MARGIN_HEIGHT + PANEL_HEIGHT * n_rows)


def facets_height(table: pd.DataFrame, metric: str) -> float | None:
    """Return the total height of the panels in rem, or None for a single panel."""
    n_panels = len(panels(placed(measured_rows(table, metric))))
    return panels_height(n_panels) if n_panels > 1 else None


def curve_facets(table: pd.DataFrame, metric: str = "accuracy") -> go.Figure:
    """Return the layer curve of a metric with one panel per series, all on one scale.

    Each panel highlights its own series, with control task, random weights and bands; the task
    lines of all other series are grey. Of the baselines, every panel shows the majority and the
    best other one. Each label is at the right of one panel. The panel of the selected site has a
    ring, also in its title.

    Raises:
        UnknownNameError: The table has no test rows of this metric.
    """
    measured = measured_rows(table, metric)
    rows = placed(measured)
    parts = panels(rows)
    chosen = [chosen_points(table, own) for _, own in parts]
    titles = [title + RING * bool(marked) for (title, _), marked in zip(parts, chosen, strict=True)]
    figure = panel_grid(titles, axis_title(metric))
    ends = layer_ends(ticks(rows))
    labels = []
    for number, ((_, own), marked) in enumerate(zip(parts, chosen, strict=True), start=1):
        highlighted = _highlighted(table, own)
        lines = curve_lines(table, highlighted)
        for line in lines:
            if line.mode == "lines+markers":
                line.marker.size = _MARKER
        others, of_others = _others(rows, highlighted)
        references = go.Figure()
        of_levels = draw_levels(references, _levels(measured, highlighted), ends)
        drawn = [*others, *references.data, *lines, *(ring(row) for row in marked)]
        draw_in_panel(figure, drawn, number)
        named = [*end_labels(lines), *of_levels]
        # Of all others, the one farthest from the named lines, so that its label points at it.
        gaps = [min(abs(one.value - own.value) for own in named) for one in of_others]
        labels.append([*named, of_others[gaps.index(max(gaps))]] if gaps else named)
    depths = [set(own["depth"]) for _, own in parts]
    panel_layers(figure, ticks(rows), depths)
    figure.update_yaxes(range=value_range(figure, metric, rows["chance"].min()))
    label_panels(figure, labels)
    return figure


def panel_grid(titles: Sequence[str], y_title: str) -> go.Figure:
    """Return a figure of empty panels on one vertical scale, with titles if there are several.

    Titles have the colour of the highlighted line.
    """
    n_panels = len(titles)
    across = min(n_columns(n_panels), n_panels)
    down = math.ceil(n_panels / across)
    cells: list[dict[str, str] | None] = [{}] * n_panels + [None] * (down * across - n_panels)
    figure = make_subplots(
        rows=down,
        cols=across,
        specs=[cells[start : start + across] for start in range(0, len(cells), across)],
        shared_yaxes=True,
        horizontal_spacing=0.1,
        vertical_spacing=0.12,
        y_title=y_title,
    )
    margins = {"margin_l": 64, "margin_t": TITLE_MARGIN}
    figure.update_layout(template=TEMPLATE, **margins, showlegend=False, meta=STACKS)
    figure.update_annotations(font_size=LARGE)
    for number, title in enumerate(titles if n_panels > 1 else (), start=1):
        axes = _axes(number)
        figure.add_annotation(
            name=TITLE,
            text="<br>".join(map(plotly_text, _title_lines(title))),
            x=0,
            xref=f"{axes['xaxis']} domain",
            xanchor="left",
            align="left",
            y=1,
            yref=f"{axes['yaxis']} domain",
            yanchor="bottom",
            showarrow=False,
            arrowcolor=SERIES_COLOURS[0],
            font={"size": SMALL, "color": label_colour(SERIES_COLOURS[0])},
        )
    return figure


def draw_in_panel(figure: go.Figure, traces: Sequence[go.Scatter], number: int) -> None:
    """Add traces to a panel, the first one being 1."""
    figure.add_traces([trace.update(showlegend=False, **_axes(number)) for trace in traces])


def _axes(number: int) -> dict[str, str]:
    suffix = str(number) if number > 1 else ""
    return {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}


def _title_lines(title: str) -> list[str]:
    """Return a title in at most two lines, so that it does not reach the labels of the lines.

    >>> _title_lines("sweep · 1 token before the word")
    ['sweep', '1 token before the word']
    >>> _title_lines("sweep · 1 token before the word ○")
    ['sweep ○', '1 token before the word']
    """
    first, dot, last = title.rpartition(" · ")
    if len(title) <= LONGEST_TITLE or not dot:
        return [title]
    return [first + RING * last.endswith(RING), last.removesuffix(RING)]


def _highlighted(table: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of one series of a panel: the selected one, or else the first."""
    of_series, chosen = [rows for _, rows in series_of(own)], chosen_row(table)
    selected = (
        rows for rows in of_series if chosen is not None and not same_features(rows, chosen).empty
    )
    return next(selected, of_series[0])


def _others(
    rows: pd.DataFrame, highlighted: pd.DataFrame
) -> tuple[list[go.Scatter], list[LineLabel]]:
    """Return the grey task lines of all series except the highlighted one, and their labels."""
    shown = highlighted[list(SERIES)].iloc[0]
    of_series = [only(own, target="task") for _, own in series_of(rows)]
    others = [own for own in of_series if (own[list(SERIES)] != shown).any(axis=None)]
    lines = [
        go.Scatter(
            x=own["depth"].tolist(),
            y=own["value"].tolist(),
            mode="lines",
            opacity=0.6,
            line={"color": GREY, "width": 1},
            hoverinfo="skip",
        )
        for own in others
    ]
    return lines, [LineLabel(OTHERS, line.y[-1], GREY, line.x[-1]) for line in lines]


def _levels(measured: pd.DataFrame, highlighted: pd.DataFrame) -> list[LevelLine]:
    """Return the horizontal lines of a panel: those of its run, position and kind of probe."""
    first = highlighted.iloc[0]
    is_own = pd.Series(True, measured.index)
    for column in ("run", "model", "dataset", "position"):
        is_own &= measured[column].isin(["", first[column]]) | measured["target"].eq(HEADLINE)
    is_own &= measured["site"].eq("") | measured["probe"].eq(first["probe"])
    return levels(measured[is_own], is_brief=True)


def panel_layers(figure: go.Figure, labels: dict[int, str], depths: Sequence[set[int]]) -> None:
    """Name the layers of each panel below the lowest panel of its column.

    Other panels name only layers that the lowest panel of their column does not have. The metadata
    of the figure contain all labels of each panel, which pages show in narrow windows.

    Args:
        figure: Figure of the panels.
        labels: Labels of all layers, by depth.
        depths: Depths of the layers of each panel.
    """
    across = n_columns(len(depths))
    lowest = range(max(0, len(depths) - across), len(depths))
    of_column = {number % across: number for number in lowest}
    in_narrow = {}
    for number, own in enumerate(depths):
        axis = figure.layout[f"xaxis{number + 1 if number else ''}"]
        layer_axis(figure, labels, own, most=16 // across, axis=axis)
        in_narrow[axis.plotly_name] = list(axis.ticktext)
        below = depths[of_column[number % across]]
        if number not in lowest:
            texts = [label if d in own - below else "" for d, label in labels.items()]
            axis.update(title_text=None, ticktext=texts, showticklabels=any(texts))
        elif across > 1:
            # The last name of a panel is close to the first of the next one: one word a line.
            axis.ticktext = [
                text.replace(" ", "<br>") if text.startswith("<br>") else text
                for text in axis.ticktext
            ]
    figure.update_layout(meta={**STACKS, "ticktext": in_narrow})


def label_panels(figure: go.Figure, labels: Sequence[Sequence[LineLabel]]) -> None:
    """Label each name once, in the panels at the right edge; the legend names all that is left."""
    named: set[str] = set()
    across = n_columns(len(labels))
    down = math.ceil(len(labels) / across)
    edge = dict.fromkeys([*range(across, len(labels) + 1, across), len(labels)])
    for number in edge:  # panels with nothing to their right
        new = [label for label in labels[number - 1] if label.text not in named]
        fitting = labels_that_fit(new, LEAST_HEIGHT / down - TITLE_HEIGHT)
        label_lines(figure, fitting, number)
        named |= {label.text for label in fitting}
    left = [label for own in labels for label in own if label.text not in named]
    for trace in figure.data:
        name = html.unescape(trace.name or "")
        if name and name not in named and any(label.text.startswith(name) for label in left):
            named.add(name)
            trace.showlegend = True
            figure.update_layout(showlegend=True)
