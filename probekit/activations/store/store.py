"""The activations of a data set on disk: written in shards, each whole or not there.

    <cache>/<key>/spec.json                what the rows were computed from, and how many there are
    <cache>/<key>/rows.safetensors         which example and positions each row is, and their order
    <cache>/<key>/<site>/00000.<digest>.safetensors   the rows of one shard, shape (n_rows, ...)
    <cache>/<key>/<site>/00000.json        its record; made last, by one writer only: commits it
    <cache>/<key>/manifest.json            the finished sites and one root digest over all

A shard without its record does not exist. A site is finished when all its shards are committed;
sites can be added later, by any number of writers: the first one to commit a shard wins. Reading is
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
    """The rows of one capture, by site.

    Use `ActivationStore.open(folder)` to read one; `capture` in capture.py makes them.

    Attributes:
        files: what it is kept in.
        spec: what its rows were computed from, and how many there are.
        root: the root digest that it must have, None to trust it.
    """

    def __init__(self, files: Files, spec: Spec, *, root: str | None = None) -> None:
        super().__init__(files, spec)
        self.root = root
        self._readers: dict[str, SiteReader] = {}

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process maps the files itself.
        return self.__dict__ | {"_readers": {}}

    @classmethod
    def create(
        cls, root: Location | Files, identity: Identity, plan: RowPlan, shards: Sequence[IntArray]
    ) -> ActivationStore:
        """Return the store with this identity under `root`, new or as far as it has come.

        Args:
            root: folder or URL that holds caches, or the files of this very one.
            identity: of the rows.
            plan: what each row is.
            shards: for each shard the numbers of its rows, in the order in which they will come.

        Raises:
            StoreMismatchError: what lies in its folder has another identity.
            StoreError: the folder cannot be written.
        """
        files = files_at(join(root, identity.key) if isinstance(root, Location) else root)
        sizes, pieces = pack_layout(plan, shards)
        return cls.begin(files, Spec(identity, sizes), pieces)

    @classmethod
    def begin(cls, files: Files, spec: Spec, pieces: Iterable[bytes]) -> ActivationStore:
        """Return the store of this spec among files, new or as far as it has come.

        Args:
            files: where it is to be.
            spec: what it will hold.
            pieces: the bytes of the file of its layout.

        Raises:
            StoreMismatchError: what lies there is something else.
            StoreError: nothing can be written there.
        """
        there = files.sizes()
        if SPEC not in there or ROWS not in there:
            files.begin()
        if ROWS not in there:
            with files.draft(ROWS) as draft:
                for piece in pieces:
                    draft.write(piece)
                if draft.digest != spec.sizes.digest:
                    raise damaged(ROWS, "it is not the layout of these rows")
                files.publish(draft, ROWS)
        if SPEC not in there:
            files.create(SPEC, spec.pack())
        return cls.open(files, expect=spec)

    @classmethod
    def open(
        cls,
        place: Location | Files,
        expect: Spec | Identity | None = None,
        *,
        root: str | None = None,
        mapped: bool | None = None,
    ) -> ActivationStore:
        """Return the store in a folder.

        Args:
            place: the folder, its URL or its files.
            expect: what it must hold.
            root: the root digest that it must have, for a cache that came from elsewhere; every
                shard is then digested before its first row is read.
            mapped: whether rows are memory-mapped, None: unless the folder is on a network.

        Raises:
            MissingError: there is no store.
            StoreMismatchError: it is not the one expected; the message lists what differs.
            StoreError: it is damaged.
        """
        files = files_at(place, mapped=mapped)
        try:
            spec = Spec.unpack(files.read(SPEC), f"{files.place}/{SPEC}")
        except DamagedError as error:
            raise DamagedError(f"{error} Delete the folder to have it computed anew.") from error
        store = cls(files, spec, root=root)
        if expect is not None:
            spec.require(expect, files.place)
        if root is not None:
            store._require_root(root)
        return store

    def _require_root(self, root: str) -> None:
        manifest = self.manifest()
        if manifest is None or manifest.root != root:
            found = "no manifest" if manifest is None else f"the root digest {manifest.root}"
            raise StoreMismatchError(
                f"{self.folder} has {found}, not {root}. It was changed or extended since that was "
                "written down, or it is another cache."
            )
        self.verify([])  # the order of the rows, too

    @contextlib.contextmanager
    def writing(self, sites: Sequence[str], shard: int) -> Iterator[dict[str, ShardWriter]]:
        """Give a writer for the rows of one shard at each site; commit them at the block's end.

        Any number of processes may write the same shard: the first one to come to its end wins, and
        what the others wrote is dropped. An error in the block leaves nothing behind.

        Raises:
            StoreError: a value is not finite, or the disk refuses.
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
            # A disk that is waited for at many files at once is waited for hardly longer.
            with ThreadPoolExecutor(_SYNCS_AT_ONCE) as pool:
                for committed in [pool.submit(self._publish, each) for each in writers.values()]:
                    committed.result()

    def _publish(self, writer: ShardWriter) -> None:
        self._commit(writer.publish())

    def commit(self, site: str, shard: int, values: FloatArray) -> None:
        """Write one shard of one site, values of shape (n_rows, ...), and commit it.

        Raises:
            StoreError: a value is not finite, or the disk refuses.
        """
        with self.writing([site], shard) as writers:
            writers[site].append(values)

    def adopt(self, record: ShardRecord, chunks: Iterable[bytes]) -> None:
        """Commit a shard that another copy of this store has, from the bytes of its file.

        Raises:
            DamagedError: the bytes are not those that the record commits.
            StoreError: the disk refuses.
        """
        self.files.begin(record.site)
        with self.files.draft(draft_name(record.site, record.shard)) as draft:
            for chunk in chunks:
                draft.write(chunk)
            if draft.digest != record.digest:
                raise damaged(record.file, "its digest is another")
            self.files.publish(draft, record.file)
            self._commit(record)

    def _commit(self, mine: ShardRecord) -> None:
        while not self.files.create(mine.name, mine.pack()):
            first = self.records(mine.site).get(mine.shard)
            if first is not None:
                if first.file != mine.file:
                    self.files.remove(mine.file)
                return
            self._drop_broken(mine)

    def _drop_broken(self, mine: ShardRecord) -> None:
        """Take a record away that commits nothing: it is damaged, or its file is."""
        with self.files.lock(lambda _: None, name=f"{LOCK}.mend"):
            if mine.shard not in self.records(mine.site):  # another one may have mended it
                self.files.remove(mine.name)

    def seal(self) -> None:
        """Write the manifest of all finished sites.

        Raises:
            StoreError: the disk refuses, or a newer release has written one.
        """
        if not self.is_sealed:
            with self.files.draft(MANIFEST) as draft:
                draft.write(self.due_manifest().pack())
                self.files.publish(draft, MANIFEST)
        for folder in ("", *self.sites):
            self.files.settle(folder)  # a writer may have been killed just before it did

    def read(
        self, site: str, rows: IntArray | Sequence[int] | None = None, *, partial: bool = False
    ) -> FloatArray:
        """Return the rows of a site in the order of the data set, shape (n_rows, ...).

        Args:
            site: the full name.
            rows: numbers of the rows wanted, None for all.
            partial: whether a site may be read that is not finished; None for `rows` then means
                those of `rows_at(site)`.

        Raises:
            UnknownNameError: the store does not hold all of that site, or not those rows of it.
            ConfigError: `rows` are no numbers of rows.
            StoreError: a file is damaged or lost.
        """
        reader = self._reader(site)
        there = None if reader.is_complete else reader.rows
        wanted = np.arange(self.n_rows) if rows is None else row_numbers(rows, self.n_rows)
        if there is not None and partial and rows is None:
            wanted = there
        if there is not None and not (partial and len(there) and np.isin(wanted, there).all()):
            start = f"The store {self.folder} does not hold all of {site}"
            raise UnknownNameError(
                f"{start}: {reader.extent}. Run the capture to its end, or read those of "
                "rows_at(site) with partial=True."
                if len(there)
                else f"{start}. {nearest(site, self.sites)}"
            )
        return reader.read(wanted)

    def rows_at(self, site: str) -> IntArray:
        """Return the numbers of the rows of a site that are there, ascending."""
        return self._reader(site).rows

    def _reader(self, site: str) -> SiteReader:
        if site not in self._readers:
            records = self.records(site)
            if self.root is not None:
                self.require_sealed(site, records)
            reader = SiteReader(self.files, self.layout, records, is_trusted=self.root is None)
            if not reader.is_complete:
                return reader
            self._readers[site] = reader
        return self._readers[site]

    def require_sealed(self, site: str, records: dict[int, ShardRecord]) -> None:
        """Refuse records of a site that are not those of the manifest.

        Raises:
            DamagedError: they are others.
        """
        manifest = self.manifest()
        sealed = None if manifest is None else manifest.sites.get(site)
        if sealed != [records[shard].digest for shard in sorted(records)]:
            raise damaged(f"{self.folder}/{site}", "its records are not those that were sealed")

    def sweep(self) -> None:
        """Delete what killed writers left half-written; the living keep theirs."""
        self.files.sweep()

    def locked(self, tell: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
        """Hold the store for one writer; a second one waits, and is told so through `tell`.

        Nothing would be lost without it: two writers would only compute the same rows twice.

        Raises:
            StoreError: the folder cannot be written.
        """
        return self.files.lock(tell)
