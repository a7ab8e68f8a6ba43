"""Standardisation of rows, and conversion of layers on scaled rows to layers on raw rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probekit.probes.solve.design import Floats, moments
from probekit.probes.solve.layers import AffineLayer


@dataclass(frozen=True)
class Scaling:
    """Mean and scale (n_features,) of each feature, to subtract and divide by."""

    mean: Floats
    scale: Floats

    @classmethod
    def centred(cls, X: NDArray[np.floating]) -> Scaling:
        """Return the scaling that only subtracts the mean of X (n_samples, n_features).

        >>> Scaling.centred(np.array([[1.0, 5.0], [3.0, 5.0]])).mean.tolist()
        [2.0, 5.0]
        """
        mean: Floats = X.mean(axis=0, dtype=np.float64)
        return cls(mean, np.ones_like(mean))

    @classmethod
    def standard(cls, X: NDArray[np.floating]) -> Scaling:
        """Return the scaling to mean 0 and standard deviation 1; constant features become 0.

        >>> Scaling.standard(np.array([[1.0, 5.0], [3.0, 5.0]])).scale.tolist()
        [1.0, inf]
        """
        return cls(*moments(X, np.ones(len(X)), np.ones(len(X), dtype=bool)))

    def apply(self, X: NDArray[np.floating]) -> Floats:
        """Return X (n_samples, n_features) scaled, in float64.

        >>> Scaling(np.array([1.0]), np.array([2.0])).apply(np.array([[5.0]])).tolist()
        [[2.0]]
        """
        scaled = X.astype(np.float64)
        scaled -= self.mean
        scaled /= self.scale
        return scaled

    def fold(self, weight: Floats, bias: Floats) -> AffineLayer:
        """Return the layer on raw rows that is equivalent to the given one on scaled rows.

        `weight` has shape (n_out, n_features), `bias` (n_out,).

        >>> layer = Scaling(np.array([1.0]), np.array([2.0])).fold(np.array([[4.0]]), np.zeros(1))
        >>> layer.weight.tolist(), layer.bias.tolist()
        ([[2.0]], [-2.0])
        """
        raw = weight / self.scale
        return AffineLayer(raw, bias - raw @ self.mean)


def measured(X: NDArray[np.floating], typical: NDArray[np.bool_] | None) -> NDArray[np.floating]:
    """Return the rows of X (n_samples, n_features) that feature scaling is estimated from.

    These are the `typical` rows (n_samples,). All rows are returned if `typical` is None or selects
    fewer than two, because a standard deviation needs two rows.

    >>> X = np.array([[900.0], [1.0], [3.0]])
    >>> measured(X, np.array([False, True, True])).tolist()
    [[1.0], [3.0]]
    """
    return X if typical is None or np.count_nonzero(typical) < 2 else X[typical]


def balanced_weights(labels: NDArray[np.generic]) -> Floats:
    """Return the weight (n_samples,) of each row that gives all labels the same total weight.

    The mean weight is 1.

    >>> balanced_weights(np.array(["a", "a", "a", "b"])).round(2).tolist()
    [0.67, 0.67, 0.67, 2.0]
    """
    _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    weights: Floats = (len(codes) / (len(counts) * counts))[codes]
    return weights
