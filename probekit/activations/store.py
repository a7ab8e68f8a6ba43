"""Activations of a data set on disk, written in shards that appear atomically.

    <cache>/<key>/spec.json                identity, and size and digest of the row layout
    <cache>/<key>/rows.safetensors         example and positions of each row, and their order
    <cache>/<key>/<site>/00000.<digest>.safetensors   rows of one shard, shape (n_rows, ...)
    <cache>/<key>/<site>/00000.json        record of the shard; created last and exclusively
    <cache>/<key>/manifest.json            finished sites and one root digest
    <cache>/<key>/errors.json              relative errors of a forward pass in half precision
    <cache>/<key>/.lock*, *.claim, *.job.json   locks, and jobs of workers; see `local`, `upkeep`

A shard without a record counts as missing. A site is finished when all its shards are committed.
Sites can be added later by any number of writers; the first one to commit a shard wins. Reading is
memory-mapped, one site at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from probekit.activations.local import LOCK, Files, LocalFiles, damaged, is_url, join
from probekit.activations.records import (
    CODES,
    DTYPES,
    ERRORS,
    FORMAT,
    MANIFEST,
    OUTPUT,
    ROWS,
    SPEC,
    FloatArray,
    Identity,
    Layout,
    Location,
    Manifest,
    ShardRecord,
    Spec,
    dtype_of,
    pack_errors,
    pack_layout,
    read_numbers,
    record_name,
    stem,
    stored_numbers,
)
from probekit.amounts import counted, percent
from probekit.data.positions import IntArray, RowPlan
from probekit.errors import (
    ConfigError,
    DamagedError,
    MissingError,
    StoreError,
    StoreMismatchError,
    UnknownNameError,
    nearest,
)
from probekit.files import Draft
from probekit.model.weights.files import ArrayHeader, header
from probekit.provenance import digest, unseal

_SYNCS_AT_ONCE = 8  # files that are synced in parallel


def files_at(place: Location, *, mapped: bool | None = None) -> Files:
    """Return the files of the cache at a location; `mapped` as for `LocalFiles`.

    Raises:
        StoreError: the fsspec implementation of such URLs is not installed or fails to connect.
    """
    if is_url(place):
        from probekit.activations.object_store import ObjectFiles  # fsspec, which few runs need

        return ObjectFiles(str(place))
    return LocalFiles(Path(place), mapped=mapped)


class ActivationStore:
    """Rows of one capture, by site.

    Use `ActivationStore.open(folder)` to read a store; `probekit.activations.capture` writes one.
    Records and manifest are read again at each call, because other processes may be writing.

    Attributes:
        files: the files of the store.
        spec: identity and row layout.
        root: required root digest; None for any.
        verifies: whether each shard is verified by digest before its first row is read.
        digested: names of shard files that this process has verified against their digest.
        is_new: whether this process has created the store.
    """

    def __init__(
        self, files: Files, spec: Spec, *, root: str | None = None, verifies: bool = True
    ) -> None:
        self.files, self.spec, self.root, self.verifies = files, spec, root, verifies
        self.digested: set[str] = set()
        self.is_new = False
        self._complete: dict[str, Mapping[int, ShardRecord]] = {}  # records of complete sites
        self._mapped: dict[str, FloatArray] = {}  # rows by shard file

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process opens its own memory maps.
        return self.__dict__ | {"_complete": {}, "_mapped": {}}

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
        files = files_at(join(root, identity.key)) if isinstance(root, Location) else root
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
            DamagedError: the chunks are not the layout of the spec.
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
        is_new = SPEC not in existing and files.create(SPEC, spec.pack())
        store = cls.open(files)
        store.is_new = is_new
        store.spec.require(spec, files.place)
        return store

    @classmethod
    def open(
        cls,
        place: Location | Files,
        *,
        root: str | None = None,
        verify: bool = True,
        mapped: bool | None = None,
    ) -> ActivationStore:
        """Open an existing store.

        Args:
            place: folder or URL of the store, or its files.
            root: required root digest, for a cache that came from elsewhere.
            verify: whether to verify each shard by digest before its first row is read; False is
                faster and trusts the disk. `python -m benchmarks.store` measures the cost.
            mapped: whether to memory-map rows; None for yes, except on a network file system.

        Raises:
            MissingError: there is no store at `place`.
            StoreMismatchError: the store does not have the given root digest.
            StoreError: the store is damaged.
        """
        files = files_at(place, mapped=mapped) if isinstance(place, Location) else place
        try:
            spec = Spec.unpack(files.read(SPEC), f"{files.place}/{SPEC}")
        except DamagedError as error:
            raise DamagedError(f"{error} Delete the folder to compute the rows again.") from error
        store = cls(files, spec, root=root, verifies=verify)
        if root is not None:
            manifest = store.manifest()
            if manifest is None or manifest.root != root:
                actual = "no manifest" if manifest is None else f"the root digest {manifest.root}"
                raise StoreMismatchError(
                    f"{store.folder} has {actual}, expected {root}. The cache was changed or "
                    "extended after that digest was recorded, or it is another cache."
                )
            store.verify([])  # verifies the row layout
        return store

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
        # All arrays are int64, so that the file is read as one array and split.
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
        names = [name for name in self.files.folders() if not name.startswith(OUTPUT)]
        return tuple(site for site in names if not self.missing(site))

    def missing(self, site: str) -> tuple[int, ...]:
        """Return the shards of a site that are not committed or whose file has the wrong size."""
        committed = self.records(site)
        return tuple(shard for shard in range(len(self.shards)) if shard not in committed)

    def records(self, site: str) -> dict[int, ShardRecord]:
        """Return the records of a site's committed shards whose file has the right size, by shard.

        Raises:
            StoreError: a record cannot be read, or has another format version.
        """
        sizes = self.files.sizes(site)
        shards = [shard for shard in range(len(self.shards)) if record_name(site, shard) in sizes]
        names = {record_name(site, shard): (site, shard) for shard in shards}
        return {record.shard: record for record in self._committed(names, sizes.get)}

    def missing_sites(self, sites: Sequence[str], shard: int) -> list[str]:
        """Return those of the given sites that lack a shard; only records of it are read."""
        names = {record_name(site, shard): (site, shard) for site in sites}
        present = {record.site for record in self._committed(names, self.files.size)}
        return [site for site in sites if site not in present]

    def _committed(
        self, names: Mapping[str, tuple[str, int]], size_of: Callable[[str], int | None]
    ) -> Iterator[ShardRecord]:
        """Yield the valid records whose row file has the right size.

        Args:
            names: site and shard of each record file, by its name.
            size_of: returns the size of a row file; None if it does not exist.
        """
        for name, data in self.files.read_all(names).items():
            with contextlib.suppress(DamagedError):
                record = self.read_record(*names[name], data)
                if size_of(record.file) == record.size:
                    yield record

    def read_record(self, site: str, shard: int, data: bytes) -> ShardRecord:
        """Parse the record of a shard and check that it belongs to this shard and store.

        Raises:
            DamagedError: the bytes are not a record, or the record of another shard.
            StoreError: the file has another format version.
        """
        path = f"{self.folder}/{record_name(site, shard)}"
        record = ShardRecord.unpack(data, path)
        shape = (len(self.shards[shard]), *record.shape[1:])
        code = CODES[dtype_of(site, self.identity)]
        if record != ShardRecord(self.identity.key, site, shard, code, shape, record.digest):
            raise DamagedError(f"{path} is the record of another shard.")
        return record

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
                draft = stack.enter_context(self.files.draft(f"{stem(site, shard)}.safetensors"))
                writers[site] = ShardWriter(draft, self, site, shard)
            yield writers

            def publish(writer: ShardWriter) -> None:
                record = writer.record()
                self.files.publish(writer.draft, record.file)
                self._commit(record)

            # Syncing several files at once takes hardly longer than syncing one.
            with ThreadPoolExecutor(_SYNCS_AT_ONCE) as pool:
                for committed in [pool.submit(publish, writer) for writer in writers.values()]:
                    committed.result()

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
        with self.files.draft(record.file) as draft:
            for chunk in chunks:
                draft.write(chunk)
            if draft.digest != record.digest:
                raise damaged(record.file, "its digest does not match")
            self.files.publish(draft, record.file)
            self._commit(record)

    def _commit(self, record: ShardRecord) -> None:
        """Create the record of a shard whose rows are published, unless another writer did so."""
        self.digested.add(record.file)  # the digest was computed while writing
        while not self.files.create(record.name, record.pack()):
            winner = self.records(record.site).get(record.shard)
            if winner is not None:
                if winner.file != record.file:
                    self.files.remove(record.file)
                return
            # The stored record is damaged or lacks its row file, unless it was repaired meanwhile.
            with self.files.lock(lambda _: None, name=f"{LOCK}.mend"):
                if record.shard not in self.records(record.site):
                    self.files.remove(record.name)

    def seal(self) -> None:
        """Write the manifest of all finished sites, unless it is current.

        Raises:
            StoreError: the disk cannot be written, or the manifest has another format version.
        """
        if not self.is_sealed:
            with self.files.draft(MANIFEST) as draft:
                draft.write(self.expected_manifest().pack())
                self.files.publish(draft, MANIFEST)
        for folder in ("", *self.files.folders()):
            self.files.sync_names(folder)  # a writer may have been killed just before its own sync

    @property
    def is_sealed(self) -> bool:
        """Whether the manifest lists all finished sites with their current digests.

        Raises:
            StoreError: the manifest has another format version.
        """
        try:
            return self.manifest() == self.expected_manifest()
        except DamagedError:  # it can be rebuilt from the records
            return False

    def expected_manifest(self) -> Manifest:
        """Return the manifest that matches the current records."""
        committed = {site: self.records(site) for site in self.files.folders()}
        return self._manifest_of(
            {site: one for site, one in committed.items() if len(one) == len(self.shards)}
        )

    def _manifest_of(self, finished: Mapping[str, Mapping[int, ShardRecord]]) -> Manifest:
        """Return the manifest of finished sites, given the record of each of their shards."""
        digests = {site: [one[n].digest for n in sorted(one)] for site, one in finished.items()}
        return Manifest.of(self.spec, digests)

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
        return self._manifest_of({site: self.records(site) for site in sites}).root

    def errors(self, sites: Sequence[str] | None = None) -> dict[str, tuple[float, float]]:
        """Return median and largest relative error of rows at each site (default: all).

        Rows are compared with those that the same network computes in float32; see
        `Work`. Sites computed in float32 or float64 have none.
        """
        data = self.files.read_all([ERRORS]).get(ERRORS)
        with contextlib.suppress(StoreError, LookupError, ValueError):  # a damaged file has none
            texts = unseal(data or b"", ERRORS, FORMAT)["relative_error"]
            wanted = texts if sites is None else sites
            pairs = {site: texts[site].split() for site in texts if site in wanted}
            return {site: (float(median), float(most)) for site, (median, most) in pairs.items()}
        return {}

    def add_errors(self, errors: Mapping[str, tuple[float, float]]) -> None:
        """Store the relative errors of sites, in addition to those of other sites."""
        if errors:
            with self.files.draft(ERRORS) as draft:
                draft.write(pack_errors({**self.errors(), **errors}))
                self.files.publish(draft, ERRORS)

    def verify(self, sites: Sequence[str] | None = None) -> None:
        """Verify the layout and every committed shard of the given sites (default: all) by digest.

        Raises:
            DamagedError: a file is damaged; the message lists all of them, or the layout alone.
        """
        bad = [] if self.layout_is_intact() else [ROWS]
        if not bad:  # without the layout no record can be attributed to rows
            for site in self.files.folders() if sites is None else sites:
                digests = {record.file: record.digest for record in self.records(site).values()}
                damaged_files = [f for f in digests if not is_intact(self.files, f, digests[f])]
                self.digested |= digests.keys() - set(damaged_files)
                bad += damaged_files
        if bad:
            raise DamagedError(
                f"{counted(len(bad), 'damaged file')}: "
                f"{', '.join(f'{self.folder}/{name}' for name in bad)}. `probekit cache repair "
                f"{self.folder}` removes damaged files, and the next run computes them again."
            )

    def layout_is_intact(self) -> bool:
        """Return whether the layout file matches its digest in the spec."""
        sizes = self.spec.sizes
        has_size = self.files.sizes().get(ROWS) == sizes.size
        return has_size and is_intact(self.files, ROWS, sizes.digest)

    def read(
        self, site: str, rows: IntArray | Sequence[int] | None = None, *, partial: bool = False
    ) -> FloatArray:
        """Return rows of a site in data-set order, shape (n_rows, ...); bfloat16 as float32.

        Args:
            site: full name.
            rows: row indices; None for all.
            partial: whether to allow a site that is not finished; if `rows` is None, its stored
                rows (`rows_at(site)`) are returned.

        Raises:
            UnknownNameError: the site is not finished, or with `partial`, a requested row is
                missing or no row is stored.
            ConfigError: `rows` are not valid row indices.
            StoreError: a file is damaged or missing.
        """
        records = self._records_to_read(site)
        wanted = np.arange(self.n_rows) if rows is None else row_numbers(rows, self.n_rows)
        if len(records) < len(self.shards):
            stored = self._rows_of(records)
            if partial and rows is None:
                wanted = stored
            problem = f"The store {self.folder} does not contain all of {site}"
            if not len(stored):
                raise UnknownNameError(f"{problem}. {nearest(site, self.sites)}")
            if not partial or not np.isin(wanted, stored).all():
                raise UnknownNameError(
                    f"{problem}: {len(stored):,} of {self.n_rows:,} rows are stored "
                    f"({percent(len(stored) / self.n_rows)}). Run the capture to its end, or read "
                    "the rows of rows_at(site) with partial=True."
                )
        # Each wanted row has a place in storage order, which is in the last shard that starts there
        # or before.
        place, first = self.layout.place[wanted], self.layout.first
        shard_of = np.searchsorted(first, place, side="right") - 1
        shape, dtype = next(iter(records.values())).shape[1:], dtype_of(site, self.identity)
        out = np.empty((len(wanted), *shape), np.float16 if dtype == "float16" else np.float32)
        for shard in np.unique(shard_of).tolist():
            selected = np.flatnonzero(shard_of == shard)
            stored = self._values(records[shard])[place[selected] - first[shard]]
            out[selected] = read_numbers(stored)
        return out

    def row_shape(self, site: str) -> tuple[int, ...]:
        """Return the shape of a row of a finished site."""
        return next(iter(self._records_to_read(site).values())).shape[1:]

    def rows_at(self, site: str) -> IntArray:
        """Return the sorted indices of the stored rows of a site."""
        return self._rows_of(self._records_to_read(site))

    def _rows_of(self, records: Mapping[int, ShardRecord]) -> IntArray:
        """Return the sorted row indices of the shards that have a record."""
        none = np.empty(0, dtype=np.int64)  # in case there is no shard to concatenate
        return np.sort(np.concatenate([none, *(self.shards[shard] for shard in records)]))

    def _records_to_read(self, site: str) -> Mapping[int, ShardRecord]:
        """Return the checked records of a site; those of a complete site are read once."""
        if site in self._complete:
            return self._complete[site]
        records = self.records(site)
        if self.root is not None:
            self.require_sealed(site, records)
        shapes = {record.shape[1:] for record in records.values()}
        if len(shapes) > 1:
            raise DamagedError(
                f"The shards of {self.folder}/{site} have different row shapes: {sorted(shapes)}. "
                "Remove that folder and run the capture again."
            )
        if len(records) == len(self.shards):
            self._complete[site] = records
        return records

    def _values(self, record: ShardRecord) -> FloatArray:
        """Return the stored rows of a shard, memory-mapped once if possible, and verified once."""
        if record.file in self._mapped:
            return self._mapped[record.file]
        path, files = f"{self.folder}/{record.file}", self.files
        try:
            values = files.array(record.file, record.header, record.kind)
        except MissingError as error:
            raise damaged(path, "it is missing") from error
        if self.verifies and record.file not in self.digested:
            if files.is_mapped:  # a bad sector raises in `read`, but kills the process in the map
                is_same = is_intact(files, record.file, record.digest)
            else:
                is_same = digest([record.header, values.data.cast("B")]) == record.digest
            if not is_same:
                raise damaged(path, "its digest does not match")
            self.digested.add(record.file)
        if files.is_mapped:  # otherwise keeping it would keep the whole site in memory
            self._mapped[record.file] = values
        return values

    def require_sealed(self, site: str, records: dict[int, ShardRecord]) -> None:
        """Raise if records of a site differ from those in the manifest.

        Raises:
            DamagedError: the records differ.
        """
        manifest = self.manifest()
        sealed = None if manifest is None else manifest.sites.get(site)
        if sealed != [records[shard].digest for shard in sorted(records)]:
            raise damaged(f"{self.folder}/{site}", "its records differ from the manifest")


class ShardWriter:
    """Writes the rows of one shard batch by batch, keeping none in memory.

    Args:
        draft: temporary file of the shard.
        store: the store.
        site: full name of the site.
        shard: index of the shard.
    """

    def __init__(self, draft: Draft, store: ActivationStore, site: str, shard: int) -> None:
        self.draft = draft
        self._key, self._site, self._shard = store.identity.key, site, shard
        self._rows, self._dtype = store.shards[shard], dtype_of(site, store.identity)
        self._shape: tuple[int, ...] | None = None  # of a row; None before the first
        self._done = 0  # rows written

    def append(self, values: FloatArray) -> None:
        """Append rows, shape (n, ...).

        Raises:
            StoreError: a value is not finite, or the disk cannot be written.
        """
        if not len(values):
            return
        assert self._shape in (None, values.shape[1:]), "the rows have another shape"
        assert self._done + len(values) <= len(self._rows), "there are too many rows"
        finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if not finite.all():
            advice = "Check the weights, or compute in float32"
            if self._dtype == "float16":
                advice = "The largest float16 is 65,504: store bfloat16 or float32"
            row = self._rows[self._done + int(np.argmin(finite))]
            raise StoreError(
                f"{int((~finite).sum())} rows of {self._site} are not finite, first row {row}; "
                f"this shard was not stored. {advice}."
            )
        if self._shape is None:
            self._shape = values.shape[1:]
            self.draft.write(self._record(self._shape).header)
        stored = stored_numbers(values, self._dtype)
        assert stored.dtype == DTYPES[CODES[self._dtype]], f"the rows are not {self._dtype}"
        self.draft.write(stored.data)
        self._done += len(values)

    def record(self) -> ShardRecord:
        """Return the record of the complete shard."""
        assert self._shape is not None, "there are no rows"
        assert self._done == len(self._rows), "rows are missing"
        return self._record(self._shape)

    def _record(self, shape: tuple[int, ...]) -> ShardRecord:
        """Return the record of a shard of this row shape, with the digest of the draft so far."""
        code, full_shape = CODES[self._dtype], (len(self._rows), *shape)
        return ShardRecord(self._key, self._site, self._shard, code, full_shape, self.draft.digest)


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
    if not wanted.size:  # an empty list has no integer type
        return np.empty(0, dtype=np.int64)
    in_range = wanted.dtype.kind in "iu" and 0 <= wanted.min() <= wanted.max() < n_rows
    if wanted.ndim != 1 or not in_range:
        raise ConfigError(
            f"rows must be numbers from 0 to {n_rows - 1}, shape (n,), not {wanted.dtype} "
            f"of shape {wanted.shape}: {np.array2string(wanted, threshold=10)}."
        )
    return wanted.astype(np.int64)
