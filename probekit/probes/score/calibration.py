"""Calibration of predicted probabilities: Brier score, ECE and reliability bins.

The functions here need predictions whose `scores` are log probabilities and raise an error for
others, because margins and counts rank rows but cannot be calibrated.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probekit.probes.arrays import Codes, Floats
from probekit.probes.score.intervals import jackknife_interval
from probekit.probes.score.metrics import ClassPredictions, Resamples, mean_of_rows, ratio

BINS = 15
ROUNDING = 1e-9  # smaller sums of differences have no sign


def brier(predictions: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the Brier score: 0 at best, 2 at worst.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.

    For each row, (p - [class is true])^2 is summed over the classes; the score is the mean over the
    rows. For two classes this is twice the Brier score that is computed from one class.

    >>> scores = np.log([[0.75, 0.25], [0.5, 0.5]])
    >>> predictions = ClassPredictions(np.array([0, 1]), np.array([0, 0]), 2, scores, True)
    >>> brier(predictions, Resamples.whole(2)).round(4).tolist()
    [0.3125]

    Source: Brier (1950), Verification of forecasts expressed in terms of probability.
    """
    misses = _probabilities(predictions)
    misses[np.arange(len(misses)), predictions.truth] -= 1
    return mean_of_rows(np.einsum("ij,ij->i", misses, misses), resamples)


def ece(predictions: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the expected calibration error without the bias of chance differences.

    Shape (1 + n_units,): the value over all groups, then NaN. The signs below change with a single
    group, so that no jackknife holds: limits are those of `ece_limits`, differences have none.

    The error is the mean over rows of |accuracy - mean confidence| of the row's bin. The confidence
    is the probability of the predicted class; there are 15 bins of equal width, which include their
    upper end. Chance differences in bins with few rows would make the error positive even for
    perfectly calibrated predictions. The difference of each group therefore gets the sign of that
    of the other groups in the bin, and none if there are no others. As a result, calibrated
    predictions score 0 on average, and a score may be negative.

    >>> scores = np.log([[0.75, 0.25], [0.75, 0.25]])
    >>> predictions = ClassPredictions(np.array([0, 1]), np.array([0, 0]), 2, scores, True)
    >>> ece(predictions, Resamples.whole(2)).round(4).tolist()  # (-1 * 0.25 + 1 * -0.75) / 2
    [-0.5]

    Source: Guo et al. (2017), On calibration of modern neural networks, equation 3; Roelofs et al.
    (2022), Mitigating bias in calibration error estimation, for the bias.
    """
    value = _errors(predictions, resamples)[0]
    return np.append(value, np.full(resamples.n_units, np.nan))


def ece_limits(predictions: ClassPredictions, resamples: Resamples) -> tuple[float, float]:
    """Return the limits of the 95 % confidence interval of the calibration error.

    They are the limits of the error with its bias, which is subtracted from the lower one as it is
    for calibrated predictions. In simulations they contain the true error in 96 % of draws or more
    from 5 groups on.
    """
    value, plug_in, bias = _errors(predictions, resamples)
    found = jackknife_interval(plug_in, resamples)
    return min(found.low - bias, value), found.high


def _errors(predictions: ClassPredictions, resamples: Resamples) -> tuple[float, Floats, float]:
    """Return the calibration error without bias, with bias, and its bias if it is 0.

    The second has shape (1 + n_units,), as `ece`.
    """
    confidence = _confidence(predictions)
    bins, n_rows, n_groups = _bin(confidence, BINS), len(confidence), resamples.n_groups
    excess = (predictions.truth == predictions.guess) - confidence
    cells = bins * n_groups + resamples.group_of_row
    by_group = np.bincount(cells, weights=excess, minlength=BINS * n_groups).reshape(BINS, -1)
    others = by_group.sum(axis=1, keepdims=True) - by_group
    signs = np.sign(others) * (np.abs(others) > ROUNDING)
    plug_in = ratio(np.abs(resamples.sums(excess, bins, BINS)).sum(axis=0), resamples.sums()[0])
    # The mean absolute deviation of a normal sum is sqrt(2 / pi) times its standard deviation.
    bias = np.sqrt(2 / np.pi * np.square(by_group).sum(axis=1)).sum() / n_rows
    return float((signs * by_group).sum() / n_rows), plug_in, float(bias)


@dataclass(frozen=True)
class ReliabilityBin:
    """Mean confidence and accuracy of the rows whose confidence is in (low, high].

    The lowest bin also contains 0.

    `ci_low` and `ci_high` are the limits of the 95 % confidence interval of `accuracy`; NaN if all
    rows are in one group.
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
    """Return the reliability bins that contain rows, in ascending order of confidence.

    The bins have equal width.

    >>> scores = np.log([[0.75, 0.25], [0.75, 0.25]])
    >>> predictions = ClassPredictions(np.array([0, 1]), np.array([0, 0]), 2, scores, True)
    >>> (found,) = reliability_bins(predictions, Resamples.whole(2), bins=4)
    >>> found.low, found.high, found.n_rows, round(found.confidence, 6), found.accuracy
    (0.5, 0.75, 2, 0.75, 0.5)
    """
    confidence = _confidence(predictions)
    correct = (predictions.truth == predictions.guess).astype(np.float64)
    bin_of_row, found = _bin(confidence, bins), []
    for number in map(int, np.unique(bin_of_row)):
        rows = bin_of_row == number
        of_bin = Resamples.leave_one_out(resamples.group_of_row[rows], widening=resamples.widening)
        interval = jackknife_interval(mean_of_rows(correct[rows], of_bin), of_bin, (0, 1))
        accuracy_and_limits = (interval.value, interval.low, interval.high)
        n_and_confidence = (int(rows.sum()), float(confidence[rows].mean()))
        edges = (number / bins, (number + 1) / bins)
        found.append(ReliabilityBin(*edges, *n_and_confidence, *accuracy_and_limits))
    return found


def _probabilities(predictions: ClassPredictions) -> Floats:
    """Return the probability (n_samples, n_classes) of each class."""
    assert predictions.scores is not None, "computed from log probabilities only"
    return np.exp(predictions.scores)


def _confidence(predictions: ClassPredictions) -> Floats:
    """Return the probability (n_samples,) of the predicted class of each row."""
    probabilities = _probabilities(predictions)
    return probabilities[np.arange(len(probabilities)), predictions.guess]


def _bin(confidence: Floats, bins: int) -> Codes:
    """Return the bin number (n_samples,) of each confidence.

    Bin b contains values above b / bins, up to and including (b + 1) / bins. Values just above an
    edge count as below it, because taking logarithms and exponentials changes the last bit.
    """
    numbers: Codes = np.ceil(confidence * bins - 1e-9).astype(np.int64) - 1
    return np.clip(numbers, 0, bins - 1)
