"""Horizontal reference lines, and labels at the right ends of lines, in their colours.

Reference lines are baselines, chance and concatenated sites. A leader joins a label to its line.
"""

import html
import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import fixed, format_number
from probekit.probes.kinds.registry import kind_of
from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import BASELINES, HEADLINE
from probekit.report.elements import style
from probekit.results.scores import Scores, best_first
from probekit.results.table import differs, only

LABEL = "line label"  # name of the annotations
# Pixels. The plot of a page is at least this high: labels that do not overlap there do not overlap
# in higher plots.
PLOT_HEIGHT = 280
LEAST_HEIGHT = 200  # of the plot in a figure for one column of a paper
LINE_HEIGHT = 1.3 * style.SMALL  # as Plotly sets text
LEADER, LEADER_WIDTH = 14, 1.2  # horizontal extent of a leader, and width of its line
CHARACTER = 0.56 * style.SMALL  # mean width of a character in a wide font
LONGEST_LINE = 18  # characters
MOST_LINES = 5  # lines of text in a label
NULL_BAND = "null"  # legend group of bands with the scores under exchanged labels
PART = " · "  # between the settings in the title of a run

LevelLine = tuple[str, pd.Series]  # name of a level, a key of `LEVELS`, and its row


@dataclass(frozen=True)
class LineLabel:
    """Label of a line.

    Attributes:
        text: name of the line.
        value: y value at the right end of the line.
        colour: colour of the line.
        end: x value at the right end of the line; None if it reaches the right edge of the plot.
    """

    text: str
    value: float
    colour: str
    end: float | None = None


def name_lines(figure: go.Figure, labels: Sequence[LineLabel]) -> None:
    """Label the lines of a figure at their right ends, or in the legend if labels do not fit.

    The y axis must have a range.
    """
    if figure.layout.yaxis.type == "log":
        labels = [label for label in labels if label.value > 0]  # a norm of 0 is not drawn
    if len(labels_that_fit(labels, LEAST_HEIGHT)) == len(labels):
        label_lines(figure, labels)
        return
    named = [trace for trace in figure.data if trace.name]
    # The first trace of each name, which replaces the later ones, is in the legend.
    first = {trace.name: trace for trace in reversed(named)}
    for trace in named:
        trace.showlegend = trace is first[trace.name]
    figure.update_layout(showlegend=True)


def name_traces(figure: go.Figure) -> None:
    """Label every named line at its last defined point, if there are several.

    The x axis must have a range. The y axis gets one that contains all points and error bars,
    unless it has a range already.
    """
    lines = [trace for trace in figure.data if isinstance(trace, go.Scatter) and len(trace.y)]
    if figure.layout.yaxis.range is None:
        ends = []  # of points and error bars; an undefined error bar has length 0
        for line in lines:
            y = np.array(line.y, dtype=np.float64)
            for sign, bar in ((1, line.error_y.array), (-1, line.error_y.arrayminus)):
                length = 0 if bar is None else np.nan_to_num(np.array(bar, dtype=np.float64))
                ends += (y + sign * length).tolist()
        figure.layout.yaxis.range = style.with_margin(*style.finite_ends(ends))
    named = [trace for trace in lines if trace.name]
    labels = [label for trace in named for label in label_at_end(trace)]
    name_lines(figure, labels if len(labels) > 1 else [])


def label_at_end(
    line: go.Scatter, text: str = "", colour: str = "", *, n_points: int | None = None
) -> list[LineLabel]:
    """Return the label of a line at the last defined point, as a list; [] if there is none.

    Args:
        line: The line, with points in the order in which they are drawn.
        text: Text of the label; by default the name of the line.
        colour: Colour of the label; by default that of the line.
        n_points: Number of points to choose from, the first ones; None for all.
    """
    points = list(zip(line.x, line.y, strict=True))[:n_points]
    last = [(x, y) for x, y in points if math.isfinite(y)][-1:]
    text, colour = text or html.unescape(line.name), colour or line.line.color
    return [LineLabel(text, y, colour, end=x) for x, y in last]


def labels_that_fit(labels: Sequence[LineLabel], height: float) -> list[LineLabel]:
    """Return the first labels, as many as fit into a plot of this height in pixels."""
    lines_so_far = accumulate(_wrapped(label.text).count("<br>") + 1 for label in labels)
    # Labels may exceed the plot by half a line at the top and at the bottom.
    most_lines = (height + LINE_HEIGHT) / LINE_HEIGHT
    return [label for label, n in zip(labels, lines_so_far, strict=True) if n <= most_lines]


def label_lines(figure: go.Figure, labels: Sequence[LineLabel], panel: int = 1) -> None:
    """Label lines of a panel at its right edge, placed for a plot of `PLOT_HEIGHT`.

    The right margin gets room for the longest label, and the legend is hidden.
    """
    axis = str(panel) if panel > 1 else ""
    is_log = figure.layout[f"yaxis{axis}"].type == "log"
    x_axis = figure.layout[f"xaxis{axis}"]
    for label in labels:
        if label.end is not None:  # the leader reaches the right edge of the plot
            edge = 10 ** x_axis.range[1] if x_axis.type == "log" else x_axis.range[1]
            line = {"color": label.colour, "width": LEADER_WIDTH}
            axes: dict[str, Any] = {"xaxis": f"x{axis}", "yaxis": f"y{axis}"}
            figure.add_trace(style.plain_line([label.end, edge], [label.value] * 2, line, **axes))
        y = math.log10(label.value) if is_log else label.value
        place = {"x": 1, "xref": f"x{axis} domain", "y": y, "yref": f"y{axis}", "xanchor": "left"}
        leader: dict[str, Any] = {"showarrow": True, "arrowhead": 0, "ax": LEADER, "ay": 0}
        leader |= {"arrowwidth": LEADER_WIDTH, "arrowcolor": label.colour}
        font = {"size": style.SMALL, "color": style.label_colour(label.colour)}
        text = {"text": _wrapped(label.text), "align": "left", "font": font}
        figure.add_annotation(name=LABEL, **text, **place, **leader)
    drawn = [note.text for note in figure.layout.annotations if note.name == LABEL]
    widest = max((len(line) for text in drawn for line in text.split("<br>")), default=0)
    room = LEADER + CHARACTER * widest + 4  # pixels, with 4 between label and edge
    figure.update_layout(margin_r=max(figure.layout.margin.r or 0, round(room)), showlegend=False)
    place_labels(figure, PLOT_HEIGHT)


def _wrapped(text: str) -> str:
    """Return a label as escaped lines; a name in a list is broken only if it is long.

    A text of more than `MOST_LINES` lines is cut.

    >>> _wrapped("majority, bag of words, n-grams 0.50").replace(chr(160), " ")
    'majority,<br>bag of words,<br>n-grams 0.50'
    """
    names = [
        name.replace(" ", "\u00a0") if len(name) <= LONGEST_LINE else name
        for name in text.split(", ")
    ]
    lines = textwrap.wrap(
        ", ".join(names),
        LONGEST_LINE,
        max_lines=MOST_LINES,
        placeholder="…",
        break_on_hyphens=False,
    )
    return "<br>".join(style.plotly_text(line) for line in lines)


def place_labels(figure: go.Figure, plot_height: float) -> None:
    """Move the labels of each panel up or down until they do not overlap.

    Args:
        figure: Its labels are moved; leaders still start at the ends of the lines.
        plot_height: Height of the area inside the margins in pixels.
    """
    labels = [note for note in figure.layout.annotations if note.name == LABEL]
    for y_axis in dict.fromkeys(note.yref for note in labels):  # one for each panel
        axis = figure.layout[y_axis.replace("y", "yaxis")]
        low, high = axis.range
        bottom, top = axis.domain or (0.0, 1.0)
        height = plot_height * (top - bottom)
        of_panel = sorted((note for note in labels if note.yref == y_axis), key=lambda note: note.y)
        for note in of_panel:  # the label of a line outside is at the edge; plotly would drop it
            note.y = min(max(note.y, low), high)
        heights = [height * (note.y - low) / (high - low) for note in of_panel]  # in pixels
        shifts = label_shifts(heights, [note.text.count("<br>") + 1 for note in of_panel], height)
        for note, shift in zip(of_panel, shifts, strict=True):
            note.ay = -shift


def label_shifts(at: Sequence[float], n_lines: Sequence[int], height: float) -> list[float]:
    """Return the upward shifts in pixels that keep labels from overlapping.

    The sum of squared shifts is as small as possible (isotonic regression). Labels stay inside the
    plot, except for half a line of text at the top and at the bottom.

    Args:
        at: Heights of the lines above the bottom of the plot in pixels, in ascending order.
        n_lines: Number of text lines of each label.
        height: Height of the plot in pixels, enough for all labels.

    >>> label_shifts([0.0, 100.0, 102.0], [1, 1, 1], 200)
    [0.0, -6.8, 6.8]
    >>> label_shifts([190.0, 195.0, 200.0], [1, 1, 1], 200)
    [-21.2, -10.6, 0.0]
    """
    sizes = [lines * LINE_HEIGHT for lines in n_lines]
    # The middle of a label is above those before it by their sizes and half of its own. No two
    # labels overlap if and only if their middles, minus these distances, ascend.
    distances = [sum(sizes[:number]) + size / 2 for number, size in enumerate(sizes)]
    lowest = -LINE_HEIGHT / 2
    highest = height + LINE_HEIGHT / 2 - sum(sizes)
    # The ascending numbers closest to the wanted ones: adjacent violators share their mean.
    pools: list[tuple[float, int]] = []  # mean and number of labels
    for place, distance in zip(at, distances, strict=True):
        mean, count = place - distance, 1
        while pools and pools[-1][0] > mean:
            mean_before, count_before = pools.pop()
            total = mean * count + mean_before * count_before
            count += count_before
            mean = total / count
        pools.append((mean, count))
    ascending = [mean for mean, count in pools for _ in range(count)]
    return [
        round(max(lowest, min(number, highest)) + distance - place, 1)
        for number, distance, place in zip(ascending, distances, at, strict=True)
    ]


def levels(scores: Scores, *, is_brief: bool = False) -> list[LevelLine]:
    """Return name and row of each horizontal line: scores that belong to no single layer.

    These are the baselines, with one line per distinct value, the nested choice, and concatenated
    sites. Undefined scores are left out. Chance is included if there is no majority baseline. Of
    several runs, or if `is_brief`, the baselines are only the majority and the best other one of
    each run.
    """
    measured = scores.rows
    shown = measured.dropna(subset="value")
    is_mean = all(METRICS[name].beats_the_mean for name in measured["metric"].unique())
    if is_brief or differs(measured["run"]):
        others = shown[shown["target"].isin(BASELINES) & shown["target"].ne("majority")]
        best = [
            best_first(of_run, str(of_run["metric"].iloc[0])).index[0]
            for _, of_run in others.groupby("run", sort=False)
        ]
        shown = shown.drop(index=others.index.difference(best))
    order = {target: number for number, target in enumerate((*BASELINES, HEADLINE))}
    ordered = shown[shown["target"].isin(order)].drop_duplicates(["target", "value"])
    ordered = ordered.sort_values("target", key=lambda targets: targets.map(order), kind="stable")
    rows = [
        ("mean" if is_mean and row["target"] == "majority" else row["target"], row)
        for _, row in ordered.iterrows()
    ]
    if not any(target in ("majority", "mean") for target, _ in rows):
        # A difference such as selectivity is 0 for a probe that learns random labels equally well.
        differences = [name for name, metric in METRICS.items() if metric.kind == "difference"]
        chance = measured["chance"].mask(measured["metric"].isin(differences), 0.0)
        at_chance = measured.assign(value=chance, site="", ci_low=math.nan, ci_high=math.nan)
        at_chance = at_chance.dropna(subset="value").drop_duplicates("value")
        name = chance_name(at_chance["metric"].unique(), at_chance["probe"].unique())
        rows += [(name, row) for _, row in at_chance.iterrows()]
    joined = only(scores.concatenated, target="task").dropna(subset="value")
    return rows + [("concatenated", row) for _, row in joined.iterrows()]


def chance_name(metrics: Iterable[str], probes: Iterable[str]) -> str:
    """Return the name of the chance level of these metrics and probes, a key of `LEVELS`.

    >>> chance_name(["compression"], ["logistic"])
    'label_counts'
    >>> chance_name(["spearman"], ["structural_depth:64"])
    'chain'
    """
    # Baselines have no kind of probe.
    kinds = filter(None, map(kind_of, probes))
    names = {kind.reference for kind in kinds} | {METRICS[metric].reference for metric in metrics}
    return next((name for name in ("label_counts", "chain") if name in names), "chance")


def value_range(figure: go.Figure, metric: str, chance: float) -> list[float]:
    """Return the y range of a metric, with a margin on both sides.

    If the score can select sites and higher is better, the range starts at chance, or at the lowest
    line or interval if that is lower, and ends at the highest possible value. Otherwise, or without
    a chance level or a highest value, it is the range of the lines and bands. Undefined scores are
    ignored.
    """
    fact = METRICS[metric]
    # The null of R² and poor baselines are far below 0, and would leave little room for the curve.
    drawn = list(figure.data)
    if fact.beats_the_mean:
        drawn = [one for one in drawn if not one.fillpattern.shape]
        drawn = [one for one in drawn if one.fill or one.mode != "lines" or max(one.y) >= chance]
    low, high = style.finite_ends(value for trace in drawn for value in trace.y)
    is_score = fact.kind == "score" and fact.selects and not fact.lower_is_better
    if is_score and math.isfinite(chance) and math.isfinite(fact.range[1]):
        low, high = min(low, chance), fact.range[1]
    return style.with_margin(low, high)


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
    n_runs = Counter(name for name, _ in {(name, row["run"]) for name, row in lines})
    # By the name, rounded value and colour of a level.
    rows_of: dict[tuple[str, str, str], list[pd.Series]] = {}
    for name, row in lines:
        colour = colours.get(row["run"], "") if name == HEADLINE else ""
        text = fixed(row["value"], 2)
        rows_of.setdefault((name, text, colour or style.LEVELS[name].colour), []).append(row)
    # Names and value of a label, by its text and colour.
    labels: dict[tuple[str, str], tuple[list[str], float]] = {}
    for (name, text, colour), rows in rows_of.items():
        runs = list(dict.fromkeys(row["run"] for row in rows))
        # What follows the name of the level in its label: " of RUN" for each run, or nothing.
        of_runs = [f" of {run}" for run in runs] if n_runs[name] > 1 else [""]
        if colours:
            is_common = name == HEADLINE or len(runs) > 1
            of_runs = [""] if is_common else [f" of {short_title(runs[0], list(colours))}"]
        level = style.LEVELS[name]
        titles = [f"{level.label}{of_run}" for of_run in of_runs]
        # Rows of equal value share a line.
        for row in {row["value"]: row for row in rows}.values():
            # A horizontal line between the ends, without a legend entry.
            line = {"color": colour, "dash": level.dash, "width": level.width}
            heading = style.plotly_text(row["site"] or level.label)
            interval = format_number(row["value"], row["ci_low"], row["ci_high"])
            hover = {"hovertext": f"<b>{heading}</b>: {interval}", "hoverinfo": "text"}
            called = style.plotly_text(f"{titles[0] if colours else level.label} {text}")
            figure.add_trace(style.plain_line(ends, [row["value"]] * 2, line, name=called, **hover))
        labels.setdefault((text, colour), ([], rows[0]["value"]))[0].extend(titles)
    return [
        LineLabel(f"{', '.join(names)} {text}", value, colour)
        for (text, colour), (names, value) in labels.items()
    ]


def short_title(run: str, runs: Sequence[str]) -> str:
    """Return the settings in the title of a run that no other run has, or the whole title.

    >>> short_title("last · no folds", ["last · no folds", "last · folds 5"])
    'no folds'
    """
    others = {part for other in runs if other != run for part in other.split(PART)}
    return PART.join(part for part in run.split(PART) if part not in others) or run
