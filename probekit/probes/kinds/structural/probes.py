"""Structural probes: linear maps under which token geometry matches the dependency tree."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from probekit.probes.bounds import at_least
from probekit.probes.kinds.scaling import Scaling, measured
from probekit.probes.kinds.structural.descent import (
    Reals,
    SentenceTargets,
    depth_loss,
    distance_loss,
    fit_projection,
    squared_distances,
)
from probekit.probes.kinds.structural.scores import SentenceScores, score_depths, score_distances
from probekit.probes.kinds.structural.trees import Tree, read_trees
from probekit.probes.solve.design import Floats
from probekit.probes.solve.solver import Codes
from probekit.probes.validation import units_of


class StructuralProbe(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # no types
    """Base class of structural probes: a learned projection of tokens, applied by `transform`.

    Args:
        rank: Dimension of the projection.
        max_iter: Maximum number of epochs.
        random_state: Random seed for initial weights, held-out sentences and the order of batches.

    Attributes:
        coef_: The projection for raw, unscaled rows, shape (rank, n_features).
        intercept_: Its bias, shape (rank,).
        n_iter_: Number of epochs.
        converged_: Whether the held-out loss stopped decreasing before `max_iter`.
    """

    def __init__(self, rank: int = 64, max_iter: int = 200, random_state: int = 0) -> None:
        self.rank = rank
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        groups: ArrayLike | None = None,
        typical: NDArray[np.bool_] | None = None,
    ) -> Self:
        """Return self, fitted on tokens X (n_tokens, n_features) with heads y (n_tokens,).

        Args:
            X: The tokens (n_tokens, n_features), in word order within each sentence.
            y: The index (n_tokens,) of each token's head within its sentence, from 0; -1 for the
                root.
            groups: The sentence (n_tokens,) of each token; None makes all rows one sentence.
            typical: Which rows (n_tokens,) feature scaling is estimated from; None means all.

        Raises:
            ConfigError: The rank or the number of epochs is below 1.
            DataError: The heads of a sentence do not form a tree.
        """
        at_least(self, rank=1, max_iter=1, random_state=0)
        rows, heads = validate_data(self, X, y, dtype=[np.float64, np.float32])
        trees = read_trees(heads, _sentences(rows, groups))
        scaling = Scaling.standard(measured(rows, typical))
        # A column of ones gives the projection a bias.
        inputs = np.column_stack([scaling.apply(rows), np.ones(len(rows))]).astype(np.float32)
        sentences = [
            SentenceTargets(inputs[tree.rows], self._gold(tree).astype(np.float32))
            for tree in trees
        ]
        fit = fit_projection(sentences, self._loss, self.rank, self.max_iter, self.random_state)
        weight = fit.weight.astype(np.float64).T
        self.coef_, self.intercept_ = scaling.fold(weight[:, :-1], weight[:, -1])
        self.n_iter_, self.converged_ = fit.n_iter, fit.converged
        return self

    def transform(self, X: ArrayLike) -> Floats:
        """Return the projected tokens (n_tokens, rank) of X (n_tokens, n_features)."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        tokens: Floats = rows @ self.coef_.T + self.intercept_
        return tokens

    def spearman(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> float:
        """Return the mean Spearman correlation with the trees for sentences of 5 to 50 tokens.

        NaN if no sentence has such a length. X, y and groups are as in `fit`.
        """
        return float(self.score_sentences(X, y, groups).spearman()[0])

    def score_sentences(
        self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None
    ) -> SentenceScores:
        """Return the scores of each sentence; X, y and groups are as in `fit`.

        Raises:
            DataError: The heads of a sentence do not form a tree.
        """
        tokens = self.transform(X)
        trees = read_trees(y, _sentences(tokens, groups))
        return self._score(trees, [tokens[tree.rows] for tree in trees])

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    @abstractmethod
    def _loss(self, tokens: Reals, gold: Reals) -> tuple[float, Reals]:
        """Return the loss of a sentence's projected tokens, and its gradient in the tokens."""

    @abstractmethod
    def _gold(self, tree: Tree) -> Codes:
        """Return the gold depths or distances of a sentence."""

    @abstractmethod
    def _score(self, trees: Sequence[Tree], tokens: Sequence[Floats]) -> SentenceScores:
        """Return the scores of the projected tokens (n_tokens, rank) of each sentence."""


class DistanceProbe(StructuralProbe):
    """Structural probe whose squared distances approximate distances in the dependency tree.

    >>> line, chain = [[0.0], [1.0], [2.0], [3.0], [4.0]], [-1, 0, 1, 2, 3]
    >>> probe = DistanceProbe(rank=1).fit(line, chain)
    >>> probe.uuas(line, chain)
    1.0

    Source: Hewitt and Manning (2019), A Structural Probe for Finding Syntax in Word
    Representations. Here rows are standardised, which affects only the speed of convergence.
    """

    def distances(self, X: ArrayLike) -> Reals:
        """Return the squared distances (n_tokens, n_tokens) of the tokens of one sentence."""
        return squared_distances(self.transform(X))

    def uuas(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> float:
        """Return the undirected unlabelled attachment score.

        This is the fraction of gold edges that the minimum spanning trees of the predicted
        distances contain; NaN if every sentence has one token. X, y and groups are as in `fit`.
        """
        return float(self.score_sentences(X, y, groups).hit_rate()[0])

    def _loss(self, tokens: Reals, gold: Reals) -> tuple[float, Reals]:
        return distance_loss(tokens, gold)

    def _gold(self, tree: Tree) -> Codes:
        return tree.distances

    def _score(self, trees: Sequence[Tree], tokens: Sequence[Floats]) -> SentenceScores:
        return score_distances(trees, [squared_distances(own) for own in tokens])


class DepthProbe(StructuralProbe):
    """Structural probe whose squared norms approximate depths in the dependency tree.

    >>> line, chain = [[0.0], [1.0], [2.0], [3.0], [4.0]], [-1, 0, 1, 2, 3]
    >>> probe = DepthProbe(rank=1).fit(line, chain)
    >>> round(probe.spearman(line, chain), 3)
    1.0

    Source: Hewitt and Manning (2019), section 2.3. Here the projection has a bias.
    """

    def predict(self, X: ArrayLike) -> Floats:
        """Return the predicted depth (n_tokens,) of each token."""
        return _norms(self.transform(X))

    def root_accuracy(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> float:
        """Return the fraction of sentences in which the token of smallest depth is the root."""
        return float(self.score_sentences(X, y, groups).hit_rate()[0])

    def _loss(self, tokens: Reals, gold: Reals) -> tuple[float, Reals]:
        return depth_loss(tokens, gold)

    def _gold(self, tree: Tree) -> Codes:
        return tree.depths

    def _score(self, trees: Sequence[Tree], tokens: Sequence[Floats]) -> SentenceScores:
        return score_depths(trees, [_norms(own) for own in tokens])


def _norms(tokens: Floats) -> Floats:
    norms: Floats = np.sum(tokens**2, axis=1)
    return norms


def _sentences(X: NDArray[np.floating], groups: ArrayLike | None) -> NDArray[Any]:
    return np.zeros(len(X), dtype=np.int64) if groups is None else units_of(X, groups)
