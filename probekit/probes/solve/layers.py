"""Fitted probes as stacks of affine layers on raw rows, and the directions of linear ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from probekit.amounts import LEVEL
from probekit.lazy_rows import Codes, Features, Floats, LazyRows, fetched


class AffineLayer(NamedTuple):
    """An affine map: `weight` (n_out, n_in) and `bias` (n_out,)."""

    weight: Floats
    bias: Floats


@dataclass(frozen=True, eq=False)
class FittedLayers:
    """Result of one fit: layers on raw rows, iteration count and convergence flag.

    Attributes:
        classes: Label codes that occurred in the training rows; empty for numbers.
        layers: Affine layers with a ReLU between them. The last has one output for a number or for
            two classes (the score of the second), else one per class.
        n_iter: Number of solver iterations.
        converged: Whether the solver reached its tolerance.
        gradient_norm: Final gradient norm; None if the solver does not report it.
    """

    classes: Codes
    layers: tuple[AffineLayer, ...]
    n_iter: int = 1
    converged: bool = True
    gradient_norm: float | None = None

    def scores(self, X: Features | LazyRows) -> Floats:
        """Return the scores (n_samples, n_out) of raw rows (n_samples, n_features)."""
        return apply_layers(self.layers, X)

    def outputs(self, X: Features | LazyRows, n_classes: int | None) -> Floats:
        """Return the scores (n_samples, n_classes) of rows; -inf for a class that was not fitted.

        Without classes these are the predicted numbers (n_samples,).
        """
        scores = self.scores(X)
        return scores[:, 0] if n_classes is None else self.by_class(scores, n_classes)

    def by_class(self, scores: Floats, n_classes: int) -> Floats:
        """Return scores (n_samples, n_out) of this fit by class (n_samples, n_classes).

        A class that was not fitted gets -inf.
        """
        of_classes = np.full((len(scores), n_classes), -np.inf)
        of_classes[:, self.classes] = with_reference(scores.T, len(self.classes)).T
        return of_classes


def apply_layers(layers: tuple[AffineLayer, ...], X: Features | LazyRows) -> Floats:
    """Return the output (n_samples, n_out) of the layers, with a ReLU after each hidden layer.

    >>> twice = AffineLayer(np.array([[2.0]]), np.array([0.0]))
    >>> apply_layers((twice, twice), np.array([[-1.0], [1.0]])).tolist()
    [[0.0], [4.0]]
    """
    rows, (there,) = on_rows(X, [layers])
    output = np.empty((len(rows), len(layers[-1].bias)))
    for place, block in rows.computed():
        output[place] = fetched(through(there, block))
    return output


def on_rows(
    X: Features | LazyRows, fits: Sequence[tuple[AffineLayer, ...]]
) -> tuple[LazyRows, list[tuple[AffineLayer, ...]]]:
    """Return rows, and the layers of several fits where scores of the rows are computed.

    On an accelerator the rows are centred, because a score in float32 would lose digits by a large
    mean, and the first layers are changed accordingly.
    """
    rows = LazyRows.of(X)
    if not rows.is_elsewhere or not len(rows):
        return rows, list(fits)
    centre, placed = rows.centre(), []
    for (weight, bias), *later in fits:
        layers = [(weight, bias + weight @ centre), *later]
        placed.append(tuple(AffineLayer(*map(rows.put, layer)) for layer in layers))
    return rows.scaled(centre, np.ones(len(centre))), placed


def through(layers: Sequence[AffineLayer], rows: Any) -> Any:
    """Return the output (n_samples, n_out) of the layers for an array or tensor of rows."""
    (weight, bias), *later = layers
    values = rows @ weight.T + bias
    for weight, bias in later:
        values = values.clip(0.0) @ weight.T + bias
    return values


def with_reference(scores: Floats, n_classes: int) -> Floats:
    """Return scores (n_classes, n_samples), adding zeros for the reference class if it is absent.

    >>> with_reference(np.array([[0.5, -2.0]]), n_classes=2).tolist()
    [[0.0, 0.0], [0.5, -2.0]]
    """
    if len(scores) == n_classes:
        return scores
    return np.concatenate([np.zeros_like(scores[:1]), scores])


def direction(solution: FittedLayers) -> Floats | None:
    """Return the direction of a linear fit: its weights (n_features,).

    None for a fit with several layers. With more than two classes the weights of all classes are
    concatenated (n_classes * n_features,), after subtracting their mean over the classes, which
    does not affect the predictions.

    >>> from probekit.probes.solve.layers import AffineLayer
    >>> layer = AffineLayer(np.array([[3.0], [4.0], [8.0]]), np.zeros(3))
    >>> direction(FittedLayers(np.arange(3), (layer,))).tolist()
    [-2.0, -1.0, 3.0]
    """
    if len(solution.layers) > 1:
        return None
    weight = solution.layers[0].weight
    return np.ravel(weight if len(weight) == 1 else weight - weight.mean(axis=0)).astype(np.float64)


def cosine(a: Floats, b: Floats, spread: Floats | None = None) -> float:
    """Return the cosine similarity of two directions; NaN if one of them is zero.

    Args:
        a: a direction in raw features; see `direction`.
        b: another direction in raw features.
        spread: the standard deviation (n_features,) of each feature. If given, the cosine is
            computed for the same two probes as functions of standardised features. Raw weights are
            large for features with a small scale, even if these hardly change the score. Weights of
            standardised features measure how much each feature changes the score.

    >>> a, b = np.array([1.0, 100.0]), np.array([1.0, -100.0])
    >>> round(cosine(a, b), 3), round(cosine(a, b, np.array([1.0, 0.001])), 3)
    (-1.0, 0.98)
    """
    if spread is not None:
        # Directions of several classes are concatenated, so that the spread is repeated for each.
        a, b = (x * np.tile(spread, len(x) // len(spread)) for x in (a, b))
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else float("nan")


def unit_rows(weights: Floats) -> Floats | None:
    """Return directions (n_directions, n_features) scaled to length 1; None if one is zero.

    >>> unit_rows(np.array([[3.0, 4.0]])).tolist()
    [[0.6, 0.8]]
    """
    lengths = np.linalg.norm(weights, axis=1, keepdims=True)
    return weights / lengths if lengths.all() else None


def null_cosines(directions: Floats, draws: Floats) -> Floats:
    """Return the cosine similarity (n_draws,) of a probe to each probe fitted on permuted labels.

    Args:
        directions: the directions (n_directions, n_features) of the probe, of length 1.
        draws: the directions of the probes on permuted labels, of length 1 and shape
            (n_draws, n_directions, n_features). For probes with several directions, the result is
            the mean cosine over corresponding directions.

    >>> null_cosines(np.array([[1.0, 0.0]]), np.array([[[0.0, 1.0]], [[0.6, 0.8]]])).tolist()
    [0.0, 0.6]
    """
    found: Floats = np.einsum("cf,ncf->n", directions, draws) / len(directions)
    return found


def certainty(halves: Floats) -> tuple[float, float]:
    """Return the mean cosine of two halves' directions, and the cosine expected of their whole.

    The second is that of the direction of all rows with the direction of unlimited rows. Errors of
    two halves are independent, so that the cosine c of the halves is that of one half with the
    unlimited direction, squared; all rows halve the error, which gives sqrt(2 c / (1 + c)). It is 0
    if c is negative.

    Args:
        halves: directions of length 1, shape (2 n_draws, n_directions, n_features), each half
            followed by the other. With several directions the cosine is their mean.

    Source: Spearman (1910), Correlation calculated from faulty data; Brown (1910), Some
    experimental results in the correlation of mental abilities.

    >>> certainty(np.array([[[1.0, 0.0]], [[0.6, 0.8]]]))
    (0.6, 0.8660254037844386)
    """
    pairs = halves.reshape(-1, 2, *halves.shape[1:])
    cosine = float((pairs[:, 0] * pairs[:, 1]).sum(axis=-1).mean())
    return cosine, max(0.0, 2 * cosine / (1 + cosine)) ** 0.5 if cosine > -1 else 0.0


def bound_of_null(null: Floats) -> float:
    """Return the absolute value that a new draw of the null exceeds with at most 5 % probability.

    If the absolute values of `null` (n_draws,) are sorted in ascending order, it is number
    0.95 (n_draws + 1), rounded up. With fewer than 19 draws there is no such value, and the largest
    is returned.

    >>> bound_of_null(np.arange(-100.0, 0.0))
    96.0
    """
    ordered = np.sort(np.abs(null))
    number = int(np.ceil((1 - LEVEL) * (len(ordered) + 1)))
    return float(ordered[min(number, len(ordered)) - 1])


def pooled_spread(parts: Sequence[LazyRows]) -> Floats:
    """Return the standard deviation (n_features,) of each feature over the rows of all matrices.

    Each matrix has shape (n_rows, n_features), and is read by blocks.

    >>> rows = LazyRows.of(np.array([[1.0], [3.0]]))
    >>> pooled_spread([rows, rows]).tolist()
    [1.0]
    """
    n_rows = sum(map(len, parts))
    mean = sum(block.sum(axis=0) for part in parts for _, block in part.computed()) / n_rows
    squares = sum(
        np.square(block - mean).sum(axis=0) for part in parts for _, block in part.computed()
    )
    found: Floats = np.sqrt(squares / n_rows)
    return found
