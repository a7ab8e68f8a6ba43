"""Dependency trees from word heads, and scores of predicted distances and depths."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.csgraph import minimum_spanning_tree

from probekit.errors import DataError
from probekit.lazy_rows import Codes, Features, Floats, Mask
from probekit.probes.data import as_number
from probekit.probes.score.metric_table import Family
from probekit.probes.score.metrics import Resamples, ratio


@dataclass(frozen=True, eq=False)
class Tree:
    """The dependency tree of one sentence.

    Attributes:
        sentence: Name of the sentence.
        rows: Row numbers (n_tokens,) of its tokens, in word order.
        heads: Index (n_tokens,) of each token's head within the sentence, from 0; -1 for the root.
        depths: Number of edges (n_tokens,) from each token to the root.
        distances: Number of edges (n_tokens, n_tokens) between each pair of tokens.
    """

    sentence: Any
    rows: Codes
    heads: Codes
    depths: Codes
    distances: Codes

    @property
    def edges(self) -> Mask:
        """Symmetric adjacency matrix (n_tokens, n_tokens)."""
        found: Mask = self.distances == 1
        return found


def read_trees(heads: ArrayLike, groups: NDArray[np.generic]) -> list[Tree]:
    """Return the tree of each sentence, in sorted order of the groups (n_tokens,).

    The rows of a sentence must be in word order, but need not be contiguous.

    Raises:
        DataError: A head is not an integer, or the heads (n_tokens,) of a sentence do not form a
            tree.

    >>> (tree,) = read_trees([1, -1, 1], np.array(["s1", "s1", "s1"]))
    >>> tree.depths.tolist(), tree.distances.tolist()
    ([1, 0, 1], [[0, 1, 2], [1, 0, 1], [2, 1, 0]])
    """
    try:
        numbers = np.asarray(heads).astype(np.float64)
    except ValueError as error:
        wrong = next(label for label in np.asarray(heads).ravel() if as_number(str(label)) is None)
        raise DataError(
            "Structural probes need the position of each token's head as the label, a number, but "
            f"one label is {str(wrong)!r}. Label the rows by `HEAD`."
        ) from error
    if np.any(numbers != np.round(numbers)):
        wrong = numbers[numbers != np.round(numbers)][0]
        raise DataError(f"The position of a head must be an integer, but y contains {wrong}.")
    indices = numbers.astype(np.int64)
    names, sentence_of_row = np.unique(groups, return_inverse=True)
    order = np.argsort(sentence_of_row, kind="stable")
    ends = np.cumsum(np.bincount(sentence_of_row))[:-1]
    parts = np.split(order, ends)
    return [_tree(name, rows, indices[rows]) for name, rows in zip(names, parts, strict=True)]


def _tree(name: Any, rows: Codes, heads: Codes) -> Tree:
    """Return the tree of a sentence; raise DataError if its heads do not form one."""
    n, n_roots = len(heads), int(np.sum(heads == -1))
    outside = heads[(heads < -1) | (heads >= n)]
    # Column j of row i is 1 if token j is token i or its ancestor. Above a root is position -1, the
    # last column and its own parent.
    ancestors, parents = np.zeros((n, n + 1), dtype=np.int64), np.append(heads, -1)
    positions = np.arange(n)
    # Positions outside of the sentence cannot be followed; they are an error below.
    for _ in range(0 if len(outside) else n):
        ancestors[np.arange(n), positions] = 1
        positions = parents[positions]
    problem = ""
    if len(outside):
        problem = f"the position {outside[0]} is outside the sentence"
    elif n_roots != 1:
        problem = f"it has {n_roots} roots"
    elif np.any(positions >= 0):
        problem = "they contain a cycle"
    if problem:
        raise DataError(
            f"The heads of sentence {str(name)!r} do not form a tree: {problem}. Give each of its "
            f"{n} tokens the position of its head, from 0 to {n - 1}, and the root -1. Remove "
            "sentences that lack some of their tokens entirely."
        )
    ancestors = ancestors[:, :-1]
    n_ancestors = ancestors.sum(axis=1)  # the token itself is counted, too
    # The shared ancestors of two tokens are those of their lowest common ancestor.
    distances = n_ancestors[:, None] + n_ancestors - 2 * (ancestors @ ancestors.T)
    return Tree(name, rows, heads, depths=n_ancestors - 1, distances=distances)


def spanning_edges(distances: Features) -> Mask:
    """Return the symmetric adjacency matrix (n_tokens, n_tokens) of the minimum spanning tree.

    >>> line = np.array([0.0, 1.0, 3.0])
    >>> spanning_edges(np.abs(line[:, None] - line)).astype(int).tolist()
    [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    """
    # SciPy treats a distance of 0 as no edge, so 1 is added to the distances, scaled to at most 1.
    # Neither step changes the tree.
    weights = distances / max(float(distances.max()), np.finfo(np.float64).tiny) + 1.0
    tree = minimum_spanning_tree(np.triu(weights, k=1)).toarray() > 0
    found: Mask = tree | tree.T
    return found


# Sentence lengths over which Spearman is averaged. Source: Hewitt and Manning (2019), section 4.1.
LENGTHS = range(5, 51)


@dataclass(frozen=True, eq=False)
class SentenceScores:
    """Scores of each sentence, for intervals over groups of sentences.

    The sentences are in sorted order, like the groups of `Resamples`.

    Attributes:
        lengths: Number of tokens (n_sentences,).
        hits: Number of correct edges, or 1 if the root is correct (n_sentences,).
        trials: Number of gold edges, or 1 for the root (n_sentences,).
        correlations: Spearman correlation (n_sentences,); for distances the mean over the tokens.
        hit: The name of the metric that is the hit rate: "uuas" or "root_accuracy".
    """

    lengths: Codes
    hits: Codes
    trials: Codes
    correlations: Floats

    hit: str

    family: ClassVar[Family] = "tree"
    # Words are ranked within their sentence only, and a sentence is scored by one fit.
    folds: ClassVar[None] = None

    @property
    def offers(self) -> frozenset[str]:
        """The name of the metric that is the hit rate; see `Metric.needs`."""
        return frozenset({self.hit})


def hit_rate(scores: SentenceScores, resamples: Resamples) -> Floats:
    """Return the hit rate over all sentences, which is UUAS or root accuracy.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.
    NaN where there are no trials.

    >>> scores = SentenceScores(np.array([5, 6]), np.array([1, 5]),
    ...     np.array([4, 5]), np.array([0.5, 1.0]), "uuas")
    >>> whole = Resamples.whole(2)
    >>> hit_rate(scores, whole).round(3).tolist(), tree_spearman(scores, whole).tolist()
    ([0.667], [0.75])
    """
    return ratio(resamples.sums(scores.hits)[0], resamples.sums(scores.trials)[0])


def tree_spearman(scores: SentenceScores, resamples: Resamples) -> Floats:
    """Return Spearman's correlation of predicted distances or depths with those of gold trees.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.
    It is first the mean over the sentences of each length from 5 to 50 tokens, then the mean over
    lengths. NaN where no sentence has such a length.

    Source: Hewitt and Manning (2019), section 4.1.
    """
    # Cell 0 has the sentences of other lengths.
    cells = np.where(np.isin(scores.lengths, LENGTHS), scores.lengths - LENGTHS[0] + 1, 0)
    sums, n = (resamples.sums(one, cells, 1 + len(LENGTHS)) for one in (scores.correlations, None))
    means = ratio(sums[1:], n[1:])
    defined = ~np.isnan(means)
    return ratio(np.where(defined, means, 0.0).sum(axis=0), defined.sum(axis=0))


def score_distances(trees: Sequence[Tree], predicted: Sequence[Features]) -> SentenceScores:
    """Return UUAS and Spearman scores of the predicted distances of each sentence.

    Each sentence has distances of shape (n_tokens, n_tokens). Spearman compares, for each token,
    the distances to all tokens of the sentence, including itself.

    Source: Hewitt and Manning (2019), section 4.1. They exclude punctuation from the spanning tree;
    here every given token is included.
    """
    pairs = list(zip(trees, predicted, strict=True))
    # Both matrices contain each edge twice.
    hits = [int(np.sum(tree.edges & spanning_edges(distances))) // 2 for tree, distances in pairs]
    rows = [(distances, tree.distances) for tree, distances in pairs]
    n_edges = [len(tree.heads) - 1 for tree in trees]
    return _scores(trees, hits, trials=n_edges, rows=rows, hit="uuas")


def score_depths(trees: Sequence[Tree], predicted: Sequence[Features]) -> SentenceScores:
    """Return root accuracy and Spearman scores of each sentence, from its predicted depths.

    The predicted root is the token of smallest depth.

    Source: Hewitt and Manning (2019), section 4.1.
    """
    pairs = list(zip(trees, predicted, strict=True))
    hits = [int(tree.depths[np.argmin(depths)] == 0) for tree, depths in pairs]
    rows = [(depths[None], tree.depths[None]) for tree, depths in pairs]
    return _scores(trees, hits, trials=[1] * len(trees), rows=rows, hit="root_accuracy")


def rank_correlations(first: NDArray[np.generic], second: NDArray[np.generic]) -> Floats:
    """Return Spearman's correlation (n_rows,) of corresponding rows (n_rows, n_columns).

    Ties get their mean rank; the correlation with a constant row is 0.

    >>> rank_correlations(np.array([[1.0, 5.0, 9.0], [2.0, 2.0, 2.0]]), np.array([[3, 2, 1]] * 2))
    array([-1.,  0.])
    """
    a, b = (scipy.stats.rankdata(rows, axis=1) for rows in (first, second))
    a, b = a - a.mean(axis=1, keepdims=True), b - b.mean(axis=1, keepdims=True)
    norm = np.sqrt(np.sum(a**2, axis=1) * np.sum(b**2, axis=1))
    found: Floats = np.divide(np.sum(a * b, axis=1), norm, out=np.zeros_like(norm), where=norm > 0)
    return found


def _scores(
    trees: Sequence[Tree],
    hits: list[int],
    trials: list[int],
    rows: Sequence[tuple[NDArray[Any], NDArray[Any]]],
    hit: str,
) -> SentenceScores:
    """Return the scores of sentences; `rows` are the predicted and the gold rows to correlate."""
    return SentenceScores(
        lengths=np.array([len(tree.heads) for tree in trees]),
        hits=np.array(hits),
        trials=np.array(trials),
        correlations=np.array([rank_correlations(*both).mean() for both in rows]),
        hit=hit,
    )
