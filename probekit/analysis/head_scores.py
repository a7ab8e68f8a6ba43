"""Scores of attention heads, such as previous-token and induction scores."""

from __future__ import annotations

import torch
from torch import Tensor

from probekit.errors import DataError

HEAD_SCORES = {
    "previous_token": "weight on the token just before",
    "duplicate_token": "weight on earlier occurrences of the same token",
    "induction": "weight on the token after an earlier occurrence of the same token",
    "first_token": "weight on the first token",
    "entropy": "entropy of a row, in nats",
    "distance": "mean distance to the attended token, in tokens",
}


def head_scores(patterns: Tensor, ids: Tensor) -> dict[str, Tensor]:
    """Return the scores in `HEAD_SCORES` of every head, by name.

    Each score is a mean over the query positions for which it is defined: all except the first,
    which attends only to itself; for `duplicate_token` and `induction`, those with an earlier
    matching token. It is NaN if it is defined for none, as in a text without repeated tokens.

    Args:
        patterns: attention weights of shape (..., n_heads, n, n), queries in rows.
        ids: token ids, shape (n,).

    Returns:
        Tensors of shape (..., n_heads), in float32, or float64 for float64 patterns.

    Raises:
        DataError: shapes of patterns and ids do not match, or patterns are not floating point.

    Source: the scores of Olsson et al. 2022, "In-context Learning and Induction Heads", and Wang et
    al. 2022, "Interpretability in the Wild". They use random tokens that occur twice. For tokens
    that occur more often, as in text, we sum the weights on all earlier occurrences.

    >>> patterns = torch.tensor([[[1.0, 0, 0], [1, 0, 0], [0, 1, 0]]])
    >>> scores = head_scores(patterns, torch.tensor([5, 6, 5]))
    >>> {name: score.item() for name, score in scores.items() if name != "entropy"}
    {'previous_token': 1.0, 'duplicate_token': 0.0, 'induction': 1.0, 'first_token': 0.5,
     'distance': 1.0}
    """
    _check(patterns, ids)
    patterns = patterns.to(torch.promote_types(patterns.dtype, torch.float32))
    *heads, n, _ = patterns.shape
    templates = _templates(ids.to(patterns.device))
    # Every score except the entropy is the sum of a pattern times a template.
    columns = torch.stack([*templates.values()]).to(patterns.dtype).reshape(-1, n * n)
    summed = columns @ patterns.reshape(-1, n * n).T
    scores = dict(zip(templates, summed.reshape(-1, *heads).unbind(), strict=True))
    scores["entropy"] = _entropy(patterns)
    return {name: scores[name] for name in HEAD_SCORES}


def _check(patterns: Tensor, ids: Tensor) -> None:
    if ids.ndim != 1 or not len(ids):
        raise DataError(f"ids has the shape {tuple(ids.shape)}. Allowed: (n,), n at least 1.")
    n = len(ids)
    if patterns.ndim < 3 or patterns.shape[-2:] != (n, n) or not patterns.is_floating_point():
        raise DataError(
            f"patterns has the shape {tuple(patterns.shape)} and the dtype {patterns.dtype}. "
            f"Allowed for {n} token ids: (..., n_heads, {n}, {n}) of a floating-point dtype."
        )


def _templates(ids: Tensor) -> dict[str, Tensor]:
    """Return the coefficient of each attention weight in each score, shape (n, n)."""
    position = torch.arange(len(ids), device=ids.device)
    back = position[:, None] - position  # query position minus key position
    is_same = ids[:, None] == ids
    follows_same = torch.zeros_like(is_same)
    follows_same[:, 1:] = is_same[:, :-1]
    after_first = (position > 0)[:, None]
    return {
        "previous_token": _mean_over_rows(back == 1),
        "duplicate_token": _mean_over_rows(is_same & (back > 0)),
        "induction": _mean_over_rows(follows_same & (back > 0)),
        "first_token": _mean_over_rows((position == 0) & after_first),
        "distance": _mean_over_rows(back > 0) * back,
    }


def _mean_over_rows(counted: Tensor) -> Tensor:
    """Return 1 / (number of rows with a True entry) at True entries, 0 elsewhere; NaN if no row."""
    return counted.double() / counted.any(-1).sum()


def _entropy(patterns: Tensor) -> Tensor:
    """Return the mean entropy of each head's attention rows, without the first row.

    Heads are computed one by one to save memory.
    """
    heads = patterns.flatten(0, -3)
    means = [torch.special.entr(head[1:]).sum(-1).mean() for head in heads]
    return torch.stack(means).reshape(patterns.shape[:-2])
