"""The rows of one shard of one site on their way to the disk, batch by batch."""

from __future__ import annotations

import numpy as np

from probekit.activations.files.local import Files
from probekit.activations.store.layout import CODES, ArrayHeader, FloatArray, IntArray
from probekit.activations.store.records import ShardRecord, stem
from probekit.disk import Draft
from probekit.errors import ConfigError, StoreError


class ShardWriter:
    """Takes the rows of one shard, of which it keeps none in memory.

    Args:
        files: of the store.
        draft: the file that is written.
        key: of the store.
        site: full name of the site.
        shard: number of the shard.
        rows: numbers of its rows, in the order in which they come.
        dtype: of all rows of the store.
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
        self._kind: ArrayHeader | None = None
        self._done = 0

    def append(self, values: FloatArray) -> None:
        """Write the next rows, shape (n, ...).

        Raises:
            StoreError: a value is not finite, or the disk refuses.
            ConfigError: they do not go with the rows before them, or are too many.
        """
        if not len(values):
            return
        if values.dtype != np.dtype(self._dtype):
            raise ConfigError(f"The rows of this store are {self._dtype}, not {values.dtype}.")
        kind = ArrayHeader(CODES[values.dtype], (len(self._rows), *values.shape[1:]))
        if self._kind not in (None, kind) or self._done + len(values) > len(self._rows):
            raise ConfigError(
                f"Shard {self._shard} of {self._site} takes {len(self._rows)} rows of one kind; "
                f"after {self._done} there came {len(values)} of {values.dtype} "
                f"{values.shape[1:]}."
            )
        self._refuse_non_finite(values)
        if self._kind is None:
            self._kind = kind
            self._draft.write(self._record().header)
        # A column of a larger array is not what its memory holds.
        self._draft.write(np.ascontiguousarray(values).data)
        self._done += len(values)

    def _refuse_non_finite(self, values: FloatArray) -> None:
        finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if finite.all():
            return
        advice = (
            "float16 ends at 65,504: store float32"
            if values.dtype == np.float16
            else "look at the weights, or compute in float32"
        )
        row = int(self._rows[self._done + int(np.argmin(finite))])
        raise StoreError(
            f"{int((~finite).sum())} rows of {self._site} are not finite, first row {row}; nothing "
            f"of this shard was stored. {advice}."
        )

    def publish(self) -> ShardRecord:
        """Return the record of the rows, whose file now has its name; it commits nothing yet.

        Raises:
            ConfigError: rows are lacking.
            StoreError: the disk refuses.
        """
        if self._done != len(self._rows):
            raise ConfigError(
                f"Shard {self._shard} of {self._site} takes {len(self._rows)} rows, and got "
                f"{self._done}."
            )
        record = self._record()
        self._files.publish(self._draft, record.file)
        return record

    def _record(self) -> ShardRecord:
        assert self._kind is not None
        return ShardRecord(
            self._key,
            self._site,
            self._shard,
            self._kind.dtype,
            self._kind.shape,
            self._draft.digest,
        )


def draft_name(site: str, shard: int) -> str:
    """Return what the draft of a shard is called until its digest is known."""
    return f"{stem(site, shard)}.safetensors"
