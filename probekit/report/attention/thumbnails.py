"""Thumbnails of attention heads, for the grid of all heads and for pages without JavaScript."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from probekit.report.attention.colours import attention_colours

SIDE = 48  # largest side in pixels; longer texts are max-pooled
# Palette of the static image, 256 entries: weights, then gaps between tiles and masked cells.
_N_WEIGHTS, _BETWEEN, _MASKED = 254, 254, 255
_WHITE, _GREY = (255, 255, 255), (217, 221, 226)


def with_summaries(patterns: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the heads of a layer, followed by their mean and maximum if there are several.

    >>> heads = np.array([[[1, 0], [0.25, 0.75]], [[1, 0], [0.5, 0.5]]], dtype=np.float32)
    >>> with_summaries(heads)[2:, 1].tolist()
    [[0.375, 0.625], [0.5, 0.75]]
    """
    if len(patterns) == 1:
        return patterns
    return np.concatenate([patterns, patterns.mean(0)[None], patterns.max(0)[None]])


def without_first(patterns: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return patterns without the weights on the first token, with rows renormalised to sum to 1.

    A row without any other weight, such as the first, is all 0.

    >>> without_first(np.array([[[1, 0, 0], [0.5, 0.5, 0], [0.5, 0.2, 0.3]]], np.float32)).tolist()
    [[[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.4..., 0.6...]]]
    """
    rest = patterns.copy()
    rest[..., 0] = 0
    sums: NDArray[np.float32] = rest.sum(-1, keepdims=True)
    sums[sums == 0] = 1
    return rest / sums


def thumbnails(patterns: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return patterns of shape (..., n, n) max-pooled to at most `SIDE` pixels per side.

    >>> thumbnails(np.eye(96, dtype=np.float32)[None]).shape
    (1, 48, 48)
    """
    n = patterns.shape[-1]
    side = min(n, SIDE)
    edges = np.arange(side) * n // side
    across = np.maximum.reduceat(patterns, edges, axis=-1)
    return np.maximum.reduceat(across, edges, axis=-2)


def still_picture(layers: NDArray[np.float32]) -> str:
    """Return a base64-encoded PNG of thumbnails in a grid: layers downwards, heads across.

    Colour is proportional to the square root of the weight; masked cells are grey.

    Args:
        layers: thumbnails of shape (n_layers, n_heads, side, side).
    """
    side = layers.shape[-1]
    codes = np.rint(np.sqrt(layers.clip(0, 1)) * (_N_WEIGHTS - 1)).astype(np.uint8)
    codes[..., ~np.tri(side, dtype=bool)] = _MASKED
    gap = max(1, side // 12)
    tiles = np.pad(codes, ((0, 0), (0, 0), (0, gap), (0, gap)), constant_values=_BETWEEN)
    n_layers, n_heads, height, width = tiles.shape
    pixels = tiles.transpose(0, 2, 1, 3).reshape(n_layers * height, n_heads * width)
    return base64.b64encode(_png(pixels, _palette())).decode()


def _palette() -> bytes:
    stops = np.array(attention_colours()["weights"]["light"])
    points = np.linspace(0, len(stops) - 1, _N_WEIGHTS)
    channels = [np.interp(points, np.arange(len(stops)), channel) for channel in stops.T]
    return np.rint(channels).T.astype(np.uint8).tobytes() + bytes(_WHITE + _GREY)


def _png(pixels: NDArray[np.uint8], palette: bytes) -> bytes:
    """Return a PNG of one palette byte per pixel. Source: PNG specification, sections 5 and 11."""

    def chunk(name: bytes, content: bytes) -> bytes:
        body = name + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    height, width = pixels.shape
    rows = np.pad(pixels, ((0, 0), (1, 0)))  # each row starts with its filter type: 0, none
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(name, content)
        for name, content in (
            (b"IHDR", header),
            (b"PLTE", palette),
            (b"IDAT", zlib.compress(rows.tobytes(), 9)),
            (b"IEND", b""),
        )
    )
