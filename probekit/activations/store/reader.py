"""Reading rows of one site in any order across shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from probekit.activations.files.local import Files, damaged
from probekit.activations.store.layout import FloatArray, IntArray, Layout
from probekit.activations.store.records import ShardRecord
from probekit.errors import ConfigError, DamagedError, MissingError
from probekit.provenance import digest


class SiteReader:
    """Reader of the committed rows of one site.

    Args:
        files: the files of the store.
        layout: row layout of the store.
        records: records of the committed shards, by shard index.
        digested: names of verified shard files. Any other file is verified before its first row is
            read, and its name is added. None disables verification.
    """

    def __init__(
        self,
        files: Files,
        layout: Layout,
        records: Mapping[int, ShardRecord],
        *,
        digested: set[str] | None,
    ) -> None:
        shapes = {record.shape[1:] for record in records.values()}
        if len(shapes) > 1:
            site = next(iter(records.values())).site
            raise DamagedError(
                f"The shards of {files.place}/{site} have different row shapes: {sorted(shapes)}. "
                "Remove that folder and run the capture again."
            )
        self._files = files
        self._layout = layout
        self._records = records
        self._digested = digested
        self._shards: dict[int, FloatArray] = {}

    @property
    def is_complete(self) -> bool:
        """Whether all shards are committed."""
        return len(self._records) == len(self._layout.shards)

    @property
    def rows(self) -> IntArray:
        """Sorted indices of the committed rows."""
        return self._layout.rows_of(sorted(self._records))

    @property
    def extent(self) -> str:
        """Number of committed rows as text, for messages."""
        n_rows, n_all = len(self.rows), self._layout.n_rows
        return f"{n_rows:,} of {n_all:,} rows are stored ({n_rows / n_all:.0%})"

    def read(self, rows: IntArray) -> FloatArray:
        """Return committed rows in the order requested, shape (n_rows, ...).

        Raises:
            StoreError: a file is damaged or missing.
        """
        place = self._layout.place[rows]
        shard_of = np.searchsorted(self._layout.first, place, side="right") - 1
        shards = np.unique(shard_of)
        first = self._shard(int(shards[0] if len(shards) else min(self._records)))
        out = np.empty((len(rows), *first.shape[1:]), dtype=first.dtype)
        for shard in shards:
            selected = np.flatnonzero(shard_of == shard)
            out[selected] = self._shard(int(shard))[place[selected] - self._layout.first[shard]]
        return out

    def _shard(self, number: int) -> FloatArray:
        if number not in self._shards:
            record = self._records[number]
            path = f"{self._files.place}/{record.file}"
            try:
                values = self._files.array(record.file, record.header, record.kind)
            except MissingError as error:
                raise damaged(path, "it is missing") from error
            if self._digested is not None and record.file not in self._digested:
                if not self._has_digest(record, values):
                    raise damaged(path, "its digest does not match")
                self._digested.add(record.file)
            if not self._files.is_mapped:
                return values  # not memory-mapped: caching it would keep the whole site in memory
            self._shards[number] = values
        return self._shards[number]

    def _has_digest(self, record: ShardRecord, values: FloatArray) -> bool:
        if self._files.is_mapped:  # a bad sector raises in `read` but kills the process in a map
            return is_intact(self._files, record)
        return digest([record.header, values.data.cast("B")]) == record.digest


def is_intact(files: Files, record: ShardRecord) -> bool:
    """Return whether a shard file matches the digest in its record."""
    try:
        return digest(files.chunks(record.file)) == record.digest
    except (MissingError, DamagedError):
        return False


def row_numbers(rows: IntArray | Sequence[int], n_rows: int) -> IntArray:
    """Return row indices as an integer array, shape (n,).

    Raises:
        ConfigError: the values are not integers from 0 to n_rows - 1 in one dimension.

    >>> row_numbers([2, 0], 3)
    array([2, 0])
    """
    try:
        wanted = np.asarray(rows)
    except ValueError:  # nested lists of different lengths
        wanted = np.asarray(rows, dtype=object)
    if not wanted.size:
        return np.empty(0, dtype=np.int64)
    in_range = wanted.dtype.kind in "iu" and 0 <= wanted.min() <= wanted.max() < n_rows
    if wanted.ndim != 1 or not in_range:
        raise ConfigError(
            f"rows must be numbers from 0 to {n_rows - 1}, shape (n,), not {wanted.dtype} "
            f"of shape {wanted.shape}: {np.array2string(wanted, threshold=10)}."
        )
    return wanted.astype(np.int64)
