"""Columns of Parquet files as arrays: one list of numbers for each row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
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
            paths = [file.metadata.schema.column(n).path for n in range(file.metadata.num_columns)]
            own = [n for n, path in enumerate(paths) if path.startswith(f"{self._column}.")]
            width, n_bytes, n_stored = self._width, 0, 0
            for group in range(file.metadata.num_row_groups):
                # Reading a row raises for a damaged chunk; its description would end the process.
                for batch in islice(file.iter_batches(1, [group], [self._column]), 1):
                    if width is None:
                        width = int(self._lengths(batch.column(self._column), 0)[0])
                chunks = [file.metadata.row_group(group).column(n) for n in own]
                n_bytes += sum(4 * chunk.num_values for chunk in chunks)
                n_stored += sum(chunk.total_compressed_size for chunk in chunks)
        check_unpacked(f"{self._path}: the column {self._column!r}", n_bytes, n_stored)
        width = width or 0
        inner = self._inner
        is_shape = inner is None or all(type(size) is int and size > 0 for size in inner)
        if not is_shape or (inner is not None and math.prod(inner) != width):
            raise DataError(
                f"{self._path}: rows of shape {tuple(inner or ())} do not fit lists of "
                f"{counted(width, 'number')}. Save the file again."
            )
        return (self._n_rows, *(self._inner or (width,)))

    def parts(self, n_rows: int) -> Iterator[FloatArray]:
        """Yield all rows as float32, at most `n_rows` at once."""
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
                    row, at = divmod(int(np.argmax(values.is_null())), width)
                    raise self._error(start + row, f"has a null at index {at}")
                yield as_float32(values.to_numpy().reshape(len(lengths), *self.shape[1:]))
                start += len(lengths)

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
