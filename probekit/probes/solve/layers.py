"""A fitted probe as a short stack of layers over raw rows: one if it is linear, two for the MLP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from probekit.errors import ConfigError
from probekit.probes.solve.design import Floats


class AffineLayer(NamedTuple):
    """An affine map: `weight` (n_out, n_in) and `bias` (n_out,)."""

    weight: Floats
    bias: Floats


@dataclass(frozen=True, eq=False)
class FittedLayers:
    """What one fit learned, for raw rows, and how its solver came to it.

    `classes` are the label codes that occurred; for two of them the last layer has one row, the
    score of the second, else one row a class. Between layers negative values become 0 (ReLU).
    `gradient_norm` is None where the solver does not tell it.
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
        answer = np.full((len(X), n_classes), -np.inf)
        answer[:, self.classes] = with_reference(self.scores(X).T, len(self.classes)).T
        return answer

    def guess(self, X: NDArray[np.floating]) -> NDArray[np.int64]:
        """Return the code with the highest score for each row (n_samples, n_features)."""
        scores = with_reference(self.scores(X).T, len(self.classes))
        codes: NDArray[np.int64] = self.classes[scores.argmax(axis=0)]
        return codes


def apply_layers(layers: tuple[AffineLayer, ...], X: NDArray[np.floating]) -> Floats:
    """Return the last layer's values (n_samples, n_out), with a ReLU after each one before it.

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
    """Return scores (n_classes, n_samples), with zeros for the reference class if it is absent.

    >>> with_reference(np.array([[0.5, -2.0]]), n_classes=2).tolist()
    [[0.0, 0.0], [0.5, -2.0]]
    """
    if len(scores) == n_classes:
        return scores
    return np.concatenate([np.zeros_like(scores), scores])


def raw_layers(estimator: BaseEstimator) -> tuple[AffineLayer, ...]:
    """Return a fitted probe as layers over raw rows, with a ReLU between two.

    One layer, (n_out, n_features), for linear kinds; two for the MLP. Two classes have one output,
    the score of the second.

    Raises:
        ConfigError: The probe reads trees or texts, not rows.

    >>> from probekit.probes.kinds.mass_mean import MassMeanProbe
    >>> probe = MassMeanProbe().fit([[0.0], [2.0]], [0, 1])
    >>> raw_layers(probe)
    (AffineLayer(weight=array([[2.]]), bias=array([-2.])),)
    """
    check_is_fitted(estimator)
    layers: tuple[AffineLayer, ...] | None = getattr(estimator, "layers_", None)
    if layers is None:
        raise ConfigError(
            f"{type(estimator).__name__} is no stack of layers over single rows. Allowed are the "
            "kinds for classification and regression."
        )
    return layers
