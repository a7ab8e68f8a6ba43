"""Figures from table rows: the layer curve, its selectivity, and the norm of position 0."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import product

import pandas as pd
import plotly.graph_objects as go

from probekit.errors import UnknownNameError, nearest
from probekit.report.style import (
    LEVELS,
    LINES,
    METRICS,
    NORMS,
    SERIES_COLOURS,
    SERIES_MARKERS,
    TEMPLATE,
    LineStyle,
    format_number,
    plotly_text,
)
from probekit.report.table import (
    SERIES,
    chosen_row,
    concatenated,
    measured_metrics,
    only,
    placed,
    same_features,
    ticks,
)

# About what the style sheet leaves to the plot, and what a small line of text takes, in pixels.
PLOT_HEIGHT = 300
LINE_HEIGHT = 15


def layer_curve(table: pd.DataFrame, metric: str = "accuracy") -> go.Figure:
    """Return the figure of a metric on the test rows against depth, with all its company.

    Selectivity is accuracy on the task minus that on the control task (Hewitt & Liang 2019).

    Task lines carry their interval as a band; control and random weights are dashed and dotted;
    majority, word identity and concatenated sites are horizontal lines. The site that was chosen
    by cross-validation is marked, in the figure of every metric.

    Raises:
        UnknownNameError: The table has no test rows of this metric.
    """
    measured = measured_rows(table, metric)
    rows = placed(measured)
    figure = go.Figure(layout={"template": TEMPLATE})
    for number, (name, series) in enumerate(series_of(rows)):
        for target, style in LINES.items():
            points = only(series, target=target)
            if not points.empty:
                figure.add_traces(_line(points, target, style, name, number))
    labels = ticks(rows)
    _draw_levels(figure, levels(measured), list(labels))
    _mark_chosen(figure, table, rows)
    _layer_axis(figure, labels)
    _name_lines(figure)
    figure.update_yaxes(title_text=METRICS[metric], range=_value_range(figure))
    return figure


def norm_curve(norms: pd.DataFrame) -> go.Figure:
    """Return the figure of the mean norm at position 0 and at the others against depth.

    The residual stream, and each other part of the blocks, has two lines of its own.

    Columns: site, first_position_norm, other_norm.
    """
    rows = placed(norms.assign(head=math.nan))
    rows["ratio"] = rows["first_position_norm"] / rows["other_norm"]
    figure = go.Figure(layout={"template": TEMPLATE})
    lines = rows.groupby("line", sort=False)
    parts = product(lines, NORMS.items())
    for number, ((name, points), (column, style)) in enumerate(parts):
        label = style.label if len(lines) == 1 else f"{style.label} · {name}"
        hover = [
            f"<b>{plotly_text(row['site'])}</b><br>{style.label}: {row[column]:,.1f}"
            f"<br>position 0 / others: {row['ratio']:,.1f}"
            for _, row in points.iterrows()
        ]
        figure.add_trace(_scatter(points["depth"], points[column], style, number, label, hover))
    _layer_axis(figure, ticks(rows))
    _name_lines(figure)
    figure.update_yaxes(title_text="mean norm", type="log", dtick=1)
    return figure


def measured_rows(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the test rows of a metric, those of the baselines among them.

    Raises:
        UnknownNameError: There are none at any site.
    """
    there = measured_metrics(table)
    if metric not in there:
        raise UnknownNameError(
            f"The results hold no test rows of metric {metric!r} at any site. "
            f"{nearest(metric, there)}"
        )
    return only(table, metric=metric, split="test")


def series_of(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield each series of the placed rows with its name."""
    for name, series in rows.groupby(series_names(rows), sort=False):
        yield str(name), series


def series_names(rows: pd.DataFrame) -> pd.Series[str]:
    """Return for each placed row a name of just the columns in which the series differ."""
    task = only(rows, target="task")
    differing = [column for column in SERIES if len(task[column].unique()) > 1]
    names = pd.Series("", index=rows.index)
    for column in differing:
        cells = rows[column].map("seed {:.0f}".format if column == "seed" else str)
        names = names.str.cat(cells, sep=" · " if column != differing[0] else "")
    return names


def levels(measured: pd.DataFrame) -> list[tuple[str, pd.Series]]:
    """Return name and row of each distinct horizontal line; chance where majority has no row.

    Concatenated sites have no depth, so that they are lines of this kind too.
    """
    rows = [
        (target, row)
        for target in ("majority", "word_identity")
        for _, row in only(measured, target=target).drop_duplicates("value").iterrows()
    ]
    if not any(target == "majority" for target, _ in rows):
        # A probe that learns any labels as well as the true ones has no selectivity.
        chance = measured["chance"].mask(measured["metric"] == "selectivity", 0.0)
        bare = measured.assign(value=chance, ci_low=math.nan, ci_high=math.nan)
        bare = bare.dropna(subset="value").drop_duplicates("value")
        rows += [("chance", row) for _, row in bare.iterrows()]
    joined = only(concatenated(measured), target="task")
    return rows + [("concatenated", row) for _, row in joined.iterrows()]


def _line(
    points: pd.DataFrame, target: str, style: LineStyle, series: str, number: int
) -> list[go.Scatter]:
    """Return the traces of one line: the band of its interval, for the task, and the line."""
    name = f"{style.label} · {plotly_text(series)}" if series else style.label
    hover = [_hover(name, row) for _, row in points.iterrows()]
    line = _scatter(points["depth"], points["value"], style, number, name, hover)
    if target == "task":
        return [*_band(points, line), line]
    # Every series has its marker, so one entry stands for the controls of all of them.
    return [line.update(name=style.label, legendgroup=style.label)]


def _scatter(
    x: Iterable[int],
    y: Iterable[float],
    style: LineStyle,
    number: int,
    name: str,
    hover: list[str],
) -> go.Scatter:
    colour = style.colour or SERIES_COLOURS[number % len(SERIES_COLOURS)]
    return go.Scatter(
        x=list(x),
        y=list(y),
        name=name,
        legendgroup=name,
        legendrank=style.legend_rank,
        mode="lines+markers",
        line={"color": colour, "dash": style.dash, "width": style.width},
        marker={"symbol": SERIES_MARKERS[number % len(SERIES_MARKERS)], "size": style.marker_size},
        hovertext=hover,
        hoverinfo="text",
    )


def _band(points: pd.DataFrame, line: go.Scatter) -> list[go.Scatter]:
    """Return the trace that fills the intervals under a line; none without intervals."""
    known = points.dropna(subset=["ci_low", "ci_high"])
    if known.empty:
        return []
    return [
        go.Scatter(
            x=[*known["depth"], *known["depth"][::-1]],
            y=[*known["ci_high"], *known["ci_low"][::-1]],
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


def _hover(name: str, row: pd.Series) -> str:
    facts = {
        "test rows": f"{row['n_test']:,.0f}",
        "test groups": f"{row['n_groups']:,.0f}",
        "C": f"{row['C']:g}",
    }
    known = [f"{key}: {value}" for key, value in facts.items() if value != "nan"]
    value = format_number(row["value"], row["ci_low"], row["ci_high"])
    return "<br>".join([f"<b>{plotly_text(row['site'])}</b>", f"{name}: {value}", *known])


def _draw_levels(figure: go.Figure, levels: list[tuple[str, pd.Series]], depths: list[int]) -> None:
    """Draw each level as a line over the whole width, with its name and value at the right."""
    levels = sorted(levels, key=lambda level: level[1]["value"])
    names = [f"{LEVELS[target].label} {row['value']:.2f}" for target, row in levels]
    values = [row["value"] for _, row in levels]
    for name, (target, row) in zip(names, levels, strict=True):
        figure.add_trace(_level_line(name, LEVELS[target], row, depths))
    shifts = _shifts(values, [name.count(" ") + 1 for name in names], _value_range(figure))
    for name, value, shift in zip(names, values, shifts, strict=True):
        figure.add_annotation(
            text=name.replace(" ", "<br>"),
            x=1,
            xref="paper",
            xanchor="left",
            xshift=4,
            y=value,
            yshift=shift,
            yanchor="middle",
            align="left",
            showarrow=False,
            font={"size": 11},
        )


def _shifts(values: list[float], n_lines: list[int], ends: list[float]) -> list[float]:
    """Return by how many pixels the names of ascending levels go up to keep apart.

    >>> _shifts([0.0, 0.5, 0.51], [2, 2, 2], [0.0, 1.0])
    [0.0, 0.0, 27.0]
    """
    shifts: list[float] = []
    lowest = -math.inf
    for value, lines in zip(values, n_lines, strict=True):
        at = PLOT_HEIGHT * (value - ends[0]) / (ends[1] - ends[0])
        half = lines * LINE_HEIGHT / 2
        shifts.append(round(max(0.0, lowest + half - at), 1))
        lowest = max(at, lowest + half) + half
    return shifts


def _level_line(name: str, style: LineStyle, row: pd.Series, depths: list[int]) -> go.Scatter:
    interval = format_number(row["value"], row["ci_low"], row["ci_high"])
    return go.Scatter(
        # Half a step wider than the curves, so that a run of one site still shows a line.
        x=[depths[0] - 0.5, depths[-1] + 0.5],
        y=[row["value"]] * 2,
        name=name,
        mode="lines",
        line={"color": style.colour, "dash": style.dash, "width": style.width},
        showlegend=False,
        hovertext=f"<b>{plotly_text(row['site'] or style.label)}</b>: {interval}",
        hoverinfo="text",
    )


def _mark_chosen(figure: go.Figure, table: pd.DataFrame, rows: pd.DataFrame) -> None:
    """Draw a ring around the task's value at the chosen site and say how it was chosen."""
    chosen = chosen_row(table)
    if chosen is None:
        return
    for _, row in only(same_features(rows, chosen), target="task").iterrows():
        figure.add_annotation(
            x=row["depth"],
            y=row["value"],
            text="chosen by<br>cross-validation",
            showarrow=True,
            arrowhead=0,
            arrowcolor="#7A7F87",
            ax=0,
            ay=-28,
            standoff=9,
        )
        figure.add_scatter(
            x=[row["depth"]],
            y=[row["value"]],
            mode="markers",
            marker={"symbol": "circle-open", "size": 17, "color": "#7A7F87", "line": {"width": 2}},
            showlegend=False,
            hoverinfo="skip",
        )


def _value_range(figure: go.Figure) -> list[float]:
    """Return a range that holds all that is drawn and leaves room for the label of the ring."""
    values = [value for trace in figure.data for value in trace.y]
    low, high = min(values), max(values)
    room = max(high - low, 0.05)
    return [low - 0.06 * room, high + 0.16 * room]


def _layer_axis(figure: go.Figure, labels: dict[int, str]) -> None:
    figure.update_xaxes(
        title_text="layer",
        tickmode="array",
        tickvals=list(labels),
        ticktext=list(_thinned(labels).values()),
        tickangle=0,
        range=[min(labels) - 0.5, max(labels) + 0.5],
    )


def _name_lines(figure: go.Figure) -> None:
    """Give each name one entry in the legend, and leave out a legend of a single entry."""
    named = [trace for trace in figure.data if trace.showlegend is not False]
    first = {trace.name: trace for trace in reversed(named)}
    for trace in named:
        trace.showlegend = trace is first[trace.name]
    figure.update_layout(showlegend=len(first) > 1)


def _thinned(labels: dict[int, str]) -> dict[int, str]:
    """Return labels that do not run into each other: blocks thinned out, the ends a line below."""
    step = math.ceil(len(labels) / 16)
    return {
        depth: f"<br>{label}" if not label.isdigit() else label if depth % step == 0 else ""
        for depth, label in labels.items()
    }
