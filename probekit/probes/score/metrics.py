"""Metrics for classification, with a grouped bootstrap.

Every metric is a function of predictions and `Resamples`, and returns one number for each column
of counts. Column 0 counts each group once and gives the value itself; the others are bootstrap
draws and give the confidence interval. Groups are resampled instead of rows, because rows of a
group are correlated and intervals over rows would be too narrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from probekit.errors import DataError
from probekit.probes.score.metric_table import Family
from probekit.probes.solve.design import Floats
from probekit.probes.solve.solver import Codes

CONFIDENCE = 0.95
_SCORES, _PROBABILITIES = frozenset({"scores"}), frozenset({"scores", "probabilities"})
# Number of draws that AUROC computes at a time; 128 columns of 25,000 rows take 26 MB.
BLOCK = 128


@dataclass(frozen=True, eq=False)
class ClassPredictions:
    """Predicted and true classes of some rows.

    Attributes:
        truth: True label codes (n_samples,).
        guess: Predicted label codes (n_samples,).
        n_classes: Number of classes.
        scores: Scores (n_samples, n_classes) that rank the rows for each class, or None.
        scores_are_log_probabilities: Whether `scores` are natural logarithms of probabilities,
            which calibration metrics require.
        folds: Number (n_samples,) of the fit that predicted each row, if several did; None for a
            single fit. Metrics of ranks compare only rows of the same fit.
    """

    truth: Codes
    guess: Codes
    n_classes: int
    family: ClassVar[Family] = "class"
    scores: Floats | None = None
    scores_are_log_probabilities: bool = False
    folds: Codes | None = None

    @property
    def offers(self) -> frozenset[str]:
        """What is available to metrics besides `guess`: "scores" and "probabilities"."""
        if self.scores is None:
            return frozenset()
        return _PROBABILITIES if self.scores_are_log_probabilities else _SCORES


@dataclass(frozen=True, eq=False)
class Resamples:
    """Bootstrap resamples of groups.

    All predictions on the same rows share one `Resamples`, so that their differences are paired.

    Attributes:
        group_of_row: The group number (n_samples,) of each row.
        counts: Multiplicity (n_groups, 1 + n_draws) of each group in each resample; column 0 is the
            original sample.
    """

    group_of_row: Codes
    counts: NDArray[np.float32]

    @classmethod
    def draw(cls, groups: NDArray[np.generic], draws: int, seed: int) -> Resamples:
        """Return `draws` bootstrap resamples of the groups (n_samples,) with replacement.

        >>> resamples = Resamples.draw(np.array(["s1", "s1", "s2"]), draws=4, seed=0)
        >>> resamples.counts.sum(axis=0).tolist()
        [2.0, 2.0, 2.0, 2.0, 2.0]
        """
        names, group_of_row = np.unique(groups, return_inverse=True)
        generator = np.random.default_rng(seed)
        counts = np.ones((len(names), 1 + draws), dtype=np.float32)
        for draw in range(1, 1 + draws):
            drawn = generator.integers(len(names), size=len(names))
            counts[:, draw] = np.bincount(drawn, minlength=len(names))
        return cls(group_of_row, counts)

    @property
    def undrawn(self) -> Resamples:
        """The original sample only, without the bootstrap draws."""
        return Resamples(self.group_of_row, self.counts[:, :1])

    @property
    def n_groups(self) -> int:
        """The number of groups."""
        return len(self.counts)


def accuracy(predictions: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the accuracy (1 + n_draws,): the fraction of correct predictions.

    >>> predictions = ClassPredictions(truth=np.array([0, 1]), guess=np.array([0, 0]), n_classes=2)
    >>> accuracy(predictions, Resamples.draw(np.array([0, 1]), draws=0, seed=0)).tolist()
    [0.5]
    """
    return mean_of_rows(predictions.truth == predictions.guess, resamples)


def balanced_accuracy(predictions: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the mean recall (1 + n_draws,) over the classes that occur in each resample.

    >>> predictions = ClassPredictions(np.array([0, 0, 0, 1]), np.array([0, 0, 0, 0]), n_classes=2)
    >>> balanced_accuracy(predictions, Resamples.draw(np.arange(4), draws=0, seed=0)).tolist()
    [0.5]
    """
    hits, truths, _ = _by_class(predictions, resamples)
    return _mean_of_defined(hits, truths)


def macro_f1(predictions: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the mean F1 (1 + n_draws,) over the true or predicted classes of each resample.

    >>> predictions = ClassPredictions(np.array([0, 0, 1, 1]), np.array([0, 0, 1, 0]), n_classes=3)
    >>> macro_f1(predictions, Resamples.draw(np.arange(4), draws=0, seed=0)).round(3).tolist()
    [0.733]
    """
    hits, truths, guesses = _by_class(predictions, resamples)
    return _mean_of_defined(2 * hits, truths + guesses)


def auroc(predictions: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the area under the ROC curve (1 + n_draws,), averaged one-vs-rest for many classes.

    Ties count one half. Classes that occur in none or in all rows of a resample are excluded; the
    value is NaN if no class is left.

    Raises:
        DataError: The predictions have no scores.

    >>> scores = np.array([[0.9, 0.1], [0.4, 0.6], [0.6, 0.4], [0.2, 0.8]])
    >>> predictions = ClassPredictions(np.array([0, 0, 1, 1]), scores.argmax(axis=1), 2, scores)
    >>> auroc(predictions, Resamples.draw(np.arange(4), draws=0, seed=0)).tolist()
    [0.75]

    Source: Hanley and McNeil (1982): the probability that a positive row outranks a negative one.
    """
    if predictions.scores is None:
        raise DataError("auroc needs scores, but these predictions have none. Give `scores`.")
    if predictions.n_classes == 2:
        # Both classes have the same area. The larger log probability may round to 0, so rows are
        # ranked by the difference.
        ranked = {1: predictions.scores[:, 1] - predictions.scores[:, 0]}
    else:
        ranked = dict(enumerate(predictions.scores.T))
    areas = [_area(scores, predictions.truth == code, resamples) for code, scores in ranked.items()]
    wins, pairs = np.stack(areas, axis=1)
    return _mean_of_defined(wins, pairs)


@dataclass(frozen=True)
class Interval:
    """A value with the limits of its 95 % confidence interval."""

    value: float
    low: float
    high: float


def percentile_interval(values: Floats) -> Interval:
    """Return element 0 as the value, with the central 95 % of the other elements, the draws.

    Draws that are NaN are ignored; if all are, both limits are NaN.

    >>> percentile_interval(np.array([5.0, 3.0, 3.0, np.nan]))
    Interval(value=5.0, low=3.0, high=3.0)
    """
    defined = values[1:][~np.isnan(values[1:])]
    if not len(defined):
        return Interval(float(values[0]), np.nan, np.nan)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(defined, [tail, 1 - tail])
    return Interval(float(values[0]), float(low), float(high))


def mean_of_rows(values: NDArray[np.generic], resamples: Resamples) -> Floats:
    """Return the mean (1 + n_draws,) of values (n_samples,) over the rows of each resample.

    >>> mean_of_rows(np.array([1.0, 4.0]), Resamples.draw(np.array([0, 1]), 0, 0)).tolist()
    [2.5]
    """
    groups = resamples.group_of_row
    total = np.bincount(groups, weights=values, minlength=resamples.n_groups)
    n_rows = np.bincount(groups, minlength=resamples.n_groups)
    mean: Floats = (total @ resamples.counts) / (n_rows @ resamples.counts)
    return mean


def tally(
    rows: NDArray[np.int64], columns: Codes, shape: tuple[int, int], weight: float | Floats = 1.0
) -> csr_array:
    """Return a sparse matrix with `weight` added at each (row, column).

    >>> tally(np.array([0, 0, 1]), np.array([1, 1, 0]), shape=(2, 2)).toarray().tolist()
    [[0.0, 2.0], [1.0, 0.0]]
    """
    return csr_array((np.broadcast_to(weight, len(rows)), (rows, columns)), shape=shape)


def _by_class(predictions: ClassPredictions, resamples: Resamples) -> tuple[Floats, Floats, Floats]:
    """Return the number of correct, true and predicted rows of each class.

    Each has shape (n_classes, 1 + n_draws).
    """

    def counted(codes: Codes, groups: Codes) -> Floats:
        table = tally(codes, groups, (predictions.n_classes, resamples.n_groups))
        counts: Floats = table @ resamples.counts
        return counts

    groups, correct = resamples.group_of_row, predictions.truth == predictions.guess
    return (
        counted(predictions.truth[correct], groups[correct]),
        counted(predictions.truth, groups),
        counted(predictions.guess, groups),
    )


def _mean_of_defined(numerators: Floats, denominators: Floats) -> Floats:
    """Return the mean ratio over axis 0, ignoring zero denominators; NaN if all are zero."""
    defined = denominators > 0
    ratios = np.divide(numerators, denominators, out=np.zeros_like(denominators), where=defined)
    count = defined.sum(axis=0)
    undefined = np.full(count.shape, np.nan)
    mean: Floats = np.divide(ratios.sum(axis=0), count, out=undefined, where=count > 0)
    return mean


def _area(scores: Floats, positive: NDArray[np.bool_], resamples: Resamples) -> Floats:
    """Return the number of pairs won by the positive row, and of all pairs (2, 1 + n_draws).

    Levels are the distinct scores of the positives. A negative row loses to every level above it
    and half to a level it ties with, so half of it is added on each side of its position. A
    cumulative sum over the levels then counts the negatives that each level beats.
    """
    groups = resamples.group_of_row
    levels, level_of_positive = np.unique(scores[positive], return_inverse=True)
    shape = (len(levels) + 1, resamples.n_groups)
    positives = tally(level_of_positive, groups[positive], shape)
    negatives = sum(
        tally(np.searchsorted(levels, scores[~positive], side=side), groups[~positive], shape, 0.5)
        for side in ("left", "right")
    )
    blocks = range(0, resamples.counts.shape[1], BLOCK)
    return np.concatenate(
        [_pairs(positives, negatives, resamples.counts[:, at : at + BLOCK]) for at in blocks],
        axis=1,
    )


def _pairs(positives: csr_array, negatives: csr_array, counts: NDArray[np.float32]) -> Floats:
    """Return pairs won and all pairs (2, n_draws) from the tables (n_levels + 1, n_groups)."""
    won, beaten = positives @ counts, np.cumsum(negatives @ counts, axis=0)
    return np.stack([np.einsum("ld,ld->d", won, beaten), won.sum(axis=0) * beaten[-1]])
