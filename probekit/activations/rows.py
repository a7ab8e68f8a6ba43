"""Rows of one site: read in any order across shards, and written shard by shard as a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from probekit.activations.identity import CODES
from probekit.activations.local import Files, damaged
from probekit.activations.records import ArrayHeader, FloatArray, Layout, ShardRecord
from probekit.data.positions import IntArray
from probekit.errors import ConfigError, DamagedError, MissingError, StoreError
from probekit.files import Draft
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
        none = np.empty(0, dtype=np.int64)
        return np.sort(np.concatenate([none, *map(self._layout.shards.__getitem__, self._records)]))

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
        if number in self._shards:
            return self._shards[number]
        record = self._records[number]
        path = f"{self._files.place}/{record.file}"
        try:
            values = self._files.array(record.file, record.header, record.kind)
        except MissingError as error:
            raise damaged(path, "it is missing") from error
        if self._digested is not None and record.file not in self._digested:
            # A bad sector raises in `read`, but kills the process in a memory map.
            if not (
                is_intact(self._files, record.file, record.digest)
                if self._files.is_mapped
                else digest([record.header, values.data.cast("B")]) == record.digest
            ):
                raise damaged(path, "its digest does not match")
            self._digested.add(record.file)
        if self._files.is_mapped:  # otherwise keeping it would keep the whole site in memory
            self._shards[number] = values
        return values


def is_intact(files: Files, name: str, expected: str) -> bool:
    """Return whether the content of a file has the expected digest."""
    try:
        return digest(files.chunks(name)) == expected
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


class ShardWriter:
    """Writes the rows of one shard batch by batch, keeping none in memory.

    Args:
        draft: temporary file of the shard.
        key: key of the store.
        site: full name of the site.
        shard: index of the shard.
        rows: indices of its rows, in the order in which they are written.
        dtype: dtype of the store.
    """

    def __init__(
        self, draft: Draft, *, key: str, site: str, shard: int, rows: IntArray, dtype: str
    ) -> None:
        self.draft = draft
        self._names = key, site, shard
        self._rows = rows
        self._dtype = dtype
        self._header: ArrayHeader | None = None
        self._done = 0

    def append(self, values: FloatArray) -> None:
        """Append rows, shape (n, ...).

        Raises:
            StoreError: a value is not finite, or the disk cannot be written.
            ConfigError: dtype or shape differ from earlier rows, or there are too many rows.
        """
        if not len(values):
            return
        if values.dtype != np.dtype(self._dtype):
            raise ConfigError(f"This store holds {self._dtype} rows, not {values.dtype}.")
        header = ArrayHeader(CODES[self._dtype], (len(self._rows), *values.shape[1:]))
        _, site, shard = self._names
        if self._header not in (None, header) or self._done + len(values) > len(self._rows):
            raise ConfigError(
                f"Shard {shard} of {site} has {len(self._rows)} rows of equal shape "
                f"and dtype; cannot append {len(values)} of {values.dtype} {values.shape[1:]} "
                f"after {self._done}."
            )
        finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if not finite.all():
            advice = (
                "The largest float16 is 65,504: store float32"
                if self._dtype == "float16"
                else "Check the weights, or compute in float32"
            )
            raise StoreError(
                f"{int((~finite).sum())} rows of {site} are not finite, first row "
                f"{self._rows[self._done + int(np.argmin(finite))]}; this shard was not stored. "
                f"{advice}."
            )
        if self._header is None:
            self._header = header
            self.draft.write(self._record(header).header)
        # A slice of a larger array may not be contiguous.
        self.draft.write(np.ascontiguousarray(values).data)
        self._done += len(values)

    def record(self) -> ShardRecord:
        """Return the record of the complete shard.

        Raises:
            ConfigError: rows are missing.
        """
        if self._header is None or self._done != len(self._rows):
            _, site, shard = self._names
            raise ConfigError(
                f"Shard {shard} of {site} has {len(self._rows)} rows, but only {self._done} were "
                "written."
            )
        return self._record(self._header)

    def _record(self, header: ArrayHeader) -> ShardRecord:
        return ShardRecord(*self._names, *header, self.draft.digest)
