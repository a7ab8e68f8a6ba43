"""Rows of activations that are read from a file or another array when they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from probekit.amounts import counted
from probekit.errors import DataError
from probekit.files import regular
from probekit.memory import is_accelerator

if TYPE_CHECKING:  # saved probes are applied without torch
    from torch import Tensor

# A block has at most BLOCK_ROWS rows and BLOCK_NUMBERS numbers, but at least FEWEST_ROWS rows.
BLOCK_ROWS, BLOCK_NUMBERS, FEWEST_ROWS = 4096, 1 << 21, 256
# On an accelerator, a block has this many times as many rows: each costs a millisecond of launches.
ELSEWHERE = 16
LOADED_BYTES = 1 << 28  # rows up to this size are read once and kept
# A sum over this many rows in float32 has a relative error of about 1e-7, and over 4,096 of 1e-6.
SUMMED_ROWS = 256

Features: TypeAlias = NDArray[np.floating]
Rows: TypeAlias = "Features | LazyRows"
Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
Mask = NDArray[np.bool_]
Place: TypeAlias = slice | NDArray[np.int64]


def rows_of_block(n_features: int, device: str = "cpu") -> int:
    """Return the number of rows of this width that are read at once, to compute on a device.

    >>> rows_of_block(768), rows_of_block(8192), rows_of_block(8192, "cuda")
    (2730, 256, 4096)
    """
    n_rows = min(BLOCK_ROWS, max(FEWEST_ROWS, BLOCK_NUMBERS // max(1, n_features)))
    return n_rows * ELSEWHERE if is_accelerator(device) else n_rows


def as_array(values: Any) -> NDArray[Any]:
    """Return values as a NumPy array; masked ones, also of arrays in a list, are NaN.

    >>> as_array([np.ma.masked_array([1.0, 2.0], mask=[False, True])])
    array([[ 1., nan]])
    """
    array = np.ma.asarray(values)
    return np.where(array.mask, np.nan, array.data) if np.ma.is_masked(array) else array.data


def map_npy(path: Path) -> Any:
    """Return the array of a .npy file, memory-mapped.

    Raises:
        DataError: the file is an .npz archive, or has bytes after its array.
    """
    with regular(path).open("rb") as file:
        if file.read(4) == b"PK\x03\x04":
            raise DataError(
                f"{path} is an .npz archive. Save each of its arrays as a .npy file: "
                "np.save(path, array)."
            )
    mapped: Any = np.lib.format.open_memmap(path, mode="r")
    n_more = path.stat().st_size - mapped.offset - mapped.nbytes
    if n_more > 0 and mapped.size:  # an empty array is refused later, with its shape
        raise DataError(
            f"{path} has {counted(n_more, 'byte')} after its array of shape {mapped.shape}. Save "
            "one array in each file."
        )
    return mapped


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
        device: Where sums over the rows are computed; see `on`.
        scaling: What is subtracted from each feature and what it is divided by, (n_features,) each,
            when rows are read; None for neither.
        products: Products of all rows of the source, which fits on selected rows share.

    >>> rows = LazyRows.of(np.arange(6.0).reshape(3, 2)).select(np.array([2, 0]))
    >>> rows.shape, rows[:1].tolist(), rows[np.array([False, True])].tolist()
    ((2, 2), [[4.0, 5.0]], [[0.0, 1.0]])
    """

    read: Callable[[Any], Features]
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    numbers: NDArray[np.int64] | None = None
    is_mapped: bool = True
    device: str = "cpu"
    scaling: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
    products: Any = None

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
        rows = self._unscaled(place)
        if self.scaling is None:
            return rows
        mean, scale = self.scaling
        scaled = rows.astype(np.float64)
        scaled -= mean
        scaled /= scale
        return scaled

    def _unscaled(self, place: Any) -> Features:
        """Return the rows of a slice, row numbers or a mask as they are in the source."""
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

    def scaled(self, mean: NDArray[np.float64], scale: NDArray[np.float64]) -> LazyRows:
        """Return the rows minus `mean`, divided by `scale` (n_features,), in float64.

        They are scaled when they are read; rows that are scaled already cannot be scaled again.
        """
        assert self.scaling is None
        return replace(self, scaling=(mean, scale), dtype=np.dtype(np.float64), products=None)

    def on(self, device: str) -> LazyRows:
        """Return the rows, with sums over them computed on a device.

        On the CPU these are arrays in float64. On an accelerator they are tensors in float32, to
        which rows in float64 are rounded: not every accelerator has float64.
        """
        if not is_accelerator(device) or self.dtype != np.float64:
            return replace(self, device=device)
        read, dtype = self.read, np.dtype(np.float32)
        return replace(self, read=lambda at: read(at).astype(dtype), dtype=dtype, device=device)

    @property
    def is_elsewhere(self) -> bool:
        """Whether sums over the rows are computed on an accelerator."""
        return is_accelerator(self.device)

    def put(self, values: Any) -> Any:
        """Return an array where the rows are computed with; see `put_on`."""
        return put_on(self.device, values)

    def whole(self) -> Any:
        """Return all rows as one array or, on an accelerator, as one tensor."""
        if not self.is_elsewhere:
            return self[:]
        import torch

        return torch.cat([block for _, block in self.computed()])

    def computed(self) -> Iterator[tuple[slice, Any]]:
        """Yield all rows by blocks where they are computed with, with the slice of their numbers.

        On the CPU they are arrays in float64, on an accelerator tensors in float32.
        """
        places = self._places()
        arrays = (self[place].astype(np.float64, copy=False) for place in places)
        yield from zip(places, self.tensors(places) if self.is_elsewhere else arrays, strict=True)

    def parts(self, *columns: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
        """Yield all rows by parts for a `Sum`, each with its part of every column (n_samples, ...).

        On the CPU they are the blocks of `computed`. On an accelerator they have at most
        `SUMMED_ROWS` rows, because longer sums in float32 lose precision.
        """
        columns = tuple(map(self.put, columns))
        for place, block in self.computed():
            step = SUMMED_ROWS if self.is_elsewhere else len(block)
            for start in range(0, len(block), step):
                part = slice(place.start + start, min(place.start + start + step, place.stop))
                yield block[start : start + step], *(column[part] for column in columns)

    def tensors(self, places: Iterable[Place]) -> Iterator[Tensor]:
        """Yield the rows of each slice or array of row numbers as float32 tensors on the device."""
        from probekit.accelerators import stream

        blocks = stream(map(self._unscaled, places), self.device)
        if self.scaling is None:
            yield from blocks
        else:
            rounding = self.scaling[0] - self.scaling[0].astype(np.float32)  # of the mean
            mean, scale, rest = map(self.put, (*self.scaling, rounding))
            yield from ((block - mean - rest) / scale for block in blocks)

    def centre(self) -> NDArray[np.float64]:
        """Return the mean (n_features,) of the first block, rounded to float32.

        Sums in float32 are exact to more digits after it is subtracted from the rows.
        """
        first = self[: rows_of_block(self.shape[1])]
        mean: NDArray[np.float64] = first.mean(axis=0, dtype=np.float64)
        return mean.astype(np.float32).astype(np.float64)

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
        return ((place, self[place]) for place in self._places())

    def _places(self) -> list[slice]:
        """Return the slice of each block."""
        step = rows_of_block(self.shape[1], self.device)
        return [slice(n, min(n + step, len(self))) for n in range(0, len(self), step)]


def put_on(device: str, values: Any) -> Any:
    """Return an array as a tensor on an accelerator; unchanged on the CPU."""
    if not is_accelerator(device):
        return values
    from probekit.products import put

    return put(values, device)


class Sum:
    """Sum of arrays or tensors of one shape, with about the precision of float64.

    On the CPU, float64 is the dtype of the sum. On an accelerator, the sum is a float32 tensor, and
    a second one contains its rounding errors.

    >>> total = Sum("cpu")
    >>> for part in (np.array([1.0]), np.array([0.5])):
    ...     total.add(part)
    >>> total.array().tolist()
    [1.5]

    Source: Ogita, Rump and Oishi (2005), Accurate sum and dot product, algorithm 4.4 (Sum2).
    """

    def __init__(self, device: str) -> None:
        self._is_pair = is_accelerator(device)
        self._value: Any = 0.0
        self._error: Any = 0.0

    def add(self, part: Any) -> None:
        """Add an array, a tensor or a number."""
        if self._is_pair:
            value = self._value + part
            moved = value - self._value
            self._error = self._error + ((self._value - (value - moved)) + (part - moved))
            self._value = value
        elif isinstance(self._value, float):  # of the first part a copy is kept
            is_tensor = not isinstance(part, np.ndarray | float)
            self._value += part.double() if is_tensor else np.asarray(part, np.float64)
        else:
            self._value += part

    @property
    def total(self) -> Any:
        """The sum, where it was computed; in float32 on an accelerator."""
        return self._value + self._error if self._is_pair else self._value

    def array(self) -> Any:
        """Return the sum as an array, in float64."""
        return fetched(self._value) + fetched(self._error) if self._is_pair else self._value


def fetched(values: Any) -> Any:
    """Return a tensor as an array in float64; arrays and numbers unchanged."""
    if isinstance(values, np.ndarray | float):
        return values
    return values.cpu().numpy().astype(np.float64)
