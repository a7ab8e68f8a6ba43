"""Losses of a network in training: on held-out text and on repeated random tokens."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from probekit.errors import DataError
from probekit.model.families.gpt2 import GPT2
from probekit.model.passes.inputs import next_tokens
from probekit.training.token_file import TokenArray

ROWS_AT_ONCE = 16
N_REPEATS = 32  # rows of repeated random tokens
LONGEST_HALF = 64  # tokens


@torch.no_grad()
def held_out_loss(model: GPT2, tokens: TokenArray, rows: int | None = None) -> float:
    """Return the mean loss in nats per token over windows of held-out text, in float32.

    Windows have the length of the context and do not overlap. The first token of each is not
    predicted, and an incomplete window at the end is dropped.

    Args:
        model: any GPT-2.
        tokens: token ids of held-out text, shape (n_tokens,).
        rows: number of windows, evenly spaced; None for all.

    >>> model = GPT2.from_pretrained("mini")
    >>> bool(8 < held_out_loss(model, np.arange(2048, dtype=np.uint16)) < 30)
    True

    Raises:
        DataError: there are fewer tokens than one window.
    """
    windows = held_out_windows(tokens, model.config.n_positions)
    if rows is not None and rows < len(windows):
        windows = windows[np.arange(rows) * len(windows) // rows]
    ids = torch.from_numpy(windows.astype(np.int64)).to(model.device)
    parts = torch.split(ids, ROWS_AT_ONCE)
    return sum(model.loss(part).item() * len(part) for part in parts) / len(ids)


def held_out_windows(tokens: TokenArray, n_ctx: int) -> TokenArray:
    """Split held-out text into windows, shape [n_windows n_ctx].

    >>> held_out_windows(np.arange(10, dtype=np.uint16), 4).tolist()
    [[0, 1, 2, 3], [4, 5, 6, 7]]

    Raises:
        DataError: there are fewer tokens than one window.
    """
    windows = tokens[: len(tokens) // n_ctx * n_ctx].reshape(-1, n_ctx)
    if not len(windows):
        raise DataError(
            f"{len(tokens):,} held-out tokens do not fill one context of {n_ctx}. Increase "
            "`corpus.held_out`, or reduce the context length."
        )
    return windows


@torch.no_grad()
def repeat_losses(model: GPT2, seed: int = 0) -> tuple[float, float]:
    """Return the mean loss on random tokens, and on their repetition in the same sequence.

    The first half of a sequence is drawn uniformly from the vocabulary, and the second half repeats
    it. A half has half a context of tokens, but at most 64. The decrease in loss from the first to
    the second half measures induction.

    Source: Olsson et al. 2022, "In-context learning and induction heads".

    >>> first, second = repeat_losses(GPT2.from_pretrained("mini"))
    >>> bool(first - second > 1)
    True
    """
    length = min(LONGEST_HALF, model.config.n_positions // 2)
    rng = np.random.default_rng(seed)
    half = torch.from_numpy(rng.integers(model.config.vocab_size, size=(N_REPEATS, length)))
    ids = half.repeat(1, 2).to(model.device)
    targets = next_tokens(ids, None)
    halves: list[Tensor] = []
    for part in (slice(0, length - 1), slice(length - 1, 2 * length - 1)):
        counted = torch.full_like(targets, -100)
        counted[:, part] = targets[:, part]
        halves.append(model.loss(ids, targets=counted))
    return halves[0].item(), halves[1].item()
