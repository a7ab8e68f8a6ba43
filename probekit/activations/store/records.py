"""What commits one shard of one site: a record that says what its file holds."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from probekit.activations.store.layout import ArrayHeader, header
from probekit.activations.store.sealed_json import seal, unseal
from probekit.errors import DamagedError


@dataclass(frozen=True)
class ShardRecord:
    """One committed shard of one site of one store.

    Attributes:
        store: key of the store.
        site: full name.
        shard: its number.
        dtype: of the numbers, in the words of safetensors.
        shape: of the rows, (n_rows, ...).
        digest: BLAKE3 of the whole file.

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
        """Where the record stands in the store's folder."""
        return record_name(self.site, self.shard)

    @property
    def file(self) -> str:
        """Where the rows stand in the store's folder.

        The name has the digest in it, so that two writers whose last bits differ never overwrite
        each other: whichever record comes first names a file that is its own.
        """
        return f"{stem(self.site, self.shard)}.{self.digest[:16]}.safetensors"

    @property
    def kind(self) -> ArrayHeader:
        """Dtype and shape."""
        return ArrayHeader(self.dtype, self.shape)

    @property
    def header(self) -> bytes:
        """What the file must begin with."""
        return header({"rows": self.kind})

    @property
    def size(self) -> int:
        """The size of the file."""
        return len(self.header) + self.kind.size

    def pack(self) -> bytes:
        """Return the bytes of the record's file."""
        return seal(asdict(self))

    @classmethod
    def unpack(cls, data: bytes, path: str) -> ShardRecord:
        """Return the record that a file holds; `path` is what a message calls it.

        Raises:
            DamagedError: it is none.
            StoreError: a newer release wrote it.
        """
        content = unseal(data, path)
        try:
            record = cls(**{**content, "shape": tuple(content["shape"])})
        except (TypeError, KeyError) as error:
            raise DamagedError(f"{path} is not the record of a shard: {error}.") from error
        if not record._is_sound():
            raise DamagedError(
                f"{path} tells of {record.dtype!r} {record.shape!r} with the digest "
                f"{record.digest!r}, which no shard can have."
            )
        return record

    def _is_sound(self) -> bool:
        """Whether a stranger's record can be followed: its digest becomes part of a path."""
        sizes = bool(self.shape) and all(type(n) is int and n > 0 for n in self.shape)
        is_digest = isinstance(self.digest, str) and re.fullmatch("[0-9a-f]{64}", self.digest)
        return sizes and bool(is_digest) and self.dtype in ("F32", "F16")


def stem(site: str, shard: int) -> str:
    """Return what the names of a shard's files begin with."""
    return f"{site}/{shard:05d}"


def record_name(site: str, shard: int) -> str:
    """Return where the record of a shard stands in the store's folder.

    >>> record_name("hook_embed", 3)
    'hook_embed/00003.json'
    """
    return f"{stem(site, shard)}.json"
