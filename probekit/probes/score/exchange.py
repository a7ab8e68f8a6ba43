"""Null distribution of scores, from exchanging labels between whole groups of rows.

`probekit.probes.score.permutation.p_values` computes p-values from it.

Rows of a group are dependent, often along the label: all rows with the word "keys" share a noun and
a label. Exchanging the labels of single rows would reject too many true null hypotheses. Instead:

- Groups with a single label exchange their labels with each other, within a fold.
- A group with several labels contributes its score, minus the score that is expected if predictions
  and labels are independent within the group. Under the null hypothesis the sign of this
  contribution is random, so the contributions of whole groups get random signs.

Data with both kinds of groups use both methods. All sites of a run share the same exchanges, so
that the p-value of the best site can be computed from the maximum over sites. The predictions are
fixed: nothing is refitted.

Predictions of several outer folds are dependent: a row that is tested in one fold trains the probes
of the others, so that each pair of rows contributes twice and the variance doubles. The null
distribution is therefore widened by a factor of 1.5: sqrt(2), as refitting on exchanged labels
would widen it, and a little more for few groups of different sizes. The false positive rates of the
tests are simulated by `python -m benchmarks.claims`.

Source: Winkler et al. (2015), Multi-level block permutation (whole-block exchange and sign flips);
Good (2005), Permutation, parametric and bootstrap tests of hypotheses, section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from probekit.probes.score.association import RowScores
from probekit.probes.score.metrics import WIDER_OVER_FOLDS
from probekit.probes.solve.design import Floats
from probekit.probes.solve.solver import Codes

# With fewer distinct arrangements no p-value is given: the smallest possible one is above 0.05.
FEWEST_ARRANGEMENTS = 20
MOST_EXACT = 14  # up to 2^14 sign patterns are all computed
BLOCK = 1000  # number of exchanges computed at a time
MOST_ENTRIES = 5_000_000  # largest size of an array (n_exchanges, n_groups)


def sign_patterns(n_units: int, draws: int, seed: int) -> Iterator[NDArray[np.int8]]:
    """Yield sign patterns (n_patterns, n_units) in blocks, the observed pattern of only +1 first.

    All patterns are yielded if there are at most 2^14 of them, otherwise `draws` random ones.

    >>> np.concatenate(list(sign_patterns(2, draws=100, seed=0))).tolist()
    [[1, 1], [-1, 1], [1, -1], [-1, -1]]
    """
    if n_units <= MOST_EXACT:
        numbers = np.arange(2**n_units)
        for at in range(0, len(numbers), BLOCK):
            bits = numbers[at : at + BLOCK, None] >> np.arange(n_units) & 1
            yield (1 - 2 * bits).astype(np.int8)
        return
    yield np.ones((1, n_units), dtype=np.int8)
    generator = np.random.default_rng(seed)
    for at in range(0, draws, BLOCK):
        size = min(BLOCK, draws - at), n_units
        yield (2 * generator.integers(2, size=size, dtype=np.int8) - 1).astype(np.int8)


@dataclass(frozen=True, eq=False)
class LabelExchange:
    """Exchanges of labels between whole groups of rows, the same for all sites.

    Attributes:
        labels: the label (n_samples, n_labels) of each row; see `RowScores`.
        group_of_row: the group number (n_samples,) of each row.
        fold_of_row: the outer fold (n_samples,) in which each row is a test row.
        draws: number of random exchanges, if not all can be computed.
        seed: random seed.
    """

    labels: Floats
    group_of_row: Codes
    fold_of_row: Codes
    draws: int
    seed: int

    @classmethod
    def of(
        cls,
        labels: Floats,
        groups: NDArray[np.generic],
        fold_of_row: Codes,
        draws: int,
        seed: int,
    ) -> LabelExchange:
        """Return the exchanges for rows with group names `groups` (n_samples,)."""
        return cls(labels, np.unique(groups, return_inverse=True)[1], fold_of_row, draws, seed)

    @property
    def name(self) -> str:
        """The name of the null distribution, for the column `null` of results.csv."""
        parts = {"labels permuted between groups": self._is_constant.any()}
        parts["random signs of whole groups"] = self._mixed.any()
        names = [name for name, is_part in parts.items() if is_part]
        return ", ".join(
            [*names, "widened 1.5 times for dependent folds"] if len(self._blocks) > 1 else names
        )

    @property
    def n_groups(self) -> int:
        """The number of groups."""
        return len(self._first)

    @cached_property
    def _first(self) -> Codes:
        """The first row (n_groups,) of each group."""
        first: Codes = np.unique(self.group_of_row, return_index=True)[1]
        return first

    @cached_property
    def _is_constant(self) -> NDArray[np.bool_]:
        """Which groups (n_groups,) have a single label."""
        differs = (self.labels != self.labels[self._first][self.group_of_row]).any(axis=1)
        constant: NDArray[np.bool_] = np.bincount(self.group_of_row, weights=differs) == 0
        return constant

    @cached_property
    def _blocks(self) -> list[Codes]:
        """For each fold, the groups with a single label, which exchange labels with each other."""
        folds = self.fold_of_row[self._first]
        return [
            np.flatnonzero(self._is_constant & (folds == fold))
            for fold in np.unique(self.fold_of_row)
        ]

    @cached_property
    def n_arrangements(self) -> float:
        """The number of distinct arrangements of the labels; inf if they are very many."""
        logs = [self._mixed.sum() * np.log(2.0)]
        for block in self._blocks:
            _, counts = np.unique(self.labels[self._first[block]], axis=0, return_counts=True)
            logs.append(gammaln(len(block) + 1) - gammaln(counts + 1).sum())
        with np.errstate(over="ignore"):
            return float(np.rint(np.exp(sum(logs))))

    @property
    def _mixed(self) -> NDArray[np.bool_]:
        return ~self._is_constant

    @property
    def is_enough(self) -> bool:
        """Whether there are enough distinct arrangements for a p-value."""
        return self.n_arrangements >= FEWEST_ARRANGEMENTS

    def null(self, rows: RowScores) -> Floats:
        """Return the observed score, then the score under each exchange (1 + n_exchanges,).

        The score that is expected under the null hypothesis is subtracted from all of them.

        >>> labels = np.eye(2)[[0, 0, 1, 1]]
        >>> exchange = LabelExchange(labels, np.arange(4), np.zeros(4, int), draws=200, seed=0)
        >>> found = exchange.null(RowScores(labels / 4, labels))
        >>> float(found[0]), sorted(set(found.tolist()))
        (0.5, [-0.5, 0.0, 0.5])
        """
        rows = self._centred(rows)
        by_group = np.zeros((self._is_constant.size, rows.scores.shape[1]))
        np.add.at(by_group, self.group_of_row, rows.scores)
        mixed = self._contributions(rows, by_group)
        own_labels = self.labels[self._first]
        exchanged = []
        for signs, generator in self._patterns():
            scores = signs @ mixed
            for block in self._blocks:
                scores += _permuted(by_group[block], own_labels[block], len(signs), generator)
            exchanged.append(scores)
        null = np.concatenate(exchanged)
        several = len(self._blocks) > 1
        null[1:] *= WIDER_OVER_FOLDS if several else 1.0
        return null

    def _centred(self, rows: RowScores) -> RowScores:
        """Return row scores whose mean over each fold is 0 for every label.

        Exchanges between groups of different sizes change how many rows have a label. Without a
        mean of 0, a label that happens to be more frequent in large groups would count as an
        association. Groups with several labels are not affected.
        """
        centred = rows.scores.copy()
        for fold in np.unique(self.fold_of_row):
            own = self.fold_of_row == fold
            centred[own] -= centred[own].mean(axis=0)
        return replace(rows, scores=centred)

    def _contributions(self, rows: RowScores, by_group: Floats) -> Floats:
        """Return the score of each group with several labels, minus its expected score.

        The expectation is for predictions that are independent of labels within the group.
        """
        n_groups = len(by_group)
        own = np.einsum("ij,ij->i", rows.scores, rows.labels)
        labels = np.zeros_like(by_group)
        np.add.at(labels, self.group_of_row, rows.labels)
        n_rows = np.bincount(self.group_of_row, minlength=n_groups)
        expected = np.einsum("ij,ij->i", by_group, labels) / n_rows
        scores = np.bincount(self.group_of_row, weights=own, minlength=n_groups)
        contributions: Floats = (scores - expected)[self._mixed]
        return contributions

    def _patterns(self) -> Iterator[tuple[NDArray[np.int8], np.random.Generator | None]]:
        """Yield blocks of sign patterns, each with the generator that permutes labels.

        The generator is None if labels are not permuted, as for the observed labels.
        """
        n_mixed = int(self._mixed.sum())
        if not self._is_constant.any():
            for signs in sign_patterns(n_mixed, self.draws, self.seed):
                yield signs, None
            return
        generator = np.random.default_rng(self.seed)
        yield np.ones((1, n_mixed), dtype=np.int8), None
        block = min(BLOCK, max(1, MOST_ENTRIES // self.n_groups))
        for at in range(0, self.draws, block):
            size = min(block, self.draws - at), n_mixed
            yield (2 * generator.integers(2, size=size) - 1).astype(np.int8), generator


def _permuted(
    scores: Floats, labels: Floats, draws: int, generator: np.random.Generator | None
) -> Floats:
    """Return the score (draws,) of groups after exchanges of their labels, minus its expectation.

    `scores` and `labels` have shape (n_groups, n_labels). Without a generator, labels are not
    exchanged.
    """
    expected = scores.sum(axis=0) @ labels.mean(axis=0) if len(labels) else 0.0
    if generator is None:
        observed: Floats = np.full(draws, np.einsum("ij,ij->", scores, labels) - expected)
        return observed
    order = np.argsort(generator.random((draws, len(labels))), axis=1)
    permuted = np.full(draws, -expected)
    for own, column in zip(scores.T, labels.T, strict=True):
        permuted += column[order] @ own
    return permuted
