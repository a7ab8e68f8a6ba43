"""Attention patterns as one page that needs nothing else: every head, every weight."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.colors
from numpy.typing import NDArray

from probekit.errors import DataError
from probekit.report.glyphs import token_label
from probekit.report.template import render

LEVELS = np.iinfo(np.uint16).max
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

    def __post_init__(self) -> None:
        """Fill in the numbers of layers and heads.

        Raises:
            DataError: The patterns have another shape or are no attention patterns.
        """
        _check_shape(self)
        object.__setattr__(self, "layers", self.layers or tuple(range(self.patterns.shape[0])))
        object.__setattr__(self, "heads", self.heads or tuple(range(self.patterns.shape[1])))
        _check_weights(self)


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


def _check_weights(prompt: AttentionPrompt) -> None:
    patterns = prompt.patterns
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
            place = tuple(np.argwhere(where)[0].tolist())
            raise DataError(
                f"Layer {prompt.layers[place[0]]}, head {prompt.heads[place[1]]}, destination "
                f"{place[2]}, source {place[3]}: weight {patterns[place]} {problem}. "
                "Give the pattern after the causal mask and the softmax."
            )


def attention_data(prompts: Sequence[AttentionPrompt]) -> dict[str, Any]:
    """Return what the page's script reads.

    The weights are counts of 1/65535 in little-endian uint16: layer by layer, head by head, the
    lower triangle row by row.
    """
    return {
        "levels": LEVELS,
        "colours": plotly.colors.sequential.Viridis,
        "prompts": [
            {
                "text": prompt.text,
                "tokens": [token_label(token) for token in prompt.tokens],
                "layers": prompt.layers,
                "heads": prompt.heads,
                "weights": _packed(prompt.patterns),
            }
            for prompt in prompts
        ],
    }


def _packed(patterns: NDArray[np.float32]) -> str:
    rows, columns = np.tril_indices(patterns.shape[-1])
    counts = np.rint(patterns[:, :, rows, columns].clip(0, 1) * LEVELS).astype("<u2")
    return base64.b64encode(counts.tobytes()).decode()


def attention_page(
    prompts: Sequence[AttentionPrompt], *, model: str, title: str = "Attention patterns"
) -> str:
    """Return a page of HTML that draws every head of the prompts and asks nothing of a network.

    It holds 4/3 n (n + 1) bytes for each head of a prompt of n tokens: 144 heads of 100 tokens are
    2 MB, of 1,024 tokens 200 MB.

    Raises:
        DataError: There is no prompt.
    """
    if not prompts:
        raise DataError("No prompt was given, so there is no attention to draw. Give at least one.")
    return render(
        "attention_page.html", title=title, model=model, attention=attention_data(prompts)
    )
