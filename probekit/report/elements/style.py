"""Plotly template, line styles, number formats, ranges and ticks shared by all figures."""

from __future__ import annotations

import html
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.colors
import plotly.graph_objects as go

from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import NESTED, TARGETS, WITHIN
from probekit.terminal import visible

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class LineStyle:
    """Style of the lines of one target; if `colour` is empty, each series has its own colour."""

    label: str
    dash: str
    colour: str = ""
    width: float = 2
    marker_size: int = 7
    legend_rank: int = 1


# The first colour, blue, is that of the task and of nothing else.
# All colours have a contrast of at least 3:1 with white and with the dark background, and are
# distinguishable with colour blindness; dashes and markers distinguish lines without colour.
SERIES_COLOURS = ("#0072B2", "#B07D10", "#B2599A", "#6E7F8D", "#8C564B")
# Colour scales of maps. Magnitudes are light at 0 and dark at the highest value, also in greyscale;
# signed values are purple below 0, white at 0 and orange above, as in `texts.LOW` and `HIGH`.
MAGNITUDES = plotly.colors.sequential.tempo
SIGNED = plotly.colors.diverging.PuOr_r
GREY = "#7A7F87"  # baselines, bands of the null, and lines that are not highlighted
INK = "#1c2430"
# Metadata of figures whose panels a page stacks in one column in narrow windows.
STACKS = {"stacks": True}
TITLE_MARGIN = 48  # pixels above plots with a title or note, which the toolbar must not cover
SMALL, LARGE = 12, 13  # pixels of text: ticks and labels, everything else
SERIES_MARKERS = ("circle", "square", "diamond", "triangle-up", "pentagon", "star", "hexagon")

LINES = {
    "task": LineStyle(TARGETS["task"].title, "solid", width=2.6, marker_size=9),
    "control": LineStyle(TARGETS["control"].title, "dash", "#D55E00", legend_rank=2),
    "random_weights": LineStyle(TARGETS["random_weights"].title, "dot", "#009E73", legend_rank=3),
    WITHIN: LineStyle(TARGETS[WITHIN].title, "dashdot", "#CC79A7", legend_rank=4),
}
# Name of a horizontal line -> its dash.
_REFERENCES = {
    **dict.fromkeys(("majority", "mean", "chance", "chain", "label_counts"), "longdash"),
    "word_identity": "dashdot",
    "bag_of_words": "6px,2px",
    "n_grams": "3px,3px",
    "neighbouring_words": "9px,3px,2px,3px,2px,3px",
    "length": "dot",
    "output": "1px,3px,6px,3px",
    **dict.fromkeys(("all_features", "concatenated"), "longdashdot"),
}
_TITLES = {name: target.title for name, target in TARGETS.items()} | {
    "mean": "mean label",
    "chance": "chance",
    "chain": "linear chain",
    "label_counts": "no compression",
    "all_features": "all features",
    "concatenated": "concatenated",
}
# Name of a horizontal line, a reference or a nested choice -> its style.
LEVELS = {
    name: LineStyle(_TITLES[name], dash, GREY if name != "concatenated" else "#0072B2", width=1.5)
    for name, dash in _REFERENCES.items()
} | {name: LineStyle(_TITLES[name], "solid", "#0072B2", width=2.6) for name in NESTED.values()}
CHANCE_LINE = {"color": GREY, "dash": LEVELS["chance"].dash, "width": LEVELS["chance"].width}
NORMS = {
    "first_position_norm": LineStyle("position 0", "solid"),
    "other_norm": LineStyle("all other positions", "dash"),
}

_AXIS = {
    "showline": True,
    "linecolor": "#9aa1ab",
    "gridcolor": "#dfe3e8",
    "ticks": "outside",
    "tickcolor": "#9aa1ab",
    "ticklen": 4,
    "zeroline": False,
    "title": {"standoff": 8, "font": {"size": LARGE}},
    "automargin": True,
    "separatethousands": True,
}

# The background is transparent; the page recolours text and grid in its dark theme.
TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": "system-ui, sans-serif", "size": LARGE, "color": INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 52, "r": 24, "t": 32, "b": 48},  # the modebar is above the plot
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "#9aa1ab", "activecolor": "#7A7F87"},
        "xaxis": {**_AXIS, "showgrid": False, "tickfont": {"size": SMALL}},
        "yaxis": {**_AXIS, "tickfont": {"size": SMALL}},
        "hovermode": "closest",
        "hoverlabel": {"align": "left"},
        "legend": {
            "orientation": "h",
            "font": {"size": SMALL},
            "x": 0,
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "maxheight": 0.35,
            "tracegroupgap": 0,
        },
    }
)


def series_marker(number: int, size: int) -> dict[str, Any]:
    """Return colour, symbol and size of the markers of a series; colours and symbols repeat.

    >>> series_marker(0, 7)
    {'color': '#0072B2', 'symbol': 'circle', 'size': 7}
    """
    colour = SERIES_COLOURS[number % len(SERIES_COLOURS)]
    return {"color": colour, "symbol": SERIES_MARKERS[number % len(SERIES_MARKERS)], "size": size}


def error_bars(rows: pd.DataFrame, column: str, thickness: float) -> dict[str, Any]:
    """Return error bars from `column` to `ci_low` and `ci_high`; none for unknown intervals."""
    lengths = {"array": rows["ci_high"] - rows[column], "arrayminus": rows[column] - rows["ci_low"]}
    # A value outside its interval has no bar on that side.
    bars = {name: length.fillna(0).clip(lower=0).tolist() for name, length in lengths.items()}
    return {"type": "data", **bars, "thickness": thickness, "width": 3}


def above_left(x_axis: str) -> dict[str, Any]:
    """Return the place of a text above the left end of a panel, given by its x axis.

    >>> above_left("x2")["yref"]
    'y2 domain'
    """
    left = {"x": 0, "xref": f"{x_axis} domain", "xanchor": "left", "showarrow": False}
    return {**left, "y": 1, "yref": f"{x_axis.replace('x', 'y')} domain", "yanchor": "bottom"}


def plain_line(
    x: Iterable[float], y: Iterable[float], line: dict[str, Any], **settings: Any
) -> go.Scatter:
    """Return a line that is no series: without markers, entry in the legend and hover text.

    Other properties of the trace may be set.
    """
    quiet = {"mode": "lines", "showlegend": False, "hoverinfo": "skip"}
    return go.Scatter(x=list(x), y=list(y), line=line, **(quiet | settings))


def label_colour(colour: str) -> str:
    """Return the colour of a text that names a line: the colour of the line, mixed with the ink.

    Lines need less contrast with the page than text. The script of a page mixes likewise with its
    own ink.

    >>> label_colour("#D55E00")
    '#8b4713'
    """
    channels = zip(bytes.fromhex(colour[1:]), bytes.fromhex(INK[1:]), strict=True)
    return "#" + "".join(f"{round(0.6 * line + 0.4 * ink):02x}" for line, ink in channels)


def axis_title(metric: str) -> str:
    """Return the axis title of a metric, with a note if lower is better.

    >>> axis_title("auroc"), axis_title("brier")
    ('AUROC', 'Brier score (lower is better)')
    """
    title = METRICS[metric].title
    return f"{title} (lower is better)" if METRICS[metric].lower_is_better else title


def plotly_text(text: object) -> str:
    r"""Return the text escaped for plotly, which interprets tags, %{...} and $formulas$.

    Control characters are written as code points.

    >>> plotly_text("<b>%{x}</b>")
    '&lt;b&gt;&#37;{x}&lt;/b&gt;'
    >>> plotly_text("$x$")
    '&#36;x&#36;'
    >>> plotly_text("a\u202e")
    'a&lt;U+202E&gt;'
    """
    return html.escape(visible(str(text)), quote=False).replace("%", "&#37;").replace("$", "&#36;")


MOST_NAMES = 3  # names on the layer axis below its numbers; more are slanted
LONGEST_TICK = 20  # characters, without the … of a shortened name


def finite_ends(values: Iterable[float]) -> tuple[float, float]:
    """Return the lowest and the highest of the values that are finite; (0, 1) if none is.

    A score that is undefined is drawn nowhere, so it has no effect on axes and colours.

    >>> finite_ends([0.5, float("nan"), 0.75]), finite_ends([float("nan")])
    ((0.5, 0.75), (0.0, 1.0))
    """
    numbers = np.array(list(values), dtype=np.float64)
    finite = numbers[np.isfinite(numbers)]
    return (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)


def with_margin(low: float, high: float) -> list[float]:
    """Return the range of an axis with a margin of 4 % on both sides, and of at least 0.002.

    >>> with_margin(0.0, 100.0)
    [-4.0, 104.0]
    """
    margin = 0.04 * max(high - low, 0.05)
    return [low - margin, high + margin]


def layer_ends(labels: dict[int, str]) -> list[float]:
    """Return the range of a layer axis, with room for half a marker on both sides.

    >>> layer_ends({0: "0"}), layer_ends({-1: "embed", 9: "final norm"})
    ([-0.5, 0.5], [-1.2, 9.2])
    """
    first, last = min(labels), max(labels)
    margin = 0.02 * (last - first) or 0.5
    return [first - margin, last + margin]


def layer_axis(
    axes: Any, labels: dict[int, str], depths: Collection[int] | None = None, most: int = 16
) -> None:
    """Set title, ticks and range of a layer axis.

    Labels do not overlap: every n-th block is labelled. A few names are on a second line, below
    the numbers; more are slanted.

    Args:
        axes: An axis, or a figure; all x axes of a figure are set.
        labels: Labels of all layers, by depth.
        depths: Depths that may be labelled; by default all.
        most: Largest number of labelled blocks; names are always labelled.
    """
    names = [label for label in labels.values() if label and not label.isdigit()]
    # Including empty labels, of depths between given activations.
    below = "<br>" if sum(not label.isdigit() for label in labels.values()) <= MOST_NAMES else ""
    step = math.ceil(len(labels) / most)
    texts = []
    for depth, label in labels.items():
        text = label if label.isdigit() else below + short_tick(label)
        is_left_out = label.isdigit() and depth % step > 0
        texts.append("" if is_left_out or (depths is not None and depth not in depths) else text)
    update = axes.update_xaxes if isinstance(axes, go.Figure) else axes.update
    update(
        title_text="layer" if len(names) < len(labels) else "site",
        tickmode="array",
        tickvals=list(labels),
        ticktext=texts,
        tickangle=0 if len(names) <= MOST_NAMES else -30,
        range=layer_ends(labels),
    )


def short_tick(label: str) -> str:
    """Return the name of a site, escaped for plotly, without its middle if it is long.

    >>> short_tick("model.layers.11.post_attention_layernorm")
    'model.layer…layernorm'
    """
    return plotly_text(without_middle(label))


def without_middle(label: str) -> str:
    """Return a name with its beginning and its end, if it is longer than `LONGEST_TICK`."""
    half = LONGEST_TICK // 2
    return label if len(label) <= LONGEST_TICK else f"{label[: half + 1]}…{label[1 - half :]}"
