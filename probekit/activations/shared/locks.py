"""Distribution of shards among workers that communicate only through the store.

A worker locks a shard with an exclusively created file and removes it once the rows are committed.
Locks only avoid duplicate work: the first worker to commit a shard wins in any case. Where the file
system supports locks, the lock of a killed worker is free at once. Elsewhere, as in an object
store, a waiting worker computes a locked shard itself once it has waited twice as long as its own
slowest shard took, and at least PATIENCE seconds. Clocks of different machines are never compared.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from probekit.activations.files.local import Files
from probekit.activations.shared.work import Work
from probekit.activations.upkeep.maintenance import SHARD_LOCK

_PAUSE = 0.25  # seconds between checks of shards that other workers have locked
PATIENCE = 60.0  # minimum seconds before the holder of a lock is considered dead


class ShardDone(NamedTuple):
    """A computed shard: index, number of sites, number of rows, and duration in seconds."""

    shard: int
    sites: int
    rows: int
    seconds: float


def compute_shards(work: Work, seed: int) -> Iterator[ShardDone]:
    """Compute missing shards together with other workers; yield each shard computed here.

    Returns when no shard is missing any more, whichever worker computed it.

    Args:
        work: the capture; other workers may compute it at the same time.
        seed: random seed of the order of shards; a different one for each worker.

    Raises:
        StoreError: the store cannot be written, or a value is not finite.
    """
    store, order = work.store, np.random.default_rng(seed).permutation(len(work.shards))
    first_seen_locked: dict[int, float] = {}  # time at which a shard was first seen locked
    slowest = 0.0
    todo = dict(work.missing_sites())
    while todo:
        for shard in [int(shard) for shard in order if shard in todo]:
            waited = time.monotonic() - first_seen_locked.get(shard, np.inf)
            with _lock_shard(store.files, shard) as is_acquired:
                if not is_acquired and waited < max(PATIENCE, 2 * slowest):
                    first_seen_locked.setdefault(shard, time.monotonic())
                    continue
                sites = store.missing_sites(todo.pop(shard), shard)
                if sites:
                    start = time.monotonic()
                    work.compute(shard, sites)
                    seconds = time.monotonic() - start
                    slowest = max(slowest, seconds)
                    yield ShardDone(shard, len(sites), work.n_rows_of(shard), seconds)
        todo = {shard: sites for shard, sites in todo.items() if store.missing_sites(sites, shard)}
        if todo:
            time.sleep(_PAUSE)
        else:
            todo = dict(
                work.missing_sites()
            )  # a shard of another worker may have been damaged since


@contextlib.contextmanager
def _lock_shard(files: Files, shard: int) -> Iterator[bool]:
    name = f"{shard:05d}{SHARD_LOCK}"
    with files.try_lock(name) as is_acquired:
        if is_acquired or not files.remove_abandoned(name):
            yield is_acquired
            return
    with files.try_lock(name) as is_acquired:
        yield is_acquired


def remove_dead_locks(files: Files) -> None:
    """Remove the shard locks of killed workers, if the file system can detect such workers."""
    for name in shard_locks(files):
        files.remove_abandoned(name)


def shard_locks(files: Files) -> list[str]:
    """Return the names of all shard locks, of live and dead workers."""
    return [name for name in files.sizes() if name.endswith(SHARD_LOCK)]
