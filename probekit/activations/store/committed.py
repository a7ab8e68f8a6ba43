"""What is committed in a store: its records, and the manifest over all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from probekit.activations.files.local import Files, Location, damaged
from probekit.activations.identity import Identity, Spec
from probekit.activations.store.layout import ArrayHeader, IntArray, Layout, header
from probekit.activations.store.manifest import Manifest
from probekit.activations.store.reader import is_whole
from probekit.activations.store.records import ShardRecord, record_name
from probekit.errors import DamagedError, MissingError
from probekit.provenance import digest

SPEC, ROWS, MANIFEST = "spec.json", "rows.safetensors", "manifest.json"


class Committed:
    """What a store holds, read anew from its files at every question: others may write there, too.

    Attributes:
        files: what it is kept in.
        spec: what its rows were computed from, and how many there are.
    """

    def __init__(self, files: Files, spec: Spec) -> None:
        self.files = files
        self.spec = spec

    @property
    def folder(self) -> Location:
        """Where it lies."""
        return self.files.place

    @property
    def identity(self) -> Identity:
        """What its rows were computed from."""
        return self.spec.identity

    @cached_property
    def layout(self) -> Layout:
        """What each row is and where it stands.

        It is digested: a bit of it would give every reader whole rows of other examples.

        Raises:
            DamagedError: its file is lost, or is not what was written.
        """
        if not self.layout_is_whole():
            raise damaged(f"{self.folder}/{ROWS}", "it is lost, or not the layout of these rows")
        kinds = self.spec.sizes.kinds
        ends = np.cumsum([kind.shape[0] for kind in kinds.values()])
        numbers = self.files.array(ROWS, header(kinds), ArrayHeader("I64", (int(ends[-1]),)))
        arrays: Any = np.split(np.asarray(numbers), ends[:-1])
        return Layout(dict(zip(kinds, arrays, strict=True)))

    @property
    def shards(self) -> tuple[IntArray, ...]:
        """For each shard the numbers of its rows, in the order of the disk."""
        return self.layout.shards

    @property
    def n_rows(self) -> int:
        """The number of rows of every site."""
        return self.spec.sizes.rows

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites whose every shard is committed."""
        return tuple(site for site in self.files.folders() if not self.missing(site))

    def missing(self, site: str) -> tuple[int, ...]:
        """Return the shards of a site that are not committed, or whose file is not whole."""
        found = self.records(site)
        return tuple(n for n in range(len(self.shards)) if n not in found)

    def records(self, site: str) -> dict[int, ShardRecord]:
        """Return what commits the shards of a site, of those whose file is there in its size.

        Raises:
            StoreError: a newer release wrote one, or one cannot be read.
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

    def lacking(self, sites: Sequence[str], shard: int) -> list[str]:
        """Return those of the sites that lack one shard; no other shard is looked at."""
        names = {record_name(site, shard): site for site in sites}
        there = set()
        for name, data in self.files.read_all(names).items():
            with contextlib.suppress(DamagedError):
                record = self.read_record(names[name], shard, data)
                if self.files.size(record.file) == record.size:
                    there.add(record.site)
        return [site for site in sites if site not in there]

    def read_record(self, site: str, shard: int, data: bytes) -> ShardRecord:
        """Return the record that stands in the file of a shard.

        Raises:
            DamagedError: it is none, or that of another shard.
            StoreError: a newer release wrote it.
        """
        path = f"{self.folder}/{record_name(site, shard)}"
        record = ShardRecord.unpack(data, path)
        mine = (
            self.identity.key,
            site,
            shard,
            len(self.shards[shard]),
            self.identity.code_of_dtype,
        )
        its = (record.store, record.site, record.shard, record.shape[0], record.dtype)
        if its != mine:
            raise DamagedError(f"{path} is the record of another shard.")
        return record

    @property
    def is_sealed(self) -> bool:
        """Whether the manifest tells of all finished sites.

        Raises:
            StoreError: a newer release has written it.
        """
        try:
            return self.manifest() == self.due_manifest()
        except DamagedError:  # it is made anew from the records
            return False

    def due_manifest(self) -> Manifest:
        """Return the manifest that the records ask for."""
        found = {site: self.records(site) for site in self.files.folders()}
        n_shards = len(self.shards)
        return Manifest.of(
            self.spec,
            {site: _digests(each) for site, each in found.items() if len(each) == n_shards},
        )

    def manifest(self) -> Manifest | None:
        """Return the manifest, None if the store was never sealed.

        Raises:
            DamagedError: it is damaged.
        """
        data = self.files.read_all([MANIFEST]).get(MANIFEST)
        path = f"{self.folder}/{MANIFEST}"
        return None if data is None else Manifest.unpack(data, path, self.spec)

    def digest_of(self, sites: Sequence[str]) -> str:
        """Return one digest over the identity and the rows of finished sites, in any order."""
        return Manifest.of(self.spec, {site: _digests(self.records(site)) for site in sites}).root

    def verify(self, sites: Sequence[str] | None = None) -> None:
        """Digest the rows' layout and every committed shard of the given sites, or of all.

        Raises:
            DamagedError: the message names each file whose bytes are not those committed.
        """
        bad = [] if self.layout_is_whole() else [ROWS]
        if not bad:  # else no record can be told from that of other rows
            for site in self.files.folders() if sites is None else sites:
                bad += [r.file for r in self.records(site).values() if not is_whole(self.files, r)]
        if bad:
            raise DamagedError(
                f"{len(bad)} files are not what was written: "
                f"{', '.join(f'{self.folder}/{name}' for name in bad)}. `probekit cache repair "
                f"{self.folder}` takes them out, and the next run makes them again."
            )

    def layout_is_whole(self) -> bool:
        """Return whether the bytes of the layout are those that the spec commits."""
        sizes = self.spec.sizes
        if self.files.sizes().get(ROWS) != sizes.size:
            return False
        try:
            return digest(self.files.chunks(ROWS)) == sizes.digest
        except (MissingError, DamagedError):
            return False


def _digests(records: dict[int, ShardRecord]) -> list[str]:
    return [records[shard].digest for shard in sorted(records)]
