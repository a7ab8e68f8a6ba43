"""Calibration of predicted probabilities: Brier score, ECE and reliability bins.

The functions here need predictions whose `scores` are log probabilities and raise an error for
others, because margins and counts rank rows but cannot be calibrated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probekit.errors import DataError
from probekit.probes.score.metrics import (
    ClassPredictions,
    Resamples,
    mean_of_rows,
    percentile_interval,
    tally,
)
from probekit.probes.solve.design import Floats
from probekit.probes.solve.solver import Codes

BINS = 15


def brier(predictions: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the Brier score (1 + n_draws,): 0 at best, 2 at worst.

    It is the mean over rows of the sum over classes of (p - [class is true])^2. For two classes
    this is twice the Brier score that is computed from one class.

    Raises:
        DataError: The predictions have no log probabilities.

    >>> scores = np.log([[0.75, 0.25], [0.5, 0.5]])
    >>> predictions = ClassPredictions(np.array([0, 1]), np.array([0, 0]), 2, scores, True)
    >>> brier(predictions, Resamples.draw(np.arange(2), draws=0, seed=0)).round(4).tolist()
    [0.3125]

    Source: Brier (1950), Verification of forecasts expressed in terms of probability.
    """
    misses = _probabilities(predictions, "brier")
    misses[np.arange(len(misses)), predictions.truth] -= 1
    return mean_of_rows(np.einsum("ij,ij->i", misses, misses), resamples)


def ece(predictions: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the expected calibration error (1 + n_draws,): 0 at best, 1 at worst.

    It is the mean over rows of |accuracy - mean confidence| of the row's bin. The confidence is the
    probability of the predicted class; there are 15 bins of equal width, which include their upper
    end. Bins with few rows add noise, so that even perfectly calibrated predictions score above 0
    on a finite sample.

    Raises:
        DataError: The predictions have no log probabilities.

    >>> scores = np.log([[0.75, 0.25], [0.75, 0.25]])
    >>> predictions = ClassPredictions(np.array([0, 1]), np.array([0, 0]), 2, scores, True)
    >>> ece(predictions, Resamples.draw(np.arange(2), draws=0, seed=0)).round(4).tolist()
    [0.25]

    Source: Guo et al. (2017), On calibration of modern neural networks, equation 3.
    """
    confidence = _confidence(predictions, "ece")
    gap = (predictions.truth == predictions.guess) - confidence
    groups, shape = resamples.group_of_row, (BINS, resamples.n_groups)
    # Within a bin |accuracy - confidence| * n_rows is the size of the summed gap.
    gaps = tally(_bin(confidence, BINS), groups, shape, gap) @ resamples.counts
    n_rows = np.bincount(groups, minlength=resamples.n_groups) @ resamples.counts
    error: Floats = np.abs(gaps).sum(axis=0) / n_rows
    return error


@dataclass(frozen=True)
class ReliabilityBin:
    """Mean confidence and accuracy of the rows whose confidence is in (low, high].

    `ci_low` and `ci_high` are the limits of the 95 % confidence interval of `accuracy`.
    """

    low: float
    high: float
    n_rows: int
    confidence: float
    accuracy: float
    ci_low: float
    ci_high: float


def reliability_bins(
    predictions: ClassPredictions, resamples: Resamples, bins: int = BINS
) -> list[ReliabilityBin]:
    """Return the non-empty bins of equal width, in ascending order of confidence.

    Raises:
        DataError: The predictions have no log probabilities.

    >>> scores = np.log([[0.75, 0.25], [0.75, 0.25]])
    >>> predictions = ClassPredictions(np.array([0, 1]), np.array([0, 0]), 2, scores, True)
    >>> (found,) = reliability_bins(predictions, Resamples.draw(np.arange(2), 10, 0), bins=4)
    >>> found.low, found.high, found.n_rows, round(found.confidence, 6), found.accuracy
    (0.5, 0.75, 2, 0.75, 0.5)
    """
    confidence = _confidence(predictions, "reliability_bins")
    correct = (predictions.truth == predictions.guess).astype(np.float64)
    number = _bin(confidence, bins)

    def summed(values: Floats) -> Floats:
        table = tally(number, resamples.group_of_row, (bins, resamples.n_groups), values)
        sums: Floats = table @ resamples.counts
        return sums

    n_rows, n_correct = summed(np.ones(len(correct))), summed(correct)
    total_confidence = summed(confidence)[:, 0]
    # The accuracy is undefined in resamples without rows in the bin.
    undefined = np.full(n_rows.shape, np.nan)
    accuracy = np.divide(n_correct, n_rows, out=undefined, where=n_rows > 0)
    return [
        _reliability_bin(
            at, bins, total_confidence[at] / n_rows[at, 0], n_rows[at, 0], accuracy[at]
        )
        for at in range(bins)
        if n_rows[at, 0]
    ]


def _reliability_bin(
    at: int, bins: int, confidence: float, n_rows: float, accuracy: Floats
) -> ReliabilityBin:
    interval = percentile_interval(accuracy)
    return ReliabilityBin(
        low=at / bins,
        high=(at + 1) / bins,
        n_rows=int(n_rows),
        confidence=float(confidence),
        accuracy=interval.value,
        ci_low=interval.low,
        ci_high=interval.high,
    )


def _probabilities(predictions: ClassPredictions, metric: str) -> Floats:
    if predictions.scores is None or not predictions.scores_are_log_probabilities:
        raise DataError(
            f"{metric} needs log probabilities, but these predictions have "
            f"{'no scores' if predictions.scores is None else 'other scores'}. Give log "
            "probabilities as `scores`, and set `scores_are_log_probabilities`."
        )
    probabilities: Floats = np.exp(predictions.scores)
    return probabilities


def _confidence(predictions: ClassPredictions, metric: str) -> Floats:
    """Return the probability (n_samples,) of the predicted class of each row."""
    probabilities = _probabilities(predictions, metric)
    return probabilities[np.arange(len(probabilities)), predictions.guess]


def _bin(confidence: Floats, bins: int) -> Codes:
    """Return the bin number (n_samples,) of each confidence; bin b is (b, b + 1] / bins.

    Values just above an edge count as below it, because taking logarithms and exponentials changes
    the last bit.
    """
    numbers: Codes = np.ceil(confidence * bins - 1e-9).astype(np.int64) - 1
    return np.clip(numbers, 0, bins - 1)
