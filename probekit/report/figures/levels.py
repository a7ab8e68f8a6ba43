"""Horizontal reference lines of a figure: baselines, chance and concatenated sites."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import fixed, format_number
from probekit.probes.kinds.registry import kind_of
from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import BASELINES, HEADLINE
from probekit.report.elements.style import LEVELS, finite_ends, plotly_text, with_margin
from probekit.report.figures.line_labels import LineLabel
from probekit.results.scores import Scores, best_first
from probekit.results.table import differs, only

NULL_BAND = "null"  # legend group of bands with the scores under exchanged labels
PART = " · "  # between the settings in the title of a run

LevelLine = tuple[str, pd.Series]  # name of a level, a key of `LEVELS`, and its row


def levels(scores: Scores, *, is_brief: bool = False) -> list[LevelLine]:
    """Return name and row of each horizontal line: scores that belong to no single layer.

    These are the baselines, with one line per distinct value, the nested choice, and concatenated
    sites. Undefined scores are left out. Chance is included if there is no majority baseline. Of
    several runs, or if `is_brief`, the baselines are only the majority and the best other one of
    each run.
    """
    measured = scores.rows
    is_brief = is_brief or differs(measured["run"])
    defined = measured.dropna(subset="value")
    is_mean = all(METRICS[name].beats_the_mean for name in measured["metric"].unique())
    shown = defined
    if is_brief:
        others = defined[defined["target"].isin(BASELINES) & defined["target"].ne("majority")]
        best = [
            best_first(of_run, str(of_run["metric"].iloc[0])).index[0]
            for _, of_run in others.groupby("run", sort=False)
        ]
        not_best = others.index.difference(best)
        shown = defined.drop(index=not_best)
    rows = [
        ("mean" if is_mean and target == "majority" else target, row)
        for target in (*BASELINES, HEADLINE)
        for _, row in only(shown, target=target).drop_duplicates("value").iterrows()
    ]
    if not any(target in ("majority", "mean") for target, _ in rows):
        # A difference such as selectivity is 0 for a probe that learns random labels equally well.
        differences = [name for name, metric in METRICS.items() if metric.kind == "difference"]
        chance = measured["chance"].mask(measured["metric"].isin(differences), 0.0)
        at_chance = measured.assign(value=chance, site="", ci_low=math.nan, ci_high=math.nan)
        at_chance = at_chance.dropna(subset="value").drop_duplicates("value")
        rows += [(chance_name(at_chance), row) for _, row in at_chance.iterrows()]
    joined = only(scores.concatenated, target="task").dropna(subset="value")
    return rows + [("concatenated", row) for _, row in joined.iterrows()]


def chance_name(measured: pd.DataFrame) -> str:
    """Return the name of the chance level for the metric of the rows, a key of `LEVELS`.

    >>> chance_name(pd.DataFrame({"metric": ["compression"], "probe": ["logistic"]}))
    'label_counts'
    >>> chance_name(pd.DataFrame({"metric": ["spearman"], "probe": ["structural_depth:64"]}))
    'chain'
    """
    # Baselines have no kind of probe.
    kinds = filter(None, map(kind_of, measured["probe"].unique()))
    names: set[str] = {kind.reference for kind in kinds}
    names |= {METRICS[metric].reference for metric in measured["metric"].unique()}
    return next((name for name in ("label_counts", "chain") if name in names), "chance")


def value_range(figure: go.Figure, metric: str, chance: float) -> list[float]:
    """Return the y range of a metric, with a margin on both sides.

    If the score can select sites and higher is better, the range starts at chance, or at the lowest
    line or interval if that is lower, and ends at the highest possible value. Otherwise, or without
    a chance level or a highest value, it is the range of the lines and bands. Undefined scores are
    ignored.
    """
    low, high = finite_ends(value for trace in figure.data for value in trace.y)
    fact = METRICS[metric]
    is_score = fact.kind == "score" and fact.selects and not fact.lower_is_better
    if is_score and math.isfinite(chance) and math.isfinite(fact.range[1]):
        low, high = min(low, chance), fact.range[1]
    return with_margin(low, high)


def draw_levels(
    figure: go.Figure,
    lines: Sequence[LevelLine],
    ends: Sequence[float],
    colours: Mapping[str, str] = MappingProxyType({}),
) -> list[LineLabel]:
    """Draw each level as a line between the ends, and return labels with name and value.

    Levels of one colour whose rounded values are equal share a label. Of runs with colours, a label
    names its run if no other run has the same rounded value; nested choices have the colour of
    their run instead. Without colours, levels are ordered by value, and labels name the run if
    several runs have the level.

    Args:
        figure: The lines are added to it.
        lines: Levels to draw.
        ends: Left and right end of the lines.
        colours: Colour of each run, if each has one.
    """
    if not colours:
        lines = sorted(lines, key=lambda line: float(line[1]["value"]))
    runs_of: dict[str, set[str]] = {}
    for name, row in lines:
        runs_of.setdefault(name, set()).add(row["run"])
    # By the name, rounded value and colour of a level.
    rows_of: dict[tuple[str, str, str], list[pd.Series]] = {}
    for name, row in lines:
        colour = colours.get(row["run"], "") if name == HEADLINE else ""
        text = fixed(row["value"], 2)
        rows_of.setdefault((name, text, colour or LEVELS[name].colour), []).append(row)
    names_of: dict[tuple[str, str], list[str]] = {}  # by the text and colour of a label
    value_of: dict[tuple[str, str], float] = {}
    for (name, text, colour), rows in rows_of.items():
        runs = list(dict.fromkeys(row["run"] for row in rows))
        # What follows the name of the level in its label: " of RUN" for each run, or nothing.
        of_runs = [f" of {run}" for run in runs] if len(runs_of[name]) > 1 else [""]
        if colours:
            is_common = name == HEADLINE or len(runs) > 1
            of_runs = [""] if is_common else [f" of {short_title(runs[0], list(colours))}"]
        titles = [f"{LEVELS[name].label}{of_run}" for of_run in of_runs]
        style = replace(LEVELS[name], colour=colour)
        # Rows of equal value share a line.
        by_value = {row["value"]: row for row in rows}
        for row in by_value.values():
            # A horizontal line between the ends, without a legend entry.
            interval = format_number(row["value"], row["ci_low"], row["ci_high"])
            figure.add_scatter(
                x=list(ends),
                y=[row["value"]] * 2,
                name=plotly_text(f"{titles[0] if colours else style.label} {text}"),
                mode="lines",
                line={"color": style.colour, "dash": style.dash, "width": style.width},
                showlegend=False,
                hovertext=f"<b>{plotly_text(row['site'] or style.label)}</b>: {interval}",
                hoverinfo="text",
            )
        names_of.setdefault((text, colour), []).extend(titles)
        value_of.setdefault((text, colour), rows[0]["value"])
    return [
        LineLabel(f"{', '.join(names)} {text}", value_of[text, colour], colour)
        for (text, colour), names in names_of.items()
    ]


def short_title(run: str, runs: Sequence[str]) -> str:
    """Return the settings in the title of a run that no other run has, or the whole title.

    >>> short_title("last · no folds", ["last · no folds", "last · folds 5"])
    'no folds'
    """
    others = {part for other in runs if other != run for part in other.split(PART)}
    return PART.join(part for part in run.split(PART) if part not in others) or run
