"""Token rows for each training step: windows of the text, and repetitions of a short piece.

The rows of a step depend only on the seed and the step, so a resumed run reads the same rows as one
that was never interrupted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from probekit.errors import DataError
from probekit.model.passes.inputs import NOT_COUNTED
from probekit.training.recipe import RepeatsSection
from probekit.training.token_file import TokenArray

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batches:
    """Token rows of each training step.

    A row is a window of the text, or a short piece of tokens repeated to the length of a row. Each
    pass over the text begins at a new random offset, cuts the text into consecutive windows, and
    reads each of them once, in random order. Rows that repeat a piece are spread evenly among the
    windows.

    Attributes:
        tokens: token ids of the text, shape (n_tokens,).
        n_rows: rows per batch.
        n_ctx: tokens per row.
        d_vocab: vocabulary size; random pieces draw ids uniformly from 0 to d_vocab - 1.
        repeats: settings of the rows that repeat a piece.
        seed: random seed.
    """

    tokens: TokenArray
    n_rows: int
    n_ctx: int
    d_vocab: int
    repeats: RepeatsSection
    seed: int

    def __post_init__(self) -> None:
        if self.n_windows < 1:
            raise DataError(
                f"The corpus has {len(self.tokens):,} training tokens; rows of {self.n_ctx} tokens "
                f"need at least {2 * self.n_ctx}."
            )

    @property
    def n_windows(self) -> int:
        """Number of windows, of n_ctx tokens each, that one pass over the text reads.

        A pass begins at a random offset below n_ctx; this number of windows fits for every offset.
        """
        return (len(self.tokens) - self.n_ctx) // self.n_ctx

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Return input ids and targets of a step, both shape [batch pos].

        The first occurrence of a repeated piece cannot be copied from earlier tokens. Its targets
        are NOT_COUNTED.
        """
        rng = np.random.default_rng([self.seed, step])
        rows, uncounted = [], []
        for number in range(step * self.n_rows, (step + 1) * self.n_rows):
            before = self._repeats_before(number)
            if self._repeats_before(number + 1) > before:
                piece = self._piece(rng, step)
                rows.append(np.resize(piece, self.n_ctx + 1))
                uncounted.append(len(piece) - 1)
            else:
                rows.append(self._window(number - before))
                uncounted.append(0)
        ids = torch.from_numpy(np.stack(rows))
        targets = ids[:, 1:].clone()
        for row, count in enumerate(uncounted):
            targets[row, :count] = NOT_COUNTED
        return ids[:, :-1].contiguous(), targets

    def _repeats_before(self, number: int) -> int:
        """Return how many of the first `number` rows repeat a piece: the floor of summed shares."""
        first, last = self.repeats.share
        grown = min(number, self.repeats.grow_steps * self.n_rows)
        falling = (
            (first - last) * grown * (1 - grown / max(1, 2 * self.repeats.grow_steps * self.n_rows))
        )
        return math.floor(last * number + falling)

    def _window(self, number: int) -> IntArray:
        order, offset = _order(self.seed, number // self.n_windows, self.n_windows, self.n_ctx)
        start = offset + int(order[number % self.n_windows]) * self.n_ctx
        # One token more than a row: the target of the last one.
        return self.tokens[start : start + self.n_ctx + 1].astype(np.int64)

    def _piece(self, rng: np.random.Generator, step: int) -> IntArray:
        shortest, longest = self.repeats.period
        grown = min(1.0, (step + 1) / max(1, self.repeats.grow_steps))
        size = int(rng.integers(shortest, shortest + round((longest - shortest) * grown) + 1))
        if rng.random() < self.repeats.uniform:
            return rng.integers(self.d_vocab, size=size)
        start = int(rng.integers(len(self.tokens) - size))
        piece = self.tokens[start : start + size].astype(np.int64)
        return rng.permutation(piece) if rng.random() < 0.5 else piece


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, n_windows: int, n_ctx: int) -> tuple[IntArray, int]:
    """Return the order of the windows in one pass, and the token at which the first one begins."""
    rng = np.random.default_rng([seed, epoch, 0])
    return rng.permutation(n_windows), int(rng.integers(n_ctx))
