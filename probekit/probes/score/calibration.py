"""Whether the probabilities of a probe mean what they say: Brier score, ECE, reliability bins.

The metrics here read `Answers.scores` as log probabilities and refuse answers that do not promise
them; a margin or a count ranks rows just as well, but has no calibration.
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


def brier(answers: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the Brier score (1 + n_draws,): 0 at best, 2 at worst.

    It is the mean over rows of the sum over classes of (p - [class is true])^2; for two classes
    that is twice the score that looks at one of them.

    Raises:
        DataError: The answers have no log probabilities.

    >>> scores = np.log([[0.75, 0.25], [0.5, 0.5]])
    >>> answers = ClassPredictions(np.array([0, 1]), np.array([0, 0]), 2, scores, True)
    >>> brier(answers, Resamples.draw(np.arange(2), draws=0, seed=0)).round(4).tolist()
    [0.3125]

    Source: Brier (1950), Verification of forecasts expressed in terms of probability.
    """
    misses = _probabilities(answers, "brier")
    misses[np.arange(len(misses)), answers.truth] -= 1
    return mean_of_rows(np.einsum("ij,ij->i", misses, misses), resamples)


def ece(answers: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the expected calibration error (1 + n_draws,): 0 at best, 1 at worst.

    It is the mean over rows of |accuracy - mean confidence| of the row's bin. The confidence is the
    probability of the guess; there are 15 bins of equal width, each with its upper end. Bins that
    hold few rows add noise, so that even a perfect forecast scores above 0 on a finite sample.

    Raises:
        DataError: The answers have no log probabilities.

    >>> scores = np.log([[0.75, 0.25], [0.75, 0.25]])
    >>> answers = ClassPredictions(np.array([0, 1]), np.array([0, 0]), 2, scores, True)
    >>> ece(answers, Resamples.draw(np.arange(2), draws=0, seed=0)).round(4).tolist()
    [0.25]

    Source: Guo et al. (2017), On calibration of modern neural networks, equation 3.
    """
    confidence = _confidence(answers, "ece")
    gap = (answers.truth == answers.guess) - confidence
    groups, shape = resamples.group_of_row, (BINS, resamples.n_groups)
    # Within a bin |accuracy - confidence| * n_rows is the size of the summed gap.
    gaps = tally(_bin(confidence, BINS), groups, shape, gap) @ resamples.counts
    n_rows = np.bincount(groups, minlength=resamples.n_groups) @ resamples.counts
    error: Floats = np.abs(gaps).sum(axis=0) / n_rows
    return error


@dataclass(frozen=True)
class ReliabilityBin:
    """The rows whose confidence lies in (low, high]: how sure the guesses were, and how right.

    `ci_low` and `ci_high` end the 95 % interval of `accuracy`.
    """

    low: float
    high: float
    n_rows: int
    confidence: float
    accuracy: float
    ci_low: float
    ci_high: float


def reliability_bins(
    answers: ClassPredictions, resamples: Resamples, bins: int = BINS
) -> list[ReliabilityBin]:
    """Return the bins of equal width that hold rows, by rising confidence.

    Raises:
        DataError: The answers have no log probabilities.

    >>> scores = np.log([[0.75, 0.25], [0.75, 0.25]])
    >>> answers = ClassPredictions(np.array([0, 1]), np.array([0, 0]), 2, scores, True)
    >>> (found,) = reliability_bins(answers, Resamples.draw(np.arange(2), 10, 0), bins=4)
    >>> found.low, found.high, found.n_rows, round(found.confidence, 6), found.accuracy
    (0.5, 0.75, 2, 0.75, 0.5)
    """
    confidence = _confidence(answers, "reliability_bins")
    right = (answers.truth == answers.guess).astype(np.float64)
    number = _bin(confidence, bins)

    def summed(values: Floats) -> Floats:
        table = tally(number, resamples.group_of_row, (bins, resamples.n_groups), values)
        sums: Floats = table @ resamples.counts
        return sums

    n_rows, n_right = summed(np.ones(len(right))), summed(right)
    sure = summed(confidence)[:, 0]
    # A draw without a row of the bin has no accuracy there.
    nothing = np.full(n_rows.shape, np.nan)
    accuracy = np.divide(n_right, n_rows, out=nothing, where=n_rows > 0)
    return [
        _reliability_bin(at, bins, sure[at] / n_rows[at, 0], n_rows[at, 0], accuracy[at])
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


def _probabilities(answers: ClassPredictions, metric: str) -> Floats:
    if answers.scores is None or not answers.scores_are_log_probabilities:
        raise DataError(
            f"{metric} needs log probabilities, and these answers have "
            f"{'no scores' if answers.scores is None else 'scores of another kind'}. Give "
            "`scores` that are, and set `scores_are_log_probabilities`."
        )
    probabilities: Floats = np.exp(answers.scores)
    return probabilities


def _confidence(answers: ClassPredictions, metric: str) -> Floats:
    """Return the probability (n_samples,) of each guess."""
    probabilities = _probabilities(answers, metric)
    return probabilities[np.arange(len(probabilities)), answers.guess]


def _bin(confidence: Floats, bins: int) -> Codes:
    """Return the number of the bin ((number, number + 1] / bins) of each confidence.

    The logarithm and back moves the last bit: what lies that near above an end belongs below it.
    """
    numbers: Codes = np.ceil(confidence * bins - 1e-9).astype(np.int64) - 1
    return np.clip(numbers, 0, bins - 1)
