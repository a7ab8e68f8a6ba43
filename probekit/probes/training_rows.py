"""Training rows of one fit, with the scaling of their features and weights of their labels.

This module does not import scikit-learn, which takes a second: data are checked without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probekit.lazy_rows import Codes, Features, Floats, LazyRows, Mask, Rows
from probekit.probes.solve.design import moments
from probekit.probes.solve.layers import AffineLayer


@dataclass(frozen=True)
class Scaling:
    """Mean and scale (n_features,) of each feature, to subtract and divide by."""

    mean: Floats
    scale: Floats

    @classmethod
    def centred(cls, X: Rows) -> Scaling:
        """Return the scaling that only subtracts the mean of X (n_samples, n_features).

        >>> Scaling.centred(np.array([[1.0, 5.0], [3.0, 5.0]])).mean.tolist()
        [2.0, 5.0]
        """
        rows = LazyRows.of(X)
        if rows.is_elsewhere:
            mean, _ = moments(rows, np.ones(len(X)), np.ones(len(X), dtype=bool))
        else:
            sums = sum(block.sum(axis=0, dtype=np.float64) for _, block in rows.blocks())
            mean = sums / len(X)
        return cls(mean, np.ones(X.shape[1]))

    @classmethod
    def standard(cls, X: Rows, typical: Mask | None = None) -> Scaling:
        """Return the scaling to mean 0 and standard deviation 1; constant features become 0.

        It is estimated from the `typical` rows (n_samples,) of X. If these are None or fewer than
        two, it is estimated from all rows, because a standard deviation needs two.

        >>> X = np.array([[900.0, 9.0], [1.0, 5.0], [3.0, 5.0]])
        >>> Scaling.standard(X, np.array([False, True, True])).scale.tolist()
        [1.0, inf]
        """
        if typical is not None and np.count_nonzero(typical) > 1:
            X = LazyRows.of(X).select(typical)
        return cls(*moments(X, np.ones(len(X)), np.ones(len(X), dtype=bool)))

    def apply(self, X: Features) -> Floats:
        """Return X (n_samples, n_features) scaled, in float64.

        >>> Scaling(np.array([1.0]), np.array([2.0])).apply(np.array([[5.0]])).tolist()
        [[2.0]]
        """
        return self.lazily(X)[:].astype(np.float64, copy=False)

    def lazily(self, X: Rows) -> LazyRows:
        """Return X (n_samples, n_features) scaled when it is read; see `LazyRows.scaled`."""
        return LazyRows.of(X).scaled(self.mean, self.scale)

    def fold(self, weight: Floats, bias: Floats) -> AffineLayer:
        """Return the layer on raw rows that is equivalent to the given one on scaled rows.

        `weight` has shape (n_out, n_features), `bias` (n_out,).

        >>> layer = Scaling(np.array([1.0]), np.array([2.0])).fold(np.array([[4.0]]), np.zeros(1))
        >>> layer.weight.tolist(), layer.bias.tolist()
        ([[2.0]], [-2.0])
        """
        # weight @ ((x - mean) / scale) + bias = raw @ x + (bias - raw @ mean), for a row x.
        raw = weight / self.scale
        return AffineLayer(raw, bias - raw @ self.mean)


def balanced_weights(labels: NDArray[np.generic]) -> Floats:
    """Return the weight (n_samples,) of each row that gives all labels the same total weight.

    The mean weight is 1.

    >>> balanced_weights(np.array(["a", "a", "a", "b"])).round(2).tolist()
    [0.67, 0.67, 0.67, 2.0]
    """
    _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    weight_of_code: Floats = len(codes) / (len(counts) * counts)
    return weight_of_code[codes]


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Training rows of one fit, with their labels and groups.

    Attributes:
        X: The rows (n_samples, n_features).
        codes: The label codes (n_samples,), numbered in the order of `classes_`; a code may be
            absent from the rows of a fold.
        groups: The groups (n_samples,).
        typical: Which rows (n_samples,) feature scaling is estimated from; None means all.
    """

    X: Rows
    codes: Codes
    groups: NDArray[np.generic]
    typical: Mask | None = None

    def take(self, rows: Mask) -> TrainingRows:
        """Return the rows selected by a mask (n_samples,)."""
        typical = None if self.typical is None else self.typical[rows]
        X = LazyRows.of(self.X).select(rows)
        return TrainingRows(X, self.codes[rows], self.groups[rows], typical)
