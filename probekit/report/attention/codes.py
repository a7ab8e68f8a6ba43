"""Attention weights as the few bytes that a page carries: lower triangles of codes, compressed.

A weight w is kept as the code round(levels * sqrt(w)). The square root spends the codes where the
weights are: in a text of 1,024 tokens most are below 1/255, where even steps would leave nothing.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from probekit.errors import DataError
from probekit.report.attention.thumbnails import SIDE
from probekit.results.attention import AttentionPrompt

# 16 bits while the page stays small, then 8, then fewer of the 8, which compress better.
LEVELS = (65535, 255, 180, 127, 90, 63, 45, 31)
MOST_MB = 25.0
MOST_MB_OF_16_BITS = 4.0
SAMPLE = 24  # heads of a prompt whose size stands for that of all
MARGIN = 1.05  # and may be wrong by so much
PAGE_MB = 0.1  # without any prompt
BASE64 = 4 / 3


@dataclass(frozen=True)
class Reduction:
    """How exactly weights are kept, and how many megabytes their page is estimated to have.

    >>> reduction = Reduction(levels=255, estimated_mb=3.2)
    >>> reduction.error(1.0), reduction.error(0.01)
    (0.004, 0.0004)
    """

    levels: int
    estimated_mb: float

    def error(self, weight: float) -> float:
        """Return how far from the truth a weight near this one may be, to one digit."""
        half_step = (np.sqrt(weight) + 0.25 / self.levels) / self.levels
        return float(f"{half_step:.1g}")


def choose_reduction(
    prompts: Sequence[AttentionPrompt], most_mb: float = MOST_MB, *, strict: bool = True
) -> Reduction:
    """Return the most exact way to keep the weights of all prompts in a page of so many megabytes.

    Args:
        prompts: whose weights are kept.
        most_mb: what the page may have.
        strict: False keeps them, where nothing fits, in the coarsest way.

    Raises:
        DataError: Nothing fits.
    """
    for levels in LEVELS:
        allowed = min(most_mb, MOST_MB_OF_16_BITS) if levels > 255 else most_mb
        reduction = Reduction(
            levels, PAGE_MB + sum(_estimate(prompt, levels) for prompt in prompts)
        )
        if reduction.estimated_mb * MARGIN <= allowed:
            return reduction
    if not strict:
        return reduction
    raise DataError(
        f"{count_heads(prompts)} make a page of about {reduction.estimated_mb:,.1f} MB, even with "
        f"weights in {LEVELS[-1]} steps; allowed are {most_mb:g}. Choose a layer or a head, "
        "shorten the text, or allow more (--max-mb)."
    )


def count_heads(prompts: Sequence[AttentionPrompt]) -> str:
    """Return in words how many heads are shown, and of how many tokens."""
    heads = sum(len(prompt.layers) * len(prompt.heads) for prompt in prompts)
    sizes = [len(prompt.tokens) for prompt in prompts]
    least, most = min(sizes), max(sizes)
    lengths = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    return f"{heads:,} head{'s' * (heads > 1)} of {lengths} token{'s' * (most > 1)}"


def _estimate(prompt: AttentionPrompt, levels: int) -> float:
    """Return the megabytes of a prompt, from some of its heads drawn at random."""
    heads = prompt.patterns.reshape(-1, *prompt.patterns.shape[2:])
    sample = heads[np.random.default_rng(0).permutation(len(heads))[:SAMPLE]]
    mean = sum(map(len, packed_heads(sample, levels))) / len(sample)
    side = min(len(prompt.tokens), SIDE)
    small = BASE64 * 2 * side * (side + 1)  # two thumbnails and a tile of the still picture
    return len(heads) * (mean + small) / 1e6


def packed_heads(patterns: NDArray[np.float32], levels: int) -> list[str]:
    """Return each head's weights as `packed` does, for patterns of shape (n_heads, n, n)."""
    with ThreadPoolExecutor(2) as pool:  # NumPy and zlib let go of the interpreter
        return list(pool.map(partial(packed, levels=levels), patterns))


def packed(patterns: NDArray[np.float32], levels: int) -> str:
    """Return codes row by row up to the diagonal, deflated and in base64.

    They are uint8, or little-endian uint16 for more than 255 levels.

    Args:
        patterns: weights of shape (..., n, n).
        levels: the code of weight 1.

    >>> text = packed(np.array([[1, 0], [0.36, 0.64]], dtype=np.float32), levels=255)
    >>> list(zlib.decompress(base64.b64decode(text)))
    [255, 153, 204]
    """
    triangles = patterns[..., np.tri(patterns.shape[-1], dtype=bool)]
    codes = np.rint(np.sqrt(triangles.clip(0, 1)) * levels)
    content = codes.astype("<u2" if levels > 255 else "u1").tobytes()
    return base64.b64encode(zlib.compress(content, 6)).decode()
