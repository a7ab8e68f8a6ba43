"""Copying of caches between folders and object stores, with verification of all bytes."""

from __future__ import annotations

from collections.abc import Iterator

from probekit.activations.files.local import Location
from probekit.activations.files.places import files_at, join
from probekit.activations.store.committed import ROWS
from probekit.activations.store.records import ShardRecord
from probekit.activations.store.store import ActivationStore
from probekit.activations.upkeep.maintenance import find_damage
from probekit.amounts import counted
from probekit.errors import DamagedError, StoreError
from probekit.watcher import SILENT, Watcher

_MOST_LISTED = 5  # damaged files listed in an error message


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
        DamagedError: the source contains links, or missing or damaged files; nothing is copied.
        StoreError: the source does not match the pin, or the target cannot be written.
    """
    source_store = ActivationStore.open(source, root=pin)
    if pin is None:  # with a pin, reading already checks against the manifest
        _require_intact(source_store)
    files = files_at(join(root, source_store.identity.key))
    copy = ActivationStore.begin(files, source_store.spec, source_store.files.chunks(ROWS))
    with copy.locked(watcher.tell):
        copy.sweep()
        missing = list(_missing_records(source_store, copy))
        for done, record in enumerate(missing):
            watcher.progress("copy", done, len(missing))
            copy.adopt(record, source_store.files.chunks(record.file))
        watcher.progress("copy", len(missing), len(missing))
        copy.seal()
    if pin is not None and copy.digest_of(_sites(source_store)) != pin:
        raise StoreError(f"{copy.folder} contains other rows; its root digest is not {pin}.")
    return copy, len(missing)


def _require_intact(source_store: ActivationStore) -> None:
    """Raise if a source cannot be copied completely; digests are checked while copying."""
    damages = find_damage(source_store, digests=False)
    if damages:
        listed = "; ".join(f"{file}: {why}" for file, why in damages[:_MOST_LISTED])
        more = len(damages) - _MOST_LISTED
        raise DamagedError(
            f"{source_store.folder} was not copied because {counted(len(damages), 'file')} cannot "
            f"be: {listed}{f'; and {more} more' if more > 0 else ''}. Replace links with the files "
            f"they point to; `probekit cache repair {source_store.folder}` removes damaged files."
        )


def _missing_records(source_store: ActivationStore, copy: ActivationStore) -> Iterator[ShardRecord]:
    for site in _sites(source_store):
        records, existing = source_store.records(site), copy.records(site)
        if source_store.root is not None:
            source_store.require_sealed(site, records)
        yield from (record for shard, record in records.items() if shard not in existing)


def _sites(source_store: ActivationStore) -> list[str]:
    """Return the sites to copy.

    They are the sites of the manifest if the store was opened with a root digest, otherwise every
    site that has a folder.
    """
    manifest = None if source_store.root is None else source_store.manifest()
    return source_store.files.folders() if manifest is None else list(manifest.sites)
