"""Fitted probes as stacks of affine layers on raw rows: one for linear kinds, two for the MLP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from probekit.probes.solve.design import Floats


class AffineLayer(NamedTuple):
    """An affine map: `weight` (n_out, n_in) and `bias` (n_out,)."""

    weight: Floats
    bias: Floats


@dataclass(frozen=True, eq=False)
class FittedLayers:
    """Result of one fit: layers on raw rows, iteration count and convergence flag.

    Attributes:
        classes: Label codes that occurred in the training rows.
        layers: Affine layers with a ReLU between them. The last has one output for two classes, the
            score of the second, else one per class.
        n_iter: Number of solver iterations.
        converged: Whether the solver reached its tolerance.
        gradient_norm: Final gradient norm; None if the solver does not report it.
    """

    classes: NDArray[np.int64]
    layers: tuple[AffineLayer, ...]
    n_iter: int = 1
    converged: bool = True
    gradient_norm: float | None = None

    def scores(self, X: NDArray[np.floating]) -> Floats:
        """Return the scores (n_samples, n_out) of raw rows (n_samples, n_features)."""
        return apply_layers(self.layers, X)

    def class_scores(self, X: NDArray[np.floating], n_classes: int) -> Floats:
        """Return the scores (n_samples, n_classes); -inf for a class that was not fitted."""
        return self.by_class(self.scores(X), n_classes)

    def by_class(self, scores: Floats, n_classes: int) -> Floats:
        """Return scores (n_samples, n_out) of this fit by class (n_samples, n_classes)."""
        of_classes = np.full((len(scores), n_classes), -np.inf)
        of_classes[:, self.classes] = with_reference(scores.T, len(self.classes)).T
        return of_classes

    def guess(self, X: NDArray[np.floating]) -> NDArray[np.int64]:
        """Return the label code (n_samples,) with the highest score for each row."""
        scores = with_reference(self.scores(X).T, len(self.classes))
        codes: NDArray[np.int64] = self.classes[scores.argmax(axis=0)]
        return codes


def apply_layers(layers: tuple[AffineLayer, ...], X: NDArray[np.floating]) -> Floats:
    """Return the output (n_samples, n_out) of the layers, with a ReLU after each hidden layer.

    >>> twice = AffineLayer(np.array([[2.0]]), np.array([0.0]))
    >>> apply_layers((twice, twice), np.array([[-1.0], [1.0]])).tolist()
    [[0.0], [4.0]]
    """
    first, *later = layers
    values: Floats = X @ first.weight.T + first.bias
    for weight, bias in later:
        values = np.maximum(values, 0.0) @ weight.T + bias
    return values


def with_reference(scores: Floats, n_classes: int) -> Floats:
    """Return scores (n_classes, n_samples), adding zeros for the reference class if it is absent.

    >>> with_reference(np.array([[0.5, -2.0]]), n_classes=2).tolist()
    [[0.0, 0.0], [0.5, -2.0]]
    """
    if len(scores) == n_classes:
        return scores
    return np.concatenate([np.zeros_like(scores), scores])
