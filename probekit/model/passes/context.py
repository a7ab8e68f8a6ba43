"""Positions, visibility and cached keys and values of one forward pass, shared by its blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from probekit.products import to_device

if TYPE_CHECKING:
    from probekit.model.generation import KeyValueCache

KeysValues = tuple[Tensor, Tensor]  # of one block, shape [batch pos n_kv_heads d_head] each


@dataclass(frozen=True)
class BlockContext:
    """What one block reads in a forward pass, besides the residual stream.

    Attributes:
        visible: True where a query attends to a key, shape [batch 1 pos key_pos]; None means a
            causal mask.
        angles: cosine and sine of the angles of every position, in a block that rotates its queries
            and keys; empty in others.
        extend: function that puts the keys and values of earlier tokens before the new ones.
        at: positions of the queries, shape [batch n_at]; None means all.
    """

    visible: Tensor | None
    angles: tuple[Tensor, ...]
    extend: Callable[[Tensor, Tensor], KeysValues]
    at: Tensor | None

    def selected(self, value: Tensor) -> Tensor:
        """Return a value at the positions of the queries: [batch pos ...], or [batch n_at ...]."""
        return value if self.at is None else select_positions(value, self.at)


def select_positions(value: Tensor, at: Tensor) -> Tensor:
    """Select some positions of each row: [batch pos ...] becomes [batch n_at ...]."""
    return value[torch.arange(len(at), device=at.device)[:, None], at]


def _join(earlier: KeysValues | None, k: Tensor, v: Tensor) -> KeysValues:
    """Return keys and values with those of earlier tokens before them."""
    if earlier is None:
        return k, v
    earlier_k, earlier_v = earlier
    return torch.cat([earlier_k, k], dim=1), torch.cat([earlier_v, v], dim=1)


def causal(n_queries: int, n_keys: int, device: torch.device) -> Tensor:
    """Return the causal mask of the last `n_queries` of `n_keys` positions, shape [query key].

    >>> causal(2, 3, torch.device("cpu")).tolist()
    [[True, True, False], [True, True, True]]
    """
    return torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(n_keys - n_queries)


def positions_and_visible(
    tokens: Tensor, mask: Tensor | None, n_before: int = 0
) -> tuple[Tensor, Tensor | None]:
    """Return the position of each token, shape [batch pos], and the attention mask.

    Positions count real tokens. The mask has the shape [batch 1 query key] and is True where a
    query attends to a key. None means the causal mask, which suffices for right padding because no
    token attends to a later one.

    Args:
        tokens: token ids, shape [batch pos].
        mask: True at tokens, False at padding, first for the `n_before` cached columns and then for
            `tokens`, shape [batch key]; None means no padding.
        n_before: number of columns in the key-value cache.

    >>> mask = torch.tensor([[False, True, True]])
    >>> positions, visible = positions_and_visible(torch.tensor([[0, 5, 6]]), mask)
    >>> positions.tolist(), visible[0, 0].int().tolist()
    ([[0, 0, 1]], [[1, 0, 0], [0, 1, 0], [0, 1, 1]])
    """
    n_new, n_keys = tokens.shape[1], n_before + tokens.shape[1]
    if mask is None:
        return torch.arange(n_before, n_keys, device=tokens.device).expand_as(tokens), None
    mask = mask.to(device=tokens.device, dtype=torch.bool)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, n_before:]  # padding on the left has 0
    # If no token follows padding, all padding is on the right.
    if not bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        return positions, None
    # Padding attends to itself: a softmax without keys would be NaN and spread.
    itself = torch.eye(n_keys, dtype=torch.bool, device=tokens.device)[n_before:]
    return positions, causal(n_new, n_keys, tokens.device) & (mask[:, None, None, :] | itself)


def visible_at(at: Tensor, visible: Tensor | None, n_new: int, n_keys: int) -> Tensor:
    """Return the attention mask of some of the new positions, shape [batch 1 n_at key].

    Args:
        at: the positions, shape [batch n_at].
        visible: mask of all new positions, shape [batch 1 pos key]; None means the causal mask.
        n_new: number of new positions.
        n_keys: number of positions including cached ones.
    """
    if visible is None:
        visible = causal(n_new, n_keys, at.device)[None, None]
    return visible.take_along_dim(at[:, None, :, None], 2)


@dataclass(frozen=True)
class Context:
    """Positions, visibility and cache of one forward pass.

    Attributes:
        positions: position of each new token, shape [batch pos]; padding is not counted.
        visible: True where a query attends to a key, shape [batch 1 pos key_pos]; None means the
            causal mask.
        mask: True at tokens, False at padding, shape [batch key_pos]; None means no padding.
        n_before: number of earlier columns, in `past` or `before`.
        at: positions at which the last block computes its queries, shape [batch n_at]; None means
            all.
        device: device of the block that is computed.
        past: cache with the keys and values of earlier tokens.
        before: keys, rotated if the network rotates them, and values of earlier tokens, by block;
            empty if there are none.
    """

    positions: Tensor
    visible: Tensor | None
    mask: Tensor | None
    n_before: int
    at: Tensor | None
    device: torch.device
    past: KeyValueCache | None = None
    before: Sequence[KeysValues | None] = ()

    @classmethod
    def of(
        cls, tokens: Tensor, mask: Tensor | None, at: Tensor | None, device: torch.device,
        *, past: KeyValueCache | None = None, before: Sequence[KeysValues | None] | None = None,
    ) -> Context:  # fmt: skip
        """Return the context of a pass that reads `tokens` after those in `past` or `before`.

        Positions and visibility are computed on the device of the tokens, so that host tokens cause
        no GPU synchronisation. `visible` and `at` are then moved to `device`.
        """
        lengths = [keys.shape[1] for keys, _ in filter(None, before or ())]  # all are equal
        n_before = past.length if past is not None else max(lengths, default=0)
        positions, visible = positions_and_visible(tokens, mask, n_before)
        return cls(positions, visible, mask, n_before, at, device, past, before or ()).on(device)

    def on(self, device: torch.device) -> Context:
        """Return the same context for blocks on another device."""
        visible = None if self.visible is None else to_device(self.visible, device)
        at = None if self.at is None else to_device(self.at, device)
        return replace(self, visible=visible, at=at, device=device)

    def of_block(
        self, layer: int, visible: Tensor | None, angles: tuple[Tensor, ...], *, is_last: bool
    ) -> BlockContext:
        """Return the context of a block; only in the last one `at` selects the queries."""
        earlier = self.before[layer] if self.before else None
        extend = partial(_join, earlier) if self.past is None else partial(self.past.extend, layer)
        return BlockContext(visible, angles, extend, self.at if is_last else None)

    def end(self) -> None:
        """Add the new columns to the cache, after the last block."""
        if self.past is not None:
            self.past.advance(self.positions.shape[1], self.mask)
