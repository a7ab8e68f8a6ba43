"""Fitting the projection of a structural probe: Adam on an L1 loss, a batch of sentences a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

# Projected tokens (n_tokens, rank) and their gold values -> loss, and its gradient at the tokens.
Reals = NDArray[np.floating]
SentenceLoss = Callable[[Reals, Reals], tuple[float, Reals]]

BATCH = 20
# An epoch on few sentences goes over them several times: one step says little about progress.
LEAST_STEPS = 50
# First step, as a share of the size of the initial weights.
RATE = 0.1
# A loss that falls by a smaller share in an epoch has stopped falling; then steps get smaller.
LEAST_PROGRESS = 1e-3
RATE_DROPS = 3
# One sentence in so many is held out to say when to stop, if there are as many.
HELD_OUT = 10


@dataclass(frozen=True, eq=False)
class SentenceTargets:
    """Rows (n_tokens, n_features) of one sentence, and the depths or distances to be met."""

    rows: Reals
    gold: Reals


@dataclass(frozen=True, eq=False)
class Projection:
    """The best `weight` (n_features, rank), and how the descent came to it."""

    weight: Reals
    n_iter: int
    converged: bool


@dataclass
class Adam:
    """Adaptive steps. Source: Kingma and Ba (2015), algorithm 1, with its default constants."""

    rate: float
    first: Reals | float = 0.0
    second: Reals | float = 0.0
    n_steps: int = field(default=0)

    def step(self, gradient: Reals) -> Reals:
        """Return what to take off the weights."""
        self.n_steps += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        mean = self.first / (1 - 0.9**self.n_steps)
        size = np.sqrt(self.second / (1 - 0.999**self.n_steps))
        step: Reals = self.rate * mean / (size + 1e-8)
        return step


def distance_loss(tokens: Reals, gold: Reals) -> tuple[float, Reals]:
    """Return the mean absolute error of all squared distances, and its gradient at the tokens.

    >>> loss, gradient = distance_loss(np.array([[0.0], [2.0]]), np.array([[0.0, 1.0], [1.0, 0.0]]))
    >>> float(loss), gradient.tolist()
    (1.5, [[-2.0], [2.0]])

    Source: Hewitt and Manning (2019), section 2.2: the sum over n^2 pairs is divided by n^2.
    """
    error = squared_distances(tokens) - gold
    pull = np.sign(error) / error.size
    return float(np.abs(error).mean()), 4 * (pull.sum(axis=1)[:, None] * tokens - pull @ tokens)


def depth_loss(tokens: Reals, gold: Reals) -> tuple[float, Reals]:
    """Return the mean absolute error of the squared norms, and its gradient at the tokens.

    >>> loss, gradient = depth_loss(np.array([[0.0], [2.0]]), np.array([0.0, 1.0]))
    >>> float(loss), gradient.tolist()
    (1.5, [[0.0], [2.0]])

    Source: Hewitt and Manning (2019), section 2.3.
    """
    error = np.sum(tokens**2, axis=1) - gold
    pull = np.sign(error) / error.size
    return float(np.abs(error).mean()), 2 * pull[:, None] * tokens


def squared_distances(tokens: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the squared distance (n_tokens, n_tokens) between each two tokens (n_tokens, rank).

    >>> squared_distances(np.array([[0.0], [3.0]])).tolist()
    [[0.0, 9.0], [9.0, 0.0]]
    """
    norms = np.sum(tokens**2, axis=1)
    squared: Reals = np.maximum(norms[:, None] + norms - 2 * tokens @ tokens.T, 0.0)
    np.fill_diagonal(squared, 0.0)
    return squared


def fit_projection(
    sentences: Sequence[SentenceTargets], loss: SentenceLoss, rank: int, max_iter: int, seed: int
) -> Projection:
    """Return the projection with the least loss on held-out sentences, or on all if they are few.

    Steps get ten times smaller, from the best weights so far, when an epoch brings no progress; at
    the third time the descent has converged.

    Source: Hewitt and Manning (2019), section 3 and their released code, for Adam, the batches of
    20 and the smaller steps; the size of the first step follows the initial weights here.
    """
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(sentences))
    n_held = len(sentences) // HELD_OUT
    held = [sentences[place] for place in order[:n_held]] or list(sentences)
    inside = [sentences[place] for place in order[n_held:]]
    best = _first_weight(sentences[0].rows.shape[1], rank, generator)
    adam = Adam(RATE * float(best.std()))
    weight, least, drops = best, _mean_loss(held, best, loss), 0
    for epoch in range(1, max_iter + 1):
        weight = _epoch(inside, weight, loss, adam, generator)
        now = _mean_loss(held, weight, loss)
        if now < least * (1 - LEAST_PROGRESS):
            best, least = weight, now
            continue
        drops += 1
        if drops == RATE_DROPS:
            return Projection(best, epoch, converged=True)
        weight, adam = best, Adam(adam.rate / 10)
    return Projection(best, max_iter, converged=False)


def _first_weight(n_features: int, rank: int, generator: np.random.Generator) -> Reals:
    """Return random weights (n_features, rank) under which standardised tokens are some 4 apart."""
    size = np.sqrt(2 / (rank * n_features))
    weight: Reals = (size * generator.normal(size=(n_features, rank))).astype(np.float32)
    return weight


def _mean_loss(sentences: Sequence[SentenceTargets], weight: Reals, loss: SentenceLoss) -> float:
    losses = [loss(sentence.rows @ weight, sentence.gold)[0] for sentence in sentences]
    return float(np.mean(losses))


def _epoch(
    sentences: Sequence[SentenceTargets],
    weight: Reals,
    loss: SentenceLoss,
    adam: Adam,
    generator: np.random.Generator,
) -> Reals:
    """Return the weights after one pass over the sentences, or after several if they are few."""
    n_batches = -(-len(sentences) // BATCH)
    for _ in range(-(-LEAST_STEPS // n_batches)):
        order = generator.permutation(len(sentences))
        for batch in np.array_split(order, n_batches):
            gradient = _gradient([sentences[place] for place in batch], weight, loss)
            weight = weight - adam.step(gradient)
    return weight


def _gradient(batch: Sequence[SentenceTargets], weight: Reals, loss: SentenceLoss) -> Reals:
    """Return the gradient of the batch's mean loss, with one product for all its tokens."""
    rows = np.concatenate([sentence.rows for sentence in batch])
    tokens = np.split(rows @ weight, np.cumsum([len(sentence.rows) for sentence in batch])[:-1])
    pulls = [loss(own, sentence.gold)[1] for own, sentence in zip(tokens, batch, strict=True)]
    gradient: Reals = rows.T @ np.concatenate(pulls) / len(batch)
    return gradient
