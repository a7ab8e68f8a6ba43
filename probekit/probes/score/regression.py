"""Scores of a probe that tells numbers, and their grouped bootstrap.

As in `metrics`, each is a function of the predictions and of how often each group counts. It
returns one number for each column of counts: column 0 is the value, the others are draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from probekit.errors import DataError
from probekit.probes.score.metric_table import Family
from probekit.probes.score.metrics import BLOCK, Resamples, tally
from probekit.probes.solve.design import Floats
from probekit.probes.solve.solver import Codes

# A spread below this share of the square around it is rounding: the numbers are all one.
SMALLEST_SPREAD = 1e-12


@dataclass(frozen=True, eq=False)
class NumberPredictions:
    """What a probe of numbers said on some rows: `truth` and `guess` (n_samples,).

    Raises:
        DataError: The two differ in length, or a number is not finite.
    """

    truth: Floats
    guess: Floats

    family: ClassVar[Family] = "number"
    offers: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        if len(self.truth) != len(self.guess):
            raise DataError(
                f"truth has {len(self.truth)} rows and guess {len(self.guess)}; give one each."
            )
        for name in ("truth", "guess"):
            wrong = np.flatnonzero(~np.isfinite(getattr(self, name)))
            if len(wrong):
                raise DataError(
                    f"{name} is {getattr(self, name)[wrong[0]]} in row {wrong[0]} (and {len(wrong)}"
                    " rows in all are not finite). Leave those rows out."
                )


def r2(predictions: NumberPredictions, resamples: Resamples) -> Floats:
    """Return the coefficient of determination, against the mean of the rows counted.

    1 at best; 0 is what the mean of these very rows scores, worse guesses fall below it. NaN where
    all rows counted have one number.

    >>> predictions = NumberPredictions(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 2.0]))
    >>> r2(predictions, Resamples.draw(np.arange(3), draws=0, seed=0)).tolist()
    [0.5]
    """
    # The mean of all rows is near that of any draw: little is lost where squares are subtracted.
    centred = predictions.truth - predictions.truth.mean()
    parts = (
        np.ones_like(centred),
        centred,
        centred**2,
        (predictions.truth - predictions.guess) ** 2,
    )
    n_rows, total, square, error = (_summed(values, resamples) for values in parts)
    spread = square - total**2 / n_rows
    defined = spread > SMALLEST_SPREAD * square
    nothing = np.full(spread.shape, np.nan)
    value: Floats = 1 - np.divide(error, spread, out=nothing, where=defined)
    return value


def spearman(predictions: NumberPredictions, resamples: Resamples) -> Floats:
    """Return the rank correlation; rows that tie share the mean of their ranks.

    Ranks are those among the rows counted, each row as often as it counts. NaN where all rows
    counted have one truth, or one guess.

    >>> predictions = NumberPredictions(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0]))
    >>> spearman(predictions, Resamples.draw(np.arange(3), draws=0, seed=0)).tolist()
    [0.5]
    """
    sides = [_Levels.of(values, resamples) for values in (predictions.truth, predictions.guess)]
    blocks = range(0, resamples.counts.shape[1], BLOCK)
    return np.concatenate(
        [_correlation(sides, resamples, resamples.counts[:, at : at + BLOCK]) for at in blocks]
    )


@dataclass(frozen=True, eq=False)
class _Levels:
    """The distinct values of the rows, rising.

    `of_row` (n_samples,) is the place of each row's value; `table` (n_levels, n_groups) counts
    rows.
    """

    of_row: Codes
    table: csr_array

    @classmethod
    def of(cls, values: Floats, resamples: Resamples) -> _Levels:
        names, of_row = np.unique(values, return_inverse=True)
        shape = (len(names), resamples.n_groups)
        return cls(of_row, tally(of_row, resamples.group_of_row, shape))

    def centred_ranks(self, counts: NDArray[np.float32]) -> tuple[Floats, Floats]:
        """Return each level's mean rank less that of all (n_levels, n_draws), and its n_rows."""
        n_rows: Floats = self.table @ counts
        above: Floats = np.cumsum(n_rows, axis=0)
        # A level's ranks run from above - n_rows + 1 to above; those of all from 1 to above[-1].
        centred: Floats = above - (n_rows + above[-1]) / 2
        return centred, n_rows


def _correlation(sides: list[_Levels], resamples: Resamples, counts: NDArray[np.float32]) -> Floats:
    """Return Pearson's correlation (n_draws,) of the ranks under some columns of counts."""
    (a, n_a), (b, n_b) = (side.centred_ranks(counts) for side in sides)
    squares = np.einsum("ld,ld,ld->d", n_a, a, a) * np.einsum("ld,ld,ld->d", n_b, b, b)
    of_a, of_b = (side.of_row for side in sides)
    together = np.einsum("rd,rd,rd->d", counts[resamples.group_of_row], a[of_a], b[of_b])
    nothing = np.full(squares.shape, np.nan)
    # Ranks are halves, so that these sums are exact: one level alone gives exactly 0.
    correlation: Floats = np.divide(together, np.sqrt(squares), out=nothing, where=squares > 0)
    return correlation


def _summed(values: Floats, resamples: Resamples) -> Floats:
    """Return the sum over the rows counted, (1 + n_draws,)."""
    groups, n_groups = resamples.group_of_row, resamples.n_groups
    by_group = np.bincount(groups, weights=values, minlength=n_groups)
    total: Floats = by_group.astype(np.float64) @ resamples.counts
    return total
