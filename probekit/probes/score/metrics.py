"""Metrics for classification, with a jackknife over groups.

Every metric is a function of predictions and `Resamples`. It returns 1 + n_units numbers: first
the value over all groups, then the value with each unit (one or several groups) left out. Intervals
and tests are computed from them. Groups are left out instead of rows, because rows of a group are
correlated and intervals over rows would be too narrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import log_softmax

from probekit.errors import DataError
from probekit.probes.score.metric_table import Family
from probekit.probes.solve.design import Floats
from probekit.probes.solve.solver import Codes

_SCORES, _PROBABILITIES = frozenset({"scores"}), frozenset({"scores", "probabilities"})
_ALARMS, _NOTHING = frozenset({"alarms"}), frozenset[str]()
# Maximum number of units that are left out one at a time; more groups are joined to units.
MOST_UNITS = 1000
WIDER_OVER_FOLDS = 2**0.5  # factor on standard errors of predictions of several outer folds
# Number of resamples that AUROC computes at a time; 128 columns of 25,000 rows take 26 MB.
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
        positive: Code of the class that metrics of one class refer to; None if there is none.
        alarms: Alarm (n_samples, n_rates) of each row at each threshold: 1 if its score for
            `positive` exceeds the threshold, else 0. Chance level predictions have fractions. NaN
            for a threshold that could not be fixed; None without thresholds.
    """

    truth: Codes
    guess: Codes
    n_classes: int
    family: ClassVar[Family] = "class"
    scores: Floats | None = None
    scores_are_log_probabilities: bool = False
    folds: Codes | None = None
    positive: int | None = None
    alarms: Floats | None = None

    @classmethod
    def of_scores(
        cls,
        truth: Codes,
        scores: Floats,
        are_logits: bool,
        folds: Codes | None = None,
        log_prior: Floats | None = None,
    ) -> ClassPredictions:
        """Return predictions of the class with the highest of `scores` (n_samples, n_classes).

        `log_prior` holds the log class frequencies that class weights have removed from logits,
        (n_classes,) or one row for each prediction. They are added to the log probabilities; the
        predicted classes do not change.

        >>> ClassPredictions.of_scores(np.array([1]), np.array([[0.5, 2.0]]), are_logits=False)
        ... # doctest: +ELLIPSIS
        ClassPredictions(truth=array([1]), guess=array([1]), n_classes=2, ...)
        """
        guess, n_classes = scores.argmax(axis=1), scores.shape[1]
        if are_logits:
            scores = log_softmax(scores if log_prior is None else scores + log_prior, axis=1)
        return cls(truth, guess, n_classes, scores, are_logits, folds)

    @property
    def offers(self) -> frozenset[str]:
        """What is available to metrics besides `guess`: scores, probabilities, alarms."""
        alarms = _NOTHING if self.alarms is None else _ALARMS
        if self.scores is None:
            return alarms
        return alarms | (_PROBABILITIES if self.scores_are_log_probabilities else _SCORES)


@dataclass(frozen=True, eq=False)
class Resamples:
    """Jackknife resamples of groups: all groups first, then all groups except one unit at a time.

    A unit is one group. If there are more than 1,000 groups, a unit is several groups, joined at
    random. All predictions on the same rows share one `Resamples`, so that differences are paired.

    Attributes:
        group_of_row: The group number (n_samples,) of each row.
        counts: Multiplicity (n_groups, 1 + n_units) of each group in each resample; column 0 is the
            original sample.
        widening: Factor on standard errors: 1, or `WIDER_OVER_FOLDS` for the predictions of several
            outer folds. These depend on each other, because their fits share training rows.
    """

    group_of_row: Codes
    counts: NDArray[np.float32]
    widening: float = 1.0

    @classmethod
    def leave_one_out(
        cls, groups: NDArray[np.generic], most: int = MOST_UNITS, widening: float = 1.0
    ) -> Resamples:
        """Return the resamples for rows with these groups (n_samples,), leaving out each unit.

        A unit is a group. If there are more than `most` groups, they are joined at random to
        `most` units of about equally many groups, which leaves the variance unbiased.

        >>> resamples = Resamples.leave_one_out(np.array(["s1", "s1", "s2"]))
        >>> resamples.counts.tolist()
        [[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]

        Source: Kott (2001), The delete-a-group jackknife.
        """
        names, group_of_row = np.unique(groups, return_inverse=True)
        unit = np.arange(len(names))
        if len(names) > most:
            unit = np.random.default_rng(0).permutation(len(names)) % most
        counts = np.ones((len(names), 1 + unit.max() + 1), dtype=np.float32)
        counts[np.arange(len(names)), 1 + unit] = 0
        return cls(group_of_row, counts, widening)

    @classmethod
    def whole(cls, n_rows: int) -> Resamples:
        """Return the original sample only, to compute the value of a metric without an interval.

        >>> Resamples.whole(2).counts.tolist()
        [[1.0], [1.0]]
        """
        return cls(np.arange(n_rows), np.ones((n_rows, 1), dtype=np.float32))

    @property
    def undrawn(self) -> Resamples:
        """The original sample only."""
        return Resamples(self.group_of_row, self.counts[:, :1], self.widening)

    @property
    def n_groups(self) -> int:
        """The number of groups."""
        return len(self.counts)

    @cached_property
    def weights(self) -> Floats:
        """The share of the rows (n_units,) that each unit holds."""
        n_rows = np.bincount(self.group_of_row, minlength=self.n_groups)
        left_out = n_rows @ (1.0 - self.counts[:, 1:])
        shares: Floats = left_out / len(self.group_of_row)
        return shares

    @property
    def n_effective(self) -> float:
        """The effective number of units: their number if all have equally many rows, else fewer."""
        return float(1 / np.square(self.weights).sum())


def accuracy(predictions: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the accuracy: the fraction of correct predictions.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.

    >>> predictions = ClassPredictions(truth=np.array([0, 1]), guess=np.array([0, 0]), n_classes=2)
    >>> accuracy(predictions, Resamples.whole(2)).tolist()
    [0.5]
    """
    return mean_of_rows(predictions.truth == predictions.guess, resamples)


def balanced_accuracy(predictions: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the balanced accuracy: the mean recall over the classes that occur in a resample.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.

    >>> predictions = ClassPredictions(np.array([0, 0, 0, 1]), np.array([0, 0, 0, 0]), n_classes=2)
    >>> balanced_accuracy(predictions, Resamples.whole(4)).tolist()
    [0.5]
    """
    hits, truths, _ = _by_class(predictions, resamples)
    return mean_of_defined(hits, truths)


def macro_f1(predictions: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the macro F1: the mean F1 over the classes that are true or predicted in a resample.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.

    >>> predictions = ClassPredictions(np.array([0, 0, 1, 1]), np.array([0, 0, 1, 0]), n_classes=3)
    >>> macro_f1(predictions, Resamples.whole(4)).round(3).tolist()
    [0.733]
    """
    hits, truths, guesses = _by_class(predictions, resamples)
    return mean_of_defined(2 * hits, truths + guesses)


def auroc(predictions: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the area under the ROC curve; for several classes the mean over one-vs-rest areas.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.

    Ties count one half. Classes that occur in none or in all rows of a resample are excluded; the
    value is NaN if no class is left.

    Raises:
        DataError: The predictions have no scores.

    >>> scores = np.array([[0.9, 0.1], [0.4, 0.6], [0.6, 0.4], [0.2, 0.8]])
    >>> predictions = ClassPredictions(np.array([0, 0, 1, 1]), scores.argmax(axis=1), 2, scores)
    >>> auroc(predictions, Resamples.whole(4)).tolist()
    [0.75]

    Source: Hanley and McNeil (1982): the probability that a positive row outranks a negative one.
    """
    ranked = ranking_scores(predictions)
    areas = [_area(scores, predictions.truth == code, resamples) for code, scores in ranked.items()]
    wins, pairs = np.stack(areas, axis=1)
    return mean_of_defined(wins, pairs)


def ranking_scores(predictions: ClassPredictions) -> dict[int, Floats]:
    """Return the scores (n_samples,) that rank the rows for each class, by class code.

    Of two classes, only code 1 is included.

    Raises:
        DataError: The predictions have no scores.
    """
    # Both of two classes have the same area.
    codes = [1] if predictions.n_classes == 2 else range(predictions.n_classes)
    return {code: class_scores(predictions, code) for code in codes}


def class_scores(predictions: ClassPredictions, code: int) -> Floats:
    """Return the scores (n_samples,) that rank the rows for a class.

    For two classes they are differences, because the larger log probability may round to 0.

    Raises:
        DataError: The predictions have no scores.
    """
    scores = predictions.scores
    if scores is None:
        raise DataError(
            "Ranking rows needs scores, but these predictions have none. Give `scores`."
        )
    own: Floats = scores[:, code]
    return own - scores[:, 1 - code] if predictions.n_classes == 2 else own


def mean_of_rows(values: NDArray[np.generic], resamples: Resamples) -> Floats:
    """Return the mean (1 + n_units,) of values (n_samples,) over the rows of each resample.

    >>> mean_of_rows(np.array([1.0, 4.0]), Resamples.whole(2)).tolist()
    [2.5]
    """
    groups = resamples.group_of_row
    total = np.bincount(groups, weights=values, minlength=resamples.n_groups)
    n_rows = np.bincount(groups, minlength=resamples.n_groups) @ resamples.counts
    undefined = np.full(n_rows.shape, np.nan)  # without rows, if there is one group only
    mean: Floats = np.divide(total @ resamples.counts, n_rows, out=undefined, where=n_rows > 0)
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

    Each has shape (n_classes, 1 + n_units).
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


def mean_of_defined(numerators: Floats, denominators: Floats) -> Floats:
    """Return the mean ratio over axis 0, ignoring zero denominators; NaN if all are zero."""
    defined = denominators > 0
    ratios = np.divide(numerators, denominators, out=np.zeros_like(denominators), where=defined)
    return _divided(ratios.sum(axis=0), defined.sum(axis=0))


def _divided(numerators: Floats, denominators: NDArray[np.number]) -> Floats:
    """Return the ratios; NaN where the denominator is not positive."""
    undefined = np.full(denominators.shape, np.nan)
    ratios: Floats = np.divide(numerators, denominators, out=undefined, where=denominators > 0)
    return ratios


def _area(scores: Floats, positive: NDArray[np.bool_], resamples: Resamples) -> Floats:
    """Return the number of pairs that the positive row wins, and of all pairs (2, 1 + n_units).

    A pair is a positive and a negative row; the row with the higher score wins.

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
