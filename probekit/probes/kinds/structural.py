"""Structural probes: linear maps under which token geometry matches the dependency tree."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from probekit.lazy_rows import Features, Floats, Mask, fetched, put_on
from probekit.memory import is_accelerator
from probekit.probes.kinds import trees as dependency
from probekit.probes.kinds.base import units_of
from probekit.probes.kinds.registry import at_least
from probekit.probes.score.metrics import Resamples
from probekit.probes.training_rows import Scaling
from probekit.products import without_tf32

Reals = NDArray[np.floating]
# Rows (n_tokens, n_features) of one sentence, and its gold depths or distances.
SentenceTargets = tuple[Reals, Reals]
# (projected tokens (n_tokens, rank), gold values) -> (loss, gradient in the tokens).
SentenceLoss = Callable[[Reals, Reals], tuple[float, Reals]]

BATCH = 20
# Minimum number of steps per epoch; few sentences are repeated within an epoch.
LEAST_STEPS = 50
# Initial learning rate, relative to the standard deviation of the initial weights.
RATE = 0.1
# If the loss decreases by a smaller fraction in an epoch, the learning rate is reduced.
LEAST_PROGRESS = 1e-3
RATE_DROPS = 3  # at the last of so many epochs without progress, a fit has converged
# One in this many sentences is held out for early stopping, if there are enough sentences.
HELD_OUT = 10


@dataclass
class Adam:
    """The Adam optimiser.

    Source: Kingma and Ba (2015), algorithm 1, with its default constants.
    """

    rate: float
    first: Reals | float = 0.0  # running mean of the gradients
    second: Reals | float = 0.0  # running mean of their squares
    n_steps: int = 0

    def step(self, gradient: Reals) -> Reals:
        """Return the step to subtract from the weights."""
        self.n_steps += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        mean = self.first / (1 - 0.9**self.n_steps)
        size = (self.second / (1 - 0.999**self.n_steps)) ** 0.5  # of an array or a tensor
        step: Reals = self.rate * mean / (size + 1e-8)
        return step


def distance_loss(tokens: Reals, gold: Reals) -> tuple[float, Reals]:
    """Return the mean absolute error of all squared distances, and its gradient in the tokens.

    >>> loss, gradient = distance_loss(np.array([[0.0], [2.0]]), np.array([[0.0, 1.0], [1.0, 0.0]]))
    >>> float(loss), gradient.tolist()
    (1.5, [[-2.0], [2.0]])

    Source: Hewitt and Manning (2019), section 2.2: the sum over n^2 pairs is divided by n^2.
    """
    error = squared_distances(tokens) - gold
    sign = np.sign(error) / error.size
    # The gradient in token i is the sum over j of 4 sign_ij (token_i - token_j): 2 from the square,
    # and 2 because each pair occurs as (i, j) and as (j, i).
    return float(np.abs(error).mean()), 4 * (sign.sum(axis=1)[:, None] * tokens - sign @ tokens)


def depth_loss(tokens: Reals, gold: Reals) -> tuple[float, Reals]:
    """Return the mean absolute error of the squared norms, and its gradient in the tokens.

    >>> loss, gradient = depth_loss(np.array([[0.0], [2.0]]), np.array([0.0, 1.0]))
    >>> float(loss), gradient.tolist()
    (1.5, [[0.0], [2.0]])

    Source: Hewitt and Manning (2019), section 2.3.
    """
    error = np.sum(tokens**2, axis=1) - gold
    sign = np.sign(error) / error.size
    return float(np.abs(error).mean()), 2 * sign[:, None] * tokens


def squared_distances(tokens: Features) -> Features:
    """Return the pairwise squared distances (n_tokens, n_tokens) of tokens (n_tokens, rank).

    >>> squared_distances(np.array([[0.0], [3.0]])).tolist()
    [[0.0, 9.0], [9.0, 0.0]]
    """
    norms = np.sum(tokens**2, axis=1)
    squared: Reals = np.maximum(norms[:, None] + norms - 2 * tokens @ tokens.T, 0.0)
    np.fill_diagonal(squared, 0.0)
    return squared


def squared_norms(tokens: Reals) -> Reals:
    """Return the squared norm (n_tokens,) of each token (n_tokens, rank)."""
    found: Reals = np.sum(tokens**2, axis=1)
    return found


def fit_projection(
    sentences: Sequence[SentenceTargets],
    loss: SentenceLoss,
    rank: int,
    max_iter: int,
    seed: int,
    device: str = "cpu",
) -> tuple[Reals, int, bool]:
    """Return a projection (n_features, rank), the number of epochs and whether it has converged.

    The projection is the one with the smallest loss on held-out sentences, of the initial one and
    those after each epoch. A loss that is smaller by less than 0.1 % does not count as smaller.

    With fewer than 10 sentences, none is held out and the loss on all of them is used. When an
    epoch brings no progress, training continues from the best weights with a ten times smaller
    learning rate; at the third such epoch it has converged.

    Source: Hewitt and Manning (2019), section 3 and their released code, for Adam, batches of 20
    and the learning rate schedule; here the initial rate is proportional to the initial weights.
    """
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(sentences))
    n_held_out = len(sentences) // HELD_OUT
    held_out = [sentences[index] for index in order[:n_held_out]] or list(sentences)
    inside = [sentences[index] for index in order[n_held_out:]]
    n_batches = math.ceil(len(inside) / BATCH)
    n_features = sentences[0][0].shape[1]
    # Standardised tokens have squared distances of about 2 n_features, projected ones of
    # 2 n_features * rank * size^2 = 4.
    size = np.sqrt(2 / (rank * n_features))
    first: Reals = (size * generator.normal(size=(n_features, rank))).astype(np.float32)
    best = weight = put_on(device, first)
    adam, drops = Adam(RATE * float(first.std())), 0
    if is_accelerator(device):
        rated, fitted = (_padded_losses(some, device) for some in (held_out, inside))

    def mean_loss(weight: Any) -> float:
        """Return the mean loss of the held-out sentences."""
        if is_accelerator(device):
            return float(rated(weight, slice(None)).mean())
        return float(np.mean([loss(rows @ weight, gold)[0] for rows, gold in held_out]))

    def slope(weight: Any, batch: Any) -> Any:
        """Return the gradient of the mean loss of a batch, by one product for all tokens."""
        if is_accelerator(device):
            weight = weight.detach().requires_grad_()
            return torch.autograd.grad(fitted(weight, batch).mean(), weight)[0]
        rows = np.concatenate([inside[index][0] for index in batch])
        golds = [inside[index][1] for index in batch]
        ends = np.cumsum([len(gold) for gold in golds])[:-1]
        projected = zip(np.split(rows @ weight, ends), golds, strict=True)
        slopes = [gradient for _, gradient in (loss(*pair) for pair in projected)]
        return rows.T @ np.concatenate(slopes) / len(batch)

    best_loss = mean_loss(best)
    for epoch in range(1, max_iter + 1):
        for _ in range(math.ceil(LEAST_STEPS / n_batches)):  # repeats sentences if they are few
            order = put_on(device, generator.permutation(len(inside)))
            for batch in np.array_split(order, n_batches):  # also of a tensor, without a copy
                weight = weight - adam.step(slope(weight, batch))
        current_loss = mean_loss(weight)
        if current_loss < best_loss * (1 - LEAST_PROGRESS):
            best, best_loss = weight, current_loss
            continue
        drops += 1
        if drops == RATE_DROPS:
            return fetched(best), epoch, True
        weight, adam = best, Adam(adam.rate / 10)
    return fetched(best), max_iter, False


def _padded_losses(sentences: Sequence[SentenceTargets], device: str) -> Callable[[Any, Any], Any]:
    """Return a function of a projection and of sentence numbers, with their losses (n,).

    The losses are those of `distance_loss` or `depth_loss`, computed on an accelerator for
    sentences that are padded to the length of the longest.
    """
    longest = max(len(rows) for rows, _ in sentences)
    tokens, gold = [], []
    for rows, targets in sentences:
        more = (0, longest - len(rows))
        tokens.append(np.pad(rows, (more, (0, 0))))
        gold.append(np.pad(targets, more, constant_values=np.nan))
    all_tokens, all_gold = put_on(device, np.stack(tokens)), put_on(device, np.stack(gold))

    def losses(weight: Any, place: Any) -> Any:
        projected, wanted = all_tokens[place] @ weight, all_gold[place]
        predicted = projected.square().sum(dim=2)
        if wanted.ndim == 3:
            products = projected @ projected.mT
            predicted = predicted[:, :, None] + predicted[:, None] - 2 * products
        error = torch.where(wanted.isnan(), 0.0, predicted - wanted).abs()
        return error.flatten(1).sum(dim=1) / (~wanted.isnan()).flatten(1).sum(dim=1)

    return losses


class _Geometry(NamedTuple):
    """What the projected tokens (n_tokens, rank) of a sentence approximate.

    Attributes:
        gold: the attribute of its tree.
        loss: the loss of the tokens, with its gradient.
        predict: returns the predictions of the tokens.
        chain: returns the predictions of the linear chain, given the positions of the words.
        score: scores the predictions of several sentences.
    """

    gold: str
    loss: SentenceLoss
    predict: Callable[[Reals], Reals]
    chain: Callable[[Reals], Reals]
    score: Callable[[Sequence[dependency.Tree], Sequence[Reals]], dependency.SentenceScores]


@dataclass(eq=False, repr=False)
class StructuralProbe(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # no types
    """Base class of structural probes: a learned projection of tokens, applied by `transform`.

    Args:
        rank: Dimension of the projection.
        max_iter: Maximum number of epochs.
        random_state: Random seed for initial weights, held-out sentences and the order of batches.
        device: Where the projection is trained.

    Attributes:
        coef_: The projection for raw, unscaled rows, shape (rank, n_features).
        intercept_: Its bias, shape (rank,).
        n_iter_: Number of epochs.
        converged_: Whether the loss stopped decreasing within `max_iter` epochs; see
            `fit_projection`.
    """

    _geometry: ClassVar[_Geometry]

    rank: int = 64
    max_iter: int = 200
    random_state: int = 0
    device: str = "cpu"

    @without_tf32()
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        groups: ArrayLike | None = None,
        typical: Mask | None = None,
    ) -> Self:
        """Return self, fitted on tokens X (n_tokens, n_features) with heads y (n_tokens,).

        Args:
            X: The tokens (n_tokens, n_features), in word order within each sentence.
            y: The index (n_tokens,) of each token's head within its sentence, from 0; -1 for the
                root.
            groups: The sentence (n_tokens,) of each token; None makes all rows one sentence.
            typical: Which rows (n_tokens,) feature scaling is estimated from; None means all.

        Raises:
            ConfigError: The rank or the number of epochs is below 1, or the seed below 0.
            DataError: A head is not an integer, or the heads of a sentence do not form a tree.
        """
        at_least(self, rank=1, max_iter=1, random_state=0)
        rows, heads = validate_data(self, X, y, dtype=[np.float64, np.float32])
        trees = dependency.read_trees(heads, _sentences(rows, groups))
        scaling = Scaling.standard(rows, typical)
        # A column of ones gives the projection a bias.
        inputs = np.column_stack([scaling.apply(rows), np.ones(len(rows))]).astype(np.float32)
        gold = self._geometry.gold
        sentences = [(inputs[tree.rows], getattr(tree, gold).astype(np.float32)) for tree in trees]
        weight, self.n_iter_, self.converged_ = fit_projection(
            sentences, self._geometry.loss, self.rank, self.max_iter, self.random_state, self.device
        )
        weight = weight.astype(np.float64).T
        self.coef_, self.intercept_ = scaling.fold(weight[:, :-1], weight[:, -1])
        return self

    def transform(self, X: ArrayLike) -> Floats:
        """Return the projected tokens (n_tokens, rank) of X (n_tokens, n_features)."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        found: Floats = rows @ self.coef_.T + self.intercept_
        return found

    def spearman(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> float:
        """Return the mean Spearman correlation with the trees for sentences of 5 to 50 tokens.

        NaN if no sentence has such a length. X, y and groups are as in `fit`.
        """
        return self._metric(dependency.tree_spearman, X, y, groups)

    def score_sentences(
        self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None
    ) -> dependency.SentenceScores:
        """Return the scores of each sentence; X, y and groups are as in `fit`.

        Raises:
            DataError: A head is not an integer, or the heads of a sentence do not form a tree.
        """
        tokens = self.transform(X)
        trees = dependency.read_trees(y, _sentences(tokens, groups))
        predicted = [self._geometry.predict(tokens[tree.rows]) for tree in trees]
        return self._geometry.score(trees, predicted)

    def score_chain(self, y: ArrayLike, groups: ArrayLike) -> dependency.SentenceScores:
        """Return the scores of the linear chain, a tree that ignores the activations.

        In it, the head of each word is the previous word. y and groups are as in `fit`.
        """
        trees = dependency.read_trees(y, np.asarray(groups))
        places = [np.arange(len(tree.heads), dtype=np.float64) for tree in trees]  # of the words
        return self._geometry.score(trees, [self._geometry.chain(words) for words in places])

    def _metric(
        self, metric: Callable[[dependency.SentenceScores, Resamples], Floats], *data: Any
    ) -> float:
        """Return the value of a metric over all sentences; `data` are X, y and groups."""
        scores = self.score_sentences(*data)
        return float(metric(scores, Resamples.whole(len(scores.lengths)))[0])

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


class DistanceProbe(StructuralProbe):
    """Structural probe whose squared distances approximate distances in the dependency tree.

    >>> line, chain = [[0.0], [1.0], [2.0], [3.0], [4.0]], [-1, 0, 1, 2, 3]
    >>> probe = DistanceProbe(rank=1).fit(line, chain)
    >>> probe.uuas(line, chain)
    1.0

    Source: Hewitt and Manning (2019), A Structural Probe for Finding Syntax in Word
    Representations. Here rows are standardised, which affects only the speed of convergence.
    """

    _geometry = _Geometry(
        "distances",
        distance_loss,
        squared_distances,
        lambda positions: np.abs(positions[:, None] - positions),
        dependency.score_distances,
    )

    def distances(self, X: ArrayLike) -> Reals:
        """Return the squared distances (n_tokens, n_tokens) of the tokens of one sentence."""
        return squared_distances(self.transform(X))

    def uuas(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> float:
        """Return the undirected unlabelled attachment score.

        This is the fraction of gold edges that the minimum spanning trees of the predicted
        distances contain; NaN if every sentence has one token. X, y and groups are as in `fit`.
        """
        return self._metric(dependency.hit_rate, X, y, groups)


class DepthProbe(StructuralProbe):
    """Structural probe whose squared norms approximate depths in the dependency tree.

    >>> line, chain = [[0.0], [1.0], [2.0], [3.0], [4.0]], [-1, 0, 1, 2, 3]
    >>> probe = DepthProbe(rank=1).fit(line, chain)
    >>> round(probe.spearman(line, chain), 3)
    1.0

    Source: Hewitt and Manning (2019), section 2.3. Here the projection has a bias.
    """

    # In a linear chain, the depth of a word is its position, which `np.asarray` returns unchanged.
    _geometry = _Geometry("depths", depth_loss, squared_norms, np.asarray, dependency.score_depths)

    def predict(self, X: ArrayLike) -> Floats:
        """Return the predicted depth (n_tokens,) of each token."""
        return squared_norms(self.transform(X)).astype(np.float64, copy=False)

    def root_accuracy(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> float:
        """Return the fraction of sentences in which the token of smallest depth is the root."""
        return self._metric(dependency.hit_rate, X, y, groups)


def _sentences(X: Features, groups: ArrayLike | None) -> NDArray[Any]:
    """Return the sentence (n_tokens,) of each row; without groups all rows are one sentence."""
    return np.zeros(len(X), dtype=np.int64) if groups is None else units_of(X, groups)
