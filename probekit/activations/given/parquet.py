"""Columns of Parquet files as arrays: one list of numbers for each row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from probekit.activations.given.arrays import as_float32, check_unpacked
from probekit.activations.store.layout import FloatArray
from probekit.amounts import counted
from probekit.errors import DataError


class ParquetArray:
    """A column of a Parquet file: lists of numbers, of the same length in all rows.

    Args:
        path: the file.
        column: name of the column.
        inner: shape of a row; None for lists as they are.
    """

    def __init__(self, path: Path, column: str, inner: Sequence[int] | None = None) -> None:
        from pyarrow import types

        self._path, self._column, self._inner = path, column, inner
        with self._open() as file:
            kind = file.schema_arrow.field(column).type
            self._n_rows = file.metadata.num_rows
        is_list_of = (types.is_list, types.is_large_list, types.is_fixed_size_list)
        self._is_list = any(is_kind(kind) for is_kind in is_list_of)
        self._width = getattr(kind, "list_size", None)
        value = str(kind.value_type if self._is_list else kind)
        names = {"float": "float32", "halffloat": "float16", "double": "float64"}
        self.dtype = names.get(value, value)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array; the length of all lists has to be that of the first."""
        if not self._is_list:
            raise DataError(
                f"{self._path}: the column {self._column!r} has type {self.dtype}. Allowed: lists "
                "of numbers, one list for each row. Choose the columns to read with `sites`."
            )
        with self._open() as file:
            groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
            chunks = [group.column(n) for group in groups for n in range(group.num_columns)]
        own = [one for one in chunks if one.path_in_schema.startswith(f"{self._column}.")]
        n_bytes = sum(4 * one.num_values for one in own)
        n_stored = sum(one.total_compressed_size for one in own)
        check_unpacked(f"{self._path}: the column {self._column!r}", n_bytes, n_stored)
        width = self._width
        if width is None:
            width = int(self._lengths(next(self._columns(1)), 0)[0]) if self._n_rows else 0
        if self._inner is not None and math.prod(self._inner) != width:
            raise DataError(
                f"{self._path}: rows of shape {tuple(self._inner)} do not fit lists of "
                f"{counted(width, 'number')}. Save the file again."
            )
        return (self._n_rows, *(self._inner or (width,)))

    def parts(self, n_rows: int) -> Iterator[FloatArray]:
        """Yield all rows as float32, at most `n_rows` at once."""
        width, start = math.prod(self.shape[1:]), 0
        for column in self._columns(n_rows):
            lengths = self._lengths(column, start)
            wrong = np.flatnonzero(lengths != width)
            if len(wrong):
                length = counted(int(lengths[wrong[0]]), "number")
                raise self._error(start + int(wrong[0]), f"has {length}, but row 0 has {width:,}")
            values = column.flatten()
            if values.null_count:
                row, at = divmod(int(np.argmax(values.is_null())), width)
                raise self._error(start + row, f"has a null at index {at}")
            yield as_float32(values.to_numpy().reshape(len(lengths), *self.shape[1:]))
            start += len(lengths)

    def _columns(self, n_rows: int) -> Iterator[Any]:
        """Yield the column as Arrow arrays of at most `n_rows` rows, which bounds the memory."""
        with self._open() as file:
            for batch in file.iter_batches(n_rows, columns=[self._column]):
                yield batch.column(self._column)

    def _lengths(self, column: Any, start: int) -> npt.NDArray[np.int64]:
        """Return the lengths of the lists in rows from number `start`."""
        from pyarrow import compute

        if column.null_count:
            raise self._error(start + int(np.argmax(column.is_null())), "is null")
        lengths: npt.NDArray[np.int64] = compute.list_value_length(column).to_numpy()
        return lengths

    def _error(self, row: int, problem: str) -> DataError:
        return DataError(
            f"{self._path}: row {row:,} of the column {self._column!r} {problem}. All rows need "
            "lists of the same length without nulls: compute the row again, or remove it."
        )

    def _open(self) -> Any:
        from pyarrow import parquet

        return parquet.ParquetFile(self._path)
