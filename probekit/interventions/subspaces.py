"""Orthonormal bases of directions, and the checks of directions that users give."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probekit.errors import DataError

Vectors = NDArray[np.float64]

# Relative to the largest singular value: smaller ones are float32 rounding errors.
LEAST_SIZE = 1e-5
LEAST_ENTRY = 1e-12  # relative to the largest entry of a direction


def orthonormal_basis(directions: NDArray[np.floating]) -> Vectors:
    """Return an orthonormal basis (n_features, rank) of the span of directions (n, n_features).

    The directions may be linearly dependent, like those of several classes.

    Raises:
        DataError: all directions are zero, or they are not a matrix of finite numbers.

    >>> orthonormal_basis(np.array([[2.0, 0.0], [-4.0, 0.0]])).round(6).tolist()
    [[1.0], [0.0]]
    """
    matrix = np.asarray(directions, np.float64)
    if matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise DataError(
            f"directions have shape {matrix.shape}. Give finite numbers of shape (n, n_features)."
        )
    _, sizes, rows = np.linalg.svd(matrix, full_matrices=False)
    is_direction = sizes > LEAST_SIZE * sizes.max(initial=0.0)
    if not is_direction.any():
        raise DataError("All directions are zero, so they span nothing. Give other directions.")
    basis: Vectors = rows[is_direction].T
    # A basis vector and its negative span the same; one of them makes results reproducible.
    largest = np.abs(basis).argmax(axis=0)
    return without_rounding(basis * np.sign(basis[largest, np.arange(basis.shape[1])]))


def without_rounding(columns: Vectors) -> Vectors:
    """Return columns whose rounding errors next to large entries are exactly 0.

    Otherwise an edit writes tiny copies of what it removes into features that are constant, and a
    probe on standardised features reads them.

    >>> without_rounding(np.array([[1.0], [1e-18]])).tolist()
    [[1.0], [0.0]]
    """
    sizes = np.abs(columns)
    small = sizes <= LEAST_ENTRY * sizes.max(axis=0, initial=0.0)
    cleaned: Vectors = np.where(small, 0.0, columns)
    return cleaned


def kernel_share(direction: NDArray[np.floating], matrix: NDArray[np.floating]) -> float:
    """Return the share of a direction's squared length that a matrix maps to zero.

    The part of a direction in the kernel of the output matrix has no effect on the residual stream.
    A direction with a large share may still move activations when it is swapped, because it moves
    them off the distribution that later layers were trained on.

    Args:
        direction: shape (n_features,).
        matrix: output matrix of the site, shape (d_model, n_features).

    >>> round(kernel_share(np.array([3.0, 4.0]), np.array([[1.0, 0.0]])), 2)
    0.64

    Source: Makelov et al. (2023), Is this the subspace you are looking for?
    """
    _, sizes, rows = np.linalg.svd(np.asarray(matrix, np.float64), full_matrices=False)
    image = rows[sizes > LEAST_SIZE * sizes.max(initial=0.0)]
    own = np.asarray(direction, np.float64)
    return float(1 - np.square(image @ own).sum() / np.square(own).sum())
