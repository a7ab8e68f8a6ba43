"""Order of the rows of a store (`rows.safetensors`), and headers of array files.

Headers use the safetensors format. They are compared and never parsed: the expected header is
known before a file is opened, so any deviation is an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from probekit.data.positions import RowPlan
from probekit.provenance import digest

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.floating[Any]]

DTYPES: dict[str, type[np.generic]] = {"F32": np.float32, "F16": np.float16, "I64": np.int64}
CODES = {np.dtype(dtype): code for code, dtype in DTYPES.items()}


class ArrayHeader(NamedTuple):
    """Dtype of an array, as a code of the safetensors format, and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Size of the array data in bytes."""
        return math.prod(self.shape) * np.dtype(DTYPES[self.dtype]).itemsize


def header(arrays: Mapping[str, ArrayHeader]) -> bytes:
    """Return the safetensors header for arrays stored back to back.

    >>> header({"rows": ArrayHeader("F32", (2, 3))})[8:]
    b'{"rows":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}    '
    """
    entries, start = {}, 0
    for name, array in arrays.items():
        end = start + array.size
        entries[name] = {
            "dtype": array.dtype,
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the data to 8 bytes
    return len(text).to_bytes(8, "little") + text


@dataclass(frozen=True)
class Sizes:
    """Number of rows, positions and shards of a layout, and the digest of its file.

    >>> Sizes(rows=2, positions=3, shards=1, digest="").headers["offsets"]
    ArrayHeader(dtype='I64', shape=(3,))
    """

    rows: int
    positions: int
    shards: int
    digest: str

    @property
    def headers(self) -> dict[str, ArrayHeader]:
        """Headers of the arrays in the file, in order."""
        lengths = {
            "example": self.rows,
            "positions": self.positions,
            "offsets": self.rows + 1,
            "order": self.rows,
            "shard_sizes": self.shards,
        }
        return {name: ArrayHeader("I64", (length,)) for name, length in lengths.items()}

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return len(header(self.headers)) + sum(array.size for array in self.headers.values())


def pack_layout(plan: RowPlan, shards: Sequence[IntArray]) -> tuple[Sizes, list[bytes]]:
    """Return the sizes of a layout and the content of its file in chunks.

    Args:
        plan: the example and positions of each row.
        shards: row indices of each shard, in storage order.
    """
    arrays = {
        "example": plan.example,
        "positions": plan.positions,
        "offsets": plan.offsets,
        "order": np.concatenate(shards),
        "shard_sizes": np.array([len(rows) for rows in shards]),
    }
    sizes = Sizes(len(plan.example), len(plan.positions), len(shards), "")
    numbers = [np.ascontiguousarray(arrays[name], np.int64).tobytes() for name in sizes.headers]
    pieces = [header(sizes.headers), *numbers]
    return Sizes(sizes.rows, sizes.positions, sizes.shards, digest(pieces)), pieces


class Layout:
    """Example, positions and storage order of the rows of a store.

    Args:
        arrays: the arrays of the file, by name.

    Attributes:
        plan: the example and positions of each row.
        shards: row indices of each shard, in storage order.
        first: start of each shard in storage order, then the number of rows, shape (n_shards + 1,).
    """

    def __init__(self, arrays: Mapping[str, IntArray]) -> None:
        self.plan = RowPlan(arrays["example"], arrays["positions"], arrays["offsets"])
        self.first = np.concatenate([[0], np.cumsum(arrays["shard_sizes"])])
        self.shards = tuple(np.split(arrays["order"], self.first[1:-1]))
        self._order = arrays["order"]
        self._place: IntArray | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows of each site."""
        return len(self._order)

    @property
    def place(self) -> IntArray:
        """Storage position of each row, shape (n_rows,)."""
        if self._place is None:
            place = np.empty(self.n_rows, dtype=np.int64)
            place[self._order] = np.arange(self.n_rows)
            self._place = place
        return self._place

    def rows_of(self, shards: Iterable[int]) -> IntArray:
        """Return the sorted row indices of some shards."""
        chosen = [self.shards[shard] for shard in shards]
        return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, dtype=np.int64)
