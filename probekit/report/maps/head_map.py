"""The map of a head score, from its rows: layers down, heads across, the number in the cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.colors
import plotly.graph_objects as go

from probekit.errors import UnknownNameError, nearest
from probekit.report.figures.style import format_number
from probekit.report.maps.maps import LEAST_RANGE
from probekit.report.maps.text_map import MOST_TEXTS, Colours, cell_text, text_map


@dataclass(frozen=True)
class HeadScoreText:
    """What a head score is: its title, and what it counts."""

    title: str
    meaning: str


SCORES = {
    "previous_token": HeadScoreText("Previous token", "mean weight on the token just before"),
    "duplicate_token": HeadScoreText(
        "Duplicate token", "mean weight on earlier occurrences of the same token"
    ),
    "induction": HeadScoreText(
        "Induction", "mean weight on what followed an earlier occurrence of the same token"
    ),
    "first_token": HeadScoreText("First token", "mean weight on the first token"),
    "entropy": HeadScoreText("Entropy", "mean entropy of where a head looks, in nats"),
    "distance": HeadScoreText("Distance", "how many tokens back the weight lies on average"),
}

_HOVERED = ["layer", "head", "value", "sd", "n"]


def head_score_map(
    rows: pd.DataFrame, score: str, framed: Sequence[tuple[int, int]] = ()
) -> go.Figure:
    """Return the figure of a score for each layer (down) and head (across).

    Colours go from 0 to `scale_end`.

    Args:
        rows: those of `score_heads` of `probekit/analysis/heads.py`.
        score: of `SCORES`.
        framed: heads, as (layer, head), that get a frame.

    Raises:
        UnknownNameError: The rows hold no such score.
    """
    here = rows[rows["score"] == score].sort_values(["layer", "head"])
    if here.empty:
        there = rows["score"].unique()
        raise UnknownNameError(f"No rows hold the score {score!r}. {nearest(score, there)}")
    layers, heads = here["layer"].unique(), here["head"].unique()
    figure = text_map(
        here["value"].to_numpy().reshape(len(layers), len(heads)),
        here["value"].map(cell_text).tolist(),
        [_hover(score, *row) for row in here[_HOVERED].itertuples(index=False)],
        Colours(0.0, scale_end(rows, score), plotly.colors.sequential.Viridis, is_diverging=False),
        across=[str(head) for head in heads],
        down=[str(layer) for layer in layers],
        title="head",
        most_texts=MOST_TEXTS * 10,
    )
    for layer, head in framed:
        _frame(figure, layer, head)
    return figure


def scale_end(rows: pd.DataFrame, score: str) -> float:
    """Return where the colours of a score end: at its highest value, if that is more than nothing.

    >>> rows = pd.DataFrame({"score": ["induction"] * 2, "value": [0.02, 0.31]})
    >>> scale_end(rows, "induction"), scale_end(rows, "entropy")
    (0.31, 0.05)
    """
    values = rows.loc[rows["score"] == score, "value"]
    return float(max([LEAST_RANGE, *values.dropna()]))


def _hover(score: str, layer: int, head: int, value: float, sd: float, n: int) -> str:
    texts = f"{n} text{'s' * (n != 1)}"
    spread = "" if np.isnan(sd) else f" ± {format_number(sd)} (sd)"
    told = "no token could have it" if n == 0 else f"{format_number(value)}{spread}, {texts}"
    return f"<b>L{layer}H{head}</b><br>{SCORES[score].title.lower()}: {told}"


def _frame(figure: go.Figure, layer: int, head: int) -> None:
    """Frame a cell, such that it shows on every colour."""
    corners = {"x0": head - 0.5, "x1": head + 0.5, "y0": layer - 0.5, "y1": layer + 0.5}
    for width, colour in ((5, "#ffffff"), (2.5, "#D55E00")):
        figure.add_shape(type="rect", **corners, line={"width": width, "color": colour})
