"""Capture: run a data set through the model and store the requested rows and sites."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from probekit.activations.batches import make_batches
from probekit.activations.derive import derive
from probekit.activations.files.local import Location
from probekit.activations.forward import run_batch
from probekit.activations.identity import IntArray, batch_tokens
from probekit.activations.shared.work import (
    MissingSites,
    OnRows,
    Work,
    check_storable,
    compute_locally,
)
from probekit.activations.store.layout import FloatArray
from probekit.activations.store.store import ActivationStore
from probekit.data.positions import RowPlan
from probekit.model.network import Network
from probekit.watcher import SILENT, Watcher

Engine = Callable[[Work, MissingSites, OnRows], None]


@dataclass(frozen=True)
class Captured:
    """Result of a capture.

    Attributes:
        store: the store, complete for the requested sites.
        computed: number of shards, summed over sites, computed by this call.
        reused: number of shards that already existed or were filled from another cache.
        root: one digest of the store's identity and of the rows at the requested sites.
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
    """Return a store with the rows of `plan` at `sites`; missing rows are computed.

    If another cache under `root` has all tokens of the same data (`position: all`), rows are copied
    from it where possible. Identical token sequences are run once. If the process is killed, a
    later call with the same arguments resumes after the last committed shard and produces the same
    bytes.

    Args:
        model: a GPT-2.
        tokenizer: digest of the tokenizer that made the tokens.
        tokens: the ids of every example, each of shape (n_tokens,).
        plan: the example and positions of each row.
        sites: full names of sites with a pos axis.
        root: folder or URL that contains caches.
        dtype: dtype on disk, `float32` or `float16`.
        step: name of this step in progress reports.
        watcher: receives progress in rows, and messages.

    Raises:
        ConfigError: a site has no pos axis, the dtype is unknown, or the model is in training mode.
        DataError: the plan has a position outside its example.
        StoreError: the store cannot be written, or a value is not finite.
    """
    work = Work.begin(model, tokenizer, tokens, plan, sites, root=root, dtype=dtype)
    return fill(work, root, step=step, watcher=watcher)


def fill(
    work: Work,
    root: Location,
    *,
    engine: Engine = compute_locally,
    step: str = "capture",
    watcher: Watcher = SILENT,
) -> Captured:
    """Compute the missing rows of `work`, seal its store and return the result.

    Args:
        work: the rows, sites and store.
        root: folder or URL that contains caches.
        engine: computes the missing shards; by default in this process.
        step: name of this step in progress reports.
        watcher: receives progress in rows, and messages.

    Raises:
        StoreError: the store cannot be written, or a value is not finite.
    """
    store = work.store
    n_total = len(work.shards) * len(work.sites)
    if store.is_sealed and not any(store.missing(site) for site in work.sites):
        # Do not write: a finished cache may be on a read-only disk.
        store.verify(work.sites)
        watcher.progress(f"{step} (reused)", store.n_rows, store.n_rows)
        return Captured(store, 0, n_total, store.digest_of(work.sites))
    with store.locked(watcher.tell):
        store.sweep()
        store.verify(work.sites)
        derive(store, root, work.sites)
        missing = work.missing_sites()
        done = store.n_rows - sum(map(work.n_rows_of, missing))
        watcher.progress(step, done, store.n_rows)

        def on_rows(n_rows: int) -> None:
            nonlocal done
            done += n_rows
            watcher.progress(step, done, store.n_rows)

        if missing:
            engine(work, missing, on_rows)
        store.seal()
    computed = sum(map(len, missing.values()))
    return Captured(store, computed, n_total - computed, store.digest_of(work.sites))


def stream_rows(
    model: Network,
    tokens: Sequence[IntArray],
    plan: RowPlan,
    sites: Sequence[str],
    *,
    dtype: str = "float32",
    on_batch: Callable[[int], None] | None = None,
) -> Iterator[tuple[IntArray, dict[str, FloatArray]]]:
    """Yield the rows of one batch after another: row indices, and values of these rows by site.

    The values equal those that `capture` would store, but nothing is written. Rows of one example
    need not be adjacent in the plan. `on_batch` is called with the number of rows of each batch.

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
    """Estimate the time to capture all rows, in seconds, by timing one batch.

    The weights may be random. The estimate includes rows that are already cached.
    """
    batches = list(make_batches(tokens, plan, batch_tokens(model.device)))
    batch = batches[(len(batches) - 1) // 2]  # of median length, and never the last, smaller one
    times = []
    for _ in range(3):  # the first is a warm-up
        start = time.perf_counter()
        run_batch(model, batch, plan, sites, "float32").arrays()
        times.append(time.perf_counter() - start)
    return min(times[1:]) * sum(batch.n_tokens for batch in batches) / batch.n_tokens
