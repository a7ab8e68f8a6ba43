"""Capture: run a data set through the model and store the requested rows and sites.

Rows that a cache of all tokens contains are copied from it instead. The result is bit-identical:
batches do not depend on the requested rows, and means are summed in the same order. The exception
is the last block and the sites after it, which a capture computes at the requested positions only.
These are always computed by the model, because matrix products of another size round differently.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from probekit.activations.forward import make_batches, ranges, row_means, run_batch
from probekit.activations.records import FloatArray, Location, batch_tokens
from probekit.activations.store import ActivationStore
from probekit.activations.upkeep import caches_in
from probekit.activations.work import MissingSites, OnRows, Work, check_storable, compute_locally
from probekit.data.positions import IntArray, RowPlan
from probekit.errors import StoreError
from probekit.model.families.table import config_of
from probekit.model.network import Network
from probekit.model.sites.catalogue import describe, layer_of
from probekit.terminal import SILENT, Watcher

_POSITIONS_AT_ONCE = 4096

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
        ConfigError: a site has no pos axis.
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
    with store.files.lock(watcher.tell):
        store.files.sweep()
        store.verify(work.sites)
        _derive(store, root, work.sites)
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


def _derive(store: ActivationStore, root: Location, sites: Sequence[str]) -> None:
    """Fill missing sites of a store from caches of all tokens under `root`.

    Raises:
        StoreError: a cache with the rows is damaged, or the store cannot be written.
    """
    identity, n_layers = store.identity, config_of(store.identity.config).n_layers
    unfilled = [site for site in sites if _is_for_all(site, n_layers) and store.missing(site)]
    has_means = store.spec.sizes.positions > store.n_rows
    # Means of stored rows are exact if storing rounds no value and sums have a fixed order.
    if not unfilled or (has_means and (identity.dtype, identity.device) != ("float32", "cpu")):
        return
    for place in caches_in(root):
        try:
            source = ActivationStore.open(place)
        except StoreError:  # unusable here; reported when that cache itself is read
            continue
        is_same = replace(source.identity, rows=identity.rows) == identity
        if not is_same or source.identity == identity:
            continue
        available = [site for site in unfilled if not source.missing(site)]
        rows = _source_rows(source.layout.plan, store.layout.plan) if available else None
        if rows is not None:
            source.verify(available)
            for site in available:
                _fill_site(store, source, site, rows)
            unfilled = [site for site in unfilled if site not in available]


def _is_for_all(site: str, n_layers: int) -> bool:
    """Return whether a capture computes a site at all positions, not only at requested ones."""
    layer = layer_of(site)
    return describe(site).stage == "embedding" if layer is None else layer < n_layers - 1


def _source_rows(source: RowPlan, plan: RowPlan) -> IntArray | None:
    """Return the source row of each position of a plan; None if the source lacks any of them."""
    single = np.flatnonzero(np.diff(source.offsets) == 1)
    if not len(single):
        return None
    stride = 1 + max(int(source.positions.max()), int(plan.positions.max()))
    source_keys = source.example[single] * stride + source.positions[source.offsets[single]]
    order = np.argsort(source_keys, kind="stable")
    wanted = np.repeat(plan.example, np.diff(plan.offsets)) * stride + plan.positions
    matches = np.minimum(np.searchsorted(source_keys, wanted, sorter=order), len(order) - 1)
    rows = order[matches]
    return single[rows] if np.array_equal(source_keys[rows], wanted) else None


def _fill_site(
    store: ActivationStore, source: ActivationStore, site: str, source_rows: IntArray
) -> None:
    """Commit the missing shards of a site: means over rows of another cache.

    Args:
        store: the store to fill.
        source: the other cache.
        site: full name.
        source_rows: row of the other cache for each position of the store's rows.
    """
    offsets = store.layout.plan.offsets
    for shard in store.missing(site):
        rows_of_shard = store.shards[shard]
        # Parts of about _POSITIONS_AT_ONCE positions bound the memory.
        part = np.cumsum(np.diff(offsets)[rows_of_shard]) // _POSITIONS_AT_ONCE
        with store.writing([site], shard) as writers:
            for rows in np.split(rows_of_shard, np.flatnonzero(np.diff(part)) + 1):
                counts = offsets[rows + 1] - offsets[rows]
                places = ranges(offsets[rows], counts)
                picked = torch.from_numpy(source.read(site, source_rows[places]))
                row = torch.from_numpy(np.repeat(np.arange(len(rows)), counts))
                means = row_means(picked, row, torch.from_numpy(counts))
                writers[site].append(means.to(picked.dtype).numpy())


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
    for batch in make_batches(tokens, plan, batch_tokens(model.device.type)):
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
    batches = list(make_batches(tokens, plan, batch_tokens(model.device.type)))
    batch = batches[(len(batches) - 1) // 2]  # of median length, and never the last, smaller one
    times = []
    for _ in range(3):  # the first is a warm-up
        start = time.perf_counter()
        run_batch(model, batch, plan, sites, "float32").arrays()
        times.append(time.perf_counter() - start)
    return min(times[1:]) * sum(batch.n_tokens for batch in batches) / batch.n_tokens
