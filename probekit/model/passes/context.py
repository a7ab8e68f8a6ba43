"""Positions, visibility and cached keys and values of one forward pass, shared by its blocks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from probekit.errors import DataError
from probekit.products import to_device

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


class KeyValueCache:
    """Keys and values of all tokens read so far, for each block of one model; initially empty.

    Pass the same cache to consecutive forward passes, under `torch.no_grad()`. A tap is then called
    with the new positions only, and the keys and values that it returns are cached. A pass that
    fails or stops early leaves the cache unchanged.

    >>> from probekit import GPT2
    >>> model, past = GPT2.from_pretrained("mini"), KeyValueCache()
    >>> tokens = torch.tensor([[5, 6, 7]])
    >>> _ = model(tokens[:, :2], past=past)
    >>> torch.allclose(model(tokens[:, 2:], past=past), model(tokens)[:, 2:], atol=1e-4)
    True
    >>> past.length
    3
    """

    def __init__(self) -> None:
        self.length = 0  # columns read, including padding
        self._model: weakref.ref[nn.Module] | None = None
        self._mask: Tensor | None = None  # [batch length]; None until a pass has a mask
        self._storage: dict[int, Tensor] = {}  # by block, [kv batch n_heads capacity d_head]

    def join_mask(self, model: nn.Module, tokens: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return the mask of cached and new columns, or None if no pass had a mask.

        The first pass also binds the cache to its model.

        Raises:
            DataError: the cache belongs to another model or has another batch size.
        """
        if self.length and self._model is not None and self._model() is not model:
            raise DataError(
                "The cache was filled by another model. Pass a new KeyValueCache for each model."
            )
        self._model = weakref.ref(model)
        if self.length and self._storage[0].shape[1] != len(tokens):
            raise DataError(
                f"The cache holds {self._storage[0].shape[1]} rows, the tokens have {len(tokens)}. "
                "Continue the same rows, or pass a new KeyValueCache."
            )
        if mask is None and self._mask is None:
            return None
        old, new = self._mask, mask
        if old is None:
            old = torch.ones(len(tokens), self.length, dtype=torch.bool, device=tokens.device)
        if new is None:
            new = torch.ones_like(tokens, dtype=torch.bool)
        return torch.cat([old, new.to(device=tokens.device, dtype=torch.bool)], dim=1)

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of all columns, shape [batch key_pos n_heads d_head] each.

        Args:
            layer: index of the block.
            k: keys of the new columns, shape [batch pos n_heads d_head].
            v: values of the new columns, shape [batch pos n_heads d_head].
        """
        end = self.length + k.shape[1]
        # While the length is 0, storage can only be left from a failed pass and is not reused.
        previous = self._storage[layer] if self.length else None
        self._storage[layer] = self._with_capacity(previous, end, k)
        keys, values = self._storage[layer]  # [batch n_heads capacity d_head] each
        keys[:, :, self.length : end] = k.transpose(1, 2)
        values[:, :, self.length : end] = v.transpose(1, 2)
        return keys[:, :, :end].transpose(1, 2), values[:, :, :end].transpose(1, 2)

    def advance(self, n_new: int, mask: Tensor | None) -> None:
        """Add the new columns to `length`, after the last block has extended the cache."""
        self.length += n_new
        self._mask = mask

    def _with_capacity(self, storage: Tensor | None, end: int, like: Tensor) -> Tensor:
        """Return storage for at least `end` columns; full storage is doubled, so copies are rare.

        Args:
            storage: shape [kv batch n_heads capacity d_head]; None for new storage.
            end: number of columns.
            like: keys of new columns, shape [batch pos n_heads d_head]; their values are not read.
        """
        if storage is not None and storage.shape[3] >= end:
            return storage
        batch, _, n_heads, d_head = like.shape
        larger = like.new_empty(2, batch, n_heads, max(end, 2 * self.length), d_head)
        if storage is not None:
            larger[:, :, :, : self.length] = storage[:, :, :, : self.length]
        return larger


def causal(n_queries: int, n_keys: int, device: torch.device) -> Tensor:
    """Return the causal mask of the last `n_queries` of `n_keys` positions, shape [query key].

    >>> causal(2, 3, torch.device("cpu")).tolist()
    [[True, True, False], [True, True, True]]
    """
    ones = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device)
    return ones.tril(n_keys - n_queries)


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
        context = cls(positions, visible, mask, n_before, at, device, past, before or ())
        return context.on(device)

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
