"""Scores of a probe, and their grouped bootstrap.

Every metric is a function of the answers and of how often each group counts; it returns one number
for each column of counts. Column 0 counts each group once and gives the value itself, the others
are bootstrap draws and give the interval. Groups are resampled, not rows: rows of a group resemble
each other, and intervals over rows would be too narrow.
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
# Draws that AUROC treats at a time; 128 columns of 25,000 rows are 26 MB.
BLOCK = 128


@dataclass(frozen=True, eq=False)
class ClassPredictions:
    """What a probe said on some rows: `truth` and `guess` (n_samples,) are label codes.

    `scores` (n_samples, n_classes) rank the rows for each class; a guess without scores has None.
    `scores_are_log_probabilities` says that they are natural logarithms of probabilities as well,
    which calibration needs and ranking does not.
    """

    truth: Codes
    guess: Codes
    n_classes: int
    family: ClassVar[Family] = "class"
    scores: Floats | None = None
    scores_are_log_probabilities: bool = False

    @property
    def offers(self) -> frozenset[str]:
        """What metrics may need beyond a guess: "scores" and "probabilities"."""
        if self.scores is None:
            return frozenset()
        return _PROBABILITIES if self.scores_are_log_probabilities else _SCORES


@dataclass(frozen=True, eq=False)
class Resamples:
    """How often each group counts: `counts` (n_groups, 1 + n_draws), and each row's group number.

    All answers on the same rows share one `Resamples`, so their differences are paired.
    """

    group_of_row: Codes
    counts: NDArray[np.float32]

    @classmethod
    def draw(cls, groups: NDArray[np.generic], draws: int, seed: int) -> Resamples:
        """Return `draws` resamples of the groups (n_samples,) with replacement.

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
        """The groups counted once each, without the draws."""
        return Resamples(self.group_of_row, self.counts[:, :1])

    @property
    def n_groups(self) -> int:
        """The number of groups."""
        return len(self.counts)


def accuracy(answers: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the share of rows guessed right.

    >>> answers = ClassPredictions(truth=np.array([0, 1]), guess=np.array([0, 0]), n_classes=2)
    >>> accuracy(answers, Resamples.draw(np.array([0, 1]), draws=0, seed=0)).tolist()
    [0.5]
    """
    return mean_of_rows(answers.truth == answers.guess, resamples)


def balanced_accuracy(answers: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the mean recall over the classes that occur in the rows counted.

    >>> answers = ClassPredictions(np.array([0, 0, 0, 1]), np.array([0, 0, 0, 0]), n_classes=2)
    >>> balanced_accuracy(answers, Resamples.draw(np.arange(4), draws=0, seed=0)).tolist()
    [0.5]
    """
    hits, truths, _ = _by_class(answers, resamples)
    return _mean_of_defined(hits, truths)


def macro_f1(answers: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the mean F1 over the classes that occur, as truth or as guess, in the rows counted.

    >>> answers = ClassPredictions(np.array([0, 0, 1, 1]), np.array([0, 0, 1, 0]), n_classes=3)
    >>> macro_f1(answers, Resamples.draw(np.arange(4), draws=0, seed=0)).round(3).tolist()
    [0.733]
    """
    hits, truths, guesses = _by_class(answers, resamples)
    return _mean_of_defined(2 * hits, truths + guesses)


def auroc(answers: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the area under the ROC curve; for more than two classes the mean of one against rest.

    Ties count one half. Classes that occur in none or in all of the rows counted are left out; NaN
    where that leaves no class.

    Raises:
        DataError: The answers have no scores.

    >>> scores = np.array([[0.9, 0.1], [0.4, 0.6], [0.6, 0.4], [0.2, 0.8]])
    >>> answers = ClassPredictions(np.array([0, 0, 1, 1]), scores.argmax(axis=1), 2, scores)
    >>> auroc(answers, Resamples.draw(np.arange(4), draws=0, seed=0)).tolist()
    [0.75]

    Source: Hanley and McNeil (1982): the probability that a positive row outranks a negative one.
    """
    if answers.scores is None:
        raise DataError("auroc needs scores, and these answers have none. Give `scores`.")
    if answers.n_classes == 2:
        # Both classes have the same area. Of log probabilities the larger rounds to 0; their
        # difference still ranks.
        ranked = {1: answers.scores[:, 1] - answers.scores[:, 0]}
    else:
        ranked = dict(enumerate(answers.scores.T))
    areas = [_area(scores, answers.truth == code, resamples) for code, scores in ranked.items()]
    wins, pairs = np.stack(areas, axis=1)
    return _mean_of_defined(wins, pairs)


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its 95 % interval."""

    value: float
    low: float
    high: float


def percentile_interval(values: Floats) -> Interval:
    """Return column 0 as the value, and the central 95 % of the draws (those that are not NaN).

    Without a draw that is defined, both ends are NaN.

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
    """Return the mean of a number per row (n_samples,), (1 + n_draws,).

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
    """Return a sparse matrix with `weight` at each (row, column), repeats added up.

    >>> tally(np.array([0, 0, 1]), np.array([1, 1, 0]), shape=(2, 2)).toarray().tolist()
    [[0.0, 2.0], [1.0, 0.0]]
    """
    return csr_array((np.broadcast_to(weight, len(rows)), (rows, columns)), shape=shape)


def _by_class(answers: ClassPredictions, resamples: Resamples) -> tuple[Floats, Floats, Floats]:
    """Return how often each class is guessed right, is true and is guessed.

    Each has shape (n_classes, 1 + n_draws).
    """

    def counted(codes: Codes, groups: Codes) -> Floats:
        table = tally(codes, groups, (answers.n_classes, resamples.n_groups))
        counts: Floats = table @ resamples.counts
        return counts

    groups, right = resamples.group_of_row, answers.truth == answers.guess
    return (
        counted(answers.truth[right], groups[right]),
        counted(answers.truth, groups),
        counted(answers.guess, groups),
    )


def _mean_of_defined(parts: Floats, wholes: Floats) -> Floats:
    """Return the mean over axis 0 of part / whole where whole is not 0; NaN if it always is."""
    defined = wholes > 0
    ratios = np.divide(parts, wholes, out=np.zeros_like(wholes), where=defined)
    count = defined.sum(axis=0)
    nothing = np.full(count.shape, np.nan)
    mean: Floats = np.divide(ratios.sum(axis=0), count, out=nothing, where=count > 0)
    return mean


def _area(scores: Floats, positive: NDArray[np.bool_], resamples: Resamples) -> Floats:
    """Return (2, 1 + n_draws): the pairs that the positive row wins, and all pairs.

    With the positives' distinct scores as levels, a negative row loses to every level above it, and
    half to the level it ties with: so it enters half at each side of its place, and a running sum
    over the levels counts the negatives that each level beats.
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
    """Return (2, n_draws), pairs won and all pairs, of the tables (n_levels + 1, n_groups)."""
    won, beaten = positives @ counts, np.cumsum(negatives @ counts, axis=0)
    return np.stack([np.einsum("ld,ld->d", won, beaten), won.sum(axis=0) * beaten[-1]])
