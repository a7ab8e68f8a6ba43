"""Predictions of several fits, pooled over the rows that each of them predicts.

The outer folds of a nested cross-validation each have their own fit. Accuracy may be computed over
all rows together, but a metric of ranks may not: the scores of different fits have different scales
and offsets, so that a row of one fold cannot be ranked against a row of another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from probekit.probes.score.metrics import Resamples
from probekit.probes.solve.design import Floats

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

P = TypeVar("P", bound="DataclassInstance")
Folds = NDArray[np.int64]


def take(predictions: P, rows: NDArray[np.generic]) -> P:
    """Return the predictions for some rows, given by a mask or by row numbers (n_taken,).

    >>> from probekit.probes.score.regression import NumberPredictions
    >>> take(NumberPredictions(np.array([1.0, 2.0]), np.array([3.0, 4.0])), np.array([1, 0])).guess
    array([4., 3.])
    """
    taken = {
        own.name: value[rows]
        for own in fields(predictions)
        if isinstance(value := getattr(predictions, own.name), np.ndarray)
    }
    return replace(predictions, **taken)


def joined_folds(of_parts: Sequence[Folds | None], sizes: Sequence[int]) -> Folds:
    """Return fold numbers (n_samples,) for concatenated parts, so that no two parts share a fold.

    Args:
        of_parts: the folds (n_part,) within each part; None for a part with a single fit.
        sizes: the number of rows of each part.

    >>> joined_folds([None, np.array([0, 1, 1])], sizes=[2, 3]).tolist()
    [0, 0, 1, 2, 2]
    """
    joined, n_folds = [], 0
    for folds, size in zip(of_parts, sizes, strict=True):
        own = np.zeros(size, dtype=np.int64) if folds is None else folds
        joined.append(own + n_folds)
        n_folds += 1 + int(own.max(initial=0))
    return np.concatenate(joined)


def within_folds(metric: Callable[..., Floats]) -> Callable[..., Floats]:
    """Return the metric averaged over the folds of the predictions, weighted by their rows.

    Predictions without folds come from a single fit; their metric is unchanged. Folds in which the
    metric is undefined, such as those with a single class, are left out of the mean. In each
    resample, the weight of a fold is the number of its rows in that resample.

    >>> from probekit.probes.score.metrics import ClassPredictions, auroc
    >>> truth, folds = np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1])
    >>> scores = np.array([[0, 1], [0, 2], [0, 11], [0, 12]])  # the second fit adds 10
    >>> predictions = ClassPredictions(truth, truth, 2, scores, folds=folds)
    >>> resamples = Resamples.whole(4)
    >>> auroc(predictions, resamples).tolist(), within_folds(auroc)(predictions, resamples).tolist()
    ([0.75], [1.0])
    """

    @wraps(metric)
    def averaged(predictions: Any, resamples: Resamples) -> Floats:
        if predictions.folds is None:
            return metric(predictions, resamples)
        total = np.zeros(resamples.counts.shape[1])
        n_rows = np.zeros_like(total)
        for fold in np.unique(predictions.folds):
            rows = predictions.folds == fold
            own = replace(resamples, group_of_row=resamples.group_of_row[rows])
            value = metric(take(predictions, rows), own)
            weight = np.where(np.isnan(value), 0.0, _rows_drawn(own))
            total += weight * np.nan_to_num(value)
            n_rows += weight
        undefined = np.full(total.shape, np.nan)
        mean: Floats = np.divide(total, n_rows, out=undefined, where=n_rows > 0)
        return mean

    return averaged


def _rows_drawn(resamples: Resamples) -> Floats:
    """Return the number of rows (1 + n_draws,) in each column of the resamples."""
    n_rows = np.bincount(resamples.group_of_row, minlength=resamples.n_groups)
    drawn: Floats = n_rows.astype(np.float64) @ resamples.counts
    return drawn
