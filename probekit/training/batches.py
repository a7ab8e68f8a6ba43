"""The rows of each step: windows of the text, and short pieces repeated over and over.

Which rows a step reads follows from seed and step alone, so a resumed run reads on as if it had
never stopped.
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
from probekit.model.inputs import NOT_COUNTED
from probekit.training.recipe import RepeatsSection
from probekit.training.token_file import TokenArray

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batches:
    """What a run reads at each step.

    Every window of the text is read once before any is read again, in an order and from an
    offset that are drawn anew for each pass; the repeated rows stand evenly among them.

    Attributes:
        tokens: of the text, shape (n_tokens,).
        n_rows: of a batch.
        n_ctx: tokens of a row.
        d_vocab: ids to draw evenly from are 0 to d_vocab - 1.
        repeats: share and kind of repeated pieces.
        seed: of all draws.
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
                f"The corpus has {len(self.tokens):,} tokens to learn from; a row of "
                f"{self.n_ctx} needs {2 * self.n_ctx} or more."
            )

    @property
    def n_windows(self) -> int:
        """How many rows of text one pass over the corpus has, whatever its offset."""
        return (len(self.tokens) - self.n_ctx) // self.n_ctx

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the tokens of a step and what each should predict, both [batch pos].

        The first appearance of a repeated piece cannot be predicted and is not counted.
        """
        draw = np.random.default_rng([self.seed, step])
        rows, uncounted = [], []
        for number in range(step * self.n_rows, (step + 1) * self.n_rows):
            before = self._repeats_before(number)
            if self._repeats_before(number + 1) > before:
                piece = self._piece(draw, step)
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
        """Return how many of the rows before one are repeated: the sum of their shares."""
        first, last = self.repeats.share
        grown = min(number, self.repeats.grow_steps * self.n_rows)
        falling = (
            (first - last) * grown * (1 - grown / max(1, 2 * self.repeats.grow_steps * self.n_rows))
        )
        return math.floor(last * number + falling)

    def _window(self, number: int) -> IntArray:
        order, offset = _order(self.seed, number // self.n_windows, self.n_windows, self.n_ctx)
        start = offset + int(order[number % self.n_windows]) * self.n_ctx
        # One token more than a row: what its last one should predict.
        return self.tokens[start : start + self.n_ctx + 1].astype(np.int64)

    def _piece(self, draw: np.random.Generator, step: int) -> IntArray:
        shortest, longest = self.repeats.period
        grown = min(1.0, (step + 1) / max(1, self.repeats.grow_steps))
        size = int(draw.integers(shortest, shortest + round((longest - shortest) * grown) + 1))
        if draw.random() < self.repeats.uniform:
            return draw.integers(self.d_vocab, size=size)
        start = int(draw.integers(len(self.tokens) - size))
        piece = self.tokens[start : start + size].astype(np.int64)
        return draw.permutation(piece) if draw.random() < 0.5 else piece


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, n_windows: int, n_ctx: int) -> tuple[IntArray, int]:
    """Return the order of the windows in one pass over the text, and where the first begins."""
    draw = np.random.default_rng([seed, epoch, 0])
    return draw.permutation(n_windows), int(draw.integers(n_ctx))
