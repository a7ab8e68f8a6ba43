"""Rows of a capture that a cache of all tokens has: they are copied, or their means computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from probekit.activations import forward
from probekit.activations.capture import StoredRows, Work
from probekit.activations.records import Location
from probekit.activations.store import ActivationStore
from probekit.activations.upkeep import caches_in
from probekit.data.positions import IntArray, RowPlan
from probekit.errors import StoreError
from probekit.model.families.table import config_of
from probekit.model.sites.catalogue import describe, layer_of


@dataclass(frozen=True)
class CachedTokens(StoredRows):
    """Tokens in another cache, by the row of each position of a plan in it."""

    store: ActivationStore
    rows: IntArray

    def of_tokens(
        self, _batch: forward.Batch, _text: IntArray, places: IntArray, _plan: RowPlan,
        sites: Sequence[str],
    ) -> list[Tensor]:  # fmt: skip
        """Return the cached rows of tokens at each site."""
        return [torch.from_numpy(self.store.read(site, self.rows[places])) for site in sites]


def derive(work: Work, root: Location) -> None:
    """Fill missing sites of a store from caches of all tokens under `root`.

    Raises:
        StoreError: a cache with the rows is damaged, or the store cannot be written.
    """
    store, identity = work.store, work.store.identity
    n_layers = config_of(identity.config).n_layers
    unfilled = [
        site for site in work.sites if _is_at_all_positions(site, n_layers) and store.missing(site)
    ]
    has_means = store.spec.sizes.positions > store.n_rows
    # Means of stored rows are exact if storing rounds no value and sums have a fixed order.
    if not unfilled or (has_means and (identity.dtype, identity.device) != ("float32", "cpu")):
        return
    for place in caches_in(root):
        try:
            source = ActivationStore.open(place)
        except StoreError:  # unusable here; reported when that cache itself is read
            continue
        # The other cache must have other rows of the same model, texts and types.
        alike = replace(source.identity, rows=identity.rows, pooling=identity.pooling)
        if source.identity.rows == identity.rows or alike != identity:
            continue
        available = [site for site in unfilled if not source.missing(site)]
        source_rows = _source_rows(source.layout.plan, store.layout.plan) if available else None
        if source_rows is not None:
            source.verify(available)
            copying = replace(
                work, sites=tuple(available), reader=CachedTokens(source, source_rows), exact=None
            )
            copying.compute(copying.missing_sites())
            store.add_errors(source.errors(available))
            unfilled = [site for site in unfilled if site not in available]


def _is_at_all_positions(site: str, n_layers: int) -> bool:
    """Return whether a capture computes a site at all positions: true before the last block."""
    layer = layer_of(site)
    return describe(site).stage == "embedding" if layer is None else layer < n_layers - 1


def _source_rows(source: RowPlan, plan: RowPlan) -> IntArray | None:
    """Return the source row of each position of a plan; None if the source lacks any of them."""
    single = np.flatnonzero(np.diff(source.offsets) == 1)  # rows of one position
    if not len(single):
        return None
    # A key is one number for each pair of example and position.
    stride = 1 + max(int(source.positions.max()), int(plan.positions.max()))
    source_keys = source.example[single] * stride + source.positions[source.offsets[single]]
    wanted_keys = np.repeat(plan.example, np.diff(plan.offsets)) * stride + plan.positions
    order = np.argsort(source_keys, kind="stable")
    # The first source key that is not below each wanted key; equal if the source has that key. If
    # all source keys are below, the last one is compared, which differs.
    ranks = np.searchsorted(source_keys, wanted_keys, sorter=order)
    matches = order[np.minimum(ranks, len(order) - 1)]
    return single[matches] if np.array_equal(source_keys[matches], wanted_keys) else None
