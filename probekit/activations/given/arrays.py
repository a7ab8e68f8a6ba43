"""Arrays of one site, in memory or in a file: shape, data type, and rows as float32."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from probekit.activations.store.layout import FloatArray


class SiteArray(Protocol):
    """Array of one site, with one row for each sample; its rows are read in parts."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array; the first axis is that of the rows."""

    @property
    def dtype(self) -> str:
        """Name of the data type, such as float32 or bfloat16."""

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows as float32; numbers beyond its range become infinite."""


def as_float32(values: Any) -> FloatArray:
    """Return a NumPy array or torch tensor, on any device, as float32."""
    if hasattr(values, "detach"):  # NumPy has no bfloat16
        values = values.detach().to("cpu").float().numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        converted: FloatArray = np.asarray(values).astype(np.float32)
    return converted


class MemoryArray:
    """An array in memory: NumPy, torch, or another with shape, dtype and slices.

    It is pickled as the path of a temporary file, which is written once, so that worker processes
    share it.
    """

    def __init__(self, values: Any) -> None:
        has_array = all(hasattr(values, name) for name in ("shape", "dtype", "__getitem__"))
        self._values = values if has_array else np.asarray(values)
        self._file: Path | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return tuple(map(int, self._values.shape))

    @property
    def dtype(self) -> str:
        """Name of the data type."""
        return str(self._values.dtype).removeprefix("torch.")

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows as float32."""
        return as_float32(self._values[start:stop])

    def __reduce__(self) -> tuple[Any, ...]:
        if self._file is None:
            folder = tempfile.mkdtemp(prefix="probekit-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._file = Path(folder) / "rows.npy"
            np.save(self._file, self.read(0, self.shape[0]), allow_pickle=False)
        return NpyArray, (self._file,)


class NpyArray:
    """A .npy file, memory-mapped; a file with pickled objects is refused."""

    def __init__(self, path: Path) -> None:
        self._path = path
        mapped = self._open()
        self.shape: tuple[int, ...] = mapped.shape
        self.dtype = str(mapped.dtype)

    def _open(self) -> Any:
        return np.load(self._path, mmap_mode="r", allow_pickle=False)

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows as float32."""
        return as_float32(self._open()[start:stop])


class SafetensorsArray:
    """A tensor of a .safetensors file."""

    def __init__(self, path: Path, key: str) -> None:
        self._path, self._key = path, key
        with self._open() as file:
            part = file.get_slice(key)
            self.shape: tuple[int, ...] = tuple(part.get_shape())
            self.dtype = _SAFETENSORS_NAMES.get(part.get_dtype(), part.get_dtype())

    def _open(self) -> Any:
        from safetensors import safe_open

        return safe_open(self._path, framework="pt")

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows as float32."""
        with self._open() as file:
            return as_float32(file.get_slice(self._key)[start:stop])


_SAFETENSORS_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


class ZarrArray:
    """A Zarr array in a folder, or an array of a Zarr group."""

    def __init__(self, path: Path, key: str | None = None) -> None:
        self._path, self._key = path, key
        array = self._open()
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.dtype = str(array.dtype)

    def _open(self) -> Any:
        import zarr

        opened: Any = zarr.open(str(self._path), mode="r")
        return opened if self._key is None else opened[self._key]

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows as float32."""
        return as_float32(self._open()[start:stop])


class ParquetArray:
    """A Parquet file with one column of lists of the same length, as `cache export` writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._open() as file:
            self._ends = np.cumsum(
                [file.metadata.row_group(n).num_rows for n in range(file.metadata.num_row_groups)]
            )
            column = file.schema_arrow.field(0).type
            written = (file.schema_arrow.metadata or {}).get(b"shape")
            n_rows, width = file.metadata.num_rows, getattr(column, "list_size", 0)
            self.dtype = {"float": "float32", "halffloat": "float16", "double": "float64"}.get(
                str(getattr(column, "value_type", column)), str(column)
            )
        inner = tuple(map(int, written[1:-1].split(b","))) if written else (width,)
        self.shape: tuple[int, ...] = (n_rows, *inner)

    def _open(self) -> Any:
        from pyarrow import parquet

        return parquet.ParquetFile(self._path)

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows as float32."""
        first, last = np.searchsorted(self._ends, [start, stop - 1], side="right")
        offset = int(self._ends[first - 1]) if first else 0
        with self._open() as file:
            table = file.read_row_groups(range(int(first), int(last) + 1))
        flat = table.column(0).combine_chunks().flatten().to_numpy()
        rows = flat.reshape(-1, *self.shape[1:])
        return as_float32(rows[start - offset : stop - offset])


class AtPosition:
    """The rows of an array of shape (n_rows, n_positions, ...) at one position of each.

    Args:
        array: the array.
        position: index of the position, the same for all rows or one for each.
    """

    def __init__(self, array: SiteArray, position: int | Sequence[int]) -> None:
        self._array = array
        self._positions = np.broadcast_to(np.asarray(position, dtype=np.int64), array.shape[:1])
        self.shape = (array.shape[0], *array.shape[2:])
        self.dtype = array.dtype

    def read(self, start: int, stop: int) -> FloatArray:
        """Return rows as float32."""
        rows = self._array.read(start, stop)
        at: FloatArray = rows[np.arange(len(rows)), self._positions[start:stop]]
        return at
