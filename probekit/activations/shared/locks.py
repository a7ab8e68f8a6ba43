"""Who computes which shard, among workers that know nothing of each other.

A worker claims a shard by a file that only one can hold, and lets it go once the rows are
committed. A claim forbids nothing: whoever commits first still wins, and it only says where others
need not begin. The claim of a killed worker is free at once where the file system has locks.
Elsewhere, as in an object store, a shard that stays claimed for twice as long as the own slowest
one took is computed a second time. Each looks at its own watch alone; clocks are never compared.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from probekit.activations.files.local import Files
from probekit.activations.shared.work import Work
from probekit.activations.upkeep.maintenance import CLAIM

_PAUSE = 0.25  # seconds between two looks at shards that others have claimed
PATIENCE = 60.0  # seconds at the least until the holder of a claim is taken for dead


class ShardDone(NamedTuple):
    """A shard that was computed: its number, at how many sites, its rows, and the seconds."""

    shard: int
    sites: int
    rows: int
    seconds: float


def share(work: Work, seed: int) -> Iterator[ShardDone]:
    """Yield each shard that this worker has computed, until none is missing whoever computed it.

    Args:
        work: what is to be computed; others may be at it, too.
        seed: of the order in which shards are tried; another one for each worker.

    Raises:
        StoreError: the store cannot be written, or a value is not finite.
    """
    store, order = work.store, np.random.default_rng(seed).permutation(len(work.shards))
    first_seen: dict[int, float] = {}  # when a shard was found claimed by another
    slowest = 0.0
    todo = dict(work.lacking())
    while todo:
        for shard in [int(shard) for shard in order if shard in todo]:
            waited = time.monotonic() - first_seen.get(shard, np.inf)
            with _claim(store.files, shard) as is_ours:
                if not is_ours and waited < max(PATIENCE, 2 * slowest):
                    first_seen.setdefault(shard, time.monotonic())
                    continue
                sites = store.lacking(todo.pop(shard), shard)
                if sites:
                    start = time.monotonic()
                    work.compute(shard, sites)
                    seconds = time.monotonic() - start
                    slowest = max(slowest, seconds)
                    yield ShardDone(shard, len(sites), work.n_rows_of(shard), seconds)
        todo = {shard: sites for shard, sites in todo.items() if store.lacking(sites, shard)}
        if todo:
            time.sleep(_PAUSE)
        else:
            todo = dict(work.lacking())  # what others committed may have been damaged since


@contextlib.contextmanager
def _claim(files: Files, shard: int) -> Iterator[bool]:
    name = f"{shard:05d}{CLAIM}"
    with files.claim(name) as is_ours:
        if is_ours or not files.remove_abandoned(name):
            yield is_ours
            return
    with files.claim(name) as is_ours:
        yield is_ours


def free_claims(files: Files) -> None:
    """Take away the claims of killed workers, as far as those can be told from the living."""
    for name in claims_in(files):
        files.remove_abandoned(name)


def claims_in(files: Files) -> list[str]:
    """Return the claims of the living and of the killed."""
    return [name for name in files.sizes() if name.endswith(CLAIM)]
