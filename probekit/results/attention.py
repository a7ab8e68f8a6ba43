"""Attention patterns of a text, with validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from probekit.errors import DataError

ROW_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class AttentionPrompt:
    """The attention patterns of one text.

    Attributes:
        text: The text itself.
        tokens: Its n tokens as text, with bytes that are not valid UTF-8 written as <0xE2>.
        patterns: Weights (n_layers, n_heads, n, n) from destination (row) to source (column). Rows
            sum to 1 and weights on later tokens are 0.
        layers: The layer number of each entry of the first axis; by default 0, 1, ...
        heads: The head number of each entry of the second axis; by default 0, 1, ...
        scores: Head scores by name, each of shape (n_layers, n_heads). The page can sort heads by
            them. NaN if a score is not defined.

    >>> patterns = np.array([[1, 0], [0.4, 0.6]], dtype=np.float32)
    >>> prompt = AttentionPrompt("Hi you", ("Hi", " you"), np.tile(patterns, (1, 3, 1, 1)))
    >>> prompt.heads
    (0, 1, 2)
    """

    text: str
    tokens: tuple[str, ...]
    patterns: NDArray[np.float32]
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    scores: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Validate the patterns and set default layer and head numbers.

        Raises:
            DataError: The patterns have the wrong shape or are not attention patterns.
        """
        _check_shape(self)
        object.__setattr__(self, "layers", self.layers or tuple(range(self.patterns.shape[0])))
        object.__setattr__(self, "heads", self.heads or tuple(range(self.patterns.shape[1])))
        for number, layer in zip(self.layers, self.patterns, strict=True):
            _check_weights(layer, number, self.heads)


def _check_shape(prompt: AttentionPrompt) -> None:
    n = len(prompt.tokens)
    shape = prompt.patterns.shape
    if len(shape) != 4 or shape[2:] != (n, n) or 0 in shape:
        raise DataError(
            f"Attention patterns of shape {shape} do not match {n} tokens. "
            f"The shape must be (n_layers, n_heads, {n}, {n}), without zeros."
        )
    for name, numbers, size in (
        ("layers", prompt.layers, shape[0]),
        ("heads", prompt.heads, shape[1]),
    ):
        if numbers and len(numbers) != size:
            raise DataError(
                f"{len(numbers)} {name} {numbers} are given, but the patterns have {size}."
            )
    for name, score in prompt.scores.items():
        if score.shape != shape[:2]:
            raise DataError(
                f"The score {name!r} has shape {score.shape}, but must have shape {shape[:2]}."
            )


def _check_weights(patterns: NDArray[np.float32], layer: int, heads: tuple[int, ...]) -> None:
    sums = patterns.sum(axis=-1, dtype=np.float64, keepdims=True)
    wrong = {
        "is not finite": ~np.isfinite(patterns),
        "is negative": patterns < 0,
        "is on a later token": np.triu(patterns, k=1) != 0,
        f"is in a row that does not sum to 1 within {ROW_SUM_TOLERANCE}": np.broadcast_to(
            abs(sums - 1) > ROW_SUM_TOLERANCE, patterns.shape
        ),
    }
    for problem, where in wrong.items():
        if where.any():
            head, destination, source = np.argwhere(where)[0].tolist()
            raise DataError(
                f"Layer {layer}, head {heads[head]}, destination {destination}, source {source}: "
                f"weight {patterns[head, destination, source]} {problem}. "
                "Give the pattern after the causal mask and the softmax."
            )
