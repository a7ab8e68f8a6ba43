"""Mean of the positions of each row, computed alike in captures and in derived caches."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IntArray = npt.NDArray[np.int64]


def ranges(starts: IntArray, counts: IntArray) -> IntArray:
    """Return the concatenation of the integer ranges [start, start + count).

    >>> ranges(np.array([5, 0]), np.array([2, 3]))
    array([5, 6, 0, 1, 2])
    """
    first_indices = np.cumsum(counts) - counts
    indices: IntArray = np.arange(int(counts.sum())) + np.repeat(starts - first_indices, counts)
    return indices


def row_means(picked: Tensor, row: Tensor, count: Tensor) -> Tensor:
    """Return the mean over the positions of each row in float32, shape [row ...].

    Always a copy, never a view.

    Args:
        picked: values at the positions, shape [position ...].
        row: index of the row that each position belongs to, shape [position].
        count: number of positions of each row, shape [row].
    """
    sums = torch.zeros(len(count), *picked.shape[1:], dtype=torch.float32, device=picked.device)
    sums.index_add_(0, row, picked.float())
    return sums / count.view(-1, *[1] * (picked.ndim - 1))
