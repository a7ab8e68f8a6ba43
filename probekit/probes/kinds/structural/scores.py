"""UUAS, root accuracy and Spearman of structural probes, sentence by sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from probekit.probes.kinds.structural.trees import Tree, spanning_edges
from probekit.probes.solve.design import Floats
from probekit.probes.solve.solver import Codes

# Sentence lengths that Spearman is averaged over. Source: Hewitt and Manning (2019), section 4.1.
LENGTHS = range(5, 51)


@dataclass(frozen=True, eq=False)
class SentenceScores:
    """Scores of each sentence, so that an interval can resample sentences.

    The sentences stand in sorted order, as `Resamples` counts groups.

    Attributes:
        sentences: Their names (n_sentences,).
        lengths: Their numbers of tokens (n_sentences,).
        hits: Edges found, or 1 if the root is found (n_sentences,).
        trials: Edges there are, or 1 for the root (n_sentences,).
        correlations: Spearman, of distances the mean over the tokens (n_sentences,).
    """

    sentences: NDArray[np.generic]
    lengths: Codes
    hits: Codes
    trials: Codes
    correlations: Floats

    @classmethod
    def joined(cls, parts: Sequence[SentenceScores]) -> SentenceScores:
        """Return the scores of several parts of the sentences as one, part after part."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    def hit_rate(self, counts: NDArray[np.floating] | None = None) -> Floats:
        """Return hits over trials of all sentences (n_draws,): UUAS, or root accuracy.

        `counts` (n_sentences, n_draws) says how often each sentence counts; None counts each once.
        NaN where there is nothing to find.

        >>> scores = SentenceScores(np.array(["a", "b"]), np.array([5, 6]), np.array([1, 5]),
        ...     np.array([4, 5]), np.array([0.5, 1.0]))
        >>> scores.hit_rate().round(3).tolist(), scores.spearman().tolist()
        ([0.667], [0.75])
        """
        counts = self._once() if counts is None else counts
        return _ratio(self.hits @ counts, self.trials @ counts)

    def spearman(self, counts: NDArray[np.floating] | None = None) -> Floats:
        """Return the mean over lengths 5 to 50 of the mean over their sentences (n_draws,).

        NaN where no sentence has such a length.

        Source: Hewitt and Manning (2019), section 4.1.
        """
        counts = self._once() if counts is None else counts
        of_length = (self.lengths == np.array(LENGTHS)[:, None]).astype(np.float64)
        means = _ratio((of_length * self.correlations) @ counts, of_length @ counts)
        there = ~np.isnan(means)
        return _ratio(np.where(there, means, 0.0).sum(axis=0), there.sum(axis=0))

    def _once(self) -> Floats:
        return np.ones((len(self.lengths), 1))


def score_distances(
    trees: Sequence[Tree], predicted: Sequence[NDArray[np.floating]]
) -> SentenceScores:
    """Return UUAS and Spearman parts of predicted distances (n_tokens, n_tokens) a sentence.

    Spearman compares, for each token, its distances to all tokens of the sentence, itself included.

    Source: Hewitt and Manning (2019), section 4.1. They leave punctuation out of the spanning tree;
    here every token that was given is in it.
    """
    found = [
        int(np.sum(tree.edges & spanning_edges(distances))) // 2
        for tree, distances in zip(trees, predicted, strict=True)
    ]
    edges = [len(tree.heads) - 1 for tree in trees]
    correlations = [
        float(np.mean(rank_correlations(distances, tree.distances)))
        for tree, distances in zip(trees, predicted, strict=True)
    ]
    return _scores(trees, found, edges, correlations)


def score_depths(
    trees: Sequence[Tree], predicted: Sequence[NDArray[np.floating]]
) -> SentenceScores:
    """Return root accuracy and Spearman parts of predicted depths (n_tokens,) a sentence.

    The root guessed is the token of least depth.

    Source: Hewitt and Manning (2019), section 4.1.
    """
    found = [
        int(tree.depths[np.argmin(depths)] == 0)
        for tree, depths in zip(trees, predicted, strict=True)
    ]
    correlations = [
        float(rank_correlations(depths[None], tree.depths[None])[0])
        for tree, depths in zip(trees, predicted, strict=True)
    ]
    return _scores(trees, found, [1] * len(trees), correlations)


def rank_correlations(first: NDArray[np.generic], second: NDArray[np.generic]) -> Floats:
    """Return Spearman's correlation (n_rows,) of each two rows (n_rows, n_columns).

    Ties take their mean rank; a row that is constant agrees with nothing, 0.

    >>> rank_correlations(np.array([[1.0, 5.0, 9.0], [2.0, 2.0, 2.0]]), np.array([[3, 2, 1]] * 2))
    array([-1.,  0.])
    """
    a, b = (rankdata(rows, axis=1) for rows in (first, second))
    a, b = a - a.mean(axis=1, keepdims=True), b - b.mean(axis=1, keepdims=True)
    norm = np.sqrt(np.sum(a**2, axis=1) * np.sum(b**2, axis=1))
    together = np.sum(a * b, axis=1)
    correlations: Floats = np.divide(together, norm, np.zeros_like(together), where=norm > 0)
    return correlations


def _scores(
    trees: Sequence[Tree], hits: list[int], trials: list[int], correlations: list[float]
) -> SentenceScores:
    return SentenceScores(
        sentences=np.array([tree.sentence for tree in trees]),
        lengths=np.array([len(tree.heads) for tree in trees]),
        hits=np.array(hits),
        trials=np.array(trials),
        correlations=np.array(correlations),
    )


def _ratio(part: NDArray[np.generic], whole: NDArray[np.generic]) -> Floats:
    nothing = np.full(np.shape(whole), np.nan)
    ratio: Floats = np.divide(part, whole, out=nothing, where=np.asarray(whole) > 0)
    return ratio
