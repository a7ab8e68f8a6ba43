"""Running a data set through the model and keeping the asked rows of the asked sites."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from probekit.activations.batches import make_batches
from probekit.activations.derive import derive
from probekit.activations.files.local import Location
from probekit.activations.forward import run_batch
from probekit.activations.identity import IntArray, batch_tokens
from probekit.activations.shared.work import Lacking, OnRows, Work, alone, check_storable
from probekit.activations.store.layout import FloatArray
from probekit.activations.store.store import ActivationStore
from probekit.data.positions import RowPlan
from probekit.model.network import Network
from probekit.watcher import SILENT, Watcher

Engine = Callable[[Work, Lacking, OnRows], None]


@dataclass(frozen=True)
class Captured:
    """What a capture did.

    Attributes:
        store: the rows, complete for the asked sites.
        computed: how many shards of sites were computed by this call.
        reused: how many were there already.
        root: digest over the identity and the rows of the asked sites.
    """

    store: ActivationStore
    computed: int
    reused: int
    root: str


def capture(
    model: Network,
    tokenizer: str,
    tokens: Sequence[IntArray],
    plan: RowPlan,
    sites: Sequence[str],
    *,
    root: Location,
    dtype: str = "float32",
    step: str = "capture",
    watcher: Watcher = SILENT,
) -> Captured:
    """Return the store that holds the rows of `plan` at `sites`, computing what it lacks.

    What a cache of every token beside it has (`position: all`) is taken from there.
    Identical token sequences are run once. Killed at any moment, a later call with the same
    arguments goes on after the last committed shard and ends with the same bytes.

    Args:
        model: a GPT-2.
        tokenizer: digest of the tokenizer that made the tokens.
        tokens: the ids of every example, each of shape (n_tokens,).
        plan: which positions of which example make a row.
        sites: full names of sites with a pos axis.
        root: the folder that holds caches, or its URL.
        dtype: `float32` or `float16`, the numbers on disk.
        step: what the watcher hears this work called.
        watcher: is told of the rows done and of what a user should know.

    Raises:
        ConfigError: a site has no pos axis, the dtype is unknown, or the model is in training mode.
        DataError: the plan reads an example where it has no token.
        StoreError: the store cannot be written, or a value is not finite.
    """
    work = Work.begin(model, tokenizer, tokens, plan, sites, root=root, dtype=dtype)
    return fill(work, root, step=step, watcher=watcher)


def fill(
    work: Work,
    root: Location,
    *,
    engine: Engine = alone,
    step: str = "capture",
    watcher: Watcher = SILENT,
) -> Captured:
    """Return what a store holds that now has all rows of its work.

    Args:
        work: what is to be captured.
        root: the folder that holds caches, or its URL.
        engine: computes what is lacking, by default in this process.
        step: what the watcher hears this work called.
        watcher: is told of the rows done and of what a user should know.

    Raises:
        StoreError: the store cannot be written, or a value is not finite.
    """
    store = work.store
    in_all = len(work.shards) * len(work.sites)
    if store.is_sealed and not any(store.missing(site) for site in work.sites):
        # Nothing to write: a finished cache may lie where nothing can be written.
        store.verify(work.sites)
        watcher.progress(f"{step} (reused)", store.n_rows, store.n_rows)
        return Captured(store, 0, in_all, store.digest_of(work.sites))
    with store.locked(watcher.tell):
        store.sweep()
        store.verify(work.sites)
        derive(store, root, work.sites)
        lacking = work.lacking()
        done = store.n_rows - sum(map(work.n_rows_of, lacking))
        watcher.progress(step, done, store.n_rows)

        def on_rows(n_rows: int) -> None:
            nonlocal done
            done += n_rows
            watcher.progress(step, done, store.n_rows)

        if lacking:
            engine(work, lacking, on_rows)
        store.seal()
    computed = sum(map(len, lacking.values()))
    return Captured(store, computed, in_all - computed, store.digest_of(work.sites))


def stream_rows(
    model: Network,
    tokens: Sequence[IntArray],
    plan: RowPlan,
    sites: Sequence[str],
    *,
    dtype: str = "float32",
    on_batch: Callable[[int], None] | None = None,
) -> Iterator[tuple[IntArray, dict[str, FloatArray]]]:
    """Yield the numbers of some rows and their values at each site, until all rows were there.

    The numbers are those that `capture` would put on disk, of which nothing is written; rows of one
    example need not stand together in the plan. `on_batch` hears how many rows were computed.

    Raises:
        ConfigError: a site has no pos axis.
    """
    check_storable(sites)
    for batch in make_batches(tokens, plan, batch_tokens(model.device)):
        part = run_batch(model, batch, plan, sites, dtype)
        if on_batch is not None:
            on_batch(len(batch.rows))
        yield part.rows, part.arrays()


def estimate_seconds(
    model: Network, tokens: Sequence[IntArray], plan: RowPlan, sites: Sequence[str]
) -> float:
    """Return about how long capturing every row will take, from one of its batches, in seconds.

    The weights of the model do not matter; what is cached already is not taken off.
    """
    batches = list(make_batches(tokens, plan, batch_tokens(model.device)))
    batch = batches[(len(batches) - 1) // 2]  # of middling length, and not the rest
    times = []
    for _ in range(3):  # the first one warms up
        start = time.perf_counter()
        run_batch(model, batch, plan, sites, "float32").arrays()
        times.append(time.perf_counter() - start)
    return min(times[1:]) * sum(batch.n_tokens for batch in batches) / batch.n_tokens
