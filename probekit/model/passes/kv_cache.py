"""Cache of the keys and values of earlier tokens, for generation."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn

from probekit.errors import DataError

# Keys and values of the new positions -> of all positions, shape [batch pos n_heads d_head] each.
Extend = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


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
        self._mask: Tensor | None = None  # [batch length]; None until there is padding
        self._storage: dict[int, Tensor] = {}  # by block, [kv batch n_heads capacity d_head]

    def join_mask(self, model: nn.Module, tokens: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return the mask of cached and new columns, or None if none of them is padding.

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
        previous = self._storage[layer] if self.length else None
        storage = self._storage[layer] = self._with_capacity(previous, end, k)
        for part, new in zip(storage, (k, v), strict=True):
            part[:, :, self.length : end] = new.transpose(1, 2)
        keys, values = storage[:, :, :, :end].transpose(2, 3)
        return keys, values

    def advance(self, n_new: int, mask: Tensor | None) -> None:
        """Add the new columns to `length`, after the last block has extended the cache."""
        self.length += n_new
        self._mask = mask

    def _with_capacity(self, storage: Tensor | None, end: int, like: Tensor) -> Tensor:
        """Return storage for `end` columns; doubling it when full keeps the copies few."""
        if storage is not None and storage.shape[3] >= end:
            return storage
        batch, _, n_heads, d_head = like.shape
        larger = like.new_empty(2, batch, n_heads, max(end, 2 * self.length), d_head)
        if storage is not None:
            larger[:, :, :, : self.length] = storage[:, :, :, : self.length]
        return larger
