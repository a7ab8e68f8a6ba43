"""Horizontal reference lines of a figure: baselines, chance and concatenated sites."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from probekit.probes.kinds.registry import kind_of
from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import BASELINES, HEADLINE
from probekit.report.figures.style import (
    LEVELS,
    LineStyle,
    format_number,
    plotly_text,
    without_negative_zero,
)
from probekit.results.table import concatenated, only

# Pixels. The plot height is the smallest: a narrow window with a full legend. Labels that do not
# overlap there do not overlap in higher plots.
PLOT_HEIGHT = 160
LINE_HEIGHT = 15

LevelLine = tuple[str, pd.Series]


def levels(measured: pd.DataFrame) -> list[LevelLine]:
    """Return name and row of each horizontal line: scores that belong to no single layer.

    These are the baselines, with one line per distinct value, the nested choice, and concatenated
    sites. Chance is included if the majority baseline was not measured.
    """
    is_mean = all(METRICS[name].beats_the_mean for name in measured["metric"])
    rows = [
        ("mean" if is_mean and target == "majority" else target, row)
        for target in (*BASELINES, HEADLINE)
        for _, row in only(measured, target=target).drop_duplicates("value").iterrows()
    ]
    if not any(target in ("majority", "mean") for target, _ in rows):
        rows += _chance(measured)
    joined = only(concatenated(measured), target="task")
    return rows + [("concatenated", row) for _, row in joined.iterrows()]


def _chance(measured: pd.DataFrame) -> list[LevelLine]:
    # A difference such as selectivity is 0 for a probe that learns random labels equally well.
    chance = measured["chance"].mask(measured["metric"].map(_is_difference), 0.0)
    bare = measured.assign(value=chance, ci_low=math.nan, ci_high=math.nan)
    bare = bare.dropna(subset="value").drop_duplicates("value")
    return [(chance_name(bare), row) for _, row in bare.iterrows()]


def chance_name(measured: pd.DataFrame) -> str:
    """Return the name of the chance level for the metric of the rows, a key of `LEVELS`.

    >>> chance_name(pd.DataFrame({"metric": ["compression"], "probe": ["logistic"]}))
    'label_counts'
    >>> chance_name(pd.DataFrame({"metric": ["spearman"], "probe": ["structural_depth:64"]}))
    'chain'
    """
    kinds = filter(None, map(kind_of, measured["probe"].unique()))
    names: set[str] = {kind.reference for kind in kinds}
    names |= {METRICS[metric].reference for metric in measured["metric"].unique()}
    return next((name for name in ("label_counts", "chain") if name in names), "chance")


def _is_difference(metric: str) -> bool:
    return METRICS[metric].kind == "difference"


def value_range(figure: go.Figure) -> list[float]:
    """Return a y range that contains all traces and leaves room for the label of the ring."""
    values = [value for trace in figure.data for value in trace.y]
    low, high = min(values), max(values)
    room = max(high - low, 0.05)
    return [low - 0.06 * room, high + 0.16 * room]


def draw_levels(figure: go.Figure, levels: Sequence[LevelLine], ends: Sequence[float]) -> None:
    """Draw each level as a line between the ends, labelled with name and value at the right.

    Levels whose rounded values are equal share one label with all their names.
    """
    levels = sorted(levels, key=lambda level: level[1]["value"])
    for target, row in levels:
        figure.add_trace(level_line(LEVELS[target], row, ends))
    by_text: dict[str, list[LevelLine]] = {}
    for level in levels:
        by_text.setdefault(without_negative_zero(f"{level[1]['value']:.2f}"), []).append(level)
    texts = [
        "<br>".join([*dict.fromkeys(LEVELS[target].label for target, _ in same), value])
        for value, same in by_text.items()
    ]
    values = [same[0][1]["value"] for same in by_text.values()]
    shifts = label_shifts(values, [text.count("<br>") + 1 for text in texts], value_range(figure))
    for text, value, shift in zip(texts, values, shifts, strict=True):
        figure.add_annotation(
            text=text.replace("-", "−"),
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


def label_shifts(values: list[float], n_lines: list[int], ends: list[float]) -> list[float]:
    """Return the shifts in pixels that keep the labels of levels from overlapping.

    Labels are moved up as far as needed. If they would then exceed the plot by more than one line
    of text, they are moved down again.

    Args:
        values: Values of the levels in ascending order.
        n_lines: Number of text lines of each label.
        ends: Range of the y axis.

    >>> label_shifts([0.0, 0.5, 0.51], [2, 2, 2], [-0.1, 0.9])
    [0.0, 0.0, 28.4]
    >>> label_shifts([0.97, 0.98, 0.99], [2, 2, 2], [0.0, 1.0])
    [-55.2, -26.8, 1.6]
    """
    at = [PLOT_HEIGHT * (value - ends[0]) / (ends[1] - ends[0]) for value in values]
    half = [lines * LINE_HEIGHT / 2 for lines in n_lines]
    middles: list[float] = []
    floor = -float(LINE_HEIGHT)
    for place, reach in zip(at, half, strict=True):
        middles.append(max(place, floor + reach))
        floor = middles[-1] + reach
    ceiling = float(PLOT_HEIGHT + LINE_HEIGHT)
    for number in reversed(range(len(at))):
        middles[number] = min(middles[number], ceiling - half[number])
        ceiling = middles[number] - half[number]
    return [round(middle - place, 1) for middle, place in zip(middles, at, strict=True)]


def level_line(style: LineStyle, row: pd.Series, ends: Sequence[float]) -> go.Scatter:
    """Return a horizontal line between the ends, without a legend entry."""
    interval = format_number(row["value"], row["ci_low"], row["ci_high"])
    return go.Scatter(
        x=list(ends),
        y=[row["value"]] * 2,
        name=f"{style.label} {row['value']:.2f}",
        mode="lines",
        line={"color": style.colour, "dash": style.dash, "width": style.width},
        showlegend=False,
        hovertext=f"<b>{plotly_text(row['site'] or style.label)}</b>: {interval}",
        hoverinfo="text",
    )
