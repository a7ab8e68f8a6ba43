"""Map of a head score: layers down, heads across, values in the cells."""

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
    """Title and definition of a head score."""

    title: str
    meaning: str


SCORES = {
    "previous_token": HeadScoreText("Previous token", "mean weight on the previous token"),
    "duplicate_token": HeadScoreText(
        "Duplicate token", "mean weight on earlier occurrences of the same token"
    ),
    "induction": HeadScoreText(
        "Induction", "mean weight on the tokens after earlier occurrences of the same token"
    ),
    "first_token": HeadScoreText("First token", "mean weight on the first token"),
    "entropy": HeadScoreText("Entropy", "mean entropy of the attention weights, in nats"),
    "distance": HeadScoreText("Distance", "mean distance back to the attended tokens, in tokens"),
}

_HOVERED = ["layer", "head", "value", "sd", "n"]


def head_score_map(
    rows: pd.DataFrame, score: str, framed: Sequence[tuple[int, int]] = ()
) -> go.Figure:
    """Return the map of a head score by layer (down) and head (across).

    Colours range from 0 to `scale_end`.

    Args:
        rows: Rows of `probekit.analysis.heads.score_heads`.
        score: A key of `SCORES`.
        framed: Heads to frame, as (layer, head).

    Raises:
        UnknownNameError: There are no rows of this score.
    """
    scored = rows[rows["score"] == score].sort_values(["layer", "head"])
    if scored.empty:
        available = rows["score"].unique()
        raise UnknownNameError(f"There are no rows of score {score!r}. {nearest(score, available)}")
    layers, heads = scored["layer"].unique(), scored["head"].unique()
    figure = text_map(
        scored["value"].to_numpy().reshape(len(layers), len(heads)),
        scored["value"].map(cell_text).tolist(),
        [_hover(score, *row) for row in scored[_HOVERED].itertuples(index=False)],
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
    """Return the upper end of the colour scale: the highest score, but at least `LEAST_RANGE`.

    >>> rows = pd.DataFrame({"score": ["induction"] * 2, "value": [0.02, 0.31]})
    >>> scale_end(rows, "induction"), scale_end(rows, "entropy")
    (0.31, 0.05)
    """
    values = rows.loc[rows["score"] == score, "value"]
    return float(max([LEAST_RANGE, *values.dropna()]))


def _hover(score: str, layer: int, head: int, value: float, sd: float, n: int) -> str:
    texts = f"{n} text{'s' * (n != 1)}"
    spread = "" if np.isnan(sd) else f" ± {format_number(sd)} (sd)"
    result = "no token could have it" if n == 0 else f"{format_number(value)}{spread}, {texts}"
    return f"<b>L{layer}H{head}</b><br>{SCORES[score].title.lower()}: {result}"


def _frame(figure: go.Figure, layer: int, head: int) -> None:
    """Frame a cell with two nested outlines, visible on every colour."""
    corners = {"x0": head - 0.5, "x1": head + 0.5, "y0": layer - 0.5, "y1": layer + 0.5}
    for width, colour in ((5, "#ffffff"), (2.5, "#D55E00")):
        figure.add_shape(type="rect", **corners, line={"width": width, "color": colour})
