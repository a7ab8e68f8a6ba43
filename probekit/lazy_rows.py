"""Rows of activations that are read from a file or another array when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# A block has at most BLOCK_ROWS rows and BLOCK_NUMBERS numbers, but at least FEWEST_ROWS rows.
BLOCK_ROWS, BLOCK_NUMBERS, FEWEST_ROWS = 4096, 1 << 22, 256
LOADED_BYTES = 1 << 28  # rows up to this size are read once and kept

Features: TypeAlias = NDArray[np.floating]


def rows_of_block(n_features: int) -> int:
    """Return the number of rows of this width that are read at once.

    >>> rows_of_block(768), rows_of_block(8192)
    (4096, 512)
    """
    return min(BLOCK_ROWS, max(FEWEST_ROWS, BLOCK_NUMBERS // max(1, n_features)))


@dataclass(frozen=True, eq=False)
class LazyRows:
    """Rows (n_samples, n_features) that are read by blocks, so that memory does not limit them.

    `rows[place]`, for a slice, row numbers or a mask, reads these rows into memory; `select`
    returns them as lazy rows, which are not read yet.

    Attributes:
        read: Returns the rows of a slice or of row numbers of the source, (n, n_features).
        shape: Number of rows and of features.
        dtype: The dtype of what `read` returns.
        numbers: The numbers (n_samples,) of the rows in the source; None means all rows.
        is_mapped: Whether the source is a file, so that rows are not in memory already.

    >>> rows = LazyRows.of(np.arange(6.0).reshape(3, 2)).select(np.array([2, 0]))
    >>> rows.shape, rows[:1].tolist(), rows[np.array([False, True])].tolist()
    ((2, 2), [[4.0, 5.0]], [[0.0, 1.0]])
    """

    read: Callable[[Any], Features]
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    numbers: NDArray[np.int64] | None = None
    is_mapped: bool = True

    @classmethod
    def of(cls, rows: Features | LazyRows) -> LazyRows:
        """Return the rows of an array (n_samples, n_features); lazy rows unchanged."""
        if isinstance(rows, LazyRows):
            return rows
        is_mapped = isinstance(rows, np.memmap)
        n_rows, n_features = rows.shape
        return cls(rows.__getitem__, (n_rows, n_features), rows.dtype, is_mapped=is_mapped)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Size of all rows in memory, in bytes."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    def __getitem__(self, place: Any) -> Features:
        if not isinstance(place, slice):
            place = np.flatnonzero(place) if place.dtype == bool else place
        if self.numbers is None:
            return self.read(place)
        numbers = self.numbers[place]
        # A slice is read faster.
        if len(numbers) and numbers[0] >= 0 and (np.diff(numbers) == 1).all():
            return self.read(slice(int(numbers[0]), int(numbers[-1]) + 1))
        return self.read(numbers)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Features:
        return np.array(self[:], dtype=dtype, copy=copy)

    def select(self, place: NDArray[Any]) -> LazyRows:
        """Return the rows of some row numbers or of a mask, without reading them."""
        selected = np.flatnonzero(place) if place.dtype == bool else place
        numbers = selected if self.numbers is None else self.numbers[selected]
        return replace(self, shape=(len(numbers), self.shape[1]), numbers=numbers)

    def map(self, change: Callable[[Features], Features], dtype: Any) -> LazyRows:
        """Return the rows after a change of each row, made when they are read."""
        read, dtype = self.read, np.dtype(dtype)
        return replace(self, read=lambda place: change(read(place)), dtype=dtype)

    def loaded(self) -> LazyRows:
        """Return the rows in memory if they are small or in memory already, else unchanged."""
        if not self.is_mapped or self.nbytes > LOADED_BYTES:
            return self
        rows = np.empty(self.shape, self.dtype)  # what `read` returns may be a view of more
        for place, block in self.blocks():
            rows[place] = block
        return LazyRows.of(rows)

    def blocks(self) -> Iterator[tuple[slice, Features]]:
        """Yield all rows by blocks, with the slice of their numbers."""
        step = rows_of_block(self.shape[1])
        for start in range(0, len(self), step):
            place = slice(start, min(start + step, len(self)))
            yield place, self[place]
