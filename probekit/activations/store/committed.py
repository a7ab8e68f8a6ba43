"""The committed content of a store: its shard records, and the manifest that lists them.

The manifest has one root digest of identity, row layout and finished sites.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from probekit.activations.files.local import Files, Location, damaged
from probekit.activations.identity import Identity, Spec
from probekit.activations.store.layout import ArrayHeader, IntArray, Layout, header
from probekit.activations.store.reader import is_intact
from probekit.activations.store.records import ShardRecord, record_name
from probekit.errors import DamagedError, MissingError
from probekit.provenance import digest, digest_json, seal, unseal

SPEC, ROWS, MANIFEST = "spec.json", "rows.safetensors", "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """The finished sites of a store.

    Attributes:
        sites: digests of the shards of each finished site, in order.
        root: one digest of identity, layout and sites. Users can require it when they open a copy
            of the cache from elsewhere.
    """

    sites: dict[str, list[str]]
    root: str

    @classmethod
    def of(cls, spec: Spec, sites: Mapping[str, Sequence[str]]) -> Manifest:
        """Return the manifest of a store with the given finished sites, in any order."""
        listed = {site: list(sites[site]) for site in sorted(sites)}
        content = {"identity": spec.identity.to_json(), "rows": spec.sizes.digest, "sites": listed}
        return cls(listed, digest_json(content))

    def pack(self) -> bytes:
        """Return the bytes of `manifest.json`."""
        return seal(asdict(self))

    @classmethod
    def unpack(cls, data: bytes, path: str, spec: Spec) -> Manifest:
        """Parse a manifest and check that it belongs to a store; `path` is used in messages.

        Raises:
            DamagedError: the bytes are not a manifest, or the manifest of another store.
            StoreError: the file was written by a newer release.
        """
        content = unseal(data, path)
        sites = content.get("sites")
        if not isinstance(sites, dict) or not all(isinstance(d, list) for d in sites.values()):
            raise DamagedError(f"{path} does not list the sites of a store.")
        manifest = cls.of(spec, sites)
        if manifest.pack() != data:
            raise DamagedError(f"{path} is the manifest of another store.")
        return manifest


class Committed:
    """Read access to the committed content of a store.

    The files are read again at each call, because other processes may be writing.

    Attributes:
        files: the files of the store.
        spec: identity and row layout.
        digested: names of shard files that this process has verified against their digest.
    """

    def __init__(self, files: Files, spec: Spec) -> None:
        self.files = files
        self.spec = spec
        self.digested: set[str] = set()

    @property
    def folder(self) -> Location:
        """Folder or URL of the store."""
        return self.files.place

    @property
    def identity(self) -> Identity:
        """Everything that the rows were computed from."""
        return self.spec.identity

    @cached_property
    def layout(self) -> Layout:
        """Example, positions and order of all rows.

        Verified by digest, because a flipped bit would assign rows to wrong examples.

        Raises:
            DamagedError: the layout file is missing or damaged.
        """
        if not self.layout_is_intact():
            raise damaged(f"{self.folder}/{ROWS}", "it is missing, or not the layout of these rows")
        headers = self.spec.sizes.headers
        ends = np.cumsum([array.shape[0] for array in headers.values()])
        content = self.files.array(ROWS, header(headers), ArrayHeader("I64", (int(ends[-1]),)))
        arrays: Any = np.split(np.asarray(content), ends[:-1])
        return Layout(dict(zip(headers, arrays, strict=True)))

    @property
    def shards(self) -> tuple[IntArray, ...]:
        """Row indices of each shard, in storage order."""
        return self.layout.shards

    @property
    def n_rows(self) -> int:
        """Number of rows of each site."""
        return self.spec.sizes.rows

    @property
    def sites(self) -> tuple[str, ...]:
        """Sites with all shards committed."""
        return tuple(site for site in self.files.folders() if not self.missing(site))

    def missing(self, site: str) -> tuple[int, ...]:
        """Return the shards of a site that are not committed or whose file has the wrong size."""
        found = self.records(site)
        return tuple(n for n in range(len(self.shards)) if n not in found)

    def records(self, site: str) -> dict[int, ShardRecord]:
        """Return the records of a site's committed shards whose file has the right size, by shard.

        Raises:
            StoreError: a record cannot be read, or was written by a newer release.
        """
        sizes = self.files.sizes(site)
        names = {record_name(site, shard): shard for shard in range(len(self.shards))}
        found = {}
        for name, data in self.files.read_all(name for name in names if name in sizes).items():
            with contextlib.suppress(DamagedError):
                record = self.read_record(site, names[name], data)
                if sizes.get(record.file) == record.size:
                    found[names[name]] = record
        return found

    def missing_sites(self, sites: Sequence[str], shard: int) -> list[str]:
        """Return those of the given sites that lack a shard; only its records are read."""
        names = {record_name(site, shard): site for site in sites}
        present = set()
        for name, data in self.files.read_all(names).items():
            with contextlib.suppress(DamagedError):
                record = self.read_record(names[name], shard, data)
                if self.files.size(record.file) == record.size:
                    present.add(record.site)
        return [site for site in sites if site not in present]

    def read_record(self, site: str, shard: int, data: bytes) -> ShardRecord:
        """Parse the record of a shard and check that it belongs to this shard and store.

        Raises:
            DamagedError: the bytes are not a record, or the record of another shard.
            StoreError: the file was written by a newer release.
        """
        path = f"{self.folder}/{record_name(site, shard)}"
        record = ShardRecord.unpack(data, path)
        expected = (
            self.identity.key,
            site,
            shard,
            len(self.shards[shard]),
            self.identity.code_of_dtype,
        )
        actual = (record.store, record.site, record.shard, record.shape[0], record.dtype)
        if actual != expected:
            raise DamagedError(f"{path} is the record of another shard.")
        return record

    @property
    def is_sealed(self) -> bool:
        """Whether the manifest lists all finished sites with their current digests.

        Raises:
            StoreError: the manifest was written by a newer release.
        """
        try:
            return self.manifest() == self.expected_manifest()
        except DamagedError:  # it can be rebuilt from the records
            return False

    def expected_manifest(self) -> Manifest:
        """Return the manifest that matches the current records."""
        found = {site: self.records(site) for site in self.files.folders()}
        n_shards = len(self.shards)
        return Manifest.of(
            self.spec,
            {site: _digests(each) for site, each in found.items() if len(each) == n_shards},
        )

    def manifest(self) -> Manifest | None:
        """Return the stored manifest; None if the store was never sealed.

        Raises:
            DamagedError: the manifest is damaged.
        """
        data = self.files.read_all([MANIFEST]).get(MANIFEST)
        path = f"{self.folder}/{MANIFEST}"
        return None if data is None else Manifest.unpack(data, path, self.spec)

    def digest_of(self, sites: Sequence[str]) -> str:
        """Return one digest of the identity and the rows of finished sites, given in any order."""
        return Manifest.of(self.spec, {site: _digests(self.records(site)) for site in sites}).root

    def verify(self, sites: Sequence[str] | None = None) -> None:
        """Verify the layout and every committed shard of the given sites (default: all) by digest.

        Raises:
            DamagedError: a file is damaged; the message lists all of them.
        """
        bad = [] if self.layout_is_intact() else [ROWS]
        if not bad:  # without the layout no record can be attributed to rows
            for site in self.files.folders() if sites is None else sites:
                bad += [r.file for r in self.records(site).values() if not self._is_intact(r)]
        if bad:
            raise DamagedError(
                f"{len(bad)} files are damaged: "
                f"{', '.join(f'{self.folder}/{name}' for name in bad)}. `probekit cache repair "
                f"{self.folder}` removes them, and the next run computes them again."
            )

    def _is_intact(self, record: ShardRecord) -> bool:
        if not is_intact(self.files, record):
            return False
        self.digested.add(record.file)
        return True

    def layout_is_intact(self) -> bool:
        """Return whether the layout file matches its digest in the spec."""
        sizes = self.spec.sizes
        if self.files.sizes().get(ROWS) != sizes.size:
            return False
        try:
            return digest(self.files.chunks(ROWS)) == sizes.digest
        except (MissingError, DamagedError):
            return False


def _digests(records: dict[int, ShardRecord]) -> list[str]:
    return [records[shard].digest for shard in sorted(records)]
