"""Weight directions of linear probes, and their cosine similarity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probekit.probes.solve.design import Features, Floats
from probekit.probes.solve.layers import FittedLayers


def direction(solution: FittedLayers) -> Floats | None:
    """Return the weights (n_features,) of a linear fit; None for a fit with several layers.

    With more than two classes the weights of all classes are concatenated
    (n_classes * n_features,), after subtracting their mean over the classes, which does not affect
    the predictions.

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
        a: a direction in raw features.
        b: another direction in raw features.
        spread: the standard deviation (n_features,) of each feature. If given, the cosine is
            computed for the same two probes as functions of standardised features. Raw weights are
            large for features with a small scale, even if these hardly change the score; weights of
            standardised features measure how much they do.

    >>> a, b = np.array([1.0, 100.0]), np.array([1.0, -100.0])
    >>> round(cosine(a, b), 3), round(cosine(a, b, np.array([1.0, 0.001])), 3)
    (-1.0, 0.98)
    """
    if spread is not None:
        a, b = (x * np.tile(spread, len(x) // len(spread)) for x in (a, b))
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else float("nan")


def pooled_spread(parts: Sequence[Features]) -> Floats:
    """Return the standard deviation (n_features,) over the rows of all matrices.

    Each matrix has shape (n_rows, n_features).

    >>> pooled_spread([np.array([[1.0], [3.0]]), np.array([[1.0], [3.0]])]).tolist()
    [1.0]
    """
    n_rows = sum(map(len, parts))
    mean = sum(part.sum(axis=0, dtype=np.float64) for part in parts) / n_rows
    squares = sum(np.square(part - mean).sum(axis=0) for part in parts)
    spread: Floats = np.sqrt(squares / n_rows)
    return spread
