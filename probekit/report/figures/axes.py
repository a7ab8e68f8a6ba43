"""Ranges and ticks of axes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import numpy as np
import plotly.graph_objects as go

from probekit.report.figures.style import plotly_text

MOST_NAMES = 3  # names on the layer axis below its numbers; more are slanted
LONGEST_TICK = 20  # characters


def finite_ends(values: Iterable[float]) -> tuple[float, float]:
    """Return the lowest and the highest of the values that are finite; (0, 1) if none is.

    A score that is undefined is drawn nowhere, so it has no effect on axes and colours.

    >>> finite_ends([0.5, float("nan"), 0.75]), finite_ends([float("nan")])
    ((0.5, 0.75), (0.0, 1.0))
    """
    numbers = np.array(list(values), dtype=np.float64)
    finite = numbers[np.isfinite(numbers)]
    return (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)


def layer_ends(labels: dict[int, str]) -> list[float]:
    """Return the range of a layer axis, with room for half a marker on both sides.

    >>> layer_ends({0: "0"}), layer_ends({-1: "embed", 9: "final norm"})
    ([-0.5, 0.5], [-1.2, 9.2])
    """
    first, last = min(labels), max(labels)
    margin = 0.02 * (last - first) or 0.5
    return [first - margin, last + margin]


def layer_axis(
    figure: go.Figure,
    labels: dict[int, str],
    depths: Collection[int] | None = None,
    most: int = 16,
    axis: go.layout.XAxis | None = None,
) -> None:
    """Set title, ticks and range of a layer axis.

    Args:
        figure: Figure of the axis.
        labels: Labels of all layers, by depth.
        depths: Depths that are labelled; by default all.
        most: Largest number of labels.
        axis: Axis of the figure; by default all of its x axes.
    """
    texts = _thinned(labels, most)
    names = [label for label in labels.values() if label and not label.isdigit()]
    settings = {
        "title_text": "layer" if len(names) < len(labels) else "site",
        "tickmode": "array",
        "tickvals": list(labels),
        "ticktext": [text if depths is None or d in depths else "" for d, text in texts.items()],
        "tickangle": 0 if len(names) <= MOST_NAMES else -30,
        "range": layer_ends(labels),
    }
    if axis is None:
        figure.update_xaxes(**settings)
    else:
        axis.update(**settings)


def _thinned(labels: dict[int, str], most: int) -> dict[int, str]:
    """Return labels that do not overlap: every n-th block, and names on a second line."""
    step = math.ceil(len(labels) / most)
    n_names = sum(not label.isdigit() for label in labels.values())
    below = "<br>" * (n_names <= MOST_NAMES)
    return {
        depth: (label if depth % step == 0 else "")
        if label.isdigit()
        else below + short_tick(label)
        for depth, label in labels.items()
    }


def short_tick(label: str) -> str:
    """Return the name of a site, escaped for plotly, without its middle if it is long.

    >>> short_tick("model.layers.11.post_attention_layernorm")
    'model.layer…layernorm'
    """
    return plotly_text(_without_middle(label))


def two_line_tick(label: str) -> str:
    """Return the same as `short_tick`, a long name in two lines, broken near its middle.

    >>> two_line_tick("attractor_other"), two_line_tick("capitals")
    ('attractor_<br>other', 'capitals')
    """
    label = _without_middle(label)
    if len(label) <= LONGEST_TICK // 2:
        return plotly_text(label)
    middle = len(label) / 2
    ends = [n for n in range(2, len(label)) if not label[n - 1].isalnum()] or [round(middle)]
    end = min(ends, key=lambda n: abs(n - middle))
    return f"{plotly_text(label[:end])}<br>{plotly_text(label[end:])}"


def _without_middle(label: str) -> str:
    half = LONGEST_TICK // 2
    is_long = len(label) > LONGEST_TICK
    return f"{label[: half + 1]}…{label[1 - half :]}" if is_long else label
