"""Predictions and their metrics, with a jackknife over groups.

Every metric is a function of predictions and `Resamples`. It returns 1 + n_units numbers: first
the value over all groups, then the value with each unit (one or several groups) left out. Intervals
and tests are computed from them. Groups are left out instead of rows, because rows of a group are
correlated and intervals over rows would be too narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array
from scipy.special import log_softmax

from probekit.errors import DataError
from probekit.lazy_rows import Codes, Floats, Mask
from probekit.probes.score.metric_table import Family

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Maximum number of units that are left out one at a time; more groups are joined to units.
MOST_UNITS = 1000
WIDER_OVER_FOLDS = 2**0.5  # factor on standard errors of predictions of several outer folds
# Number of resamples that metrics of ranks compute at a time, and of numbers in a table of these.
BLOCK, BLOCK_CELLS = 128, 1 << 20


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
        scaled: Scores (n_samples, n_detected) for the classes of `detected`, on one scale for all
            fits; see `scaled_by`. None for a single fit, or if they are unknown.
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
    scaled: Floats | None = None

    @classmethod
    def of_scores(
        cls,
        truth: Codes,
        scores: Floats,
        are_logits: bool,
        folds: Codes | None = None,
        log_prior: Floats | None = None,
        positive: int | None = None,
    ) -> ClassPredictions:
        """Return predictions of the class with the highest of `scores` (n_samples, n_classes).

        `log_prior` holds the log class frequencies that class weights have removed from logits,
        (n_classes,) or one row for each prediction. They are added to the logits before the
        softmax; the predicted classes do not change. Other scores are not changed.

        >>> ClassPredictions.of_scores(np.array([1]), np.array([[0.5, 2.0]]), are_logits=False)
        ... # doctest: +ELLIPSIS
        ClassPredictions(truth=array([1]), guess=array([1]), n_classes=2, ...)
        """
        guess, n_classes = scores.argmax(axis=1), scores.shape[1]
        if are_logits:
            scores = log_softmax(scores if log_prior is None else scores + log_prior, axis=1)
        return cls(truth, guess, n_classes, scores, are_logits, folds, positive)

    def scaled_by(self, training: ClassPredictions) -> ClassPredictions:
        """Return these predictions with `scaled` scores, which are comparable between fits.

        Without scores nothing is changed.
        The scores for a class are centred and divided by their standard deviation, both over the
        `training` rows of the same fit. Those of the predicted rows would depend on their labels.
        Scores that are constant on the training rows become 0.

        >>> scores = np.array([[0.0, 2.0], [0.0, 4.0]])
        >>> own = ClassPredictions(np.array([0, 1]), np.array([1, 1]), 2, scores, positive=1)
        >>> own.scaled_by(own).scaled.tolist()
        [[-1.0], [1.0]]
        """
        columns = []
        for code in detected(self) if self.scores is not None else ():
            # A logarithm of 0 counts as less than that of any float.
            own, fitted = (
                np.nan_to_num(class_scores(one, code), posinf=1e3, neginf=-1e3)
                for one in (self, training)
            )
            mean, spread = fitted.mean(), fitted.std()
            # Equal scores have a deviation by rounding: their order would be that of the fits.
            columns.append((own - mean) / (spread if spread > 1e-12 * (1 + abs(mean)) else np.inf))
        return replace(self, scaled=np.stack(columns, axis=1)) if columns else self

    def ranked_together(self) -> ClassPredictions:
        """Return predictions of a single fit whose scores are the `scaled` ones, if there are any.

        Only scores for the classes of `detected` are kept.
        """
        if self.scaled is None:
            return self
        scores = np.zeros((len(self.truth), self.n_classes))
        scores[:, list(detected(self))] = self.scaled
        return replace(self, scores=scores, folds=None, scaled=None)

    @property
    def offers(self) -> frozenset[str]:
        """What is available to metrics besides `guess`: scores, probabilities, alarms."""
        available = {
            "scores": self.scores is not None,
            "probabilities": self.scores is not None and self.scores_are_log_probabilities,
            "alarms": self.alarms is not None,
        }
        return frozenset(name for name, is_available in available.items() if is_available)


@dataclass(frozen=True, eq=False)
class Resamples:
    """Jackknife resamples of groups: all groups first, then all groups except one unit at a time.

    A unit is one group. If there are more than 1,000 groups, a unit is several groups, joined at
    random. All predictions on the same rows share one `Resamples`, so that differences are paired.

    A sum over a resample is the sum over all rows minus that over the rows of the unit, so that no
    table of rows by resamples is needed.

    Attributes:
        group_of_row: The group number (n_samples,) of each row.
        unit_of_group: The unit (n_groups,) of each group.
        n_units: The number of units that are left out; 0 for the original sample only.
        widening: Factor on standard errors: 1, or `WIDER_OVER_FOLDS` for the predictions of several
            outer folds. These depend on each other, because their fits share training rows.
    """

    group_of_row: Codes
    unit_of_group: Codes
    n_units: int
    widening: float = 1.0

    @classmethod
    def leave_one_out(
        cls, groups: NDArray[np.generic], most: int = MOST_UNITS, widening: float = 1.0
    ) -> Resamples:
        """Return the resamples for rows with these groups (n_samples,), leaving out each unit.

        A unit is a group. If there are more than `most` groups, they are joined at random to
        `most` units of about equally many groups, which leaves the variance unbiased.

        >>> resamples = Resamples.leave_one_out(np.array(["s1", "s1", "s2"]))
        >>> resamples.sums().tolist()  # number of rows of all groups, without s1, without s2
        [[3.0, 1.0, 2.0]]

        Source: Kott (2001), The delete-a-group jackknife.
        """
        names, group_of_row = np.unique(groups, return_inverse=True)
        unit_of_group = np.arange(len(names))
        if len(names) > most:
            unit_of_group = np.random.default_rng(0).permutation(len(names)) % most
        return cls(group_of_row, unit_of_group, min(len(names), most), widening)

    @classmethod
    def whole(cls, n_rows: int) -> Resamples:
        """Return the original sample only, to compute the value of a metric without an interval.

        >>> Resamples.whole(2).sums().tolist()
        [[2.0]]
        """
        return cls(np.arange(n_rows), np.zeros(n_rows, dtype=np.int64), 0)

    def of_rows(self, rows: NDArray[np.generic]) -> Resamples:
        """Return the same resamples for some rows, given by a mask or by row numbers."""
        return replace(self, group_of_row=self.group_of_row[rows])

    @property
    def undrawn(self) -> Resamples:
        """The original sample only."""
        return replace(self, unit_of_group=np.zeros_like(self.unit_of_group), n_units=0)

    @property
    def n_groups(self) -> int:
        """The number of groups."""
        return len(self.unit_of_group)

    @cached_property
    def unit_of_row(self) -> Codes:
        """The unit (n_samples,) of each row."""
        return self.unit_of_group[self.group_of_row]

    @cached_property
    def weights(self) -> Floats:
        """The share of the rows (n_units,) that each unit holds."""
        return self.by_unit()[0, : self.n_units] / len(self.group_of_row)

    def by_unit(
        self,
        values: NDArray[np.generic] | None = None,
        cells: Codes | None = None,
        n_cells: int = 1,
    ) -> Floats:
        """Return the sums (n_cells, n_units) over the rows of each cell and unit; see `sums`.

        Without units to leave out there is one that has all rows.
        """
        n_units = max(1, self.n_units)
        places = self.unit_of_row if cells is None else cells * n_units + self.unit_of_row
        summed = np.bincount(places, weights=values, minlength=n_cells * n_units)
        return summed.reshape(n_cells, n_units).astype(np.float64)

    def sums(
        self,
        values: NDArray[np.generic] | None = None,
        cells: Codes | None = None,
        n_cells: int = 1,
    ) -> Floats:
        """Return the sums (n_cells, 1 + n_units) of values over rows of each cell and resample.

        Args:
            values: The value (n_samples,) of each row; None counts rows.
            cells: The cell (n_samples,) of each row, such as its class; None for one cell.
            n_cells: The number of cells.

        >>> resamples = Resamples.leave_one_out(np.array(["s1", "s1", "s2"]))
        >>> resamples.sums(np.array([1.0, 2.0, 4.0]), cells=np.array([0, 1, 1]), n_cells=2).tolist()
        [[1.0, 0.0, 1.0], [6.0, 4.0, 2.0]]
        """
        by_unit = self.by_unit(values, cells, n_cells)
        total = by_unit.sum(axis=1, keepdims=True)
        return np.hstack([total, total - by_unit])[:, : 1 + self.n_units]

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
    NaN for a resample that lost all rows of a class.

    >>> predictions = ClassPredictions(np.array([0, 0, 1, 1]), np.array([0, 0, 1, 0]), n_classes=3)
    >>> macro_f1(predictions, Resamples.whole(4)).round(3).tolist()
    [0.733]
    """
    hits, truths, guesses = _by_class(predictions, resamples)
    is_lost = ((truths == 0) & (truths[:, :1] > 0)).any(axis=0)
    return np.where(is_lost, np.nan, mean_of_defined(2 * hits, truths + guesses))


def auroc(predictions: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the area under the ROC curve; for several classes the mean over one-vs-rest areas.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.

    Ties count one half. Classes that occur in none or in all rows of a resample are excluded; the
    value is NaN if no class is left.

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
    """
    # Both of two classes have the same area.
    codes = [1] if predictions.n_classes == 2 else range(predictions.n_classes)
    return {code: class_scores(predictions, code) for code in codes}


def class_scores(predictions: ClassPredictions, code: int) -> Floats:
    """Return the scores (n_samples,) that rank the rows for a class.

    For two classes they are differences, because the larger log probability may round to 0.
    """
    scores = predictions.scores
    assert scores is not None, "metrics that rank rows are computed from scores only"
    of_class: Floats = scores[:, code]
    return of_class - scores[:, 1 - code] if predictions.n_classes == 2 else of_class


def mean_of_rows(values: NDArray[np.generic], resamples: Resamples) -> Floats:
    """Return the mean (1 + n_units,) of values (n_samples,) over the rows of each resample.

    >>> mean_of_rows(np.array([1.0, 4.0]), Resamples.whole(2)).tolist()
    [2.5]
    """
    return ratio(resamples.sums(values)[0], resamples.sums()[0])


def ratio(numerators: NDArray[np.generic], denominators: NDArray[np.generic]) -> Floats:
    """Return the quotient of two arrays; NaN where the denominator is not positive.

    >>> ratio(np.array([1.0, 1.0]), np.array([2.0, 0.0])).tolist()
    [0.5, nan]
    """
    undefined, is_defined = np.full(denominators.shape, np.nan), np.greater(denominators, 0)
    found: Floats = np.divide(numerators, denominators, out=undefined, where=is_defined)
    return found


def _blocks(
    resamples: Resamples, *levels: tuple[Codes, Codes, int]
) -> Iterator[tuple[Codes, list[Floats]]]:
    """Yield the units (n_block,) that some resamples leave out, and their numbers of rows.

    The first resample, which leaves out none, has the unit -1; the others are `BLOCK` at a time,
    or fewer if there are many levels.
    The numbers are one table (n_levels, n_block) for each entry of `levels`: the level and the unit
    of some rows, and the number of levels.
    """
    tables = []
    for level_of_row, unit_of_row, n_levels in levels:
        ones, shape = np.ones(len(level_of_row)), (n_levels, max(1, resamples.n_units))
        tables.append(csc_array((ones, (level_of_row, unit_of_row)), shape=shape))
    totals = [table.sum(axis=1)[:, None] for table in tables]
    yield np.array([-1]), totals
    most_levels = max(1, *(n_levels for _, _, n_levels in levels))
    step = min(BLOCK, max(1, BLOCK_CELLS // most_levels))
    for start in range(0, resamples.n_units, step):
        units = np.arange(start, min(start + step, resamples.n_units))
        pairs = zip(totals, tables, strict=True)
        yield units, [total - table[:, start : start + step].toarray() for total, table in pairs]


def _by_class(predictions: ClassPredictions, resamples: Resamples) -> tuple[Floats, Floats, Floats]:
    """Return the number of correct, true and predicted rows of each class.

    Each has shape (n_classes, 1 + n_units).
    """
    truth, guess, n_classes = predictions.truth, predictions.guess, predictions.n_classes
    return (
        resamples.sums(truth == guess, truth, n_classes),
        resamples.sums(None, truth, n_classes),
        resamples.sums(None, guess, n_classes),
    )


def mean_of_defined(numerators: Floats, denominators: Floats) -> Floats:
    """Return the mean ratio over axis 0, ignoring zero denominators; NaN if all are zero."""
    defined = denominators > 0
    ratios = np.divide(numerators, denominators, out=np.zeros_like(denominators), where=defined)
    return ratio(ratios.sum(axis=0), defined.sum(axis=0))


def _area(scores: Floats, positive: Mask, resamples: Resamples) -> Floats:
    """Return the number of pairs that the positive row wins, and of all pairs (2, 1 + n_units).

    A pair is a positive and a negative row; the row with the higher score wins, and a tie is half a
    win. Without a unit, the pairs of its rows with all others are missing; pairs of two of its rows
    are subtracted twice, and so added once.
    """
    _, levels = np.unique(scores, return_inverse=True)
    units, n_levels = resamples.unit_of_row, len(scores) + 1  # one more, so that starts are free
    of_positive, of_negative = levels[positive], levels[~positive]
    wins = np.empty(len(scores))  # of a positive row; of a negative row, the positive rows above it
    wins[positive] = _beaten(of_negative, of_positive)
    wins[~positive] = len(of_positive) - _beaten(of_positive, of_negative)
    # Keys that rank the rows within their unit.
    keys, starts = units * n_levels + levels, units[positive] * n_levels - 1
    inside = np.zeros(len(scores))
    inside[positive] = _beaten(keys[~positive], keys[positive]) - _beaten(keys[~positive], starts)
    n_won = resamples.by_unit(wins)[0]
    total = n_won.sum() / 2  # each pair counts for both of its rows
    won = np.concatenate([[total], total - n_won + resamples.by_unit(inside)[0]])
    n_positive, n_negative = resamples.sums(None, positive.astype(np.int64), 2)[::-1]
    return np.stack([won[: 1 + resamples.n_units], n_positive * n_negative])


def _beaten(others: Codes, numbers: Codes) -> Floats:
    """Return how many of the others each number exceeds; one that is equal counts one half.

    >>> _beaten(np.array([3, 1, 3]), np.array([3, 9])).tolist()
    [2.0, 3.0]
    """
    ordered = np.sort(others)
    left, right = (np.searchsorted(ordered, numbers, side=side) for side in ("left", "right"))
    return (left + right) / 2


MOST_KURTOSIS = 4.5  # of labels, for an interval of R2
RATES = (0.01, 0.05)  # allowed false positive rates, in the order of the columns of `alarms`
LEAST_ALARMS = 10  # smallest expected number of false alarms at a threshold on training rows


def auprc(predictions: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the average precision of the positive class.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.

    The precision at each distinct score of a positive row is weighted by the share of the positive
    rows with this score; rows with tied scores are accepted together. Uninformative scores reach
    the share of positive rows. Without a positive class, the average precision of each class
    against all others is averaged over the classes that occur in some, but not all, rows of a
    resample. NaN for resamples without positive or without negative rows, or without such a class.

    Rows of several fits are ranked together by their `scaled` scores, see `within_folds`: the mean
    over fits of few positive rows each is too high.

    >>> scores = np.array([[0.9, 0.1], [0.4, 0.6], [0.6, 0.4], [0.2, 0.8]])
    >>> predictions = ClassPredictions(np.array([0, 0, 1, 1]), scores.argmax(axis=1), 2, scores)
    >>> resamples = Resamples.whole(4)
    >>> auprc(replace(predictions, positive=1), resamples).round(3).tolist()
    [0.833]

    Source: Zhu (2004), Recall, precision and average precision; as in scikit-learn's
    `average_precision_score`.
    """
    parts = [_precisions(predictions, code, resamples) for code in detected(predictions)]
    sums, n_positive = np.stack(parts, axis=1)
    return mean_of_defined(sums, n_positive)


def detected(predictions: ClassPredictions) -> Sequence[int]:
    """Return the code of the positive class; without one, the codes of all classes."""
    positive = predictions.positive
    return range(predictions.n_classes) if positive is None else [positive]


def _precisions(predictions: ClassPredictions, code: int, resamples: Resamples) -> Floats:
    """Return the summed precision at the positive rows, and the number of these (2, 1 + n_units).

    Both are 0 in resamples without negative rows, where the precision is meaningless.

    Levels are the distinct scores of the positives. A negative row is accepted at all levels up to
    its score, so it is counted at the highest of them; below all levels it never counts.
    """
    scores, is_positive = class_scores(predictions, code), predictions.truth == code
    units = resamples.unit_of_row
    levels, level_of_positive = np.unique(scores[is_positive], return_inverse=True)
    level_of_negative = np.searchsorted(levels, scores[~is_positive], side="right") - 1
    is_counted = level_of_negative >= 0
    blocks = _blocks(
        resamples,
        (level_of_positive, units[is_positive], len(levels)),
        (level_of_negative[is_counted], units[~is_positive][is_counted], len(levels)),
    )
    sums = []
    for _, (hits, negatives) in blocks:  # numbers of rows (n_levels, n_draws)
        # A level accepts the rows at this level and at all higher ones.
        accepted_hits = np.cumsum(hits[::-1], axis=0)[::-1]
        accepted = accepted_hits + np.cumsum(negatives[::-1], axis=0)[::-1]
        shape = accepted.shape
        precision = np.divide(accepted_hits, accepted, out=np.zeros(shape), where=accepted > 0)
        sums.append([np.einsum("ld,ld->d", hits, precision), hits.sum(axis=0)])
    has_negatives: Mask = resamples.sums(~is_positive)[0] > 0
    return np.concatenate(sums, axis=-1) * has_negatives


def thresholds(negatives: Floats) -> Floats:
    """Return the score thresholds (n_rates,) that allow the false positive rates in `RATES`.

    A threshold is the k-th largest of the n scores of negative rows. A new negative row, if it is
    exchangeable with these, exceeds it with probability at most k / (n + 1); k is the largest
    number for which this is at most the allowed rate. NaN for a rate at which fewer than
    `LEAST_ALARMS` of the n rows are expected to raise an alarm.

    >>> thresholds(np.arange(399.0)).tolist()  # 20 of 400 are 5 %; 1 % needs 1,000 negatives
    [nan, 379.0]

    Source: Vovk, Gammerman and Shafer (2005), Algorithmic learning in a random world (conformal
    prediction).
    """
    descending, n = -np.sort(-negatives), len(negatives)
    found = np.full(len(RATES), np.nan)
    for number, rate in enumerate(RATES):
        if n * rate >= LEAST_ALARMS:
            k = int(rate * (n + 1) + 1e-9)  # an integer may be rounded to just below itself
            found[number] = descending[k - 1]
    return found


def fixed_thresholds(held_out: ClassPredictions) -> Floats:
    """Return the thresholds (n_rates,) from the negative rows of predictions.

    `held_out` are predictions of training rows by a fit without the group of the row.
    """
    assert held_out.positive is not None
    scores = class_scores(held_out, held_out.positive)
    return thresholds(scores[held_out.truth != held_out.positive])


def with_alarms(predictions: ClassPredictions, limits: Floats) -> ClassPredictions:
    """Return the predictions with alarms (n_samples, n_rates), given the thresholds `limits`.

    An alarm is 1 if the score of the positive class exceeds the threshold, else 0. It is NaN if the
    threshold is NaN.
    """
    assert predictions.positive is not None
    scores = class_scores(predictions, predictions.positive)[:, None]
    alarms = np.where(np.isnan(limits), np.nan, (scores > limits).astype(np.float64))
    return replace(predictions, alarms=alarms)


def _alarm_rate(
    predictions: ClassPredictions, resamples: Resamples, rate: float, of_positives: bool
) -> Floats:
    """Return the share of positive rows, or of negative rows, with an alarm.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.
    """
    assert predictions.alarms is not None, "rates are computed from alarms only"
    alarms = predictions.alarms[:, RATES.index(rate)]
    is_averaged = (predictions.truth == predictions.positive) == of_positives
    return mean_of_rows(alarms[is_averaged], resamples.of_rows(is_averaged))


# Rates at the thresholds that allow a false positive rate of 1 % or 5 % on training rows.
tpr_at_fpr_1 = partial(_alarm_rate, rate=0.01, of_positives=True)
tpr_at_fpr_5 = partial(_alarm_rate, rate=0.05, of_positives=True)
achieved_fpr_1 = partial(_alarm_rate, rate=0.01, of_positives=False)
achieved_fpr_5 = partial(_alarm_rate, rate=0.05, of_positives=False)


BINS = 15  # of confidence
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
    value = calibration_errors(predictions, resamples)[0]
    return np.append(value, np.full(resamples.n_units, np.nan))


def calibration_errors(
    predictions: ClassPredictions, resamples: Resamples
) -> tuple[float, Floats, float]:
    """Return the calibration error without bias, with bias, and its bias if it is 0.

    The second has shape (1 + n_units,), as `ece`.
    """
    confidence = confidence_of(predictions)
    bins, n_rows, n_groups = bin_of(confidence, BINS), len(confidence), resamples.n_groups
    excess = (predictions.truth == predictions.guess) - confidence
    cells = bins * n_groups + resamples.group_of_row
    by_group = np.bincount(cells, weights=excess, minlength=BINS * n_groups).reshape(BINS, -1)
    others = by_group.sum(axis=1, keepdims=True) - by_group
    signs = np.sign(others) * (np.abs(others) > ROUNDING)
    plug_in = ratio(np.abs(resamples.sums(excess, bins, BINS)).sum(axis=0), resamples.sums()[0])
    # The mean absolute deviation of a normal sum is sqrt(2 / pi) times its standard deviation.
    bias = np.sqrt(2 / np.pi * np.square(by_group).sum(axis=1)).sum() / n_rows
    return float((signs * by_group).sum() / n_rows), plug_in, float(bias)


def _probabilities(predictions: ClassPredictions) -> Floats:
    """Return the probability (n_samples, n_classes) of each class."""
    assert predictions.scores is not None, "computed from log probabilities only"
    return np.exp(predictions.scores)


def confidence_of(predictions: ClassPredictions) -> Floats:
    """Return the probability (n_samples,) of the predicted class of each row."""
    probabilities = _probabilities(predictions)
    return probabilities[np.arange(len(probabilities)), predictions.guess]


def bin_of(confidence: Floats, bins: int) -> Codes:
    """Return the bin number (n_samples,) of each confidence.

    Bin b contains values above b / bins, up to and including (b + 1) / bins. Values just above an
    edge count as below it, because taking logarithms and exponentials changes the last bit.
    """
    numbers: Codes = np.ceil(confidence * bins - 1e-9).astype(np.int64) - 1
    return np.clip(numbers, 0, bins - 1)


# If the variance is below this fraction of the mean square, the numbers are constant.
SMALLEST_SPREAD = 1e-12


@dataclass(frozen=True, eq=False)
class NumberPredictions:
    """True and predicted numbers, `truth` and `guess` (n_samples,), of some rows.

    `folds` (n_samples,) is the number of the fit that predicted each row; None for a single fit.

    Raises:
        DataError: A number is not finite.
    """

    truth: Floats
    guess: Floats

    family: ClassVar[Family] = "number"
    offers: ClassVar[frozenset[str]] = frozenset()
    folds: Codes | None = None

    def __post_init__(self) -> None:
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
    # Centring by the overall mean, close to that of any resample, avoids cancellation.
    centred = predictions.truth - predictions.truth.mean()
    squared_errors = (predictions.truth - predictions.guess) ** 2
    summed = (resamples.sums(one)[0] for one in (None, centred, centred**2, squared_errors))
    n_rows, total, square, error = summed
    spread = square - total**2 / n_rows
    return 1 - ratio(error, np.where(spread > SMALLEST_SPREAD * square, spread, 0.0))


def has_heavy_tails(labels: Floats) -> bool:
    """Return whether the kurtosis of labels (n_samples,) exceeds 4.5; it is 3 for a normal one.

    A few labels then determine R2, and its interval covers too rarely: see docs/claims.md.
    """
    centred = labels - labels.mean()
    return bool((centred**4).mean() > MOST_KURTOSIS * np.square(centred).mean() ** 2)


def spearman(predictions: NumberPredictions, resamples: Resamples) -> Floats:
    """Return Spearman's rank correlation; ties get their mean rank.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.

    Ranks are computed within each resample. NaN if all rows of a resample have the same true or the
    same predicted number.

    >>> predictions = NumberPredictions(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0]))
    >>> spearman(predictions, Resamples.whole(3)).tolist()
    [0.5]
    """
    # The ranks in a resample follow from its number of rows at each level (distinct value).
    unit_of_row, levels = resamples.unit_of_row, []
    for values in (predictions.truth, predictions.guess):
        distinct, level_of_row = np.unique(values, return_inverse=True)
        levels.append((level_of_row, unit_of_row, len(distinct)))
    found, ((of_truth, *_), (of_guess, *_)) = [], levels
    for left_out, (n_a, n_b) in _blocks(resamples, *levels):
        a, b = _centred_ranks(n_a), _centred_ranks(n_b)
        squares = np.einsum("ld,ld,ld->d", n_a, a, a) * np.einsum("ld,ld,ld->d", n_b, b, b)
        kept = unit_of_row[:, None] != left_out
        products = np.einsum("rd,rd,rd->d", kept, a[of_truth], b[of_guess])
        # Ranks are multiples of 1/2, so these sums are exact: a single level gives exactly 0.
        found.append(ratio(products, np.sqrt(squares)))
    return np.concatenate(found)


def _centred_ranks(n_rows: Floats) -> Floats:
    """Return the mean rank (n_levels, n_draws) of each level with so many rows, minus the mean."""
    last = np.cumsum(n_rows, axis=0)
    # The ranks of a level are last - n_rows + 1 to last, with the mean last - (n_rows - 1) / 2. All
    # ranks are 1 to last[-1], with the mean (last[-1] + 1) / 2.
    centred: Floats = last - (n_rows + last[-1]) / 2
    return centred


P = TypeVar("P", bound="DataclassInstance")  # predictions of any kind


def take(predictions: P, rows: NDArray[np.generic]) -> P:
    """Return the predictions for some rows, given by a mask or by row numbers (n_taken,).

    >>> from probekit.probes.score.metrics import NumberPredictions
    >>> take(NumberPredictions(np.array([1.0, 2.0]), np.array([3.0, 4.0])), np.array([1, 0])).guess
    array([4., 3.])
    """
    values = {field.name: getattr(predictions, field.name) for field in fields(predictions)}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    return replace(predictions, **{name: array[rows] for name, array in arrays.items()})


def joined_folds(of_parts: Sequence[Codes | None], sizes: Sequence[int]) -> Codes:
    """Return fold numbers (n_samples,) for concatenated parts, so that no two parts share a fold.

    Args:
        of_parts: the folds (n_part,) within each part; None for a part with a single fit.
        sizes: the number of rows of each part.

    >>> joined_folds([None, np.array([0, 1, 1])], sizes=[2, 3]).tolist()
    [0, 0, 1, 2, 2]
    """
    joined, n_folds = [], 0
    for folds, size in zip(of_parts, sizes, strict=True):
        fold_of_row = np.zeros(size, dtype=np.int64) if folds is None else folds
        joined.append(fold_of_row + n_folds)
        n_folds += 1 + int(fold_of_row.max(initial=0))
    return np.concatenate(joined)


def within_folds(metric: Callable[..., Floats]) -> Callable[..., Floats]:
    """Return the metric averaged over the folds of the predictions, weighted by their rows.

    Predictions without folds come from a single fit; their metric is unchanged, and so is the AUPRC
    of `scaled` scores, which ranks the rows of all folds together. Folds in which the
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
        """Return the metric, averaged over folds."""
        predictions = predictions.ranked_together() if metric is auprc else predictions
        if predictions.folds is None:
            return metric(predictions, resamples)
        total = np.zeros(1 + resamples.n_units)
        n_rows = np.zeros_like(total)
        for fold in np.unique(predictions.folds):
            rows = predictions.folds == fold
            of_fold = resamples.of_rows(rows)
            value = metric(take(predictions, rows), of_fold)
            weight = np.where(np.isnan(value), 0.0, of_fold.sums()[0])
            total += weight * np.nan_to_num(value)
            n_rows += weight
        return ratio(total, n_rows)

    return averaged
