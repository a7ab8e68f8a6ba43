"""Cache maintenance: list, verify, repair, collect garbage, remove, copy, export."""

import io
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from probekit import errors
from probekit.activations import records
from probekit.activations.local import LOCK, Files, as_place, join
from probekit.activations.records import MANIFEST, REPLIES, ROWS, SPEC, Location, record_name
from probekit.activations.store import ActivationStore, files_at, is_intact
from probekit.amounts import counted
from probekit.errors import ConfigError, DamagedError, MissingError, StoreError
from probekit.files import Disk, Draft, as_store_error, is_held, write_atomic
from probekit.model.families.table import config_of
from probekit.model.weights.files import ArrayHeader, header
from probekit.provenance import install_command, pretty_json, unseal
from probekit.terminal import SILENT, Watcher

_ROWS_AT_ONCE = 4096  # rows in memory
JOB = ".job.json"  # suffix of the job file that workers read while a capture is running
SHARD_LOCK = ".claim"  # suffix of the lock file of a shard that a worker is computing
HOW_TO_CREATE = (
    "Create caches for workers with `probekit cache FILE.yaml --workers 0 --cache FOLDER`."
)
# Names of the record and of the row file of a shard.
_RECORD = re.compile(r"\d{5,}\.json")
_ROWS_FILE = re.compile(r"\d{5,}\.[0-9a-f]{16}\.safetensors")
# Names of a folder of generated replies, and of one of its parts.
_OF_REPLIES, _PART = re.compile(r"replies-[0-9a-f]{24}"), re.compile(r"\d{5,}")
_DAY = 86_400  # seconds
_MOST_LISTED = 5  # damaged files listed in an error message


class Damage(NamedTuple):
    """A damaged file and the reason."""

    file: str
    why: str


@dataclass(frozen=True)
class Summary:
    """Summary of a cache; one that cannot be opened has no rows, no sites and no root.

    Attributes:
        key: key of the cache, which names its folder.
        place: folder or URL.
        what: description of the content.
        rows: number of rows of each site.
        sites: number of committed rows of each site.
        bytes: total size of all files.
        age: seconds since the cache was created or last sealed; None if unknown.
        root: root digest of its manifest; None if it was never sealed.
        problem: why it cannot be opened; None if it can.
    """

    key: str
    place: str
    what: str
    rows: int
    sites: dict[str, int]
    bytes: int
    age: float | None
    root: str | None
    problem: str | None = None


def caches_in(root: Location) -> list[Location]:
    """Return the locations of the caches in a folder or under a URL, by name."""
    places = [join(root, name) for name in files_at(root).folders()]
    return [place for place in places if is_cache(files_at(place))]


def all_in(root: Location) -> list[Location]:
    """Return the locations of the caches in a folder or under a URL, then of generated replies."""
    folders = files_at(root).folders()
    return [*caches_in(root), *(join(root, one) for one in folders if _OF_REPLIES.fullmatch(one))]


def reply_parts(place: Location) -> list[Location] | None:
    """Return the parts of generated replies, also unfinished ones; None for another location."""
    if not _OF_REPLIES.fullmatch(_key(place)):
        return None
    return [join(place, name) for name in files_at(place).folders() if _PART.fullmatch(name)]


def stores_of(place: Location) -> list[Location]:
    """Return a cache alone, or the parts of generated replies that have rows."""
    parts = reply_parts(place)
    return [place] if parts is None else [part for part in parts if is_cache(files_at(part))]


def _key(place: Location) -> str:
    """Return the name of a folder, which is the key of its cache."""
    return str(place).rstrip("/").rpartition("/")[2]


def is_cache(files: Files) -> bool:
    """Return whether files form a cache: spec.json and a layout file, or a valid spec.json alone.

    If both exist, either may be damaged. A spec.json alone must be valid, because other programs
    also write files of this name.
    """
    names = files.sizes().keys()
    # Without spec.json this is no cache; with both files it is one.
    if SPEC not in names or ROWS in names:
        return SPEC in names
    try:
        ActivationStore.open(files)
    except (StoreError, MissingError):
        return False
    return True


def caches_at(place: Location) -> list[Location]:
    """Return the cache at a location, or the caches in it.

    Raises:
        MissingError: there is no cache.
    """
    caches = [place] if is_cache(files_at(place)) else caches_in(place)
    if not caches:
        raise MissingError(f"{place} contains no cache. {HOW_TO_CREATE}")
    return caches


def find_cache(name: str, root: Location) -> Location:
    """Find a cache by folder, URL, or the beginning of its key.

    Args:
        name: folder, URL or beginning of a key.
        root: folder or URL that contains caches.

    Raises:
        MissingError: there is no such cache.
        ConfigError: several keys begin with `name`.
    """
    for place in (as_place(name), join(root, name)):
        if is_cache(files_at(place)) or reply_parts(place):
            return place
    keys = [_key(cache) for cache in all_in(root)]
    matches = [key for key in keys if name and key.startswith(name)]
    if len(matches) > 1:
        raise ConfigError(f"Several caches begin with {name!r}: {', '.join(matches)}.")
    if not matches:
        hint = errors.nearest(name, keys) if keys else f"{root} contains no caches."
        raise MissingError(f"There is no cache {name!r}. {hint}")
    return join(root, matches[0])


def summarize(place: Location) -> Summary:
    """Summarise a cache or generated replies; shard digests are not verified."""
    files, where, key, parts = files_at(place), str(place), _key(place), reply_parts(place)
    if parts is not None:
        return _summary_of_parts(place, parts)
    n_bytes = _n_bytes(files)
    times = [at for name in (SPEC, MANIFEST) if (at := files.changed(name)) is not None]
    # Clamped, because a clock that was set back would give a negative age.
    age = max(0.0, time.time() - max(times)) if times else None
    try:
        store = ActivationStore.open(files)
        rows_of_site = {}
        for site in files.folders():
            if committed := store.records(site):
                rows_of_site[site] = sum(record.shape[0] for record in committed.values())
        manifest = store.manifest()
        identity, n_rows, n_positions = store.identity, store.n_rows, store.spec.sizes.positions
        n_examples = len(set(store.layout.plan.example.tolist()))
        n_finished = list(rows_of_site.values()).count(n_rows)
        n_partial = len(rows_of_site) - n_finished
        rest = f", {n_partial} more in part" if n_partial else ""
        is_mean = n_positions > n_rows
        tokens = f"means of {n_positions / n_rows:.1f} tokens" if is_mean else "one token each"
        try:
            config = config_of(identity.config)
            network = f"{config.n_layers} layers of {config.d_model}"
        except errors.CheckpointError:  # another release may have written it
            network = "an unknown network"
        what = (
            f"{n_rows:,} rows of {n_examples:,} examples, {tokens}, at {n_finished} sites{rest}; "
            f"{network}, {identity.dtype}, computed in {identity.compute} on {identity.device}"
        )
    except StoreError as error:
        return Summary(key, where, "damaged", 0, {}, n_bytes, age, root=None, problem=str(error))
    root = manifest.root if manifest else None
    return Summary(key, where, what, n_rows, rows_of_site, n_bytes, age, root)


def _n_bytes(files: Files) -> int:
    return sum(sum(files.sizes(folder).values()) for folder in ("", *files.folders()))


def _summary_of_parts(place: Location, parts: Sequence[Location]) -> Summary:
    """Return the summary of generated replies."""
    done = [summarize(part) for part in parts if is_cache(files_at(part))]
    n_rows, n_bytes = sum(part.rows for part in done), sum(_n_bytes(files_at(one)) for one in parts)
    sites = sum((Counter(part.sites) for part in done), Counter[str]())
    age = min((part.age for part in done if part.age is not None), default=None)
    problem = next((part.problem for part in done if part.problem is not None), None)
    state = f", {len(parts) - len(done)} without rows" if len(done) < len(parts) else ""
    what = (
        f"generated replies in {counted(len(parts), 'part')}{state}: {n_rows:,} rows, one for each "
        f"token, at {counted(len(sites), 'site')}"
    )
    return Summary(
        _key(place), str(place), what, n_rows, dict(sites), n_bytes, age, root=None, problem=problem
    )


def find_damage(store: ActivationStore, *, digests: bool = True) -> list[Damage]:
    """Return all damaged files of a store; with a damaged layout, records are not checked.

    Args:
        store: the store.
        digests: whether to verify the digest of each shard, which reads all bytes.
    """
    folders = store.files.folders()
    special = [name for folder in ("", *folders) for name in store.files.special_files(folder)]
    damages = [Damage(name, "it is a symbolic link, or not a regular file") for name in special]
    if not store.layout_is_intact():
        return [*damages, Damage(ROWS, "it is missing, or not the layout of these rows")]
    for site in folders:
        damages += _damage_of(store, site, digests=digests)
    if REPLIES in store.files.sizes():
        try:
            unseal(store.files.read(REPLIES), REPLIES, records.FORMAT_OF_REPLIES)
        except DamagedError as error:
            damages.append(Damage(REPLIES, str(error)))
    try:
        manifest = store.manifest()
    except DamagedError as error:
        return [*damages, Damage(MANIFEST, str(error))]
    reported = {damage.file for damage in damages}
    sealed_sites = {} if manifest is None else manifest.sites
    for site, sealed_digests in sealed_sites.items():
        committed = store.records(site)
        for shard, digest in enumerate(sealed_digests):
            record, name = committed.get(shard), record_name(site, shard)
            if (record is None or record.digest != digest) and name not in reported:
                damages.append(Damage(name, "it is in the manifest, but missing or different"))
    return damages


def _damage_of(store: ActivationStore, site: str, *, digests: bool) -> Iterator[Damage]:
    """Yield the damaged records and row files of a site."""
    sizes = store.files.sizes(site)
    for name in sorted(sizes):
        file = name.rpartition("/")[2]
        if not _RECORD.fullmatch(file):
            continue
        try:
            shard = int(file.removesuffix(".json"))
            if shard >= store.spec.sizes.shards:
                raise DamagedError("there is no such shard")
            record = store.read_record(site, shard, store.files.read(name))
        except DamagedError as error:
            yield Damage(name, str(error))
            continue
        if sizes.get(record.file) != record.size:
            yield Damage(record.file, "it is missing, or has the wrong size")
        elif digests and not is_intact(store.files, record.file, record.digest):
            yield Damage(record.file, "its digest does not match")


def repair_cache(store: ActivationStore) -> list[Damage]:
    """Remove damaged files, so that the next run computes them again, and return them.

    If any file is damaged, the manifest is removed, too. In an object store no writer may be alive,
    because the lock is removed first.

    Raises:
        StoreError: another run is writing, or the folder cannot be written.
    """
    store.files.break_lock()
    with store.files.lock(None):
        damages = find_damage(store)
        for file, _ in damages:
            folder, _, name = file.rpartition("/")
            if folder:  # remove the record first: it must never exist without its rows
                store.files.remove(f"{folder}/{name.partition('.')[0]}.json")
            store.files.remove(file)
        if damages:
            store.files.remove(MANIFEST)
    return damages


def collect_garbage(place: Location) -> dict[str, int]:
    """Remove files of killed writers and superseded row files; return their sizes by name.

    Raises:
        StoreError: the cache cannot be read or written.
    """
    parts, files = reply_parts(place), files_at(place)
    if parts is not None:
        return {
            f"{_key(part)}/{name}": n for part in parts for name, n in collect_garbage(part).items()
        }
    if not is_cache(files):  # a part of replies that has no rows yet
        return files.sweep()
    store = ActivationStore.open(files)
    removed = files.sweep() | dict.fromkeys(remove_dead_locks(files), 0)
    for site in files.folders():
        for name, size in files.sizes(site).items():

            def is_named(site: str = site, name: str = name) -> bool:
                return any(record.file == name for record in store.records(site).values())

            is_rows = _ROWS_FILE.fullmatch(name.rpartition("/")[2])
            if is_rows and files.remove_abandoned(name, is_named):
                removed[name] = size
    return removed


def shard_locks(files: Files) -> list[str]:
    """Return the names of all shard locks, of live and dead workers."""
    return [name for name in files.sizes() if name.endswith(SHARD_LOCK)]


def remove_dead_locks(files: Files) -> list[str]:
    """Remove the shard locks of killed workers, which are empty files; return their names.

    Does nothing if a local file system cannot detect such workers. In an object store, a lock that
    is older than a day counts as that of a killed worker.
    """
    return [name for name in shard_locks(files) if files.remove_abandoned(name)]


def is_older(summary: Summary, days: float) -> bool:
    """Return whether a cache was created or last sealed over `days` days ago; False if unknown."""
    return summary.age is not None and summary.age > days * _DAY


def remove_cache(place: Location) -> list[str]:
    """Remove a cache; return the files and folders in it that were kept: they are not its own.

    Raises:
        MissingError: the folder is not a cache; nothing was removed.
        StoreError: a run is writing the cache, or it cannot be removed.
    """
    parts, files = reply_parts(place), files_at(place)
    if parts is not None:
        # The last one first: if a run is generating, it holds the lock of this part.
        left = [
            f"{_key(part)}/{name}"
            for part in reversed(parts)
            for name in _remove_store(files_at(part))
        ]
        return [] if files.remove_folder() else left or [str(place)]
    if not is_cache(files):
        raise MissingError(f"{place} is not a cache; nothing was removed.")
    return _remove_store(files)


@contextmanager
def removed_after_failure(store: ActivationStore) -> Iterator[None]:
    """If the block fails, remove an import that this process created, without a committed shard.

    Stores of workers, of writers that hold the lock, on a file system without locks and in an
    object store are kept.
    """
    try:
        yield
    except errors.ProbekitError:

        def is_kept() -> bool:
            rows = any(map(store.records, store.files.folders()))
            return rows or any(name.endswith(JOB) for name in store.files.sizes())

        is_import = store.is_new and store.identity.origin.startswith("requests")
        if is_import and isinstance(store.folder, Path) and not is_held(store.folder, LOCK):
            with suppress(StoreError):
                _remove_store(store.files, is_kept)
        raise


def _remove_store(files: Files, is_kept: Callable[[], bool] = bool) -> list[str]:
    """Remove the files of a store, or of a part of replies; return the others; see above."""
    with files.lock(None):
        if is_kept():
            return []
        files.sweep()
        files.remove(MANIFEST)
        folders = files.folders()
        for folder in folders:
            names = sorted(files.sizes(folder))
            for pattern in (_RECORD, _ROWS_FILE):  # records first: never without their rows
                for name in names:
                    if pattern.fullmatch(name.rpartition("/")[2]):
                        files.remove(name)
        leftover = [folder for folder in folders if not files.remove_folder(folder)]
        for name in files.sizes():
            if name.endswith((JOB, SHARD_LOCK)):
                files.remove(name)
        for name in (records.ERRORS, REPLIES, ROWS, SPEC):
            files.remove(name)
    for lock in (LOCK, f"{LOCK}.mend"):  # after the block: Windows cannot remove an open file
        files.remove(lock)
    if files.remove_folder():
        return []
    # If only entries are left that `sizes` does not list, such as links, name the folder itself.
    return sorted([*files.sizes(), *leftover]) or [str(files.place)]


def copy_cache(
    source: Location, root: Location, *, pin: str | None = None, watcher: Watcher = SILENT
) -> tuple[ActivationStore, int]:
    """Copy a cache to another root; return the copy and the number of shards copied.

    Existing shards are not copied again; an interrupted copy can be resumed.

    Args:
        source: folder or URL of the cache.
        root: folder or URL that will contain the copy.
        pin: required root digest of the source; None for any.
        watcher: receives progress in shards.

    Raises:
        DamagedError: the source contains links, or missing or damaged files. Shards before the
            damaged one may be copied already if the damage is found while copying.
        StoreError: the source does not match the pin, or the target cannot be written.
    """
    source_store = ActivationStore.open(source, root=pin)
    # Digests are verified while copying; with a pin, all else is verified when it is read.
    damages = find_damage(source_store, digests=False) if pin is None else []
    if damages:
        listed = "; ".join(f"{file}: {why}" for file, why in damages[:_MOST_LISTED])
        more = len(damages) - _MOST_LISTED
        raise DamagedError(
            f"{source} was not copied because {counted(len(damages), 'file')} cannot be: {listed}"
            f"{f'; and {more} more' if more > 0 else ''}. Replace links with the files they point "
            f"to; `probekit cache repair {source}` removes damaged files."
        )
    files = files_at(join(root, source_store.identity.key))
    copy = ActivationStore.begin(files, source_store.spec, source_store.files.chunks(ROWS))
    manifest = None if pin is None else source_store.manifest()
    sites = source_store.files.folders() if manifest is None else list(manifest.sites)
    with copy.files.lock(watcher.tell):
        copy.files.sweep()
        missing = []
        for site in sites:
            committed, existing = source_store.records(site), copy.records(site)
            if pin is not None:
                source_store.require_sealed(site, committed)
            missing += [record for shard, record in committed.items() if shard not in existing]
        for done, record in enumerate(missing):
            watcher.progress("copy", done, len(missing))
            copy.adopt(record, source_store.files.chunks(record.file))
        watcher.progress("copy", len(missing), len(missing))
        copy.add_errors(source_store.errors(sites))
        copy.seal()
    if pin is not None and copy.digest_of(sites) != pin:
        raise StoreError(f"{copy.folder} contains other rows; its root digest is not {pin}.")
    return copy, len(missing)


def export_cache(
    store: ActivationStore, folder: Path, format: str, sites: Sequence[str] | None = None
) -> list[Path]:
    """Export rows and return the files written: one per site, rows.csv and export.json.

    An existing rows.csv or export.json is replaced.

    Args:
        store: the store to export.
        folder: output folder; created if missing.
        format: `npy`, `safetensors` or `parquet`.
        sites: full names; None for all finished sites.

    Raises:
        UnknownNameError: the format is unknown, or the store does not contain a site.
        ConfigError: a required package is not installed, the output file of a site exists, or no
            site is finished.
        DamagedError: a shard is damaged. Nothing is exported, unless the store does not verify
            digests.
        StoreError: the folder cannot be written.
    """
    if format not in FORMATS:
        raise errors.UnknownNameError(
            f"Unknown format {format!r}. {errors.nearest(format, FORMATS)}"
        )
    write, package = FORMATS[format]
    if package is not None and find_spec(package) is None:
        raise ConfigError(
            f"{format} needs {package}. Run {install_command(format)}, or export as npy."
        )
    finished = store.sites
    names = list(finished) if sites is None else list(dict.fromkeys(sites))
    if not names:
        raise ConfigError(f"{store.folder} has no finished site to export.")
    for site in names:
        if site not in finished:
            raise errors.UnknownNameError(
                f"{store.folder} does not contain all of {site!r}. {errors.nearest(site, finished)}"
            )
    paths = [folder / f"{site}.{format}" for site in names]
    for path in paths:
        if path.exists():
            raise ConfigError(f"{path} already exists. Remove it, or use another folder.")
    if store.verifies:
        store.verify(names)  # all sites first, so that damage leaves no partial export
    with as_store_error("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
    for site, path in zip(names, paths, strict=True):
        with as_store_error("write", path), Draft(Disk(), path) as draft:
            write(draft, store, site)
            draft.rename(path)
    plan, lines = store.layout.plan, ["row,example,positions"]
    for row, example in enumerate(plan.example):
        positions = plan.positions[plan.offsets[row] : plan.offsets[row + 1]]
        lines.append(f"{row},{example},{' '.join(map(str, positions))}")
    write_atomic(folder / "rows.csv", "\n".join(lines) + "\n")
    metadata = {
        "root": store.digest_of(names),
        "identity": store.identity.to_json(),
        "files": {site: path.name for site, path in zip(names, paths, strict=True)},
    }
    write_atomic(folder / "export.json", pretty_json(metadata))
    return [*paths, folder / "rows.csv", folder / "export.json"]


def _parts(store: ActivationStore, site: str) -> Iterator[records.FloatArray]:
    """Yield all rows of a site in data-set order, in chunks."""
    for start in range(0, store.n_rows, _ROWS_AT_ONCE):
        yield store.read(site, np.arange(start, min(start + _ROWS_AT_ONCE, store.n_rows)))


def _write_npy(draft: Draft, store: ActivationStore, site: str) -> None:
    """Write a site as a .npy file, in parts."""
    for number, values in enumerate(_parts(store, site)):
        if number == 0:
            shape = (store.n_rows, *values.shape[1:])
            entries = {"descr": values.dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(_Sink(draft), entries)
        draft.write(np.ascontiguousarray(values).data)


def _write_safetensors(draft: Draft, store: ActivationStore, site: str) -> None:
    """Write a site as a .safetensors file with one tensor of the dtype on disk, in parts."""
    dtype = store.identity.dtype
    shape = (store.n_rows, *store.row_shape(site))
    draft.write(header({site: ArrayHeader(records.CODES[dtype], shape)}))
    for values in _parts(store, site):
        draft.write(records.stored_numbers(values, dtype).data)


def _write_parquet(draft: Draft, store: ActivationStore, site: str) -> None:
    """Write a site as a column of lists, in parts; the metadata have the shape of a row."""
    import pyarrow as pa
    from pyarrow import parquet

    writer = None
    for values in _parts(store, site):
        width = int(np.prod(values.shape[1:]))
        flat = pa.array(values.reshape(-1))
        table = pa.table({"values": pa.FixedSizeListArray.from_arrays(flat, width)})
        metadata = {"site": site, "shape": json.dumps(values.shape[1:])}
        table = table.replace_schema_metadata(metadata)
        writer = writer or parquet.ParquetWriter(_Sink(draft), table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


class _Sink(io.RawIOBase):
    """File object over a draft, for libraries that write to a file object."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any, /) -> int:
        """Append bytes and return their number."""
        content = memoryview(data)
        self._draft.write(content)
        return content.nbytes


_Write = Callable[[Draft, ActivationStore, str], None]
FORMATS: dict[str, tuple[_Write, str | None]] = {  # with the package that each needs
    "npy": (_write_npy, None),
    "safetensors": (_write_safetensors, None),
    "parquet": (_write_parquet, "pyarrow"),
}


def described_errors(errors: tuple[float, float]) -> str:
    """Return the relative errors of a site in words; see `ActivationStore.errors`.

    >>> described_errors((0.0012, 0.0345))
    'relative error of at most 64 rows: median 0.12 %, largest 3.5 %'
    """
    median, largest = (f"{100 * error:.2g} %" for error in errors)
    n_rows = records.ROWS_COMPARED
    return f"relative error of at most {n_rows} rows: median {median}, largest {largest}"
