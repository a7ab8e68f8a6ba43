"""Streaming writer of one shard of one site."""

from __future__ import annotations

import numpy as np

from probekit.activations.files.local import Files
from probekit.activations.store.layout import CODES, ArrayHeader, FloatArray, IntArray
from probekit.activations.store.records import ShardRecord, stem
from probekit.drafts import Draft
from probekit.errors import ConfigError, StoreError


class ShardWriter:
    """Writes the rows of one shard batch by batch, keeping none in memory.

    Args:
        files: the files of the store.
        draft: temporary file of the shard.
        key: key of the store.
        site: full name of the site.
        shard: index of the shard.
        rows: indices of its rows, in the order in which they are written.
        dtype: dtype of the store.
    """

    def __init__(
        self,
        files: Files,
        draft: Draft,
        *,
        key: str,
        site: str,
        shard: int,
        rows: IntArray,
        dtype: str,
    ) -> None:
        self._files = files
        self._draft = draft
        self._key = key
        self._site = site
        self._shard = shard
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
        header = ArrayHeader(CODES[values.dtype], (len(self._rows), *values.shape[1:]))
        if self._header not in (None, header) or self._done + len(values) > len(self._rows):
            raise ConfigError(
                f"Shard {self._shard} of {self._site} has {len(self._rows)} rows of equal shape "
                f"and dtype; cannot append {len(values)} of {values.dtype} {values.shape[1:]} "
                f"after {self._done}."
            )
        self._refuse_non_finite(values)
        if self._header is None:
            self._header = header
            self._draft.write(self._record().header)
        # A slice of a larger array may not be contiguous.
        self._draft.write(np.ascontiguousarray(values).data)
        self._done += len(values)

    def _refuse_non_finite(self, values: FloatArray) -> None:
        finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if finite.all():
            return
        advice = (
            "The largest float16 is 65,504: store float32"
            if values.dtype == np.float16
            else "Check the weights, or compute in float32"
        )
        row = int(self._rows[self._done + int(np.argmin(finite))])
        raise StoreError(
            f"{int((~finite).sum())} rows of {self._site} are not finite, first row {row}; this "
            f"shard was not stored. {advice}."
        )

    def publish(self) -> ShardRecord:
        """Rename the complete file and return its record, which is not committed yet.

        Raises:
            ConfigError: rows are missing.
            StoreError: the disk cannot be written.
        """
        if self._done != len(self._rows):
            raise ConfigError(
                f"Shard {self._shard} of {self._site} has {len(self._rows)} rows, but only "
                f"{self._done} were written."
            )
        record = self._record()
        self._files.publish(self._draft, record.file)
        return record

    def _record(self) -> ShardRecord:
        assert self._header is not None
        return ShardRecord(
            self._key,
            self._site,
            self._shard,
            self._header.dtype,
            self._header.shape,
            self._draft.digest,
        )


def draft_name(site: str, shard: int) -> str:
    """Return the name of a shard's row file before its digest is known."""
    return f"{stem(site, shard)}.safetensors"
