"""P-values of the association between predictions and labels, from exchanged labels.

Rows of a group are dependent, often along the label: all rows with the word "keys" share a noun and
a label. The statistic is therefore a t statistic over groups, in which the spread of the groups'
contributions is estimated again in each exchange:

- Groups with a single label exchange their labels with each other, within a fold. The statistic is
  Welch's t: each group counts once, with the mean of its rows, and each label has a variance of its
  own. The null hypothesis is that the mean prediction of a group does not depend on its label, so
  that large groups may differ from small ones.
- In a group with several labels, rows exchange labels. The contribution of the group is its score,
  minus the score that is expected if predictions and labels are independent within the group.

Data with both sorts of groups use both. A label that only one group of the first sort has gives
no estimate of its variance, so this group is left out. All sites of a run share the same exchanges,
so that the p-value of the best site can be computed from the maximum over sites. The predictions
are fixed: nothing is refitted. `permuted_labels` is for null distributions of probe directions,
which require that probes are refitted.

Predictions of several outer folds are dependent: a row that is tested in one fold trains the probes
of the others, so that each pair of rows contributes twice and the variance doubles. The null
distribution is therefore widened by sqrt(2). The false positive rates of the tests are simulated by
`python -m benchmarks.claims`.

Source: Janssen (1997), Studentized permutation tests for non-i.i.d. hypotheses and the generalized
Behrens-Fisher problem; Winkler et al. (2015), Multi-level block permutation (whole-block and
within-block exchange).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from probekit.errors import DataError
from probekit.lazy_rows import Codes, Floats, Mask
from probekit.probes.score.contributions import RowScores
from probekit.probes.score.metrics import WIDER_OVER_FOLDS

# With fewer distinct arrangements no p-value is given: the smallest possible one is above 0.05.
FEWEST_ARRANGEMENTS = 20
MOST_EXACT = 14  # up to 2^14 sign patterns are all computed
BLOCK = 1000  # number of sign patterns computed at a time
MOST_ENTRIES = 2_000_000  # largest number of exchanged labels at a time
CACHED = 300_000  # numbers that the cache of a processor core holds


def sign_patterns(n_units: int, draws: int, seed: int) -> Iterator[NDArray[np.int8]]:
    """Yield sign patterns (n_patterns, n_units) in blocks, the observed pattern of only +1 first.

    All patterns are yielded if there are at most 2^14 of them, otherwise the observed one and
    `draws` random ones.

    >>> np.concatenate(list(sign_patterns(2, draws=100, seed=0))).tolist()
    [[1, 1], [-1, 1], [1, -1], [-1, -1]]
    """
    if n_units <= MOST_EXACT:
        numbers = np.arange(2**n_units)
        for start in range(0, len(numbers), BLOCK):
            bits = (numbers[start : start + BLOCK, None] >> np.arange(n_units)) & 1
            yield (1 - 2 * bits).astype(np.int8)
        return
    yield np.ones((1, n_units), dtype=np.int8)
    generator = np.random.default_rng(seed)
    for start in range(0, draws, BLOCK):
        size = min(BLOCK, draws - start), n_units
        yield (2 * generator.integers(2, size=size, dtype=np.int8) - 1).astype(np.int8)


@dataclass(frozen=True, eq=False)
class Null:
    """Statistics of sites for the true labels and for exchanged labels.

    Attributes:
        t: the t statistic (n_sites, 1 + n_exchanges), first that of the true labels.
        scores: the score (n_sites, 1 + n_exchanges) over rows, up to a constant of each site.
        floors: the smallest credible p-value (n_sites,): that of agreement by chance.
    """

    t: Floats
    scores: Floats
    floors: Floats

    @property
    def p(self) -> PValues:
        """The p-values of the sites; none is below its floor."""
        found = p_values(self.t[:, 0], self.t[:, 1:])
        return PValues(*np.maximum([found.single, found.maximum], self.floors))


@dataclass(frozen=True, eq=False)
class LabelExchange:
    """Exchanges of labels between groups and within groups of rows, the same for all sites.

    Attributes:
        labels: the label (n_samples, n_labels) of each row; see `RowScores`.
        groups: the group (n_samples,) of each row.
        fold_of_row: the outer fold (n_samples,) in which each row is a test row; the same for all
            rows of a group.
        draws: number of random exchanges.
        seed: random seed.
    """

    labels: Floats
    groups: NDArray[np.generic]
    fold_of_row: Codes
    draws: int
    seed: int

    @cached_property
    def group_of_row(self) -> Codes:
        """The group number (n_samples,) of each row."""
        numbers: Codes = np.unique(self.groups, return_inverse=True)[1]
        return numbers

    @property
    def name(self) -> str:
        """The name of the null distribution, for the column `null` of results.csv."""
        names = ["labels exchanged between groups"] * (len(self._whole) > 0)
        names += ["labels exchanged within groups"] * bool(self._mixed.any())
        names += ["widened 1.41 times for dependent folds"] * (self._widening > 1)
        return ", ".join(names)

    @property
    def n_groups(self) -> int:
        """The number of groups."""
        return len(self._first)

    @cached_property
    def _first(self) -> Codes:
        """The first row (n_groups,) of each group."""
        return np.unique(self.group_of_row, return_index=True)[1]

    @property
    def _n_classes(self) -> int:
        """The number of classes; 0 if labels are numbers."""
        return self.labels.shape[1] if self.labels.shape[1] > 1 else 0

    @cached_property
    def _values(self) -> NDArray[Any]:
        """The class code, or the number, of each row (n_samples,)."""
        return self.labels.argmax(axis=1) if self._n_classes else self.labels[:, 0]

    @cached_property
    def _mixed(self) -> Mask:
        """Which groups (n_groups,) have several labels."""
        differs = self._values != self._values[self._first][self.group_of_row]
        return np.bincount(self.group_of_row, weights=differs) > 0

    @cached_property
    def _whole(self) -> Codes:
        """The numbers of the groups with a single label that exchange it, fold by fold."""
        whole = np.flatnonzero(~self._mixed)
        codes = self._values[self._first[whole]]
        if self._n_classes:  # a label of one group only has no estimate of its variance
            whole = whole[np.bincount(codes)[codes] > 1]
        folds: Codes = self.fold_of_row[self._first[whole]]
        return whole[np.argsort(folds, kind="stable")]

    @property
    def _widening(self) -> float:
        """The factor on the statistics of exchanges: larger over dependent folds."""
        return WIDER_OVER_FOLDS if len(np.unique(self.fold_of_row)) > 1 else 1.0

    @cached_property
    def _folds(self) -> list[slice]:
        """For each fold, its part of `_whole`."""
        folds = self.fold_of_row[self._first[self._whole]]
        ends = np.cumsum(np.unique(folds, return_counts=True)[1]).tolist()
        # The last end is the start of no fold, so that `zip` drops it.
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    @cached_property
    def n_arrangements(self) -> float:
        """The number of distinct arrangements of the labels; inf if they are very many.

        A group with several labels counts as two arrangements, as if its contribution had a random
        sign, because its rows may depend on each other.
        """
        logs = [self._mixed.sum() * np.log(2.0)]
        for part in self._folds:
            _, counts = np.unique(self._values[self._first[self._whole[part]]], return_counts=True)
            # The logarithm of n! / (n_1! n_2! ...), with n_k groups of label k.
            logs.append(gammaln(counts.sum() + 1) - gammaln(counts + 1).sum())
        with np.errstate(over="ignore"):
            return float(np.rint(np.exp(sum(logs))))

    @property
    def is_enough(self) -> bool:
        """Whether there are enough distinct arrangements for a p-value."""
        return self.n_arrangements >= FEWEST_ARRANGEMENTS

    def null(self, rows: Sequence[RowScores]) -> Null:
        """Return the statistics of sites under the true labels and under each exchange.

        Args:
            rows: for each site, the score of each row under each label.

        >>> labels = np.eye(2)[[0, 0, 0, 1, 1, 1]]
        >>> exchange = LabelExchange(labels, np.arange(6), np.zeros(6, int), draws=99, seed=0)
        >>> scores = np.array([[0.6, 0.4], [0.8, 0.2], [0.7, 0.3]])
        >>> null = exchange.null([RowScores(np.concatenate([scores, 1 - scores]) / 6, labels)])
        >>> null.t.shape, int(null.t.argmax()), int(null.scores.argmax())
        ((1, 100), 0, 0)
        """
        scores_of_rows = np.stack([one.scores for one in rows], axis=-1)
        parts: list[_Groups | _Rows] = [self._groups(scores_of_rows), *self._rows(scores_of_rows)]
        # Arrays (2, 3, n_draws, n_sites): of groups with one label, and of those with several. The
        # first array has the true labels as its only draw.
        sums = [_by_sort([part.sums(part.labels[None]) for part in parts])]
        rng = np.random.default_rng(self.seed)
        block = max(1, MOST_ENTRIES // max(1, len(self.labels)))  # independent of the sites
        for start in range(0, self.draws, block):
            n_draws = min(block, self.draws - start)
            sums.append(_by_sort([part.sums(part.exchanged(n_draws, rng)) for part in parts]))
        total, variance, scores = np.concatenate(sums, axis=2).transpose(1, 0, 3, 2)
        wider = np.append(1.0, np.full(self.draws, self._widening))  # of exchanges only
        t = _ratio(total.sum(axis=0), np.sqrt(variance.sum(axis=0))) * wider
        scores = scores.sum(axis=0)
        centre = scores[:, 1:].mean(axis=1, keepdims=True)
        scores = np.where(wider == 1, scores, centre + wider * (scores - centre))
        # Where all groups of a sort agree, p is at least the product of the p-values of both sorts.
        agreement = np.transpose([self._agreement(one.guess) for one in rows])
        of_sorts = _ratio(total, np.sqrt(variance)) * wider
        p = [p_values(one[:, 0], one[:, 1:]).single for one in of_sorts]
        floors = np.where(agreement.any(axis=0), np.maximum(p, agreement).prod(axis=0), 0.0)
        if any(one.stricter for one in rows):
            others = self.null([one.stricter or one for one in rows])
            floors = np.maximum(floors, others.p.single)
        return Null(t, scores, floors)

    def _agreement(self, guess: Codes | None) -> tuple[float, float]:
        """Return the probability that all groups agree by chance: of one label, and of several.

        It is 0 if not all of them agree.

        Args:
            guess: the predicted class (n_samples,) of a metric that counts hits; None for others.
        """
        if guess is None:
            return 0.0, 0.0
        n_rows = np.bincount(self.group_of_row)
        cells, shape = self.group_of_row * self._n_classes, (self.n_groups, self._n_classes)
        true, guessed = (
            np.bincount(cells + codes, minlength=np.prod(shape)).reshape(shape)
            for codes in (self._values, guess)
        )
        hits = np.bincount(self.group_of_row, weights=self._values == guess)
        expected = (true * guessed).sum(axis=1) / n_rows
        least = np.maximum(0, (true + guessed).max(axis=1) - n_rows)
        above, below = (hits - expected)[self._mixed], (expected - least)[self._mixed]
        varies = above**2 + below**2 > ROUNDING  # not if all rows have the same guess
        above, below = above[varies], below[varies]
        of_mixed = (below / (above + below)).prod() if (above > 0).all() and len(above) else 0.0
        # A group is all right with at most the probability of its label's mean share of guesses.
        labels = self._values[self._first[self._whole]]
        shares, of_whole = (guessed / n_rows[:, None])[self._whole], [0.0]
        for code in np.unique(labels):
            own, elsewhere = shares[labels == code, code], shares[labels != code, code]
            if own.min() == 1 and len(elsewhere):
                of_whole.append(elsewhere.mean() ** len(own))
        power = 1 / self._widening**2  # dependent folds count as half of the groups
        return float(max(of_whole) ** power), float(of_mixed**power)

    def _groups(self, scores: Floats) -> _Groups:
        """Return the groups with a single label, each with the mean score of its rows.

        `scores` (n_samples, n_labels, n_sites) are those of all rows.

        The mean of a fold is subtracted, because the scores of different fits differ by an offset.
        """
        n_rows = np.bincount(self.group_of_row)
        totals = np.zeros((self.n_groups, *scores.shape[1:]))
        np.add.at(totals, self.group_of_row, scores)
        means = (totals / n_rows[:, None, None])[self._whole]
        labels = self._values[self._first[self._whole]]
        for part in self._folds:
            means[part] = _rounded(means[part] - means[part].mean(axis=0), means)
            if not self._n_classes:
                labels[part] -= labels[part].mean()
        # The expected score of each group under exchanged labels is subtracted. For numbers it is 0
        # already, because the labels are centred.
        if self._n_classes:
            # Without such groups, nothing is changed, whatever the divisor.
            shares = np.bincount(labels, minlength=self._n_classes) / max(1, len(labels))
            means -= np.einsum("k,gks->gs", shares, means)[:, None]
        # A group counts as one of average size, to be added to groups with several labels.
        size = n_rows[self._whole].mean() if len(self._whole) else 1.0
        return _Groups(labels, means * size, totals[self._whole], self._folds, self._n_classes)

    def _rows(self, scores: Floats) -> Iterator[_Rows]:
        """Yield the groups with several labels, those of the same size together.

        `scores` (n_samples, n_labels, n_sites) are those of all rows.
        """
        n_rows = np.bincount(self.group_of_row)
        by_group = np.argsort(self.group_of_row, kind="stable")
        starts = np.cumsum(n_rows) - n_rows
        # The score of a group is sum(scores for the first label), which no exchange changes, plus
        # sum(gains) of its rows with other labels.
        gain = scores[:, 1:] - scores[:, :1] if self._n_classes else scores
        for size in np.unique(n_rows[self._mixed]):
            groups = np.flatnonzero(self._mixed & (n_rows == size))
            rows = by_group[starts[groups, None] + np.arange(size)]  # (number of groups, size)
            # The label counts of a group are fixed, so this subtracts its expected score.
            centred = gain[rows] - gain[rows].mean(axis=1, keepdims=True)
            yield _Rows(self._values[rows], _rounded(centred, gain), self._n_classes)


@dataclass(frozen=True, eq=False)
class _Groups:
    """Groups that exchange their labels (n_groups,) within folds."""

    labels: NDArray[Any]
    scores: Floats  # (n_groups, n_labels, n_sites)
    totals: Floats  # the sums of the rows' scores, of the same shape
    folds: Sequence[slice]
    n_classes: int

    def exchanged(self, draws: int, generator: np.random.Generator) -> NDArray[Any]:
        """Return exchanged labels (n_draws, n_groups)."""
        labels = np.tile(self.labels, (draws, 1))
        for part in self.folds:
            labels[:, part] = generator.permuted(labels[:, part], axis=1)
        return labels

    def sums(self, labels: NDArray[Any]) -> Floats:
        """Return sums over groups (3, n_draws, n_sites): `scores`, their variance, and `totals`."""
        score, variance, row_score = np.zeros((3, len(labels), self.scores.shape[2]))
        # Weights (n_draws, n_groups): 1 for groups with the label, else 0; the labels, for numbers.
        for number, weights in enumerate(_weights(labels, range(self.n_classes))):
            row_score += weights @ self.totals[:, number]
            # Every exchange gives the label to equally many groups.
            n = (weights != 0).sum(axis=1)[0] if self.n_classes else weights.shape[1]
            if n > 1:  # a label has no group or at least 2; a single number has no variance
                of_label = self.scores[:, number]
                total, squares = weights @ of_label, np.square(weights) @ np.square(of_label)
                spread = squares - np.square(total) / n
                spread[spread < ROUNDING * squares] = 0.0
                score += total
                variance += n / (n - 1) * spread  # each label has its own variance
        return np.stack([score, variance, row_score])


@dataclass(frozen=True, eq=False)
class _Rows:
    """Groups of the same size that exchange the labels (n_groups, n_rows) of their rows."""

    labels: NDArray[Any]
    # For classes, the gain in score of each label except the first over the first label, shape
    # (n_groups, n_rows, n_classes - 1, n_sites); for numbers, the score (n_groups, n_rows, 1,
    # n_sites). The mean over the rows of a group is 0.
    scores: Floats
    n_classes: int

    def exchanged(self, draws: int, generator: np.random.Generator) -> NDArray[Any]:
        """Return exchanged labels (n_draws, n_groups, n_rows)."""
        return generator.permuted(np.tile(self.labels, (draws, 1, 1)), axis=2)

    def sums(self, labels: NDArray[Any]) -> Floats:
        """Return the score, its variance and the score again (3, n_draws, n_sites).

        The third is the score of all rows, as in `_Groups.sums`. Here all rows count equally in
        both scores, which therefore differ only by a constant that no exchange changes.
        """
        n_draws, n_groups, _ = labels.shape
        score, variance = np.zeros((2, n_draws, self.scores.shape[3]))
        block = max(1, CACHED // score.size)
        for start in range(0, n_groups, block):
            groups = slice(start, start + block)
            by_group: Floats | float = 0.0
            # For classes, place 0 of the scores belongs to class 1.
            for number, weights in enumerate(_weights(labels[:, groups], range(1, self.n_classes))):
                by_group = by_group + weights.swapaxes(0, 1) @ self.scores[groups, :, number]
            score += np.sum(by_group, axis=0)
            variance += np.square(by_group).sum(axis=0)
        return np.stack([score, variance, score])


def _by_sort(sums: Sequence[Floats]) -> Floats:
    """Return the sums (2, 3, n_draws, n_sites) of groups with one label, and of all others."""
    first, *others = sums
    return np.stack([first, np.sum([np.zeros_like(first), *others], axis=0)])


def _weights(labels: NDArray[Any], classes: Sequence[int]) -> Iterator[Floats]:
    """Return an iterator over the weights of each class: 1 for labels of the class, else 0.

    Without `classes`, labels are numbers: the only weights are the labels themselves.
    """
    if not classes:
        return iter([labels])
    return ((labels == code).astype(np.float64) for code in classes)


def _rounded(differences: Floats, terms: Floats) -> Floats:
    """Return the differences, changed in place: those within the rounding of the terms are 0."""
    differences[np.abs(differences) < ROUNDING * np.abs(terms).max(initial=0.0)] = 0.0
    return differences


def _ratio(sums: Floats, error: Floats) -> Floats:
    """Return sums / error; without an error 0 if the sum is 0 up to rounding, else infinite."""
    sums = _rounded(sums, sums)
    with np.errstate(divide="ignore"):
        t: Floats = np.divide(sums, error, out=np.zeros_like(sums), where=(sums != 0) | (error > 0))
    return t


Permuted = NDArray[np.int32]

# Tolerance for equal scores whose terms were summed in a different order.
ROUNDING = 1e-12


def permuted_labels(truth: Codes, groups: NDArray[np.generic], draws: int, seed: int) -> Permuted:
    """Return random permutations (draws, n_samples) of the labels that respect the groups.

    Groups with a single label exchange it with each other, whatever their sizes. In groups with
    several labels, rows exchange labels within the group. If no permutation changes the labels, all
    permutations equal the labels.

    >>> permuted_labels(np.array([0, 0, 1]), np.array(["a", "a", "b"]), draws=3, seed=0).tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]

    Source: Winkler et al. (2015), Multi-level block permutation (whole-block and within-block
    exchange). They exchange blocks of the same size only; labels of whole groups need no such
    restriction.
    """
    _, first, group_of_row = np.unique(groups, return_index=True, return_inverse=True)
    # Uniform groups have a single label; the others are mixed.
    uniform = np.bincount(group_of_row, weights=truth != truth[first][group_of_row]) == 0
    mixed_rows = ~uniform[group_of_row]
    labels, rng = truth.astype(np.int32), np.random.default_rng(seed)
    permuted = np.empty((draws, len(truth)), dtype=np.int32)
    permuted[:, mixed_rows] = _shuffled(labels[mixed_rows], group_of_row[mixed_rows], draws, rng)
    label_of_group = np.empty((draws, len(first)), dtype=np.int32)
    # All uniform groups form one block, within which they exchange their labels.
    one_block = np.zeros(int(uniform.sum()), dtype=np.int64)
    label_of_group[:, uniform] = _shuffled(labels[first][uniform], one_block, draws, rng)
    permuted[:, ~mixed_rows] = label_of_group[:, group_of_row[~mixed_rows]]
    return permuted


@dataclass(frozen=True, eq=False)
class PValues:
    """Permutation p-values of each site (n_sites,).

    Attributes:
        single: Unadjusted p-values, valid for a site chosen in advance.
        maximum: p-values adjusted for all sites, by comparison with the best site of each
            permutation. The smallest is the p-value of the best site; rejecting all sites below
            0.05 controls the family-wise error rate at 0.05.
    """

    single: Floats
    maximum: Floats


def p_values(observed: Floats, permuted: Floats) -> PValues:
    """Return the p-values of the observed scores (n_sites,).

    `permuted` (n_sites, draws) are scores under the null hypothesis. The observed labels count as
    one additional permutation, so that no p-value is 0. The maximum is taken over unstandardised
    scores, which must be on the same scale, such as accuracies on the same rows.

    Raises:
        DataError: The number of sites differs, or a score is NaN.

    >>> p = p_values(np.array([0.9, 0.6]), np.array([[0.5, 0.4, 0.6], [0.5, 0.7, 0.4]]))
    >>> p.single.tolist(), p.maximum.tolist()
    ([0.25, 0.5], [0.25, 0.75])

    Source: Phipson and Smyth (2010), Permutation p-values should never be zero; Westfall and Young
    (1993), Resampling-based multiple testing (single step).
    """
    if len(observed) != len(permuted):
        raise DataError(
            f"There are observed scores of {len(observed)} sites, but permuted scores of "
            f"{len(permuted)}. Give both for the same sites."
        )
    if np.isnan(observed).any() or np.isnan(permuted).any():
        raise DataError("A score is NaN, so it cannot be ranked. Remove that site.")
    least = observed[:, None] - ROUNDING
    # The share of draws, the observed labels among them, at least as high as the observed score.
    of_all = (permuted, permuted.max(axis=0, keepdims=True))
    return PValues(*((1 + (one >= least).sum(axis=1)) / (1 + permuted.shape[1]) for one in of_all))


def holm(p: Floats) -> Floats:
    """Return the p-values (n_tests,) with Holm's adjustment for multiple comparisons.

    Raises:
        DataError: A value is not between 0 and 1.

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]

    Source: Holm (1979), A simple sequentially rejective multiple test procedure.
    """
    if not np.all((p >= 0) & (p <= 1)):
        raise DataError(f"p-values must be between 0 and 1, but are {p.tolist()}.")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(stepped)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def _shuffled(
    values: Permuted, blocks: Codes, draws: int, generator: np.random.Generator
) -> Permuted:
    """Return random permutations (draws, n) of the values (n,) within their blocks."""
    order = np.argsort(blocks, kind="stable")
    shuffled = np.empty((draws, len(values)), dtype=np.int32)
    for draw in range(draws):
        # Random numbers below 1 shuffle within a block and leave the blocks in order.
        shuffled[draw, order] = values[np.argsort(blocks + generator.random(len(values)))]
    return shuffled
