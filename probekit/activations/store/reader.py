"""Reading rows of one site in any order, from the shards that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from probekit.activations.files.local import Files, damaged
from probekit.activations.store.layout import FloatArray, IntArray, Layout
from probekit.activations.store.records import ShardRecord
from probekit.errors import ConfigError, DamagedError, MissingError
from probekit.provenance import digest


class SiteReader:
    """The committed rows of one site.

    Args:
        files: of the store.
        layout: of its rows.
        records: of the shards that are there, by number.
        is_trusted: whether the shards are taken to be what their records say; if not, each is
            digested before its first row is read.
    """

    def __init__(
        self, files: Files, layout: Layout, records: Mapping[int, ShardRecord], *, is_trusted: bool
    ) -> None:
        shapes = {record.shape[1:] for record in records.values()}
        if len(shapes) > 1:
            site = next(iter(records.values())).site
            raise DamagedError(
                f"The shards of {files.place}/{site} have rows of the shapes {sorted(shapes)}, "
                "which no capture makes. Remove that folder, and run the capture again."
            )
        self._files = files
        self._layout = layout
        self._records = records
        self._is_trusted = is_trusted
        self._shards: dict[int, FloatArray] = {}

    @property
    def is_complete(self) -> bool:
        """Whether all rows are there."""
        return len(self._records) == len(self._layout.shards)

    @property
    def rows(self) -> IntArray:
        """The numbers of the rows that are there, ascending."""
        return self._layout.rows_of(sorted(self._records))

    @property
    def extent(self) -> str:
        """How much is there, in words."""
        n_rows, n_all = len(self.rows), self._layout.n_rows
        return f"{n_rows:,} of {n_all:,} rows are there ({n_rows / n_all:.0%})"

    def read(self, rows: IntArray) -> FloatArray:
        """Return rows that are there, in the order asked for, shape (n_rows, ...).

        Raises:
            StoreError: a file is damaged or lost.
        """
        place = self._layout.place[rows]
        shard_of = np.searchsorted(self._layout.first, place, side="right") - 1
        touched = np.unique(shard_of)
        first = self._shard(int(touched[0] if len(touched) else min(self._records)))
        out = np.empty((len(rows), *first.shape[1:]), dtype=first.dtype)
        for shard in touched:
            here = np.flatnonzero(shard_of == shard)
            out[here] = self._shard(int(shard))[place[here] - self._layout.first[shard]]
        return out

    def _shard(self, number: int) -> FloatArray:
        if number not in self._shards:
            record = self._records[number]
            path = f"{self._files.place}/{record.file}"
            if not self._is_trusted and not is_whole(self._files, record):
                raise damaged(path, "its digest is another")
            try:
                values = self._files.array(record.file, record.header, record.kind)
            except MissingError as error:
                raise damaged(path, "it is lost") from error
            if not self._files.is_mapped:
                return values  # read in full: to keep it would keep the site in memory
            self._shards[number] = values
        return self._shards[number]


def is_whole(files: Files, record: ShardRecord) -> bool:
    """Return whether the bytes of a shard are those that its record commits."""
    try:
        return digest(files.chunks(record.file)) == record.digest
    except (MissingError, DamagedError):
        return False


def row_numbers(rows: IntArray | Sequence[int], n_rows: int) -> IntArray:
    """Return numbers of rows as an array, shape (n,).

    Raises:
        ConfigError: they are no numbers of rows.

    >>> row_numbers([2, 0], 3)
    array([2, 0])
    """
    try:
        wanted = np.asarray(rows)
    except ValueError:  # lists of several lengths
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
