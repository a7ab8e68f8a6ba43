"""Attention patterns of a text, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from probekit.errors import DataError

ROW_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class AttentionPrompt:
    """The attention patterns of one text, checked.

    Attributes:
        text: The text itself.
        tokens: Its n tokens as text, bytes that are no UTF-8 already written as <0xE2>.
        patterns: Weights of shape (n_layers, n_heads, n, n), from destination (row) to source
            (column): rows sum to 1 and nothing looks ahead.
        layers: The layer that each entry of the first axis holds; by default 0, 1, ...
        heads: The head that each entry of the second axis holds; by default 0, 1, ...
        scores: By name, a number for every head to sort by, of shape (n_layers, n_heads); NaN
            where there is none.

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
        """Fill in the numbers of layers and heads.

        Raises:
            DataError: The patterns have another shape or are no attention patterns.
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
            f"Attention patterns of shape {shape} do not fit {n} tokens. "
            f"Allowed: (n_layers, n_heads, {n}, {n}), none of them 0."
        )
    for name, numbers, size in (
        ("layers", prompt.layers, shape[0]),
        ("heads", prompt.heads, shape[1]),
    ):
        if numbers and len(numbers) != size:
            raise DataError(
                f"{len(numbers)} {name} {numbers} were given for {size} in the patterns."
            )
    for name, score in prompt.scores.items():
        if score.shape != shape[:2]:
            raise DataError(
                f"The score {name!r} has shape {score.shape}; there are {shape[:2]} heads."
            )


def _check_weights(patterns: NDArray[np.float32], layer: int, heads: tuple[int, ...]) -> None:
    sums = patterns.sum(axis=-1, dtype=np.float64, keepdims=True)
    wrong = {
        "is not finite": ~np.isfinite(patterns),
        "is negative": patterns < 0,
        "looks ahead": np.triu(patterns, k=1) != 0,
        f"stands in a row that does not sum to 1 within {ROW_SUM_TOLERANCE}": np.broadcast_to(
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
