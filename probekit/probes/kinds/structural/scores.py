"""UUAS, root accuracy and Spearman correlation of structural probes, for each sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from probekit.probes.kinds.structural.trees import Tree, spanning_edges
from probekit.probes.solve.design import Floats
from probekit.probes.solve.solver import Codes

# Sentence lengths over which Spearman is averaged. Source: Hewitt and Manning (2019), section 4.1.
LENGTHS = range(5, 51)


@dataclass(frozen=True, eq=False)
class SentenceScores:
    """Scores of each sentence, for intervals over groups of sentences.

    The sentences are in sorted order, like the groups of `Resamples`.

    Attributes:
        sentences: Names (n_sentences,) of the sentences.
        lengths: Number of tokens (n_sentences,).
        hits: Number of correct edges, or 1 if the root is correct (n_sentences,).
        trials: Number of gold edges, or 1 for the root (n_sentences,).
        correlations: Spearman correlation (n_sentences,); for distances the mean over the tokens.
    """

    sentences: NDArray[np.generic]
    lengths: Codes
    hits: Codes
    trials: Codes
    correlations: Floats

    @classmethod
    def joined(cls, parts: Sequence[SentenceScores]) -> SentenceScores:
        """Return the concatenated scores of several sets of sentences."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    def hit_rate(self, counts: NDArray[np.floating] | None = None) -> Floats:
        """Return the hit rate (n_resamples,) over all sentences, which is UUAS or root accuracy.

        `counts` (n_sentences, n_resamples) is the multiplicity of each sentence in each resample;
        None is a single resample with each sentence once. NaN where there are no trials.

        >>> scores = SentenceScores(np.array(["a", "b"]), np.array([5, 6]), np.array([1, 5]),
        ...     np.array([4, 5]), np.array([0.5, 1.0]))
        >>> scores.hit_rate().round(3).tolist(), scores.spearman().tolist()
        ([0.667], [0.75])
        """
        counts = self._once() if counts is None else counts
        return _ratio(self.hits @ counts, self.trials @ counts)

    def spearman(self, counts: NDArray[np.floating] | None = None) -> Floats:
        """Return the mean Spearman correlation (n_resamples,) of true and predicted values.

        It is first the mean over the sentences of each length from 5 to 50 tokens, then the mean
        over lengths. NaN where no sentence has such a length. `counts` is as in `hit_rate`.

        Source: Hewitt and Manning (2019), section 4.1.
        """
        counts = self._once() if counts is None else counts
        of_length = (self.lengths == np.array(LENGTHS)[:, None]).astype(np.float64)
        means = _ratio((of_length * self.correlations) @ counts, of_length @ counts)
        defined = ~np.isnan(means)
        return _ratio(np.where(defined, means, 0.0).sum(axis=0), defined.sum(axis=0))

    def _once(self) -> Floats:
        return np.ones((len(self.lengths), 1))


def score_distances(
    trees: Sequence[Tree], predicted: Sequence[NDArray[np.floating]]
) -> SentenceScores:
    """Return UUAS and Spearman scores of the predicted distances of each sentence.

    Each sentence has distances of shape (n_tokens, n_tokens). Spearman compares, for each token,
    the distances to all tokens of the sentence, including itself.

    Source: Hewitt and Manning (2019), section 4.1. They exclude punctuation from the spanning tree;
    here every given token is included.
    """
    hits = [
        int(np.sum(tree.edges & spanning_edges(distances))) // 2
        for tree, distances in zip(trees, predicted, strict=True)
    ]
    edges = [len(tree.heads) - 1 for tree in trees]
    correlations = [
        float(np.mean(rank_correlations(distances, tree.distances)))
        for tree, distances in zip(trees, predicted, strict=True)
    ]
    return _scores(trees, hits, edges, correlations)


def score_depths(
    trees: Sequence[Tree], predicted: Sequence[NDArray[np.floating]]
) -> SentenceScores:
    """Return root accuracy and Spearman scores of each sentence, from its predicted depths.

    The predicted root is the token of smallest depth.

    Source: Hewitt and Manning (2019), section 4.1.
    """
    hits = [
        int(tree.depths[np.argmin(depths)] == 0)
        for tree, depths in zip(trees, predicted, strict=True)
    ]
    correlations = [
        float(rank_correlations(depths[None], tree.depths[None])[0])
        for tree, depths in zip(trees, predicted, strict=True)
    ]
    return _scores(trees, hits, [1] * len(trees), correlations)


def rank_correlations(first: NDArray[np.generic], second: NDArray[np.generic]) -> Floats:
    """Return Spearman's correlation (n_rows,) of corresponding rows (n_rows, n_columns).

    Ties get their mean rank; the correlation with a constant row is 0.

    >>> rank_correlations(np.array([[1.0, 5.0, 9.0], [2.0, 2.0, 2.0]]), np.array([[3, 2, 1]] * 2))
    array([-1.,  0.])
    """
    a, b = (rankdata(rows, axis=1) for rows in (first, second))
    a, b = a - a.mean(axis=1, keepdims=True), b - b.mean(axis=1, keepdims=True)
    norm = np.sqrt(np.sum(a**2, axis=1) * np.sum(b**2, axis=1))
    covariance = np.sum(a * b, axis=1)
    correlations: Floats = np.divide(covariance, norm, np.zeros_like(covariance), where=norm > 0)
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


def _ratio(numerator: NDArray[np.generic], denominator: NDArray[np.generic]) -> Floats:
    undefined = np.full(np.shape(denominator), np.nan)
    defined = np.asarray(denominator) > 0
    ratio: Floats = np.divide(numerator, denominator, out=undefined, where=defined)
    return ratio
