"""Which rows a store has and in what order: the file `rows.safetensors`, and headers of arrays.

Headers are in the safetensors layout. They are compared, never parsed: what is in a file is known
before it is opened, so a header that says anything else is refused whatever it says.
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
    """What an array is: its code of the safetensors layout, and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The size of its numbers."""
        return math.prod(self.shape) * np.dtype(DTYPES[self.dtype]).itemsize


def header(arrays: Mapping[str, ArrayHeader]) -> bytes:
    """Return what stands before the numbers of the arrays, which follow one after the other.

    >>> header({"rows": ArrayHeader("F32", (2, 3))})[8:]
    b'{"rows":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}    '
    """
    told, start = {}, 0
    for name, kind in arrays.items():
        end = start + kind.size
        told[name] = {"dtype": kind.dtype, "shape": list(kind.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(told, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text


@dataclass(frozen=True)
class Sizes:
    """How many rows, positions and shards a layout has, and the digest of its file.

    >>> Sizes(rows=2, positions=3, shards=1, digest="").kinds["offsets"]
    Kind(dtype='I64', shape=(3,))
    """

    rows: int
    positions: int
    shards: int
    digest: str

    @property
    def kinds(self) -> dict[str, ArrayHeader]:
        """The arrays of the file, in their order."""
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
        """The size of the file."""
        return len(header(self.kinds)) + sum(kind.size for kind in self.kinds.values())


def pack_layout(plan: RowPlan, shards: Sequence[IntArray]) -> tuple[Sizes, list[bytes]]:
    """Return the sizes of a layout, and its file in pieces.

    Args:
        plan: what each row is.
        shards: for each shard the numbers of its rows, in the order of the disk.
    """
    arrays = {
        "example": plan.example,
        "positions": plan.positions,
        "offsets": plan.offsets,
        "order": np.concatenate(shards),
        "shard_sizes": np.array([len(rows) for rows in shards]),
    }
    sizes = Sizes(len(plan.example), len(plan.positions), len(shards), "")
    numbers = [np.ascontiguousarray(arrays[name], np.int64).tobytes() for name in sizes.kinds]
    pieces = [header(sizes.kinds), *numbers]
    return Sizes(sizes.rows, sizes.positions, sizes.shards, digest(pieces)), pieces


class Layout:
    """The order of a store's rows.

    Args:
        arrays: those of the file, by name.

    Attributes:
        plan: what each row is.
        shards: for each shard the numbers of its rows, in the order of the disk.
        first: where each shard begins in the order of the disk, and where the last one ends.
    """

    def __init__(self, arrays: Mapping[str, IntArray]) -> None:
        self.plan = RowPlan(arrays["example"], arrays["positions"], arrays["offsets"])
        self.first = np.concatenate([[0], np.cumsum(arrays["shard_sizes"])])
        self.shards = tuple(np.split(arrays["order"], self.first[1:-1]))
        self._order = arrays["order"]
        self._place: IntArray | None = None

    @property
    def n_rows(self) -> int:
        """The number of rows of every site."""
        return len(self._order)

    @property
    def place(self) -> IntArray:
        """Where each row stands in the order of the disk, shape (n_rows,)."""
        if self._place is None:
            place = np.empty(self.n_rows, dtype=np.int64)
            place[self._order] = np.arange(self.n_rows)
            self._place = place
        return self._place

    def rows_of(self, shards: Iterable[int]) -> IntArray:
        """Return the numbers of the rows of some shards, ascending."""
        chosen = [self.shards[shard] for shard in shards]
        return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, dtype=np.int64)
