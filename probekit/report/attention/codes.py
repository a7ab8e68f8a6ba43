"""Compression of attention weights for a page: quantised lower triangles, deflated.

A weight w is stored as the code round(levels * sqrt(w)). The square root gives small weights more
codes: in a text of 1,024 tokens most are below 1/255 and linear steps would round them to 0.
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
from probekit.results.network import AttentionPrompt

# 16 bits for small pages, then 8 bits, then fewer levels in 8 bits, which compress better.
LEVELS = (65535, 255, 180, 127, 90, 63, 45, 31)
MOST_MB = 25.0
MOST_MB_OF_16_BITS = 4.0
SAMPLE = 24  # heads per prompt that are compressed to estimate the page size
MARGIN = 1.05  # factor by which a page may exceed that estimate
PAGE_MB = 0.1  # size of a page without prompts
BASE64 = 4 / 3


@dataclass(frozen=True)
class Reduction:
    """Number of quantisation levels for attention weights, and the estimated page size in MB.

    >>> reduction = Reduction(levels=255, estimated_mb=3.2)
    >>> reduction.error(1.0), reduction.error(0.01)
    (0.004, 0.0004)
    """

    levels: int
    estimated_mb: float

    def error(self, weight: float) -> float:
        """Return the largest quantisation error of a weight of this size, to one digit."""
        half_step = (np.sqrt(weight) + 0.25 / self.levels) / self.levels
        return float(f"{half_step:.1g}")


def choose_reduction(
    prompts: Sequence[AttentionPrompt], most_mb: float = MOST_MB, *, strict: bool = True
) -> Reduction:
    """Return the finest quantisation with which a page of all prompts stays within a size limit.

    Args:
        prompts: prompts whose attention weights are stored.
        most_mb: largest page size in megabytes.
        strict: If False, return the coarsest quantisation instead of raising when nothing fits.

    Raises:
        DataError: The page exceeds the limit at every quantisation.
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
        f"{count_heads(prompts)} need a page of about {reduction.estimated_mb:,.1f} MB, even with "
        f"weights quantised to {LEVELS[-1]} levels; the limit is {most_mb:g} MB. Choose one layer "
        "or head, shorten the text, or raise the limit (--max-mb)."
    )


def count_heads(prompts: Sequence[AttentionPrompt]) -> str:
    """Return the number of heads and tokens as a phrase, such as "12 heads of 5 to 30 tokens"."""
    heads = sum(len(prompt.layers) * len(prompt.heads) for prompt in prompts)
    sizes = [len(prompt.tokens) for prompt in prompts]
    least, most = min(sizes), max(sizes)
    lengths = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    return f"{heads:,} head{'s' * (heads > 1)} of {lengths} token{'s' * (most > 1)}"


def _estimate(prompt: AttentionPrompt, levels: int) -> float:
    """Return the estimated megabytes of a prompt, from a random sample of its heads."""
    heads = prompt.patterns.reshape(-1, *prompt.patterns.shape[2:])
    sample = heads[np.random.default_rng(0).permutation(len(heads))[:SAMPLE]]
    mean = sum(map(len, packed_heads(sample, levels))) / len(sample)
    side = min(len(prompt.tokens), SIDE)
    small = BASE64 * 2 * side * (side + 1)  # two thumbnails and a tile of the static image
    return len(heads) * (mean + small) / 1e6


def packed_heads(patterns: NDArray[np.float32], levels: int) -> list[str]:
    """Return `packed` weights of each head, for patterns of shape (n_heads, n, n)."""
    with ThreadPoolExecutor(2) as pool:  # NumPy and zlib release the GIL
        return list(pool.map(partial(packed, levels=levels), patterns))


def packed(patterns: NDArray[np.float32], levels: int) -> str:
    """Return the codes of the lower triangle, row by row, deflated and base64-encoded.

    Codes are uint8, or little-endian uint16 for more than 255 levels.

    Args:
        patterns: attention weights of shape (..., n, n).
        levels: the largest code, which encodes weight 1.

    >>> text = packed(np.array([[1, 0], [0.36, 0.64]], dtype=np.float32), levels=255)
    >>> list(zlib.decompress(base64.b64decode(text)))
    [255, 153, 204]
    """
    triangles = patterns[..., np.tri(patterns.shape[-1], dtype=bool)]
    codes = np.rint(np.sqrt(triangles.clip(0, 1)) * levels)
    content = codes.astype("<u2" if levels > 255 else "u1").tobytes()
    return base64.b64encode(zlib.compress(content, 6)).decode()
