"""Map of a head score: layers down, heads across, values in the cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd
import plotly.colors
import plotly.graph_objects as go

from probekit.errors import UnknownNameError, nearest
from probekit.report.figures.style import format_number
from probekit.report.maps.map_row import map_row
from probekit.report.maps.maps import LEAST_RANGE
from probekit.report.maps.text_map import (
    MOST_TEXTS,
    Colours,
    cell_text,
    frame_cell,
    text_map,
)


@dataclass(frozen=True)
class HeadScoreText:
    """Title, definition and unit of a head score."""

    title: str
    meaning: str
    unit: str = ""


SCORES = {
    "previous_token": HeadScoreText("Previous token", "mean weight on the previous token"),
    "duplicate_token": HeadScoreText(
        "Duplicate token", "mean weight on earlier occurrences of the same token"
    ),
    "induction": HeadScoreText(
        "Induction", "mean weight on the tokens after earlier occurrences of the same token"
    ),
    "first_token": HeadScoreText("First token", "mean weight on the first token"),
    "entropy": HeadScoreText(
        "Entropy", "mean entropy of the attention weights, in nats", " (nats)"
    ),
    "distance": HeadScoreText(
        "Distance", "mean distance back to the attended tokens, in tokens", " (tokens)"
    ),
}

# Scores that are mean attention weights, and can be compared on one scale.
WEIGHTS = ("previous_token", "duplicate_token", "induction", "first_token")
NOTHING: Mapping[str, Sequence[tuple[int, int]]] = MappingProxyType({})

_HOVERED = ["layer", "head", "value", "sd", "n"]


def head_score_maps(
    rows: pd.DataFrame, framed: Mapping[str, Sequence[tuple[int, int]]] = NOTHING
) -> go.Figure:
    """Return the maps of all scores that are mean attention weights, in a row on one scale.

    Args:
        rows: Rows of `probekit.analysis.heads.score_heads`.
        framed: Heads to frame, as (layer, head), by score.
    """
    end = max(scale_end(rows, score) for score in WEIGHTS)
    return map_row(
        {
            SCORES[score].title: head_score_map(rows, score, framed.get(score, ()), end)
            for score in WEIGHTS
        }
    )


def head_score_map(
    rows: pd.DataFrame,
    score: str,
    framed: Sequence[tuple[int, int]] = (),
    end: float | None = None,
) -> go.Figure:
    """Return the map of a head score by layer (down) and head (across).

    Args:
        rows: Rows of `probekit.analysis.heads.score_heads`.
        score: A key of `SCORES`.
        framed: Heads to frame, as (layer, head).
        end: Upper end of the colour scale, which starts at 0; by default `scale_end`.

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
        Colours(0.0, end or scale_end(rows, score), plotly.colors.sequential.Viridis, False),
        across=[str(head) for head in heads],
        down=[str(layer) for layer in layers],
        title="head",
        most_texts=MOST_TEXTS * 10,
    )
    for layer, head in framed:
        frame_cell(figure, head, layer)
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
