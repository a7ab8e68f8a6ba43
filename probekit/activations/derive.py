"""Rows of fewer or pooled positions, taken from a cache that has every token instead of the model.

They are, to the last bit, what a capture would have computed: sequences are batched without regard
to the rows that are taken from them, and pooling is the same sum in the same order. What a capture
computes at the asked positions alone, in the model's last block and behind it, is left to the
model: products of other sizes round otherwise.
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
from probekit.model.sites import describe, layer_of

_PLACES_AT_ONCE = 4096


def derive(store: ActivationStore, root: Location, sites: Sequence[str]) -> list[str]:
    """Return the sites that lacked rows and were filled from token-level caches beside the store.

    Args:
        store: to be filled.
        root: where caches lie.
        sites: full names.

    Raises:
        StoreError: a cache that has the rows is damaged, or the store cannot be written.
    """
    n_layer = store.identity.config["n_layer"]
    lacking = [site for site in sites if _is_for_all(site, n_layer) and store.missing(site)]
    derived: list[str] = []
    for source in _alike(store, root) if lacking else ():
        there = [site for site in lacking if site not in derived and not source.missing(site)]
        rows = _rows_of_places(source.layout, store.layout.plan) if there else None
        if rows is not None:
            source.verify(there)
            for site in there:
                _fill(store, source, site, rows)
            derived += there
    return derived


def _is_for_all(site: str, n_layer: int) -> bool:
    """Whether a capture computes a site at all positions, whichever are asked for."""
    layer = layer_of(site)
    return describe(site).stage == "embedding" if layer is None else layer < n_layer - 1


def _alike(store: ActivationStore, root: Location) -> Iterator[ActivationStore]:
    """Yield the other caches that differ in nothing but in which rows they have."""
    for place in caches_in(root):
        try:
            other = ActivationStore.open(place)
        except StoreError:  # it is no help; whoever reads that one is told
            continue
        same = replace(other.identity, rows=store.identity.rows) == store.identity
        if same and other.identity != store.identity and _is_exact(store):
            yield other


def _is_exact(store: ActivationStore) -> bool:
    """Whether pooling stored rows gives what pooling computed ones does.

    It does where nothing was rounded in between, and sums are taken in one order.
    """
    pooled = store.spec.sizes.positions > store.n_rows
    return not pooled or (store.identity.dtype, store.identity.device) == ("float32", "cpu")


def _rows_of_places(source: Layout, plan: RowPlan) -> IntArray | None:
    """Return which row of a source is each place of a plan; None if it has not all of them."""
    counts = np.diff(source.plan.offsets)
    single = np.flatnonzero(counts == 1)
    if not len(single):
        return None
    stride = 1 + max(int(source.plan.positions.max()), int(plan.positions.max()))
    there = source.plan.example[single] * stride
    there = there + source.plan.positions[source.plan.offsets[single]]
    order = np.argsort(there, kind="stable")
    wanted = np.repeat(plan.example, np.diff(plan.offsets)) * stride + plan.positions
    found = order[np.minimum(np.searchsorted(there, wanted, sorter=order), len(order) - 1)]
    return single[found] if np.array_equal(there[found], wanted) else None


def _fill(
    store: ActivationStore, source: ActivationStore, site: str, rows_of_places: IntArray
) -> None:
    """Commit the missing shards of a site from the rows of a source."""
    offsets = store.layout.plan.offsets
    for shard in store.missing(site):
        with store.writing([site], shard) as writers:
            for rows in _slices(store.shards[shard], np.diff(offsets)):
                counts = offsets[rows + 1] - offsets[rows]
                places = ranges(offsets[rows], counts)
                picked = torch.from_numpy(source.read(site, rows_of_places[places]))
                row = torch.from_numpy(np.repeat(np.arange(len(rows)), counts))
                means = row_means(picked, row, torch.from_numpy(counts))
                writers[site].append(means.to(picked.dtype).numpy())


def _slices(rows: IntArray, counts: IntArray) -> Iterable[IntArray]:
    """Return rows in parts of about so many places that they fit into memory."""
    parts = np.cumsum(counts[rows]) // _PLACES_AT_ONCE
    return np.split(rows, np.flatnonzero(np.diff(parts)) + 1)
