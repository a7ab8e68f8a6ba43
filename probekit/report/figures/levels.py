"""Horizontal reference lines of a figure: baselines, chance and concatenated sites."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import pandas as pd
import plotly.graph_objects as go

from probekit.probes.kinds.registry import kind_of
from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import BASELINES, HEADLINE
from probekit.report.figures.axes import finite_ends
from probekit.report.figures.line_labels import LineLabel
from probekit.report.figures.style import (
    LEVELS,
    LineStyle,
    fixed,
    format_number,
    plotly_text,
)
from probekit.results.selection import best_first
from probekit.results.table import concatenated, differs, only

NULL_BAND = "null"  # legend group of bands with the scores under exchanged labels
NO_COLOURS: Mapping[str, str] = MappingProxyType({})

LevelLine = tuple[str, pd.Series]


def levels(measured: pd.DataFrame, *, is_brief: bool = False) -> list[LevelLine]:
    """Return name and row of each horizontal line: scores that belong to no single layer.

    These are the baselines, with one line per distinct value, the nested choice, and concatenated
    sites. Undefined scores are left out. Chance is included if there is no majority baseline. Of
    several runs, or if `is_brief`, only the majority baseline and the best other baseline of each
    run are included.
    """
    is_brief = is_brief or differs(measured["run"])
    measured = measured.reset_index(drop=True)
    defined = measured.dropna(subset="value")
    is_mean = all(METRICS[name].beats_the_mean for name in measured["metric"])
    rows = [
        ("mean" if is_mean and target == "majority" else target, row)
        for target in (*BASELINES, HEADLINE)
        for _, row in _rows_of(defined, target, is_brief).drop_duplicates("value").iterrows()
    ]
    if not any(target in ("majority", "mean") for target, _ in rows):
        rows += _chance(measured)
    joined = only(concatenated(defined), target="task")
    return rows + [("concatenated", row) for _, row in joined.iterrows()]


def _rows_of(measured: pd.DataFrame, target: str, is_brief: bool) -> pd.DataFrame:
    """Return the rows of a target; if `is_brief`, a baseline's only where it is the run's best."""
    own = only(measured, target=target)
    if not is_brief or target in ("majority", HEADLINE):
        return own
    others = measured[measured["target"].isin(BASELINES) & measured["target"].ne("majority")]
    best = [
        best_first(of_run, str(of_run["metric"].iloc[0])).index[0]
        for _, of_run in others.groupby("run", sort=False)
    ]
    return own[own.index.isin(best)]


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


def value_range(figure: go.Figure, metric: str, chance: float) -> list[float]:
    """Return a y range from chance to the highest possible value, with a margin on both sides.

    It also contains all lines and intervals below chance; undefined scores are ignored. Metrics
    without a chance level or a maximum, and those whose lower values are better, have the range of
    the lines. Bands of the null may be cut off at the bottom.
    """
    traces = [trace for trace in figure.data if trace.legendgroup != NULL_BAND]
    low, high = finite_ends(value for trace in traces for value in trace.y)
    if _has_scale(metric, chance):
        low, high = min(low, chance), METRICS[metric].range[1]
    margin = 0.04 * max(high - low, 0.05)
    return [low - margin, high + margin]


def _has_scale(metric: str, chance: float) -> bool:
    fact = METRICS[metric]
    is_score = fact.kind == "score" and fact.selects and not fact.lower_is_better
    return is_score and math.isfinite(chance) and math.isfinite(fact.range[1])


def draw_levels(
    figure: go.Figure,
    levels: Sequence[LevelLine],
    ends: Sequence[float],
    colours: Mapping[str, str] = NO_COLOURS,
) -> list[LineLabel]:
    """Draw each level as a line between the ends, and return labels with name and value.

    Levels of one colour whose rounded values are equal share a label. If runs differ in a level,
    its label names the run.

    Args:
        figure: The lines are added to it.
        levels: Levels to draw.
        ends: Left and right end of the lines.
        colours: Colours of nested choices, by run; by default that of their style.
    """
    names: dict[tuple[float, str, str], list[str]] = {}
    runs = {target: {row["run"] for name, row in levels if name == target} for target, _ in levels}
    for target, row in sorted(levels, key=lambda level: level[1]["value"]):
        style = LEVELS[target]
        if target == HEADLINE:
            style = replace(style, colour=colours.get(row["run"], style.colour))
        figure.add_trace(level_line(style, row, ends))
        text = fixed(row["value"], 2)
        first = next((key for key in names if key[1:] == (text, style.colour)), None)
        same = names.setdefault(first or (row["value"], text, style.colour), [])
        whose = f" of {row['run']}" if len(runs[target]) > 1 else ""
        same += [name for name in [f"{style.label}{whose}"] if name not in same]
    return [
        LineLabel(f"{', '.join(same)} {text}", value, colour)
        for (value, text, colour), same in names.items()
    ]


def level_line(style: LineStyle, row: pd.Series, ends: Sequence[float]) -> go.Scatter:
    """Return a horizontal line between the ends, without a legend entry."""
    interval = format_number(row["value"], row["ci_low"], row["ci_high"])
    return go.Scatter(
        x=list(ends),
        y=[row["value"]] * 2,
        name=f"{style.label} {fixed(row['value'], 2)}",
        mode="lines",
        line={"color": style.colour, "dash": style.dash, "width": style.width},
        showlegend=False,
        hovertext=f"<b>{plotly_text(row['site'] or style.label)}</b>: {interval}",
        hoverinfo="text",
    )
