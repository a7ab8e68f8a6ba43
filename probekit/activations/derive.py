"""Filling a store with rows from a cache of all tokens, instead of running the model.

The result is bit-identical to a capture: batches do not depend on the requested rows, and pooling
sums in the same order. The exception is the last block and the sites after it, which a capture
computes at the requested positions only. These are always computed by the model, because matrix
products of another size round differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from probekit.activations.files.local import Location
from probekit.activations.pooling import ranges, row_means
from probekit.activations.store.layout import IntArray, Layout
from probekit.activations.store.store import ActivationStore
from probekit.activations.upkeep.maintenance import caches_in
from probekit.data.positions import RowPlan
from probekit.errors import StoreError
from probekit.model.families.table import config_of
from probekit.model.sites.catalogue import describe, layer_of

_POSITIONS_AT_ONCE = 4096


def derive(store: ActivationStore, root: Location, sites: Sequence[str]) -> list[str]:
    """Fill missing sites of a store from token-level caches, and return the sites filled.

    Args:
        store: the store to fill.
        root: folder or URL that contains caches.
        sites: full names of the requested sites.

    Raises:
        StoreError: a cache with the rows is damaged, or the store cannot be written.
    """
    n_layers = config_of(store.identity.config).n_layers
    unfilled = [site for site in sites if _is_for_all(site, n_layers) and store.missing(site)]
    derived: list[str] = []
    for source in _compatible_caches(store, root) if unfilled else ():
        available = [site for site in unfilled if site not in derived and not source.missing(site)]
        rows = _source_rows(source.layout, store.layout.plan) if available else None
        if rows is not None:
            source.verify(available)
            for site in available:
                _fill(store, source, site, rows)
            derived += available
    return derived


def _is_for_all(site: str, n_layers: int) -> bool:
    """Return whether a capture computes a site at all positions, not only at requested ones."""
    layer = layer_of(site)
    return describe(site).stage == "embedding" if layer is None else layer < n_layers - 1


def _compatible_caches(store: ActivationStore, root: Location) -> Iterator[ActivationStore]:
    """Yield other caches that have the same data and settings as the store, but other rows."""
    for place in caches_in(root):
        try:
            other = ActivationStore.open(place)
        except StoreError:  # unusable here; reported when that cache itself is read
            continue
        same = replace(other.identity, rows=store.identity.rows) == store.identity
        if same and other.identity != store.identity and _is_exact(store):
            yield other


def _is_exact(store: ActivationStore) -> bool:
    """Return whether pooling stored rows gives the same bits as pooling computed ones.

    This requires that storing did not round the values and that sums have a fixed order.
    """
    pooled = store.spec.sizes.positions > store.n_rows
    return not pooled or (store.identity.dtype, store.identity.device) == ("float32", "cpu")


def _source_rows(source: Layout, plan: RowPlan) -> IntArray | None:
    """Return the source row of each position of a plan; None if the source lacks any of them."""
    counts = np.diff(source.plan.offsets)
    single = np.flatnonzero(counts == 1)
    if not len(single):
        return None
    stride = 1 + max(int(source.plan.positions.max()), int(plan.positions.max()))
    source_keys = source.plan.example[single] * stride
    source_keys = source_keys + source.plan.positions[source.plan.offsets[single]]
    order = np.argsort(source_keys, kind="stable")
    wanted = np.repeat(plan.example, np.diff(plan.offsets)) * stride + plan.positions
    matches = np.minimum(np.searchsorted(source_keys, wanted, sorter=order), len(order) - 1)
    rows = order[matches]
    return single[rows] if np.array_equal(source_keys[rows], wanted) else None


def _fill(
    store: ActivationStore, source: ActivationStore, site: str, source_rows: IntArray
) -> None:
    """Commit the missing shards of a site, pooled from rows of another cache.

    Args:
        store: the store to fill.
        source: the other cache.
        site: full name.
        source_rows: row of the other cache for each position of the store's rows.
    """
    offsets = store.layout.plan.offsets
    for shard in store.missing(site):
        with store.writing([site], shard) as writers:
            for rows in _chunks(store.shards[shard], np.diff(offsets)):
                counts = offsets[rows + 1] - offsets[rows]
                position_indices = ranges(offsets[rows], counts)
                picked = torch.from_numpy(source.read(site, source_rows[position_indices]))
                row = torch.from_numpy(np.repeat(np.arange(len(rows)), counts))
                means = row_means(picked, row, torch.from_numpy(counts))
                writers[site].append(means.to(picked.dtype).numpy())


def _chunks(rows: IntArray, counts: IntArray) -> Iterable[IntArray]:
    """Split rows into chunks of about _POSITIONS_AT_ONCE positions, to bound memory."""
    parts = np.cumsum(counts[rows]) // _POSITIONS_AT_ONCE
    return np.split(rows, np.flatnonzero(np.diff(parts)) + 1)
