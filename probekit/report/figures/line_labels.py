"""Labels at the right ends of lines, in their colours, each joined to its line by a leader."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import plotly.graph_objects as go

from probekit.report.figures.style import SMALL, finite_ends, label_colour, plotly_text, with_margin

LABEL = "line label"  # name of the annotations
# Pixels. The plot of a page is at least this high: labels that do not overlap there do not overlap
# in higher plots.
PLOT_HEIGHT = 280
LEAST_HEIGHT = 200  # of the plot in a figure for one column of a paper
LINE_HEIGHT = 1.3 * SMALL  # as Plotly sets text
LEADER, LEADER_WIDTH = 14, 1.2  # horizontal extent of a leader, and width of its line
CHARACTER = 0.56 * SMALL  # mean width of a character in a wide font
LONGEST_LINE = 18  # characters
MOST_LINES = 5  # lines of text in a label


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
        figure.layout.yaxis.range = with_margin(*finite_ends(ends))
    named = [trace for trace in lines if trace.name]
    labels = [
        label
        for trace in named
        for label in label_at_end(trace, html.unescape(trace.name), trace.line.color)
    ]
    name_lines(figure, labels if len(labels) > 1 else [])


def label_at_end(line: go.Scatter, text: str, colour: str, n: int | None = None) -> list[LineLabel]:
    """Return the label of a line at the last defined point, as a list; [] if there is none.

    Args:
        line: The line, with points in the order in which they are drawn.
        text: Name of the line.
        colour: Colour of the line.
        n: Number of points to choose from, the first ones; None for all.
    """
    points = list(zip(line.x, line.y, strict=True))[:n]
    ends = [(x, y) for x, y in points if math.isfinite(y)][-1:]
    return [LineLabel(text, y, colour, x) for x, y in ends]


def labels_that_fit(labels: Sequence[LineLabel], height: float) -> list[LineLabel]:
    """Return the first labels, as many as fit into a plot of this height in pixels."""
    n_lines = accumulate(_wrapped(label.text).count("<br>") + 1 for label in labels)
    most = (height + LINE_HEIGHT) / LINE_HEIGHT
    return [label for label, n in zip(labels, n_lines, strict=True) if n <= most]


def label_lines(figure: go.Figure, labels: Sequence[LineLabel], panel: int = 1) -> None:
    """Label lines of a panel at its right edge, placed for a plot of `PLOT_HEIGHT`."""
    axis = str(panel) if panel > 1 else ""
    is_log = figure.layout[f"yaxis{axis}"].type == "log"
    x_axis = figure.layout[f"xaxis{axis}"]
    for label in labels:
        if label.end is not None:  # the leader reaches the right edge of the plot
            edge = 10 ** x_axis.range[1] if x_axis.type == "log" else x_axis.range[1]
            figure.add_scatter(
                x=[label.end, edge],
                y=[label.value] * 2,
                mode="lines",
                line={"color": label.colour, "width": LEADER_WIDTH},
                xaxis=f"x{axis}",
                yaxis=f"y{axis}",
                showlegend=False,
                hoverinfo="skip",
            )
        figure.add_annotation(
            name=LABEL,
            text=_wrapped(label.text),
            x=1,
            xref=f"x{axis} domain",
            y=math.log10(label.value) if is_log else label.value,
            yref=f"y{axis}",
            ax=LEADER,
            ay=0,
            xanchor="left",
            align="left",
            showarrow=True,
            arrowhead=0,
            arrowwidth=LEADER_WIDTH,
            arrowcolor=label.colour,
            font={"size": SMALL, "color": label_colour(label.colour)},
        )
    own = [note for note in figure.layout.annotations if note.name == LABEL]
    widest = max((len(line) for note in own for line in note.text.split("<br>")), default=0)
    room = LEADER + CHARACTER * widest + 4
    figure.update_layout(margin_r=max(figure.layout.margin.r or 0, round(room)), showlegend=False)
    place_labels(figure, PLOT_HEIGHT)


def _wrapped(text: str) -> str:
    """Return a label as escaped lines; a name in a list is broken only if it is long.

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
    return "<br>".join(plotly_text(line) for line in lines)


def place_labels(figure: go.Figure, plot_height: float) -> None:
    """Move the labels of each panel up or down until they do not overlap.

    Args:
        figure: Its labels are moved; leaders still start at the ends of the lines.
        plot_height: Height of the area inside the margins in pixels.
    """
    labels = [note for note in figure.layout.annotations if note.name == LABEL]
    for ref in dict.fromkeys(note.yref for note in labels):
        axis = figure.layout[ref.replace("y", "yaxis")]
        low, high = axis.range
        bottom, top = axis.domain or (0.0, 1.0)
        height = plot_height * (top - bottom)
        own = sorted((note for note in labels if note.yref == ref), key=lambda note: note.y)
        at = [height * (min(max(note.y, low), high) - low) / (high - low) for note in own]
        shifts = label_shifts(at, [note.text.count("<br>") + 1 for note in own], height)
        for note, shift in zip(own, shifts, strict=True):
            note.ay = -shift


def label_shifts(at: Sequence[float], n_lines: Sequence[int], height: float) -> list[float]:
    """Return the upward shifts in pixels that keep labels from overlapping.

    The sum of squared shifts is as small as possible (isotonic regression). Labels stay inside the
    plot, except for half a line of text at the top and at the bottom.

    Args:
        at: Heights of the lines above the bottom of the plot in pixels, in ascending order.
        n_lines: Number of text lines of each label.
        height: Height of the plot in pixels.

    >>> label_shifts([0.0, 100.0, 102.0], [1, 1, 1], 200)
    [0.0, -6.8, 6.8]
    >>> label_shifts([190.0, 195.0, 200.0], [1, 1, 1], 200)
    [-21.2, -10.6, 0.0]
    """
    sizes = [lines * LINE_HEIGHT for lines in n_lines]
    # Below each label there is room for those before it; without that room, order is all that
    # is required of the middles.
    below = [sum(sizes[:number]) + size / 2 for number, size in enumerate(sizes)]
    floor = -LINE_HEIGHT / 2
    ceiling = height + LINE_HEIGHT / 2 - sum(sizes)
    # The ascending numbers closest to those wanted: adjacent violators are averaged.
    pools: list[tuple[float, int]] = []
    for place, room in zip(at, below, strict=True):
        mean, n = place - room, 1
        while pools and pools[-1][0] > mean:
            before, size = pools.pop()
            mean, n = (mean * n + before * size) / (n + size), n + size
        pools.append((mean, n))
    middles = [mean for mean, n in pools for _ in range(n)]
    return [
        round(max(floor, min(middle, ceiling)) + room - place, 1)
        for middle, room, place in zip(middles, below, at, strict=True)
    ]
