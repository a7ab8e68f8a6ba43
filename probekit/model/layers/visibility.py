"""Positions of tokens and attention masks."""

from __future__ import annotations

import torch
from torch import Tensor


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


def in_window(
    visible: Tensor | None, mask: Tensor | None, n_new: int, n_keys: int, window: int, like: Tensor
) -> Tensor | None:
    """Return the attention mask of a sliding window, shape [batch 1 query key].

    A query attends to the last `window` real tokens, its own included. If there are no more columns
    than that, the result is `visible`.

    Args:
        visible: attention mask without a window; None means the causal mask.
        mask: True at tokens, False at padding, shape [batch key]; None means no padding.
        n_new: number of queries, at the last columns.
        n_keys: number of columns, including cached ones.
        window: number of tokens.
        like: tensor on the device of the result.

    >>> in_window(None, None, 3, 3, 2, torch.empty(0))[0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    if n_keys <= window:
        return visible
    places = torch.arange(n_keys, device=like.device)[None]
    if mask is not None:
        places = mask.to(like.device).cumsum(-1) - 1  # counts real tokens
    distance = places[:, -n_new:, None] - places[:, None, :]  # [batch query key]
    if visible is None:
        visible = causal(n_new, n_keys, like.device)
    return visible & (distance < window)[:, None]


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
