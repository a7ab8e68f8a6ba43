"""The score by which the explorer chooses the head that it opens on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FIRST_QUERY = 2  # earlier ones have no choice between tokens other than the first


def scores_beyond_distance(patterns: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return by how much the largest weights of each head exceed its mean weight at their distance.

    The mean weight at a distance, over all other queries, is what a head that attends by relative
    position alone would give. The score is the largest excess of each query, 0 if there is none,
    averaged over the queries from the third on. Weights on the first token are left out. Heads that
    attend to the same token, the previous token, the first token, or to all tokens equally score
    low. One text cannot show whether a weight is due to content or to absolute position.

    Args:
        patterns: attention weights of shape (n_layers, n_heads, n, n), queries in rows.

    Returns:
        Scores of shape (n_layers, n_heads); NaN for texts of fewer than three tokens.

    >>> previous, single = np.eye(4, k=-1, dtype=np.float32), np.eye(4, dtype=np.float32)
    >>> single[3] = [0, 1, 0, 0]  # excess 0.5 at query 2 and 1 at query 3
    >>> scores_beyond_distance(np.stack([[previous, single]])).tolist()
    [[0.0, 0.75]]
    """
    return np.stack([_scores(layer) for layer in patterns])


def _scores(layer: NDArray[np.float32]) -> NDArray[np.float32]:
    n_heads, n, _ = layer.shape
    if n <= _FIRST_QUERY:
        return np.full(n_heads, np.nan, np.float32)
    excess = layer[:, 1:, 1:].copy()
    side = n - 1
    flat = excess.reshape(n_heads, -1)
    for distance in range(side):
        diagonal = flat[:, distance * side :: side + 1]
        total = diagonal.sum(1, dtype=np.float64, keepdims=True)
        diagonal -= (total - diagonal) / max(side - distance - 1, 1)
    largest = excess.max(-1, initial=0)[:, _FIRST_QUERY - 1 :]
    scores: NDArray[np.float32] = largest.mean(-1, dtype=np.float64).astype(np.float32)
    return scores
