"""Metrics for regression, with a jackknife over groups.

As in `metrics`, each is a function of predictions and `Resamples`. It returns 1 + n_units numbers:
first the value over all groups, then the value with each unit of groups left out.
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

# If the variance is below this fraction of the mean square, the numbers are constant.
SMALLEST_SPREAD = 1e-12


@dataclass(frozen=True, eq=False)
class NumberPredictions:
    """True and predicted numbers, `truth` and `guess` (n_samples,), of some rows.

    `folds` (n_samples,) is the number of the fit that predicted each row; None for a single fit.

    Raises:
        DataError: The lengths differ, or a number is not finite.
    """

    truth: Floats
    guess: Floats

    family: ClassVar[Family] = "number"
    offers: ClassVar[frozenset[str]] = frozenset()
    folds: Codes | None = None

    def __post_init__(self) -> None:
        if len(self.truth) != len(self.guess):
            raise DataError(
                f"truth has {len(self.truth)} rows, but guess has {len(self.guess)}. Give one "
                "prediction per row."
            )
        for name in ("truth", "guess"):
            wrong = np.flatnonzero(~np.isfinite(getattr(self, name)))
            if len(wrong):
                raise DataError(
                    f"{name} is {getattr(self, name)[wrong[0]]} in row {wrong[0]}; {len(wrong)} "
                    "rows in total are not finite. Remove these rows."
                )


def r2(predictions: NumberPredictions, resamples: Resamples) -> Floats:
    """Return the coefficient of determination, R2.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.

    R2 is at most 1; predicting the mean of the same rows gives 0, and worse predictions are
    negative. NaN if all rows of a resample have the same true number.

    >>> predictions = NumberPredictions(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 2.0]))
    >>> r2(predictions, Resamples.whole(3)).tolist()
    [0.5]
    """
    # Centring by the overall mean, close to that of any draw, avoids cancellation.
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
    undefined = np.full(spread.shape, np.nan)
    value: Floats = 1 - np.divide(error, spread, out=undefined, where=defined)
    return value


def spearman(predictions: NumberPredictions, resamples: Resamples) -> Floats:
    """Return Spearman's rank correlation; ties get their mean rank.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.

    Ranks are computed within each resample. NaN if all rows of a resample have the same true or the
    same predicted number.

    >>> predictions = NumberPredictions(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0]))
    >>> spearman(predictions, Resamples.whole(3)).tolist()
    [0.5]
    """
    sides = [_Levels.of(values, resamples) for values in (predictions.truth, predictions.guess)]
    blocks = range(0, resamples.counts.shape[1], BLOCK)
    return np.concatenate(
        [_correlation(sides, resamples, resamples.counts[:, at : at + BLOCK]) for at in blocks]
    )


@dataclass(frozen=True, eq=False)
class _Levels:
    """The sorted distinct values of the rows.

    `of_row` (n_samples,) is the index of each row's value; `table` (n_levels, n_groups) counts the
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
        """Return the centred mean rank and the number of rows of each level (n_levels, n_units)."""
        n_rows: Floats = self.table @ counts
        above: Floats = np.cumsum(n_rows, axis=0)
        # The ranks of a level are above - n_rows + 1 to above; all ranks are 1 to above[-1].
        centred: Floats = above - (n_rows + above[-1]) / 2
        return centred, n_rows


def _correlation(sides: list[_Levels], resamples: Resamples, counts: NDArray[np.float32]) -> Floats:
    """Return the Spearman correlation (n_draws,) of each resample.

    Args:
        sides: ranks of the labels and of the predictions.
        resamples: groups of the rows.
        counts: number of times that each resample contains each group, shape (n_groups, n_draws).
    """
    (a, n_a), (b, n_b) = (side.centred_ranks(counts) for side in sides)
    squares = np.einsum("ld,ld,ld->d", n_a, a, a) * np.einsum("ld,ld,ld->d", n_b, b, b)
    of_a, of_b = (side.of_row for side in sides)
    products = np.einsum("rd,rd,rd->d", counts[resamples.group_of_row], a[of_a], b[of_b])
    undefined = np.full(squares.shape, np.nan)
    # Ranks are multiples of 1/2, so these sums are exact: a single level gives exactly 0.
    correlation: Floats = np.divide(products, np.sqrt(squares), out=undefined, where=squares > 0)
    return correlation


def _summed(values: Floats, resamples: Resamples) -> Floats:
    """Return the sum (1 + n_units,) of the values over the rows of each resample."""
    groups, n_groups = resamples.group_of_row, resamples.n_groups
    by_group = np.bincount(groups, weights=values, minlength=n_groups)
    total: Floats = by_group.astype(np.float64) @ resamples.counts
    return total
