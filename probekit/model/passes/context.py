"""Positions, visibility and cache of one forward pass, which all its blocks share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from probekit.model.layers.visibility import in_window, positions_and_visible
from probekit.model.passes.kv_cache import Extend, KeyValueCache


@dataclass(frozen=True)
class Context:
    """Positions, visibility and cache of one forward pass.

    Attributes:
        positions: position of each new token, shape [batch pos]; padding is not counted.
        visible: True where a query attends to a key, shape [batch 1 pos key_pos]; None means the
            causal mask.
        mask: True at tokens, False at padding, shape [batch key_pos]; None means no padding.
        n_before: number of cached columns.
        at: positions at which the last block computes its queries, shape [batch n_at]; None means
            all.
        past: cache with the keys and values of earlier tokens.
    """

    positions: Tensor
    visible: Tensor | None
    mask: Tensor | None
    n_before: int
    at: Tensor | None
    past: KeyValueCache | None

    @classmethod
    def of(
        cls, model: nn.Module, tokens: Tensor, mask: Tensor | None,
        at: Tensor | None, past: KeyValueCache | None, device: torch.device,
    ) -> Context:  # fmt: skip
        """Return the context of a pass that reads `tokens` after those of the cache.

        Positions and visibility are computed on the device of the tokens, so that host tokens cause
        no GPU synchronisation.
        """
        if past is not None:
            mask = past.join_mask(model, tokens, mask)
        n_before = past.length if past else 0
        positions, visible = positions_and_visible(tokens, mask, n_before)
        return cls(
            positions,
            None if visible is None else visible.to(device),
            mask,
            n_before,
            None if at is None else at.to(device),
            past,
        )

    def visible_in(self, window: int | None) -> Tensor | None:
        """Return the attention mask of a sliding window; `visible` without one.

        A query attends to the last `window` tokens, its own included.
        """
        if window is None:
            return self.visible
        n_new = self.positions.shape[1]
        n_keys = self.n_before + n_new
        like = self.positions if self.visible is None else self.visible
        return in_window(self.visible, self.mask, n_new, n_keys, window, like)

    def extend(self, layer: int) -> Extend | None:
        """Return the function that puts the cached keys and values of a block before the new ones.

        See `KeyValueCache.extend`; None without a cache.
        """
        return None if self.past is None else partial(self.past.extend, layer)

    def end(self) -> None:
        """Add the new columns to the cache, after the last block."""
        if self.past is not None:
            self.past.advance(self.positions.shape[1], self.mask)
