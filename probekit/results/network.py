"""Measurements of a network itself: logit attribution, scores of heads, and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

MEAN = "the mean of all tokens"


@dataclass(frozen=True, eq=False)
class AttributedLogit:
    """Logit of a token in one text, decomposed into the contributions of parts of the network.

    Attributes:
        tokens: the tokens of the text.
        position: the position of the logit, counted from 0.
        token: the token whose logit is attributed.
        minus: the token whose logit is subtracted, `MEAN`, or "" for none.
        logit: the logit as computed by the network.
        probability: the probability of the token.
        rank: the rank of the token, 1 for the most probable.
        rows: one row per part, with the columns `part`, `layer`, `head` and `value`.
    """

    tokens: tuple[str, ...]
    position: int
    token: str
    minus: str
    logit: float
    probability: float
    rank: int
    rows: pd.DataFrame


@dataclass(frozen=True, eq=False)
class ScoredHeads:
    """The scores of all heads of a model.

    Attributes:
        rows: one row per score and head, with the columns `score`, `layer`, `head`, `value`, `sd`
            and `n`.
        read: description of the input texts.
        known: for each score, the heads that the literature reports for this model, as (layer,
            head).
    """

    rows: pd.DataFrame
    read: str
    known: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)

    def strongest(self, score: str, n: int) -> pd.DataFrame:
        """Return the rows of the n heads with the highest values of a score, without NaN."""
        of_score = self.rows[self.rows["score"] == score].dropna(subset="value")
        return of_score.sort_values("value", ascending=False, kind="stable").head(n)


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """The weight matrices of the heads of one attention layer.

    Attributes:
        parts: the matrices of all heads by part: query, key and value of shape (n_heads, d_model,
            d_head), output of shape (n_heads, d_head, d_model).
        norms: Frobenius norms, shape (n_parts, n_heads).
        spectra: singular values by circuit (QK, OV), each of shape (n_heads, d_head). Empty if only
            one tensor of the layer is available.
        drawn: the parts contained in the tensor that the page shows.
    """

    parts: Mapping[str, NDArray[np.float32]]
    norms: NDArray[np.float64]
    spectra: Mapping[str, NDArray[np.float64]]
    drawn: Sequence[str]


@dataclass(frozen=True, eq=False)
class WeightTensor:
    """One weight tensor to draw.

    Attributes:
        row: its row of `summarise`, as a table with one row.
        numbers: its weights, a matrix [in, out] or a vector.
        columns: the columns drawn as curves; empty for most matrices.
        corner: the number of rows and columns drawn of a matrix; None draws it in full.
        heads: the matrices of the heads, for an attention tensor; else None.
    """

    row: pd.DataFrame
    numbers: NDArray[np.float32]
    columns: Sequence[int]
    corner: int | None
    heads: HeadWeights | None
