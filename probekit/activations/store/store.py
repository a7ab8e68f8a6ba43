"""Activations of a data set on disk, written in shards that appear atomically.

    <cache>/<key>/spec.json                identity, and size and digest of the row layout
    <cache>/<key>/rows.safetensors         example and positions of each row, and their order
    <cache>/<key>/<site>/00000.<digest>.safetensors   rows of one shard, shape (n_rows, ...)
    <cache>/<key>/<site>/00000.json        record of the shard; created last and exclusively
    <cache>/<key>/manifest.json            finished sites and one root digest

A shard without a record counts as missing. A site is finished when all its shards are committed.
Sites can be added later by any number of writers; the first one to commit a shard wins. Reading is
memory-mapped, one site at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from probekit.activations.files.local import LOCK, Files, Location, damaged
from probekit.activations.files.places import files_at, join
from probekit.activations.identity import Identity, Spec
from probekit.activations.store.committed import MANIFEST, ROWS, SPEC, Committed
from probekit.activations.store.layout import FloatArray, IntArray, pack_layout
from probekit.activations.store.reader import SiteReader, row_numbers
from probekit.activations.store.records import ShardRecord
from probekit.activations.store.writer import ShardWriter, draft_name
from probekit.data.positions import RowPlan
from probekit.errors import (
    DamagedError,
    StoreMismatchError,
    UnknownNameError,
    nearest,
)

_SYNCS_AT_ONCE = 8


class ActivationStore(Committed):
    """Rows of one capture, by site.

    Use `ActivationStore.open(folder)` to read a store; `probekit.activations.capture` writes one.

    Attributes:
        files: the files of the store.
        spec: identity and row layout.
        root: required root digest; None for any.
        verifies: whether each shard is verified by digest before its first row is read.
    """

    def __init__(
        self, files: Files, spec: Spec, *, root: str | None = None, verifies: bool = True
    ) -> None:
        super().__init__(files, spec)
        self.root = root
        self.verifies = verifies
        self._readers: dict[str, SiteReader] = {}

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process opens its own memory maps.
        return self.__dict__ | {"_readers": {}}

    @classmethod
    def create(
        cls, root: Location | Files, identity: Identity, plan: RowPlan, shards: Sequence[IntArray]
    ) -> ActivationStore:
        """Open the store with this identity under `root`, or create it if it does not exist.

        Args:
            root: folder or URL that contains caches, or the files of the store itself.
            identity: identity of the rows.
            plan: the example and positions of each row.
            shards: row indices of each shard, in the order in which they are written.

        Raises:
            StoreMismatchError: the folder contains a store with another identity.
            StoreError: the folder cannot be written.
        """
        files = files_at(join(root, identity.key) if isinstance(root, Location) else root)
        sizes, pieces = pack_layout(plan, shards)
        return cls.begin(files, Spec(identity, sizes), pieces)

    @classmethod
    def begin(cls, files: Files, spec: Spec, pieces: Iterable[bytes]) -> ActivationStore:
        """Open the store with this spec, or create it if it does not exist.

        Args:
            files: the files of the store.
            spec: identity and row layout.
            pieces: content of the layout file, in chunks.

        Raises:
            StoreMismatchError: the files belong to another store.
            StoreError: the files cannot be written.
        """
        existing = files.sizes()
        if SPEC not in existing or ROWS not in existing:
            files.begin()
        if ROWS not in existing:
            with files.draft(ROWS) as draft:
                for piece in pieces:
                    draft.write(piece)
                if draft.digest != spec.sizes.digest:
                    raise damaged(ROWS, "it is not the layout of these rows")
                files.publish(draft, ROWS)
        if SPEC not in existing:
            files.create(SPEC, spec.pack())
        return cls.open(files, expect=spec)

    @classmethod
    def open(
        cls,
        place: Location | Files,
        expect: Spec | Identity | None = None,
        *,
        root: str | None = None,
        verify: bool = True,
        mapped: bool | None = None,
    ) -> ActivationStore:
        """Open an existing store.

        Args:
            place: folder or URL of the store, or its files.
            expect: required spec or identity; None for any.
            root: required root digest, for a cache that came from elsewhere.
            verify: whether to verify each shard by digest before its first row is read; False is
                faster and trusts the disk. `python -m benchmarks.store` measures the cost.
            mapped: whether to memory-map rows; None for yes, except on a network file system.

        Raises:
            MissingError: there is no store at `place`.
            StoreMismatchError: the store is not the expected one; the message lists differences.
            StoreError: the store is damaged.
        """
        files = files_at(place, mapped=mapped)
        try:
            spec = Spec.unpack(files.read(SPEC), f"{files.place}/{SPEC}")
        except DamagedError as error:
            raise DamagedError(f"{error} Delete the folder to compute the rows again.") from error
        store = cls(files, spec, root=root, verifies=verify)
        if expect is not None:
            spec.require(expect, files.place)
        if root is not None:
            store._require_root(root)
        return store

    def _require_root(self, root: str) -> None:
        manifest = self.manifest()
        if manifest is None or manifest.root != root:
            actual = "no manifest" if manifest is None else f"the root digest {manifest.root}"
            raise StoreMismatchError(
                f"{self.folder} has {actual}, expected {root}. The cache was changed or extended "
                "after that digest was recorded, or it is another cache."
            )
        self.verify([])  # verifies the row layout

    @contextlib.contextmanager
    def writing(self, sites: Sequence[str], shard: int) -> Iterator[dict[str, ShardWriter]]:
        """Yield one writer per site for the rows of a shard; commit them when the block ends.

        Several processes may write the same shard: the first to finish commits it, and the others'
        files are removed. If the block fails, nothing remains.

        Raises:
            StoreError: a value is not finite, or the disk cannot be written.
        """
        with contextlib.ExitStack() as stack:
            writers = {}
            for site in sites:
                self.files.begin(site)
                draft = stack.enter_context(self.files.draft(draft_name(site, shard)))
                writers[site] = ShardWriter(
                    self.files,
                    draft,
                    key=self.identity.key,
                    site=site,
                    shard=shard,
                    rows=self.shards[shard],
                    dtype=self.identity.dtype,
                )
            yield writers
            # Syncing several files at once takes hardly longer than syncing one.
            with ThreadPoolExecutor(_SYNCS_AT_ONCE) as pool:
                for committed in [pool.submit(self._publish, each) for each in writers.values()]:
                    committed.result()

    def _publish(self, writer: ShardWriter) -> None:
        self._commit(writer.publish())

    def commit(self, site: str, shard: int, values: FloatArray) -> None:
        """Write and commit one shard of one site.

        Args:
            site: full name.
            shard: index of the shard.
            values: rows of the shard in storage order, shape (n_rows, ...).

        Raises:
            StoreError: a value is not finite, or the disk cannot be written.
        """
        with self.writing([site], shard) as writers:
            writers[site].append(values)

    def adopt(self, record: ShardRecord, chunks: Iterable[bytes]) -> None:
        """Commit a shard copied from another copy of this store.

        Args:
            record: record of the shard.
            chunks: bytes of its row file.

        Raises:
            DamagedError: the bytes do not match the digest in the record.
            StoreError: the disk cannot be written.
        """
        self.files.begin(record.site)
        with self.files.draft(draft_name(record.site, record.shard)) as draft:
            for chunk in chunks:
                draft.write(chunk)
            if draft.digest != record.digest:
                raise damaged(record.file, "its digest does not match")
            self.files.publish(draft, record.file)
            self._commit(record)

    def _commit(self, record: ShardRecord) -> None:
        self.digested.add(record.file)  # the digest was computed while writing
        while not self.files.create(record.name, record.pack()):
            winner = self.records(record.site).get(record.shard)
            if winner is not None:
                if winner.file != record.file:
                    self.files.remove(record.file)
                return
            self._remove_invalid(record)

    def _remove_invalid(self, record: ShardRecord) -> None:
        """Remove the stored record of a shard if the record is damaged or lacks its row file."""
        with self.files.lock(lambda _: None, name=f"{LOCK}.mend"):
            if record.shard not in self.records(record.site):  # may have been repaired meanwhile
                self.files.remove(record.name)

    def seal(self) -> None:
        """Write the manifest of all finished sites.

        Raises:
            StoreError: the disk cannot be written, or a newer release wrote the manifest.
        """
        if not self.is_sealed:
            with self.files.draft(MANIFEST) as draft:
                draft.write(self.expected_manifest().pack())
                self.files.publish(draft, MANIFEST)
        for folder in ("", *self.sites):
            self.files.sync_names(folder)  # a writer may have been killed just before its own sync

    def read(
        self, site: str, rows: IntArray | Sequence[int] | None = None, *, partial: bool = False
    ) -> FloatArray:
        """Return rows of a site in data-set order, shape (n_rows, ...).

        Args:
            site: full name.
            rows: row indices; None for all.
            partial: whether to allow a site that is not finished; if `rows` is None, its stored
                rows (`rows_at(site)`) are returned.

        Raises:
            UnknownNameError: the site is not finished, or with `partial`, a requested row is
                missing.
            ConfigError: `rows` are not valid row indices.
            StoreError: a file is damaged or missing.
        """
        reader = self._reader(site)
        stored = None if reader.is_complete else reader.rows
        wanted = np.arange(self.n_rows) if rows is None else row_numbers(rows, self.n_rows)
        if stored is not None and partial and rows is None:
            wanted = stored
        if stored is not None and not (partial and len(stored) and np.isin(wanted, stored).all()):
            start = f"The store {self.folder} does not contain all of {site}"
            raise UnknownNameError(
                f"{start}: {reader.extent}. Run the capture to its end, or read the rows of "
                "rows_at(site) with partial=True."
                if len(stored)
                else f"{start}. {nearest(site, self.sites)}"
            )
        return reader.read(wanted)

    def rows_at(self, site: str) -> IntArray:
        """Return the sorted indices of the stored rows of a site."""
        return self._reader(site).rows

    def _reader(self, site: str) -> SiteReader:
        if site not in self._readers:
            records = self.records(site)
            if self.root is not None:
                self.require_sealed(site, records)
            reader = SiteReader(
                self.files, self.layout, records, digested=self.digested if self.verifies else None
            )
            if not reader.is_complete:
                return reader
            self._readers[site] = reader
        return self._readers[site]

    def require_sealed(self, site: str, records: dict[int, ShardRecord]) -> None:
        """Raise if records of a site differ from those in the manifest.

        Raises:
            DamagedError: the records differ.
        """
        manifest = self.manifest()
        sealed = None if manifest is None else manifest.sites.get(site)
        if sealed != [records[shard].digest for shard in sorted(records)]:
            raise damaged(f"{self.folder}/{site}", "its records differ from the manifest")

    def sweep(self) -> None:
        """Delete temporary files of dead writers; keep those of live ones."""
        self.files.sweep()

    def locked(self, tell: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
        """Lock the store for one writer; a second one waits and reports this through `tell`.

        The lock is not needed for correctness: it keeps two writers from computing the same rows.

        Raises:
            StoreError: the folder cannot be written.
        """
        return self.files.lock(tell)
