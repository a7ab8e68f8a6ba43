"""Making rows of positions: the one place that both a capture and a derived cache compute with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IntArray = npt.NDArray[np.int64]


def ranges(starts: IntArray, counts: IntArray) -> IntArray:
    """Return the numbers from each start on, so many of each, in one line.

    >>> ranges(np.array([5, 0]), np.array([2, 3]))
    array([5, 6, 0, 1, 2])
    """
    before = np.cumsum(counts) - counts
    numbers: IntArray = np.arange(int(counts.sum())) + np.repeat(starts - before, counts)
    return numbers


def row_means(picked: Tensor, row: Tensor, count: Tensor) -> Tensor:
    """Return the mean over the places of each row in float32, shape [row ...]; always a copy.

    Args:
        picked: values at the places, shape [place ...].
        row: which row each place goes to, shape [place].
        count: how many places each row has, shape [row].
    """
    sums = torch.zeros(len(count), *picked.shape[1:], dtype=torch.float32, device=picked.device)
    sums.index_add_(0, row, picked.float())
    return sums / count.view(-1, *[1] * (picked.ndim - 1))
