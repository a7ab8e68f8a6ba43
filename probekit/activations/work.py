"""The work of a capture: a store and the batches of each shard, for one process or many workers.

Workers communicate only through the store. A worker locks a shard with an exclusively created file
and removes it once the rows are committed. Locks only avoid duplicate work: the first worker to
commit a shard wins in any case. Where the file system supports locks, the lock of a killed worker
is free at once. Elsewhere, as in an object store, a waiting worker computes a locked shard itself
once it has waited twice as long as its own slowest shard took, and at least PATIENCE seconds.
Clocks of different machines are never compared.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from probekit.activations.forward import Batch, BatchRows, make_batches, make_shards, run_batch
from probekit.activations.local import Files
from probekit.activations.records import Location, batch_tokens, identify
from probekit.activations.store import ActivationStore
from probekit.activations.upkeep import SHARD_LOCK
from probekit.data.positions import IntArray, RowPlan
from probekit.errors import ConfigError
from probekit.model.network import Network
from probekit.model.sites.catalogue import describe

Item = TypeVar("Item")
MissingSites = Mapping[int, Sequence[str]]  # missing sites by shard; complete shards are absent
OnRows = Callable[[int], None]  # called with the number of newly computed rows

MAX_WAITING = 2  # batches whose rows wait to be written, in memory
PATIENCE = 60.0  # minimum seconds before the holder of a lock is considered dead
_PAUSE = 0.25  # seconds between checks of shards that other workers have locked


@dataclass(frozen=True)
class Work:
    """A store to fill at some sites, and everything needed to compute it.

    Attributes:
        model: a GPT-2.
        plan: the example and positions of each row.
        sites: full names of sites with a pos axis.
        shards: the batches of each shard.
        store: the store that receives the rows.
    """

    model: Network
    plan: RowPlan
    sites: tuple[str, ...]
    shards: Sequence[Sequence[Batch]]
    store: ActivationStore

    @classmethod
    def begin(
        cls,
        model: Network,
        tokenizer: str,
        tokens: Sequence[IntArray],
        plan: RowPlan,
        sites: Sequence[str],
        *,
        root: Location | Files,
        dtype: str,
        device: str | None = None,
    ) -> Work:
        """Return the work for a capture; its store is created, or opened if it exists.

        Args:
            model: a GPT-2.
            tokenizer: digest of the tokenizer that made the tokens.
            tokens: the ids of every example, each of shape (n_tokens,).
            plan: the example and positions of each row.
            sites: full names of sites with a pos axis.
            root: folder or URL that contains caches, or the files of the cache itself.
            dtype: dtype on disk, `float32` or `float16`.
            device: type of the devices that will compute; None for the model's.

        Raises:
            ConfigError: a site has no pos axis.
            StoreMismatchError: the files belong to another capture.
            StoreError: the store cannot be written.
        """
        check_storable(sites)
        assert not model.training, "dropout makes activations random: call model.eval() first"
        identity = identify(model, tokenizer, tokens, plan, dtype)
        if device is not None:
            identity = replace(identity, device=device, batch_tokens=batch_tokens(device))
        shards = make_shards(make_batches(tokens, plan, identity.batch_tokens), identity.shard_rows)
        order = [np.concatenate([batch.rows for batch in shard]) for shard in shards]
        store = ActivationStore.create(root, identity, plan, order)
        return cls(model, plan, tuple(sites), shards, store)

    def missing_sites(self) -> MissingSites:
        """Return the missing sites of each incomplete shard, by shard index."""
        missing: dict[int, list[str]] = {}
        for site in self.sites:
            for shard in self.store.missing(site):
                missing.setdefault(shard, []).append(site)
        return dict(sorted(missing.items()))

    def n_rows_of(self, shard: int) -> int:
        """Return the number of rows of a shard."""
        return sum(len(batch.rows) for batch in self.shards[shard])

    def compute(self, shard: int, sites: Sequence[str], on_rows: OnRows = lambda _: None) -> None:
        """Compute and commit one shard of some sites.

        Raises:
            StoreError: the store cannot be written, or a value is not finite.
        """
        dtype = self.store.identity.dtype
        with self.store.writing(sites, shard) as writers:

            def append(part: BatchRows) -> None:
                for site, values in part.arrays().items():
                    writers[site].append(values)

            with in_background(append) as submit:
                for batch in self.shards[shard]:
                    submit(run_batch(self.model, batch, self.plan, sites, dtype))
                    on_rows(len(batch.rows))


def compute_locally(work: Work, incomplete: MissingSites, on_rows: OnRows) -> None:
    """Compute all missing shards in this process."""
    for shard, sites in incomplete.items():
        work.compute(shard, sites, on_rows)


def check_storable(sites: Iterable[str]) -> None:
    """Check that a capture can store these sites: each value belongs to one position.

    Raises:
        ConfigError: a site has no pos axis.
    """
    for site in sites:
        axes = describe(site).axes
        if "pos" not in axes:
            raise ConfigError(
                f"{site} has the axes {' '.join(axes)}. Its values belong to pairs of positions; "
                "they can be drawn (`probekit attention`) but not stored and probed row by row."
            )


@contextlib.contextmanager
def in_background(function: Callable[[Item], object]) -> Iterator[Callable[[Item], None]]:
    """Yield a function that queues calls of `function` on one thread, which runs them in order.

    It waits while more than MAX_WAITING calls are unfinished. An exception in a call is raised by
    the next one, or at the end of the block. Calls queued after a failed one are not run. If the
    block itself fails, queued calls are dropped.

    >>> done = []
    >>> with in_background(done.append) as submit:
    ...     for number in range(4):
    ...         submit(number)
    >>> done
    [0, 1, 2, 3]
    """
    waiting: deque[Future[None]] = deque()
    last: Future[None] | None = None

    def call(previous: Future[None] | None, item: Item) -> None:
        if previous is not None:
            previous.result()  # re-raises an exception of an earlier call
        function(item)

    def submit(item: Item) -> None:
        nonlocal last
        last = pool.submit(call, last, item)
        waiting.append(last)
        while len(waiting) > MAX_WAITING:
            waiting.popleft().result()

    pool = ThreadPoolExecutor(1, thread_name_prefix="probekit-background")
    try:
        yield submit
        while waiting:
            waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


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
            todo = dict(work.missing_sites())  # one of another worker may be damaged since


@contextlib.contextmanager
def _lock_shard(files: Files, shard: int) -> Iterator[bool]:
    name = f"{shard:05d}{SHARD_LOCK}"
    with files.try_lock(name) as is_acquired:
        if is_acquired or not files.remove_abandoned(name):
            yield is_acquired
            return
    with files.try_lock(name) as is_acquired:
        yield is_acquired
