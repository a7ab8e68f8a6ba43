"""Training of the projection of a structural probe: Adam on an L1 loss, in sentence batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

# (projected tokens (n_tokens, rank), gold values) -> (loss, gradient in the tokens).
Reals = NDArray[np.floating]
SentenceLoss = Callable[[Reals, Reals], tuple[float, Reals]]

BATCH = 20
# Minimum number of steps per epoch; few sentences are repeated within an epoch.
LEAST_STEPS = 50
# Initial learning rate, relative to the standard deviation of the initial weights.
RATE = 0.1
# If the loss decreases by a smaller fraction in an epoch, the learning rate is reduced.
LEAST_PROGRESS = 1e-3
RATE_DROPS = 3
# One in this many sentences is held out for early stopping, if there are enough sentences.
HELD_OUT = 10


@dataclass(frozen=True, eq=False)
class SentenceTargets:
    """Rows (n_tokens, n_features) of one sentence, and its gold depths or distances."""

    rows: Reals
    gold: Reals


@dataclass(frozen=True, eq=False)
class Projection:
    """The best `weight` (n_features, rank), the number of epochs, and a convergence flag."""

    weight: Reals
    n_iter: int
    converged: bool


@dataclass
class Adam:
    """The Adam optimiser.

    Source: Kingma and Ba (2015), algorithm 1, with its default constants.
    """

    rate: float
    first: Reals | float = 0.0
    second: Reals | float = 0.0
    n_steps: int = field(default=0)

    def step(self, gradient: Reals) -> Reals:
        """Return the step to subtract from the weights."""
        self.n_steps += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        mean = self.first / (1 - 0.9**self.n_steps)
        size = np.sqrt(self.second / (1 - 0.999**self.n_steps))
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


def squared_distances(tokens: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the pairwise squared distances (n_tokens, n_tokens) of tokens (n_tokens, rank).

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
    """Return the projection with the smallest loss on held-out sentences.

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
    best = _first_weight(sentences[0].rows.shape[1], rank, generator)
    adam = Adam(RATE * float(best.std()))
    weight, best_loss, drops = best, _mean_loss(held_out, best, loss), 0
    for epoch in range(1, max_iter + 1):
        weight = _epoch(inside, weight, loss, adam, generator)
        current_loss = _mean_loss(held_out, weight, loss)
        if current_loss < best_loss * (1 - LEAST_PROGRESS):
            best, best_loss = weight, current_loss
            continue
        drops += 1
        if drops == RATE_DROPS:
            return Projection(best, epoch, converged=True)
        weight, adam = best, Adam(adam.rate / 10)
    return Projection(best, max_iter, converged=False)


def _first_weight(n_features: int, rank: int, generator: np.random.Generator) -> Reals:
    """Return random weights (n_features, rank).

    They are scaled so that projected standardised tokens have squared distances of about 4.
    """
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
    """Return the weights after one epoch, which repeats the sentences if they are few."""
    n_batches = -(-len(sentences) // BATCH)
    for _ in range(-(-LEAST_STEPS // n_batches)):
        order = generator.permutation(len(sentences))
        for batch in np.array_split(order, n_batches):
            gradient = _gradient([sentences[index] for index in batch], weight, loss)
            weight = weight - adam.step(gradient)
    return weight


def _gradient(batch: Sequence[SentenceTargets], weight: Reals, loss: SentenceLoss) -> Reals:
    """Return the gradient of the batch's mean loss, by one matrix product for all tokens."""
    rows = np.concatenate([sentence.rows for sentence in batch])
    tokens = np.split(rows @ weight, np.cumsum([len(sentence.rows) for sentence in batch])[:-1])
    slopes = [loss(own, sentence.gold)[1] for own, sentence in zip(tokens, batch, strict=True)]
    gradient: Reals = rows.T @ np.concatenate(slopes) / len(batch)
    return gradient
