"""Where each token stands, and which tokens it sees."""

from __future__ import annotations

import torch
from torch import Tensor


def causal(n_queries: int, n_keys: int, device: torch.device) -> Tensor:
    """Return what the last `n_queries` of `n_keys` positions see, shape [query key].

    >>> causal(2, 3, torch.device("cpu")).tolist()
    [[True, True, False], [True, True, True]]
    """
    ones = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device)
    return ones.tril(n_keys - n_queries)


def positions_and_visible(
    tokens: Tensor, mask: Tensor | None, n_before: int = 0
) -> tuple[Tensor, Tensor | None]:
    """Return the positions of the tokens and what each of them sees.

    Positions count real tokens, shape [batch pos]. What is seen has the shape [batch 1 query key];
    None instead means all that stands before, and is all that right padding needs, since no token
    looks forward.

    Args:
        tokens: token ids, shape [batch pos].
        mask: True at tokens, False at padding, of the `n_before` columns read earlier and of these,
            shape [batch key]; None means no padding.
        n_before: how many columns were read earlier.

    >>> mask = torch.tensor([[False, True, True]])
    >>> positions, visible = positions_and_visible(torch.tensor([[0, 5, 6]]), mask)
    >>> positions.tolist(), visible[0, 0].int().tolist()
    ([[0, 0, 1]], [[1, 0, 0], [0, 1, 0], [0, 1, 1]])
    """
    n_new, n_keys = tokens.shape[1], n_before + tokens.shape[1]
    if mask is None:
        return torch.arange(n_before, n_keys, device=tokens.device).expand_as(tokens), None
    mask = mask.to(device=tokens.device, dtype=torch.bool)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, n_before:]
    if not bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        return positions, None
    # A padded query sees itself: a softmax over nothing would be NaN and spread.
    itself = torch.eye(n_keys, dtype=torch.bool, device=tokens.device)[n_before:]
    return positions, causal(n_new, n_keys, tokens.device) & (mask[:, None, None, :] | itself)


def visible_at(at: Tensor, visible: Tensor | None, n_new: int, n_keys: int) -> Tensor:
    """Return what some of the new positions see, shape [batch 1 asked key].

    Args:
        at: the positions, shape [batch asked].
        visible: what all of them see, shape [batch 1 pos key]; None means all that stands before.
        n_new: how many new positions there are.
        n_keys: how many positions there are, earlier ones included.
    """
    if visible is None:
        visible = causal(n_new, n_keys, at.device)[None, None]
    return visible.take_along_dim(at[:, None, :, None], 2)
