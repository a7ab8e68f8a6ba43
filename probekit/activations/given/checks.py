"""Rows that no network computes: one check for all readers of activations of other programs."""

from __future__ import annotations

import numpy as np

from probekit.activations.records import FloatArray

FEWEST = 16  # features of rows that must vary: sparse codes may have fewer, all of them 0


def unusable(rows: FloatArray) -> tuple[int, int, str] | None:
    """Return index of the first unusable row, their number and what is wrong; None if none is.

    A row is unusable if it has NaN or an infinity, or the same number in all of its features (at
    least 16): an engine has not computed it, or a file is half-written.

    Args:
        rows: shape (n_rows, n_features).

    >>> unusable(np.eye(20)), unusable(np.zeros((3, 20)))
    (None, (0, 3, 'is 0 in all features'))
    """
    wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(wrong):
        row = rows[wrong[0]]
        return int(wrong[0]), len(wrong), f"contains {row[~np.isfinite(row)][0]}"
    if rows.shape[1] < FEWEST:
        return None
    few = np.flatnonzero((rows[:, :FEWEST] == rows[:, :1]).all(axis=1))  # most rows differ here
    wrong = few[(rows[few] == rows[few, :1]).all(axis=1)]
    if not len(wrong):
        return None
    return int(wrong[0]), len(wrong), f"is {rows[wrong[0], 0]:g} in all features"
