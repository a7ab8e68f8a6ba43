"""Shard records: small files that commit one shard of one site."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from probekit.activations.store.layout import ArrayHeader, header
from probekit.errors import DamagedError
from probekit.provenance import seal, unseal


@dataclass(frozen=True)
class ShardRecord:
    """A committed shard of one site.

    Attributes:
        store: key of the store.
        site: full name.
        shard: index of the shard.
        dtype: safetensors dtype code.
        shape: shape of the array, (n_rows, ...).
        digest: BLAKE3 digest of the row file.

    >>> record = ShardRecord("k", "hook_embed", 3, "F32", (2, 5), "ab" * 32)
    >>> record.file, record.size
    ('hook_embed/00003.abababababababab.safetensors', 112)
    >>> ShardRecord.unpack(record.pack(), record.name) == record
    True
    """

    store: str
    site: str
    shard: int
    dtype: str
    shape: tuple[int, ...]
    digest: str

    @property
    def name(self) -> str:
        """Path of the record in the store."""
        return record_name(self.site, self.shard)

    @property
    def file(self) -> str:
        """Path of the row file in the store.

        The name contains the digest, so that writers whose results differ in the last bits never
        overwrite each other: the record committed first names its own file.
        """
        return f"{stem(self.site, self.shard)}.{self.digest[:16]}.safetensors"

    @property
    def kind(self) -> ArrayHeader:
        """Dtype and shape of the array."""
        return ArrayHeader(self.dtype, self.shape)

    @property
    def header(self) -> bytes:
        """Header that the row file must begin with."""
        return header({"rows": self.kind})

    @property
    def size(self) -> int:
        """Size of the row file in bytes."""
        return len(self.header) + self.kind.size

    def pack(self) -> bytes:
        """Return the bytes of the record's file."""
        return seal(asdict(self))

    @classmethod
    def unpack(cls, data: bytes, path: str) -> ShardRecord:
        """Parse and validate a record; `path` is its name in error messages.

        Raises:
            DamagedError: the bytes are not a valid record.
            StoreError: the file was written by a newer release.
        """
        content = unseal(data, path)
        try:
            record = cls(**{**content, "shape": tuple(content["shape"])})
        except (TypeError, KeyError) as error:
            raise DamagedError(f"{path} is not the record of a shard: {error}.") from error
        if not record._is_valid():
            raise DamagedError(
                f"{path} has invalid values: dtype {record.dtype!r}, shape {record.shape!r}, "
                f"digest {record.digest!r}."
            )
        return record

    def _is_valid(self) -> bool:
        """Validate an untrusted record before its digest is used in a path."""
        is_shape = bool(self.shape) and all(type(n) is int and n > 0 for n in self.shape)
        is_digest = isinstance(self.digest, str) and re.fullmatch("[0-9a-f]{64}", self.digest)
        return is_shape and bool(is_digest) and self.dtype in ("F32", "F16")


def stem(site: str, shard: int) -> str:
    """Return the common prefix of the paths of a shard's files."""
    return f"{site}/{shard:05d}"


def record_name(site: str, shard: int) -> str:
    """Return the path of a shard's record in the store.

    >>> record_name("hook_embed", 3)
    'hook_embed/00003.json'
    """
    return f"{stem(site, shard)}.json"
