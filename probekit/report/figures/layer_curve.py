"""Layer curves: a metric by layer."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probekit.errors import UnknownNameError, nearest
from probekit.report.figures.levels import (
    NULL_BAND,
    draw_levels,
    levels,
    value_range,
)
from probekit.report.figures.line_labels import LineLabel, label_at_end, name_lines
from probekit.report.figures.style import (
    GREY,
    LINES,
    SERIES_COLOURS,
    SERIES_MARKERS,
    SMALL,
    TEMPLATE,
    LineStyle,
    axis_title,
    fixed,
    format_number,
    layer_axis,
    layer_ends,
    plotly_text,
)
from probekit.results.selection import (
    answers_name,
    chosen_row,
    main_metric,
    measured_metrics,
    single_choice,
)
from probekit.results.table import SERIES, differs, figure_rows, only, placed, same_features, ticks

WIDTH = 0.08  # of the band of a single layer, to both sides, in layers
NULL_WIDTH = 0.4  # of the band of the null at a single layer
MOST_BANDS = 2  # with more task lines, only the selected one shows its interval as a band


def layer_curve(table: pd.DataFrame, metric: str = "accuracy") -> go.Figure:
    """Return the figure of a test metric by layer, with control task and baselines.

    Selectivity is the score on the task minus the score on the control task (Hewitt & Liang 2019).
    Compression is measured on the training rows by online coding (Voita & Titov 2020).

    Lines are labelled at their right ends. Task lines show their interval as a band; with more than
    `MOST_BANDS` lines only the selected one does. Control task and random weights are dashed and
    dotted; baselines and concatenated sites are horizontal lines. A ring marks the site selected by
    cross-validation, whichever metric is drawn. A nested cross-validation has no ring: its nested
    choice is a horizontal line.

    Raises:
        UnknownNameError: The table has no test rows of this metric.
    """
    measured = measured_rows(table, metric)
    rows = placed(measured)
    figure = go.Figure(layout={"template": TEMPLATE})
    figure.add_traces(curve_lines(table, rows))
    at, is_several = ticks(rows), differs(rows["run"])
    of_runs = [levels(own, is_brief=is_several) for _, own in measured.groupby("run", sort=False)]
    lines = list(chain.from_iterable(of_runs))
    labels = draw_levels(figure, lines, layer_ends(at), run_colours(rows) if is_several else {})
    _mark_chosen(figure, table, rows, [row["value"] for _, row in lines])
    layer_axis(figure, at)
    return finish_curve(figure, metric, rows["chance"].min(), labels)


def finish_curve(
    figure: go.Figure, metric: str, chance: float, labels: Sequence[LineLabel]
) -> go.Figure:
    """Set the axis of a metric, label all lines at their ends, and return the figure.

    Args:
        figure: Figure with all lines.
        metric: Metric of the vertical axis.
        chance: Chance level, where the axis starts; NaN without one.
        labels: Labels of the horizontal lines.
    """
    figure.update_yaxes(title_text=axis_title(metric), range=value_range(figure, metric, chance))
    name_lines(figure, [*labels, *end_labels(figure.data)])
    return figure


def curve_lines(table: pd.DataFrame, rows: pd.DataFrame) -> list[go.Scatter]:
    """Return the lines of task, control task and random weights, with bands of task lines.

    Args:
        table: All rows of the run, from which the selected site is determined.
        rows: Rows to draw, with the columns that `placed` adds.
    """
    all_series = list(series_of(rows))
    banded = banded_series(table, all_series)
    lines = null_band(table, rows)
    for number, (series_name, series) in enumerate(all_series):
        for target, style in LINES.items():
            points = only(series, target=target)
            if points.empty:
                continue
            # Markers identify the series, so one legend entry serves the controls of all series.
            of_series = f" · {plotly_text(series_name)}" if series_name else ""
            name = f"{style.label}{of_series}"
            hover = [point_hover(name, row) for _, row in points.iterrows()]
            label = name if target == "task" else style.label
            line = scatter(points["depth"], points["value"], style, number, label, hover)
            if target == "task":
                # Names of the probes whose errors the page shows for these points.
                line.update(customdata=[answers_name(row) for _, row in points.iterrows()])
                if series_name in banded:
                    lines += band(points["depth"], points, line, WIDTH)
            lines.append(line)
    return lines


def null_band(table: pd.DataFrame, rows: pd.DataFrame) -> list[go.Scatter]:
    """Return the band with 95 % of the scores under exchanged labels; empty if there is none.

    The band replaces the control task in figures of the main metric that have none. It is drawn
    only for the series of the selected probe. For several runs it contains the bands of all.

    Args:
        table: All rows of the run.
        rows: Rows to draw, with the columns that `placed` adds.
    """
    is_main = set(rows["metric"]) == {main_metric(table)}
    if not is_main or "null_low" not in table or (rows["target"] == "control").any():
        return []
    tested = placed(only(table, metric="p_value", target="task")).dropna(subset="null_low")
    of_series = [own for _, own in series_of(rows)]
    chosen = chosen_row(table)
    if chosen is not None and len(of_series) > 1 and not differs(rows["run"]):
        of_series = [own for own in of_series if not same_features(own, chosen).empty]
    if tested.empty or not of_series:
        return []
    same = [column for column in SERIES if column != "seed"]
    drawn = of_series if differs(rows["run"]) else of_series[:1]
    shown = [only(tested, **{name: own.iloc[0][name] for name in same}) for own in drawn]
    limits = {"ci_low": ("null_low", "min"), "ci_high": ("null_high", "max")}
    own = pd.concat(shown).groupby("depth", as_index=False).agg(**limits)
    style = go.Scatter(line={"color": GREY}, legendgroup=NULL_BAND)
    bands = band(own["depth"], own, style, NULL_WIDTH)
    return [trace.update(name="95 % of the null") for trace in bands]


def measured_rows(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the test rows of a metric, including those of the baselines.

    For compression these are rows of the split `online`, measured on the training rows.

    Raises:
        UnknownNameError: The table has no such rows at any site.
    """
    measured = measured_metrics(table)
    if metric not in measured:
        raise UnknownNameError(
            f"The results contain no test rows of metric {metric!r} at any site. "
            f"{nearest(metric, measured)}"
        )
    return only(figure_rows(table), metric=metric)


def banded_series(
    table: pd.DataFrame, all_series: Sequence[tuple[str, pd.DataFrame]]
) -> tuple[str, ...]:
    """Return the names of the series with a band: all, or the selected one if there are many.

    If there are many series of several runs, none has a band.
    """
    if len(all_series) > MOST_BANDS and differs(pd.concat(own["run"] for _, own in all_series)):
        return ()
    chosen = chosen_row(table)
    if len(all_series) <= MOST_BANDS or chosen is None:
        return tuple(name for name, _ in all_series[:MOST_BANDS])
    return tuple(name for name, rows in all_series if not same_features(rows, chosen).empty)


def series_of(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield name and rows of each series, named by its values in the columns that differ.

    Args:
        rows: Rows with the columns that `placed` adds.
    """
    task = only(rows, target="task")
    differing = [column for column in SERIES if len(task[column].unique()) > 1]
    names = pd.Series("", index=rows.index)
    for column in differing:
        cells = rows[column].map("seed {:.0f}".format if column == "seed" else str)
        names = names.str.cat(cells, sep=" · " if column != differing[0] else "")
    for name, series in rows.groupby(names, sort=False):
        yield str(name), series


def scatter(
    x: Iterable[int], y: Iterable[float], style: LineStyle, number: int, name: str, hover: list[str]
) -> go.Scatter:
    """Return a line with markers, in the colour of its style or else of its series number.

    Series without a colour of their own are grey.
    """
    colour = style.colour or series_colour(number)
    return go.Scatter(
        x=list(x),
        y=list(y),
        name=name,
        legendgroup=name,
        legendrank=style.legend_rank,
        mode="lines+markers",
        line={"color": colour, "dash": style.dash, "width": style.width},
        marker={"symbol": SERIES_MARKERS[number % len(SERIES_MARKERS)], "size": style.marker_size},
        cliponaxis=False,
        hovertext=hover,
        hoverinfo="text",
    )


def series_colour(number: int) -> str:
    """Return the colour of a series; grey beyond the number of colours that differ clearly."""
    return SERIES_COLOURS[number] if number < len(SERIES_COLOURS) else GREY


def run_colours(rows: pd.DataFrame) -> dict[str, str]:
    """Return the colour of each run: that of its line, or of the first one of several."""
    runs = [series["run"].iloc[0] for _, series in series_of(rows)]
    return {run: series_colour(runs.index(run)) for run in runs}


def end_labels(traces: Iterable[go.Scatter]) -> list[LineLabel]:
    """Return a label for each line with markers and each band of the null, one for each name.

    Labels are at the last defined point of a line.
    """
    banded = {trace.legendgroup for trace in traces if trace.fill}
    labels: dict[str, LineLabel] = {}
    for trace in traces:
        text = html.unescape(trace.name or "").removeprefix(f"{LINES['task'].label} · ")
        text = text.replace("blocks.", "").replace("hook_", "")  # sites are long
        ends = []
        if trace.mode == "lines+markers":
            interval = ", 95 % band" * (trace.legendgroup in banded)
            ends = label_at_end(trace, text + interval, trace.line.color)
        elif trace.legendgroup == NULL_BAND:
            # The band is drawn along its upper end, then back along the lower one.
            ends = label_at_end(trace, text, GREY, len(trace.y) // 2)
        for label in ends:
            labels.setdefault(text, label)
    return list(labels.values())


def band(
    x: pd.Series[Any], points: pd.DataFrame, line: go.Scatter, width: float = 0.0
) -> list[go.Scatter]:
    """Return the filled band of the points' intervals as a list of one trace; [] without any.

    The band of a single point extends by `width` to both sides.
    """
    known = points.dropna(subset=["ci_low", "ci_high"])
    if known.empty:
        return []
    at, low, high = list(x[known.index]), list(known["ci_low"]), list(known["ci_high"])
    if len(at) == 1:
        at, low, high = [at[0] - width, at[0] + width], low * 2, high * 2
    return [
        go.Scatter(
            x=[*at, *at[::-1]],
            y=[*high, *low[::-1]],
            fill="toself",
            opacity=0.2,
            fillcolor=line.line.color,
            line={"width": 0},
            mode="lines",
            legendgroup=line.legendgroup,
            showlegend=False,
            hoverinfo="skip",
        )
    ]


def point_hover(name: str, row: pd.Series) -> str:
    """Return the hover text of a point: site, value, interval, test rows, test groups and C."""
    facts = {
        "test rows": f"{row['n_test']:,.0f}",
        "test groups": f"{row['n_groups']:,.0f}",
        "C": f"{row['C']:g}",
    }
    known = [f"{key}: {value}" for key, value in facts.items() if value != "nan"]
    value = format_number(row["value"], row["ci_low"], row["ci_high"])
    return "<br>".join([f"<b>{plotly_text(row['site'])}</b>", f"{name}: {value}", *known])


def _mark_chosen(
    figure: go.Figure, table: pd.DataFrame, rows: pd.DataFrame, heights: Sequence[float]
) -> None:
    """Draw a ring around the task's value at the selected site of each run.

    The ring is labelled only for a single run, because labels of several runs would overlap. The
    label is above or below the ring, on the side with more space to the next line: a line of
    `rows`, or a horizontal line at one of `heights`.
    """
    marked = chosen_points(table, rows)
    figure.add_traces([ring(row) for row in marked])
    if not differs(table["run"]):
        for row in marked:
            same_depth = rows.loc[rows["depth"] == row["depth"], "value"]
            gaps = np.array([*same_depth, *heights]) - row["value"]
            above, below = (gap[gap > 0].min(initial=math.inf) for gap in (gaps, -gaps))
            figure.add_annotation(
                x=row["depth"],
                y=row["value"],
                text=f"chosen: {fixed(row['value'], 2)}",
                showarrow=True,
                arrowhead=0,
                arrowcolor=GREY,
                ax=0,
                ay=-24 if above >= below else 24,
                standoff=9,
                font={"size": SMALL},
            )


def chosen_points(table: pd.DataFrame, rows: pd.DataFrame) -> list[pd.Series]:
    """Return the task row at the selected site of each run that has a score there.

    Runs with a nested cross-validation are left out: their nested choice is at no single site.
    """
    tested = [single_choice(own) for _, own in table.groupby("run", sort=False)]
    tasks = only(rows.dropna(subset="value"), target="task")
    chosen = [same_features(tasks, one) for one in tested if one is not None]
    return [row for own in chosen for _, row in own.iterrows()]


def ring(row: pd.Series) -> go.Scatter:
    """Return the ring that marks a selected site."""
    return go.Scatter(
        x=[row["depth"]],
        y=[row["value"]],
        mode="markers",
        marker={"symbol": "circle-open", "size": 17, "color": GREY, "line": {"width": 2}},
        cliponaxis=False,
        showlegend=False,
        hoverinfo="skip",
    )
