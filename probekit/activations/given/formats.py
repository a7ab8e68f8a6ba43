"""Arrays in files: .npy, .safetensors, .parquet and .zarr, one for each site."""

import csv
import json
import math
import mmap
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from tokenize import TokenError
from typing import Any, cast

import numpy as np
from safetensors import SafetensorError, safe_open

from probekit.activations.records import FloatArray, read_numbers
from probekit.amounts import counted, joined_names, size_in_words
from probekit.data.positions import IntArray
from probekit.errors import ConfigError, DataError, MissingError, ProbekitError
from probekit.files import inside, state_of, why_unreadable
from probekit.lazy_rows import as_array, map_npy

try:
    from lzma import LZMAError
except ImportError:  # Python can be built without it
    LZMAError = zlib.error  # type: ignore[assignment, misc]

ROWS = "rows.csv"  # written by `probekit cache export`
_PACKAGES = {".parquet": "pyarrow", ".zarr": "zarr"}  # needed to read these files
_PICKLED = (
    "it contains pickled Python objects, which could run code. Save the activations as numbers: "
    "np.save(path, array.astype(np.float32))"
)
_ZARR_FILES = ("zarr.json", ".zarray", ".zgroup")  # metadata of an array or a group
_TRUNCATED = "The file may be truncated: save it again"
_REWRITE = (
    "Write the array again; if its writer leaves out chunks of zeros, with "
    "config={'write_empty_chunks': True}."
)
# What NumPy, safetensors, PyArrow, Zarr and its codecs raise for damaged files.
_OF_VALUES = (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError)
_OF_SYSTEM = (ArithmeticError, MemoryError, RuntimeError, SystemError)
_OF_CODECS = (LZMAError, SafetensorError, TokenError, csv.Error, zlib.error)
_UNREADABLE = (*_OF_VALUES, *_OF_SYSTEM, *_OF_CODECS)
_LARGEST_RATIO = 10_000  # of unpacked to stored bytes; sparse features, 64 of 1e6, reach 8,000
_SMALL = 2**26  # bytes that a file of any size may unpack to


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
        reason = why_unreadable(error)
        is_pickled = "pickle" in reason or "Python objects" in reason
        problem = _PICKLED if is_pickled else f"{reason}. {remedy}"
        raise DataError(f"{place} cannot be read: {problem}.") from error


class SiteArray:
    """Array of one site, with one row for each sample; its rows are read in parts.

    A subclass defines `_open`, or `_shape` and `_parts`. What libraries raise in them becomes a
    DataError.

    Attributes:
        place: file or site, for messages.
        dtype: name of the data type, such as float32 or bfloat16.
        remedy: last sentence of messages, without its full stop.
        has_numbers: whether `at` reads any rows by their numbers.
        is_mapped: whether `at` reads a file.
        floats: type of the rows that are read: float32, of float64 float64 unless it is changed.
    """

    place: str
    dtype: str
    remedy = _TRUNCATED
    has_numbers = False
    is_mapped = False

    def _open(self) -> Any:
        """Return an object with the shape of the array, whose slices are its rows."""
        raise NotImplementedError

    def _shape(self) -> tuple[int, ...]:
        return tuple(map(int, self._open().shape))

    def _parts(self, n_rows: int) -> Iterator[FloatArray]:
        """Yield all rows, at most `n_rows` at once."""
        return slices(self._open(), self.shape[0], n_rows)

    def at(self, place: slice | IntArray) -> FloatArray:
        """Return the rows of a slice, or of row numbers in any order."""
        with reading(self.place, self.remedy):
            rows = self._open()[place]
            is_read = type(rows) is np.ndarray and rows.dtype == self.floats
            return rows if is_read else as_floats(rows).astype(self.floats, copy=False)

    @cached_property
    def floats(self) -> Any:
        """The type of the rows that are read."""
        return np.float64 if self.dtype == "float64" else np.float32

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array; the first axis is that of the rows."""
        with reading(self.place, self.remedy):
            shape = self._shape()
            if min(shape, default=0) < 0:  # a damaged header can contain any number
                raise ValueError(f"its shape is {shape}")
            return shape

    def parts(self, n_rows: int) -> Iterator[FloatArray]:
        """Yield all rows, at most `n_rows` at once; too large numbers are infinite."""
        shape, n_read = self.shape, 0
        with reading(self.place, self.remedy):
            for rows in self._parts(n_rows):
                n_read += len(rows)
                if rows.shape[1:] != shape[1:] or n_read > shape[0]:
                    raise ValueError(f"a part of shape {rows.shape} is not in an array of {shape}")
                with np.errstate(over="ignore"):
                    yield rows.astype(self.floats, copy=False)
            if n_read < shape[0]:
                raise ValueError(f"it ends after {counted(n_read, 'row')} of {shape[0]:,}")


def as_floats(values: Any) -> FloatArray:
    """Return an array or tensor, on any device, as float64 or float32; masked numbers are NaN.

    >>> as_floats(np.ma.masked_array([1, 2], mask=[False, True]))
    array([ 1., nan])
    """
    if hasattr(values, "detach"):  # NumPy has no bfloat16
        values = values.detach().to("cpu")
        values = (values if values.itemsize == 8 else values.float()).numpy()
    values = as_array(values)
    if values.dtype == "V2":
        values = read_numbers(values.view(np.uint16))
    with np.errstate(over="ignore", invalid="ignore"):
        is_wide = values.dtype.kind == "f" and values.itemsize == 8
        return cast(FloatArray, values.astype(np.float64 if is_wide else np.float32))


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype of NumPy or torch.

    Two bytes without a type are bfloat16: NumPy saves that of `ml_dtypes` so.

    >>> dtype_name(np.dtype("V2")), dtype_name(np.dtype("float16"))
    ('bfloat16', 'float16')
    """
    # The order of bytes is no property of the numbers.
    dtype = dtype.newbyteorder("=") if isinstance(dtype, np.dtype) else dtype
    return "bfloat16" if dtype == "V2" else str(dtype).removeprefix("torch.")


def slices(values: Any, stop: int, n_rows: int) -> Iterator[FloatArray]:
    """Yield the first `stop` rows, at most `n_rows` at once."""
    for start in range(0, stop, n_rows):
        yield as_floats(values[start : min(start + n_rows, stop)])


class _MappedArray(SiteArray):
    """An array in a file that is memory-mapped; `_map` maps it.

    Rows are copied, and their pages released: pages that stay mapped count as memory of the
    process, up to the size of the file.

    Raises:
        DataError: the file changes while it is read.
    """

    has_numbers = is_mapped = True

    def __init__(self, path: Path) -> None:
        self._path, self.place, self._state = path, str(path), state_of(path)

    def _map(self) -> Any:
        raise NotImplementedError

    @cached_property
    def _mapped(self) -> Any:
        return self._map()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_mapped"}

    def _open(self) -> Any:
        if state_of(self._path) != self._state:
            raise DataError(f"{self.place} changed during the run. Run it again.")
        return self._mapped

    def at(self, place: slice | IntArray) -> FloatArray:
        """Return the rows of a slice, or of row numbers in any order."""
        rows = super().at(place)
        self._release()
        return rows

    def _parts(self, n_rows: int) -> Iterator[FloatArray]:
        for rows in super()._parts(n_rows):
            self._release()
            yield rows

    def _release(self) -> None:
        """Release all mapped pages; the system may keep the file in its cache."""
        if hasattr(mmap, "MADV_DONTNEED"):  # absent on Windows
            self._mapped.base.madvise(mmap.MADV_DONTNEED)


class NpyArray(_MappedArray):
    """A .npy file, memory-mapped; a file with pickled objects is refused."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.dtype = dtype_name(self._open().dtype)

    def _map(self) -> Any:
        return map_npy(self._path)


class SafetensorsArray(_MappedArray):
    """A tensor of a .safetensors file, memory-mapped."""

    def __init__(self, path: Path, key: str) -> None:
        super().__init__(path)
        self._key = key
        self.place = str(path) if key == path.stem else f"{path}: {key}"
        with safe_open(path, framework="pt") as file:
            code = file.get_slice(key).get_dtype()
        kind = code.rstrip("0123456789")
        self.dtype = _SAFETENSORS_KINDS.get(kind, kind) + code.removeprefix(kind)

    def _shape(self) -> tuple[int, ...]:
        with safe_open(self._path, framework="pt") as file:
            return tuple(file.get_slice(self._key).get_shape())

    def _map(self) -> Any:
        with self._path.open("rb") as file:
            n_header = int.from_bytes(file.read(8), "little")
            entry = json.loads(file.read(n_header))[self._key]
        offset, shape = 8 + n_header + entry["data_offsets"][0], tuple(entry["shape"])
        # NumPy has no bfloat16.
        dtype = np.dtype("V2" if self.dtype == "bfloat16" else self.dtype).newbyteorder("<")
        return np.memmap(self._path, dtype, "r", offset, shape)


# Letters of a safetensors code -> name of the type, before its number of bits.
_SAFETENSORS_KINDS = {"F": "float", "BF": "bfloat", "I": "int", "U": "uint", "BOOL": "bool"}


class ZarrArray(SiteArray):
    """A Zarr array in a folder, which may be in that of a Zarr group."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.place = folder, str(folder)
        self.dtype = str(self._open().dtype)

    def _open(self) -> Any:
        import zarr

        return zarr.open(str(self._folder), mode="r")

    def _shape(self) -> tuple[int, ...]:
        """Return the shape, after checking the chunks.

        Zarr reads a missing chunk as zeros, and a small one may unpack to a huge size.
        """
        array = self._open()
        files = [path for path in self._folder.rglob("*") if path.is_file()]
        files = [path for path in files if path.name[0] != "." and path.name not in _ZARR_FILES]
        sizes = array.shards or array.chunks  # shape of the part of the array in one file
        # Number of chunks along each axis, rounded up.
        grid = [-(-n // size) for n, size in zip(array.shape, sizes, strict=True)]
        n_chunks, n_stored = math.prod(grid), len(files)
        # With fewer files, some chunks are missing, and their names may be too many to list.
        if n_stored >= n_chunks:
            names = map(array.metadata.encode_chunk_key, np.ndindex(*grid))
            n_stored = sum((self._folder / name).is_file() for name in names)
        if n_stored < n_chunks:
            raise DataError(
                f"{self._folder} stores {n_stored:,} of {counted(n_chunks, 'chunk')}; Zarr would "
                f"read the others as {array.fill_value}. {_REWRITE}"
            )
        n_bytes = n_chunks * math.prod(sizes) * array.dtype.itemsize
        check_unpacked(f"{self._folder}", n_bytes, sum(path.stat().st_size for path in files))
        return tuple(array.shape)

    def _parts(self, n_rows: int) -> Iterator[FloatArray]:
        array = self._open()
        if array.shards:  # chunks that a shard lacks are read as the fill value: NaN shows them
            object.__setattr__(array.metadata, "fill_value", array.dtype.type(np.nan))
        for rows in slices(array, self.shape[0], n_rows):
            if array.shards and np.isnan(rows).any():
                raise DataError(
                    f"{self._folder} contains NaN, or lacks a chunk of a shard. {_REWRITE}"
                )
            yield rows


class ParquetArray(SiteArray):
    """A column of a Parquet file: lists of numbers, of the same length in all rows.

    Args:
        path: the file.
        column: name of the column.
        inner: shape of a row; None for lists as they are.
    """

    def __init__(self, path: Path, column: str, inner: Sequence[int] | None = None) -> None:
        from pyarrow import types

        self._path, self._column, self._inner = path, column, inner
        self.place = str(path) if column == path.stem else f"{path}: {column}"
        with self._open() as file:
            kind = file.schema_arrow.field(column).type
            self._n_rows = file.metadata.num_rows
        is_any_list = types.is_list(kind) or types.is_large_list(kind)
        self._is_list = is_any_list or types.is_fixed_size_list(kind)
        self._width = getattr(kind, "list_size", None)  # of lists of a fixed size
        arrow_dtype = str(kind.value_type if self._is_list else kind)
        names = {"float": "float32", "halffloat": "float16", "double": "float64"}
        self.dtype = names.get(arrow_dtype, arrow_dtype)

    def _shape(self) -> tuple[int, ...]:
        """Return the shape, after checking type and size of the column."""
        if not self._is_list:
            raise DataError(
                f"{self._path}: the column {self._column!r} has type {self.dtype}. Allowed: lists "
                "of numbers, one list for each row. Choose the columns to read with `sites`."
            )
        with self._open() as file:
            paths = [file.metadata.schema.column(n).path for n in range(file.metadata.num_columns)]
            # A column of lists is stored as one or more columns of numbers.
            stored = [n for n, path in enumerate(paths) if path.startswith(f"{self._column}.")]
            # Without a fixed size, the width is that of the first list.
            width, n_bytes, n_stored = self._width, 0, 0
            for group in range(file.metadata.num_row_groups):
                # Reading a row, if the group has any, raises for a damaged chunk, whose description
                # would end the process.
                for batch in islice(file.iter_batches(1, [group], [self._column]), 1):
                    if width is None:
                        width = int(self._lengths(batch.column(self._column), 0)[0])
                chunks = [file.metadata.row_group(group).column(n) for n in stored]
                n_bytes += sum(4 * chunk.num_values for chunk in chunks)  # as float32
                n_stored += sum(chunk.total_compressed_size for chunk in chunks)
        check_unpacked(f"{self._path}: the column {self._column!r}", n_bytes, n_stored)
        width = width or 0  # a file without rows
        inner = (width,) if self._inner is None else tuple(self._inner)
        is_shape = self._inner is None or all(type(size) is int and size > 0 for size in inner)
        if not is_shape or math.prod(inner) != width:
            raise DataError(
                f"{self._path}: rows of shape {inner} do not fit lists of "
                f"{counted(width, 'number')}. Save the file again."
            )
        # Rows of shape () are lists of one number.
        return (self._n_rows, *(inner or (width,)))

    def _parts(self, n_rows: int) -> Iterator[FloatArray]:
        width, start = math.prod(self.shape[1:]), 0
        with self._open() as file:
            for batch in file.iter_batches(n_rows, columns=[self._column]):
                column = batch.column(self._column)
                lengths = self._lengths(column, start)
                wrong = np.flatnonzero(lengths != width)
                if len(wrong):
                    problem = f"has {counted(int(lengths[wrong[0]]), 'number')}, row 0 {width:,}"
                    raise self._error(start + int(wrong[0]), problem)
                values = column.flatten()
                if values.null_count:
                    row, index = divmod(int(np.argmax(values.is_null())), width)
                    raise self._error(start + row, f"has a null at index {index}")
                yield as_floats(values.to_numpy().reshape(len(lengths), *self.shape[1:]))
                start += len(lengths)

    def _lengths(self, column: Any, start: int) -> IntArray:
        """Return the lengths of the lists in a part of the column that begins at row `start`."""
        from pyarrow import compute

        if column.null_count:
            raise self._error(start + int(np.argmax(column.is_null())), "is null")
        return cast(IntArray, compute.list_value_length(column).to_numpy())

    def _error(self, row: int, problem: str) -> DataError:
        """Return the error for a row of the column."""
        return DataError(
            f"{self._path}: row {row:,} of the column {self._column!r} {problem}. All rows need "
            "lists of the same length without nulls: compute the row again, or remove it."
        )

    def _open(self) -> Any:
        from pyarrow import parquet

        return parquet.ParquetFile(self._path)


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


def find_arrays(folder: Path) -> dict[str, SiteArray]:
    """Return the arrays in a folder by site, with numbers in names in numerical order.

    The site of a .safetensors tensor, of an array in a Zarr group and of a column of a Parquet file
    is its name; that of any other file, and of a Parquet file of `probekit cache export`, is the
    name of the file without its extension. The folder may itself be a Zarr array or group.

    Raises:
        MissingError: the folder does not exist, or contains no array.
        ConfigError: a required package is not installed.
        DataError: a file cannot be read, leads out of the folder, or two have the same site.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise MissingError(f"There is no folder {folder}. Give the folder of the activations.")
    paths = [folder] if _is_zarr(folder) else sorted(folder.iterdir())
    found: dict[str, SiteArray] = {}
    origin: dict[str, Path] = {}
    for path in paths:
        kind = ".zarr" if _is_zarr(path) else path.suffix.lower()
        if path.name.startswith(".") or kind not in {*_UNREAD, *_READERS}:
            continue
        if kind in _UNREAD:
            raise DataError(f"{path} is not read. Save its arrays as .npy, or move it elsewhere.")
        package = _PACKAGES.get(kind)
        if package is not None and find_spec(package) is None:
            raise ConfigError(
                f"{path} needs the package {package}. Install it with `pip install {package}`, or "
                "save the activations as .npy."
            )
        # The folder itself may be a link, but nothing in it may lead out of it.
        with reading(str(path)):
            arrays = _READERS[kind](path if path == folder else inside(path, folder))
        for site, array in arrays.items():
            if site in found:
                raise DataError(
                    f"{path}: the site {site!r} is already in {origin[site].name}. Give each site "
                    "its own name; join parts of one site with numpy.concatenate."
                )
            found[site], origin[site] = array, path
    if not found:
        others = [path.name for path in paths if not path.name.startswith(".")][:5]
        contents = f"It contains {joined_names(others)}." if others else "It is empty."
        raise MissingError(
            f"{folder} contains no activations. {contents} Give a folder of .npy, .safetensors, "
            ".parquet or .zarr arrays, one for each site."
        )
    return {site: found[site] for site in sorted(found, key=natural)}


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that orders the numbers in names by value.

    >>> sorted(["layer_10", "layer_2", "embed"], key=natural)
    ['embed', 'layer_2', 'layer_10']
    """
    parts = filter(None, re.split(r"(\d+)", name))
    stripped = [(part, part.lstrip("0")) for part in parts]  # int() takes at most 4,300 digits
    return [(0, len(n), n) if part.isdecimal() else (1, 0, part) for part, n in stripped]


def row_ids(folder: Path) -> list[str] | None:
    """Return the column `id` of rows.csv in a folder; None if there is no such file or column."""
    path = folder / ROWS
    if not path.is_file():
        return None
    with reading(str(path)), inside(path).open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        return [row["id"] for row in rows] if "id" in (rows.fieldnames or ()) else None


def _is_zarr(path: Path) -> bool:
    return path.is_dir() and any((path / name).exists() for name in _ZARR_FILES)


def _parquet(path: Path) -> dict[str, SiteArray]:
    """Return the columns of a Parquet file, by site."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        columns, metadata = file.schema_arrow.names, file.schema_arrow.metadata or {}
    if not columns or len(set(columns)) < len(columns):
        problem = "has two columns of the same name" if columns else "has no columns"
        raise DataError(f"{path} {problem}. Give each site one column, named after it.")
    if len(columns) == 1 and metadata.keys() >= {b"site", b"shape"}:  # of `cache export`
        return {path.stem: ParquetArray(path, columns[0], json.loads(metadata[b"shape"]))}
    return {column: ParquetArray(path, column) for column in columns}


def _safetensors(path: Path) -> dict[str, SiteArray]:
    with safe_open(path, framework="pt") as file:
        keys = list(file.keys())
    return {key: SafetensorsArray(path, key) for key in keys}


def _zarr(path: Path) -> dict[str, SiteArray]:
    """Return the array in a Zarr folder, or those of a group, by site."""
    import zarr

    for inner in path.rglob("*"):
        inside(inner, path)
        if inner.name not in (*_ZARR_FILES, ".zmetadata"):
            continue
        if "pickle" in str(json.loads(inner.read_bytes())):  # parsed: JSON can escape letters
            raise DataError(f"{path} cannot be read: {_PICKLED}.")
    opened = zarr.open(str(path), mode="r")
    if hasattr(opened, "shape"):
        return {path.name.removesuffix(".zarr"): ZarrArray(path)}
    members = [inner for inner in path.iterdir() if inner.is_dir() and inner.name[0] != "."]
    for inner in members:
        if not _is_zarr(inner) or not hasattr(opened[inner.name], "shape"):
            raise DataError(
                f"{inner} is no array: it is a group, or its zarr.json or .zarray is missing. Save "
                "it again, give the folder of that group, or remove it."
            )
    return {inner.name: ZarrArray(inner) for inner in members}


# Extensions of other formats of arrays.
_UNREAD = {".npz", ".pt", ".pth", ".bin", ".pkl", ".pickle", ".joblib", ".h5", ".hdf5", ".mat"}
_READERS: Mapping[str, Callable[[Path], Mapping[str, SiteArray]]] = {
    ".npy": lambda path: {path.stem: NpyArray(path)},
    ".safetensors": _safetensors,
    ".parquet": _parquet,
    ".zarr": _zarr,
}
