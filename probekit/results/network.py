"""What was measured of a network itself: a logit and its parts, the scores of heads, weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray

MEAN = "the mean of all tokens"


@dataclass(frozen=True, eq=False)
class AttributedLogit:
    """A logit of one text with its parts.

    Attributes:
        tokens: of the text.
        position: of the logit, counted from 0.
        token: whose logit.
        minus: the token whose logit is subtracted, `MEAN`, or nothing.
        logit: as the network computes it.
        probability: of the token.
        rank: of the token, 1 for the likeliest.
        rows: one per part, with `part`, `layer`, `head` and `value`.
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
        rows: with `score`, `layer`, `head`, `value`, `sd` and `n`.
        read: what the model read, in words.
        known: the heads, as (layer, head), that the literature names for a score of this model.
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
        parts: by the name of the part (query, key, value, output), the matrix of every head, shape
            (n_heads, d_model, d_head) or, of the output, (n_heads, d_head, d_model).
        norms: Frobenius norms, shape (n_parts, n_heads).
        spectra: singular values by circuit (QK, OV), each (n_heads, d_head); empty where only one
            tensor of the layer is known.
        drawn: the parts that belong to the tensor drawn.
    """

    parts: Mapping[str, NDArray[np.float32]]
    norms: NDArray[np.float64]
    spectra: Mapping[str, NDArray[np.float64]]
    drawn: Sequence[str]


@dataclass(frozen=True, eq=False)
class WeightTensor:
    """One tensor to draw.

    Attributes:
        row: its row of `summarise`, a table of one row.
        numbers: its weights, a matrix [in, out] or a vector.
        columns: the columns drawn as curves; empty for most matrices.
        corner: rows and columns drawn of a matrix; None draws it in full.
        heads: of an attention matrix.
    """

    row: pd.DataFrame
    numbers: NDArray[np.float32]
    columns: Sequence[int]
    corner: int | None
    heads: HeadWeights | None
