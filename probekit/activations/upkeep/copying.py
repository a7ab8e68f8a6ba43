"""Copying caches between folders and object stores, every byte digested on its way."""

from __future__ import annotations

from collections.abc import Iterator

from probekit.activations.files.local import Location
from probekit.activations.files.places import files_at, join
from probekit.activations.store.committed import ROWS
from probekit.activations.store.records import ShardRecord
from probekit.activations.store.store import ActivationStore
from probekit.errors import StoreError
from probekit.watcher import SILENT, Watcher


def copy_cache(
    source: Location, root: Location, *, pin: str | None = None, watcher: Watcher = SILENT
) -> tuple[ActivationStore, int]:
    """Return the copy of a cache under another root, and how many shards had to be copied.

    What is there already is not copied again; an interrupted copy goes on where it was.

    Args:
        source: folder or URL of the cache.
        root: folder or URL that is to hold the copy.
        pin: the root digest that the source must have.
        watcher: hears how far it has come.

    Raises:
        StoreError: the source is damaged, or is not what the pin says, or the target cannot be
            written.
    """
    there = ActivationStore.open(source, root=pin)
    files = files_at(join(root, there.identity.key))
    here = ActivationStore.begin(files, there.spec, there.files.chunks(ROWS))
    with here.locked(watcher.tell):
        here.sweep()
        lacking = list(_lacking(there, here))
        for done, record in enumerate(lacking):
            watcher.progress("copy", done, len(lacking))
            here.adopt(record, there.files.chunks(record.file))
        watcher.progress("copy", len(lacking), len(lacking))
        here.seal()
    if pin is not None and here.digest_of(_sites(there)) != pin:
        raise StoreError(f"{here.folder} holds other rows of the same kind; its root is not {pin}.")
    return here, len(lacking)


def _lacking(there: ActivationStore, here: ActivationStore) -> Iterator[ShardRecord]:
    for site in _sites(there):
        records, have = there.records(site), here.records(site)
        if there.root is not None:
            there.require_sealed(site, records)
        yield from (record for shard, record in records.items() if shard not in have)


def _sites(there: ActivationStore) -> list[str]:
    """Return the sites to copy: all that are begun, or of a pinned cache those that it seals."""
    manifest = None if there.root is None else there.manifest()
    return there.files.folders() if manifest is None else list(manifest.sites)
