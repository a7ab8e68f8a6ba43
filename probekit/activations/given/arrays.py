"""Arrays of one site, in memory or in a file: shape, data type, and rows as float32."""

from __future__ import annotations

import csv
import math
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tokenize import TokenError
from typing import Any, Protocol

import numpy as np
from safetensors import SafetensorError

from probekit.activations.store.layout import FloatArray
from probekit.amounts import counted, size_in_words
from probekit.errors import DataError, ProbekitError

try:
    from lzma import LZMAError
except ImportError:  # Python can be built without it
    LZMAError = zlib.error  # type: ignore[assignment, misc]

PICKLED = (
    "it contains pickled Python objects, which could run code. Save the activations as numbers: "
    "np.save(path, array.astype(np.float32))"
)
ZARR_FILES = ("zarr.json", ".zarray", ".zgroup")
_TRUNCATED = "The file may be truncated: save it again"
_REWRITE = (
    "Write the array again; if its writer leaves out chunks of zeros, with "
    "config={'write_empty_chunks': True}."
)
_UNREADABLE = (  # what NumPy, safetensors, PyArrow, Zarr and its codecs raise for damaged files
    OSError,
    ValueError,
    LookupError,
    EOFError,
    TypeError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    RuntimeError,
    SystemError,
    LZMAError,
    SafetensorError,
    TokenError,
    csv.Error,
    zlib.error,
)
_LARGEST_RATIO = 10_000  # of unpacked to stored bytes; sparse features, 64 of 1e6, reach 8,000
_SMALL = 2**26  # bytes that a file of any size may unpack to


class SiteArray(Protocol):
    """Array of one site, with one row for each sample; its rows are read in parts."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array; the first axis is that of the rows."""

    @property
    def dtype(self) -> str:
        """Name of the data type, such as float32 or bfloat16."""

    def parts(self, n_rows: int) -> Iterator[FloatArray]:
        """Yield all rows as float32, at most `n_rows` at once; too large numbers are infinite."""


@contextmanager
def reading(place: str, remedy: str = _TRUNCATED) -> Iterator[None]:
    """Convert the exceptions of a library that reads an array to DataError.

    Args:
        place: file or site, for the message.
        remedy: last sentence of the message, without its full stop.

    Raises:
        DataError: the array cannot be read.
    """
    try:
        yield
    except ProbekitError:  # already has a message for the user
        raise
    except _UNREADABLE as error:
        reason = (str(error).strip() or type(error).__name__).split("\n", 1)[0][:300].rstrip(". ")
        is_pickled = "pickle" in str(error) or "Python objects" in str(error)
        problem = PICKLED if is_pickled else f"{reason}. {remedy}"
        raise DataError(f"{place} cannot be read: {problem}.") from error


@dataclass(frozen=True)
class CheckedArray:
    """An array that raises DataError if it cannot be read or its rows do not have its shape.

    Attributes:
        array: the array.
        place: file or site, for messages.
        remedy: last sentence of messages, without its full stop.
    """

    array: SiteArray
    place: str
    remedy: str = _TRUNCATED

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        with reading(self.place, self.remedy):
            if min(self.array.shape, default=0) < 0:
                raise ValueError(f"its shape is {self.array.shape}")
            return self.array.shape

    @property
    def dtype(self) -> str:
        """Name of the data type."""
        return self.array.dtype

    def parts(self, n_rows: int) -> Iterator[FloatArray]:
        """Yield all rows as float32, at most `n_rows` at once."""
        shape, n_read = self.shape, 0
        with reading(self.place, self.remedy):
            for rows in self.array.parts(n_rows):
                n_read += len(rows)
                if rows.shape[1:] != shape[1:] or n_read > shape[0]:
                    raise ValueError(f"a part of shape {rows.shape} is not in an array of {shape}")
                yield rows
            if n_read < shape[0]:
                raise ValueError(f"it ends after {counted(n_read, 'row')} of {shape[0]:,}")


def as_float32(values: Any) -> FloatArray:
    """Return a NumPy array or torch tensor, on any device, as float32; masked numbers are NaN."""
    if hasattr(values, "detach"):  # NumPy has no bfloat16
        values = values.detach().to("cpu").float().numpy()
    if isinstance(values, np.ma.MaskedArray):
        values = values.filled(np.nan)
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
        self.shape: tuple[int, ...] = tuple(map(int, self._values.shape))
        self.dtype = str(self._values.dtype).removeprefix("torch.")

    def parts(self, n_rows: int) -> Iterator[FloatArray]:
        """Yield all rows as float32, at most `n_rows` at once."""
        return _slices(self._values, self.shape[0], n_rows)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._file is None:
            folder = tempfile.mkdtemp(prefix="probekit-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._file = Path(folder) / "rows.npy"
            np.save(self._file, as_float32(self._values[:]), allow_pickle=False)
        return NpyArray, (self._file,)


def _slices(values: Any, stop: int, n_rows: int) -> Iterator[FloatArray]:
    """Yield the first `stop` rows as float32, at most `n_rows` at once."""
    for start in range(0, stop, n_rows):
        yield as_float32(values[start : min(start + n_rows, stop)])


class NpyArray:
    """A .npy file, memory-mapped; a file with pickled objects is refused."""

    def __init__(self, path: Path) -> None:
        self._path = path
        mapped = self._open()
        self.shape: tuple[int, ...] = mapped.shape
        self.dtype = str(mapped.dtype)

    def _open(self) -> Any:
        with self._path.open("rb") as file:
            if file.read(4) == b"PK\x03\x04":
                raise DataError(
                    f"{self._path} is an .npz archive. Save each of its arrays as a .npy file: "
                    "np.save(path, array)."
                )
        mapped: Any = np.lib.format.open_memmap(self._path, mode="r")
        n_more = self._path.stat().st_size - mapped.offset - mapped.nbytes
        if n_more > 0 and mapped.size:
            raise DataError(
                f"{self._path} has {counted(n_more, 'byte')} after its array of shape "
                f"{mapped.shape}. Save one array in each file."
            )
        return mapped

    def parts(self, n_rows: int) -> Iterator[FloatArray]:
        """Yield all rows as float32, at most `n_rows` at once."""
        return _slices(self._open(), self.shape[0], n_rows)


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

    def parts(self, n_rows: int) -> Iterator[FloatArray]:
        """Yield all rows as float32, at most `n_rows` at once."""
        with self._open() as file:
            yield from _slices(file.get_slice(self._key), self.shape[0], n_rows)


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
        self._folder = path if key is None else path / key
        self.dtype = str(self._open().dtype)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array; all of its chunks are stored."""
        array = self._open()
        self._check_chunks(array)
        return tuple(array.shape)

    def _open(self) -> Any:
        import zarr

        opened: Any = zarr.open(str(self._path), mode="r")
        return opened if self._key is None else opened[self._key]

    def parts(self, n_rows: int) -> Iterator[FloatArray]:
        """Yield all rows as float32, at most `n_rows` at once."""
        array = self._open()
        if array.shards:  # a shard may lack chunks, which are read as the fill value
            object.__setattr__(array.metadata, "fill_value", array.dtype.type(np.nan))
        for rows in _slices(array, self.shape[0], n_rows):
            if array.shards and np.isnan(rows).any():
                raise DataError(
                    f"{self._folder} contains NaN, or lacks a chunk of a shard. {_REWRITE}"
                )
            yield rows

    def _check_chunks(self, array: Any) -> None:
        """Raise DataError if a chunk is missing, which Zarr reads as zeros, or is far too large."""
        files = [path for path in self._folder.rglob("*") if path.is_file()]
        files = [path for path in files if path.name[0] != "." and path.name not in ZARR_FILES]
        sizes = array.shards or array.chunks
        grid = [-(-n // size) for n, size in zip(array.shape, sizes, strict=True)]
        n_chunks, n_stored = math.prod(grid), len(files)
        if n_stored >= n_chunks:  # otherwise the names may be too many to list
            names = map(array.metadata.encode_chunk_key, np.ndindex(*grid))
            n_stored = sum((self._folder / name).is_file() for name in names)
        if n_stored < n_chunks:
            raise DataError(
                f"{self._folder} stores {n_stored:,} of {counted(n_chunks, 'chunk')}; Zarr would "
                f"read the others as {array.fill_value}. {_REWRITE}"
            )
        n_bytes = n_chunks * math.prod(sizes) * array.dtype.itemsize
        check_unpacked(f"{self._folder}", n_bytes, sum(path.stat().st_size for path in files))


def check_unpacked(place: str, n_bytes: int, n_stored: int) -> None:
    """Check that stored bytes do not unpack to so many that they may not fit into memory.

    Raises:
        DataError: they unpack to far more.
    """
    if n_bytes > max(_SMALL, _LARGEST_RATIO * n_stored):
        raise DataError(
            f"{place} unpacks from {size_in_words(n_stored)} to {size_in_words(n_bytes)}. Allowed: "
            f"up to {_LARGEST_RATIO:,} times as much. Save the activations in smaller chunks, or "
            "as .npy."
        )


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

    def parts(self, n_rows: int) -> Iterator[FloatArray]:
        """Yield all rows as float32, at most `n_rows` at once."""
        start = 0
        for rows in self._array.parts(n_rows):
            yield rows[np.arange(len(rows)), self._positions[start : start + len(rows)]]
            start += len(rows)
