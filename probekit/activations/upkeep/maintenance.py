"""Looking after caches: what there is, whether it is whole, and taking away what is not wanted."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from probekit.activations.files.local import LOCK, Files, Location
from probekit.activations.files.places import as_place, files_at, join
from probekit.activations.store.committed import MANIFEST, ROWS, SPEC
from probekit.activations.store.reader import is_whole
from probekit.activations.store.records import ShardRecord
from probekit.activations.store.store import ActivationStore
from probekit.errors import ConfigError, DamagedError, MissingError, StoreError, nearest

JOB = ".job.json"  # the ending of what workers are told, while they are at it
CLAIM = ".claim"  # the ending of what says that one of them is at a shard
_RECORD = re.compile(r"\d{5,}\.json")
_ROWS_FILE = re.compile(r"\d{5,}\.[0-9a-f]{16}\.safetensors")
_DAY = 86_400  # seconds


class Damage(NamedTuple):
    """A file that is not what was written, and in what way."""

    file: str
    why: str


@dataclass(frozen=True)
class Summary:
    """What a cache is and how much of it is there.

    Attributes:
        key: name of its folder.
        place: where it lies.
        what: what it holds, in words.
        rows: of every site.
        sites: for each site how many of its rows are committed.
        bytes: of all its files.
        age: seconds since it was last sealed or begun; None if no clock tells.
        root: the root digest of its manifest, None if it was never sealed.
        problem: why it cannot be opened, None if it can.
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
    """Return the caches in a folder or below a URL, by name."""
    places = [join(root, name) for name in files_at(root).folders()]
    return [place for place in places if is_cache(files_at(place))]


def is_cache(files: Files) -> bool:
    """Return whether files are those of a cache; one of them may be damaged.

    Others call files spec.json, too: what has not our other file must have a spec that we can read.
    """
    there = files.sizes()
    return SPEC in there and (ROWS in there or _opens(files))


def _opens(files: Files) -> bool:
    try:
        ActivationStore.open(files)
    except (StoreError, MissingError):
        return False
    return True


def find_cache(name: str, root: Location) -> Location:
    """Return the cache that a user means by a folder, a URL, or the beginning of a key.

    Raises:
        MissingError: there is none.
        ConfigError: several keys begin so.
    """
    for place in (as_place(name), join(root, name)):
        if is_cache(files_at(place)):
            return place
    keys = [str(cache).rpartition("/")[2] for cache in caches_in(root)]
    found = [key for key in keys if name and key.startswith(name)]
    if len(found) > 1:
        raise ConfigError(f"Several caches begin with {name!r}: {', '.join(found)}.")
    if not found:
        offer = nearest(name, keys) if keys else f"There are none in {root}."
        raise MissingError(f"There is no cache {name!r}. {offer}")
    return join(root, found[0])


def summarize(place: Location) -> Summary:
    """Return what a cache is and how much of it is there; shards are not digested."""
    files = files_at(place)
    sizes = _all_sizes(files)
    times = [changed for name in (SPEC, MANIFEST) if (changed := files.changed(name)) is not None]
    # A clock that was set back makes no negative age.
    age = max(0.0, time.time() - max(times)) if times else None
    key = str(place).rstrip("/").rpartition("/")[2]
    try:
        store = ActivationStore.open(files)
        there = {site: store.records(site) for site in files.folders()}
        held = {s: sum(r.shape[0] for r in found.values()) for s, found in there.items() if found}
        manifest = store.manifest()
        root = None if manifest is None else manifest.root
        what = describe_cache(store, held)
        return Summary(key, str(place), what, store.n_rows, held, sum(sizes.values()), age, root)
    except StoreError as error:
        told = str(error)
        return Summary(key, str(place), "damaged", 0, {}, sum(sizes.values()), age, None, told)


def describe_cache(store: ActivationStore, held: dict[str, int]) -> str:
    """Return in words what a store holds, of whose sites so many rows are there."""
    config, plan = store.identity.config, store.layout.plan
    n_positions = store.spec.sizes.positions
    of_each = (
        "one token each"
        if n_positions == store.n_rows
        else (f"means of {n_positions / store.n_rows:.1f} tokens")
    )
    n_examples = len(set(plan.example.tolist()))
    finished = sum(n == store.n_rows for n in held.values())
    partly = "" if finished == len(held) else f", {len(held) - finished} more in part"
    return (
        f"{store.n_rows:,} rows of {n_examples:,} examples, {of_each}, at {finished} sites{partly}"
        f"; {config.get('n_layer', '?')} layers of {config.get('n_embd', '?')}, "
        f"{store.identity.dtype}, computed in {store.identity.compute} on {store.identity.device}"
    )


def _all_sizes(files: Files) -> dict[str, int]:
    return {n: size for folder in ("", *files.folders()) for n, size in files.sizes(folder).items()}


def find_damage(store: ActivationStore) -> list[Damage]:
    """Return every file of a store that is not what was written; all bytes are read."""
    if not store.layout_is_whole():
        return [Damage(ROWS, "it is lost, or not the layout of these rows")]
    damages = [damage for site in store.files.folders() for damage in _damage_of(store, site)]
    try:
        manifest = store.manifest()
    except DamagedError as error:
        return [*damages, Damage(MANIFEST, str(error))]
    known = {damage.file for damage in damages}
    for site, digests in ({} if manifest is None else manifest.sites).items():
        records = store.records(site)
        for shard, digest in enumerate(digests):
            record = records.get(shard)
            name = ShardRecord("", site, shard, "F32", (1,), digest).name
            if (record is None or record.digest != digest) and name not in known:
                damages.append(Damage(name, "it was sealed, and is lost or another"))
    return damages


def _damage_of(store: ActivationStore, site: str) -> Iterator[Damage]:
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
            yield Damage(record.file, "it is lost, or of another size")
        elif not is_whole(store.files, record):
            yield Damage(record.file, "its digest is another")


def repair_cache(store: ActivationStore) -> list[Damage]:
    """Return what was damaged and is now taken away, so that the next run makes it again.

    Raises:
        StoreError: another run is writing, or the folder cannot be written.
    """
    store.files.break_lock()
    with store.files.lock(None):
        damages = find_damage(store)
        for file, _ in damages:
            folder, _, name = file.rpartition("/")
            if folder:  # the record first: it must never be there without its rows
                store.files.remove(f"{folder}/{name.partition('.')[0]}.json")
            store.files.remove(file)
        if damages:
            store.files.remove(MANIFEST)
    return damages


def collect_garbage(place: Location) -> dict[str, int]:
    """Return the sizes of the files that are gone now: of killed writers, and of lost races.

    Raises:
        StoreError: the cache cannot be read or written.
    """
    files = files_at(place)
    store = ActivationStore.open(files)
    gone = files.sweep()
    for name, size in files.sizes().items():
        if name.endswith(CLAIM) and files.remove_abandoned(name):
            gone[name] = size
    for site in files.folders():
        for name, size in files.sizes(site).items():
            is_rows = _ROWS_FILE.fullmatch(name.rpartition("/")[2])
            if is_rows and files.remove_abandoned(name, partial(_is_committed, store, site, name)):
                gone[name] = size
    return gone


def _is_committed(store: ActivationStore, site: str, file: str) -> bool:
    return any(record.file == file for record in store.records(site).values())


def is_older(summary: Summary, days: float) -> bool:
    """Return whether a cache was last written more than so many days ago."""
    return summary.age is not None and summary.age > days * _DAY


def remove_cache(place: Location) -> list[str]:
    """Return what was left of a cache that is removed, because no cache has such files.

    Raises:
        MissingError: the folder is no cache; nothing was touched.
        StoreError: a run is writing it, or it cannot be removed.
    """
    files = files_at(place)
    if not is_cache(files):
        raise MissingError(f"{place} is not a cache; nothing was removed.")
    with files.lock(None):
        files.sweep()
        files.remove(MANIFEST)
        folders = files.folders()
        for folder in folders:
            names = sorted(files.sizes(folder))
            for pattern in (_RECORD, _ROWS_FILE):  # a record is never there without its rows
                for name in names:
                    if pattern.fullmatch(name.rpartition("/")[2]):
                        files.remove(name)
        left = [folder for folder in folders if not files.remove_folder(folder)]
        for name in files.sizes():
            if name.endswith((JOB, CLAIM)):
                files.remove(name)
        files.remove(ROWS)
        files.remove(SPEC)
        for lock in (LOCK, f"{LOCK}.mend"):
            files.remove(lock)
    if files.remove_folder():
        return []
    return sorted([*files.sizes(), *left]) or [str(place)]
