"""Keys and values of what a model has read, so that it reads on without reading again."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn

from probekit.errors import DataError

# Keys and values of the new positions -> those of all: [batch pos n_heads d_head] each.
Extend = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class KeyValueCache:
    """What each block of one model remembers of the tokens read so far; it starts empty.

    Give the same cache to one forward pass after another, under `torch.no_grad()`. A tap then sees
    the new positions only, once each, and what it makes of keys and values stays in the cache. A
    pass that fails or stops early leaves the cache as it was.

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
        self.length = 0  # columns read, those of padding included
        self._model: weakref.ref[nn.Module] | None = None
        self._mask: Tensor | None = None  # [batch length] once there was padding
        self._kept: dict[int, Tensor] = {}  # by block, [kv batch n_heads room d_head]

    def join_mask(self, model: nn.Module, tokens: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return the mask of all columns, old and new; None where none of them is padding.

        Raises:
            DataError: another model read what was read before, or in another number of rows.
        """
        if self.length and self._model is not None and self._model() is not model:
            raise DataError(
                "The cache was filled by another model, whose keys and values mean nothing to this "
                "one: begin with a new KeyValueCache."
            )
        self._model = weakref.ref(model)
        if self.length and self._kept[0].shape[1] != len(tokens):
            raise DataError(
                f"The cache was filled by {self._kept[0].shape[1]} rows, now there are "
                f"{len(tokens)}: it goes on with the rows it has begun."
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
        """Return the keys and values of all columns at a block, [batch key_pos n_heads d_head].

        Args:
            layer: the number of the block.
            k: keys of the new columns, shape [batch pos n_heads d_head].
            v: values of the new columns, shape [batch pos n_heads d_head].
        """
        end = self.length + k.shape[1]
        before = self._kept[layer] if self.length else None
        kept = self._kept[layer] = self._with_room(before, end, k)
        for part, new in zip(kept, (k, v), strict=True):
            part[:, :, self.length : end] = new.transpose(1, 2)
        keys, values = kept[:, :, :, :end].transpose(2, 3)
        return keys, values

    def advance(self, n_new: int, mask: Tensor | None) -> None:
        """Count the new columns as read, after all blocks have them."""
        self.length += n_new
        self._mask = mask

    def _with_room(self, kept: Tensor | None, end: int, like: Tensor) -> Tensor:
        """Return the storage, doubled when it is full, so that few columns are copied twice."""
        if kept is not None and kept.shape[3] >= end:
            return kept
        batch, _, n_heads, d_head = like.shape
        larger = like.new_empty(2, batch, n_heads, max(end, 2 * self.length), d_head)
        if kept is not None:
            larger[:, :, :, : self.length] = kept[:, :, :, : self.length]
        return larger
