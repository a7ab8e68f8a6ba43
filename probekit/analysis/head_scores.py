"""What an attention head does, as numbers: its pattern held against patterns that are known."""

from __future__ import annotations

import torch
from torch import Tensor

from probekit.errors import DataError

HEAD_SCORES = {
    "previous_token": "weight on the token just before",
    "duplicate_token": "weight on earlier occurrences of the same token",
    "induction": "weight on what followed an earlier occurrence of the same token",
    "first_token": "weight on the first token",
    "entropy": "entropy of a row, in nats",
    "distance": "how many tokens back the weight lies on average",
}


def head_scores(patterns: Tensor, ids: Tensor) -> dict[str, Tensor]:
    """Return six scores of every head, by the names of `HEAD_SCORES`.

    Each is a mean over the destinations that can have it: all but the first token, which sees
    nothing but itself; for `duplicate_token` and `induction` those that have a token to look at.
    A score is NaN where no destination can have it, as for a text that repeats no token.

    Args:
        patterns: attention weights of shape (..., n_heads, n, n), destinations in rows.
        ids: the n token ids.

    Returns:
        Tensors of shape (..., n_heads), of float32 or, for float64 patterns, float64.

    Raises:
        DataError: the patterns do not fit the ids.

    Source: the scores of Olsson et al. 2022, "In-context Learning and Induction Heads", and Wang et
    al. 2022, "Interpretability in the Wild". They take random tokens that occur twice; where a
    token occurs more often, as in text, the weights on all its occurrences are added up.

    >>> looks_back = torch.tensor([[[1.0, 0, 0], [1, 0, 0], [0, 1, 0]]])
    >>> scores = head_scores(looks_back, torch.tensor([5, 6, 5]))
    >>> {name: score.item() for name, score in scores.items() if name != "entropy"}
    {'previous_token': 1.0, 'duplicate_token': 0.0, 'induction': 1.0, 'first_token': 0.5,
     'distance': 1.0}
    """
    _check(patterns, ids)
    patterns = patterns.to(torch.promote_types(patterns.dtype, torch.float32))
    *heads, n, _ = patterns.shape
    templates = _templates(ids.to(patterns.device))
    # Every score but the entropy is the sum of a pattern times a template.
    columns = torch.stack([*templates.values()]).to(patterns.dtype).reshape(-1, n * n)
    summed = columns @ patterns.reshape(-1, n * n).T
    found = dict(zip(templates, summed.reshape(-1, *heads).unbind(), strict=True))
    found["entropy"] = _entropy(patterns)
    return {name: found[name] for name in HEAD_SCORES}


def _check(patterns: Tensor, ids: Tensor) -> None:
    if ids.ndim != 1 or not len(ids):
        raise DataError(f"ids has shape {tuple(ids.shape)}; allowed is (n,), n at least 1.")
    n = len(ids)
    if patterns.ndim < 3 or patterns.shape[-2:] != (n, n) or not patterns.is_floating_point():
        raise DataError(
            f"Patterns of shape {tuple(patterns.shape)} and {patterns.dtype} do not fit {n} token "
            f"ids. Allowed: (..., n_heads, {n}, {n}) of a floating type."
        )


def _templates(ids: Tensor) -> dict[str, Tensor]:
    """Return what each weight counts for in each score, of shape (n, n)."""
    position = torch.arange(len(ids), device=ids.device)
    back = position[:, None] - position  # destination less source
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
    """Return 1 over the number of rows where anything is counted, at what is; NaN for no row."""
    return counted.double() / counted.any(-1).sum()


def _entropy(patterns: Tensor) -> Tensor:
    """Return the mean entropy of the rows after the first, one head at a time to spare memory."""
    heads = patterns.flatten(0, -3)
    means = [torch.special.entr(head[1:]).sum(-1).mean() for head in heads]
    return torch.stack(means).reshape(patterns.shape[:-2])
