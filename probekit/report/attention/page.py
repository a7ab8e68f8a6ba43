"""The attention explorer: a self-contained page for browsing the pattern of every head."""

from __future__ import annotations

import base64
import html
import struct
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import plotly.colors
from numpy.typing import NDArray

from probekit.errors import DataError, path_of
from probekit.files import write_atomic
from probekit.report.elements.page import Page, View
from probekit.report.elements.style import MAGNITUDES, SIGNED
from probekit.report.elements.texts import quote, token_label
from probekit.report.elements.tokens import attention_answer, strongest_cell
from probekit.results.network import HEAD_TEXTS, AttentionPrompt

THUMBNAIL_LEVELS = 255
SCORE_NAMES = {name: f"{score.title.lower()}{score.unit}" for name, score in HEAD_TEXTS.items()}
EXPLORER_STYLES = ("attention/explorer.css",)
_PARTS = "data colours sheet box matrix lines text grid words picture state explorer"
EXPLORER_SCRIPTS = tuple(f"attention/{name}.js" for name in _PARTS.split())  # in order, one module
OPENING_SCORE = "beyond_average"  # the page opens on the head with the largest one
# 16 bits for small pages, then 8 bits, then fewer levels in 8 bits, which compress better.
LEVELS = (65535, 255, 180, 127, 90, 63, 45, 31)
MOST_MB = 25.0
MOST_MB_OF_16_BITS = 4.0
SAMPLE = 24  # heads per prompt that are compressed to estimate the page size
MARGIN = 1.05  # factor by which a page may exceed that estimate
PAGE_MB = 0.1  # size of a page without prompts
BASE64 = 4 / 3
# Signed values on dark pages: equally light at both ends, dark in the middle.
_IN_THE_DARK = "#dcd6f7 #a99fd6 #6f62a8 #3b3360 #20262e #55301f #96562f #d98d56 #ffd2b0"
SIDE = 48  # largest side in pixels; longer texts are max-pooled
# Palette of the static image, 256 entries: weights, then gaps between tiles and masked cells.
_N_WEIGHTS, _BETWEEN, _MASKED = 254, 254, 255
_WHITE, _GREY = (255, 255, 255), (217, 221, 226)
_FIRST_QUERY = 2  # earlier ones have no choice between tokens other than the first


@dataclass(frozen=True)
class AttentionExplorer:
    """Self-contained page of attention patterns, which notebooks display inline.

    In a notebook each explorer is a sandboxed frame without access to the notebook, so several can
    be shown at once. Nothing is fetched from a network.

    Attributes:
        prompts: prompts and their attention patterns.
        model: display name of the model.
        reduction: quantisation of the weights and estimated page size.

    >>> pattern = np.array([[[[1, 0], [0.4, 0.6]]]], dtype=np.float32)
    >>> prompt = AttentionPrompt("Hi you", ("Hi", " you"), pattern)
    >>> explorer = AttentionExplorer.of([prompt], "mini")
    >>> explorer.reduction.levels
    65535
    """

    prompts: Sequence[AttentionPrompt]
    model: str
    reduction: Reduction

    @classmethod
    def of(
        cls, prompts: Sequence[AttentionPrompt], model: str, *, most_mb: float = MOST_MB
    ) -> AttentionExplorer:
        """Return the explorer of these prompts, with the finest quantisation within the size limit.

        Args:
            prompts: prompts and their attention patterns.
            model: display name of the model.
            most_mb: largest page size in megabytes.

        Raises:
            DataError: There is no prompt, or the page exceeds the limit at every quantisation.
        """
        if not prompts:
            raise DataError("No prompt given, so there is no attention to draw. Pass at least one.")
        return cls(tuple(prompts), model, choose_reduction(prompts, most_mb))

    @property
    def estimate(self) -> str:
        """Estimated size and contents of the page, as a sentence."""
        return f"About {self.reduction.estimated_mb:,.1f} MB: {count_heads(self.prompts)}."

    @property
    def opening(self) -> str:
        """The mean weight on the first token, and the strongest cell of the opening head.

        It is "" if there is only one head, or if the first text is too short for such a cell.
        """
        return attention_answer(self.prompts, opening_score(self.prompts[0])[1])

    def page(self) -> str:
        """Return the page as HTML."""
        data = attention_data(self.prompts, self.model, self.reduction)
        first = {prompt.tokens[0] for prompt in self.prompts}
        first_token = [f"first token {quote(token)}" for token in first] if len(first) == 1 else []
        return Page(
            eyebrow=["probekit", self.model, *first_token],
            title=f"Which tokens do the heads of {self.model} attend to?",
            answer=self.opening,
            sections=[View("attention/explorer.html", {"attention": data})],
            styles=EXPLORER_STYLES,
            scripts=[EXPLORER_SCRIPTS],
        ).html()

    def save(self, path: Path | str) -> Path:
        """Write the page and return its path.

        Raises:
            ConfigError: `path` is not a path.
            StoreError: The page cannot be written.
        """
        out = path_of("path", path)
        write_atomic(out, self.page())
        return out

    def __repr__(self) -> str:
        """Return a line of text, for places that show no HTML."""
        return (
            f"Attention of {self.model}: {count_heads(self.prompts)}. Write the page with "
            'save("attention.html").'
        )

    def _repr_html_(self) -> str:
        return (
            '<iframe sandbox="allow-scripts allow-downloads" allow="clipboard-write" '
            'title="Attention patterns" '
            'style="width: 100%; height: 60rem; border: 0" '
            f'srcdoc="{html.escape(self.page())}"></iframe>'
        )


def opening_score(prompt: AttentionPrompt) -> tuple[str, NDArray[np.float32]]:
    """Return the score whose highest head a page opens on: its name, and that of each head.

    It is the induction score if the text repeats two tokens in a row, which only content explains.
    """
    if "induction" in prompt.scores and len({*pairwise(prompt.tokens)}) < len(prompt.tokens) - 1:
        return "induction", prompt.scores["induction"]
    return OPENING_SCORE, scores_beyond_average(prompt.patterns)


def attention_data(
    prompts: Sequence[AttentionPrompt], model: str, reduction: Reduction
) -> dict[str, Any]:
    """Return the JSON data of the explorer's template and script.

    Thumbnails are packed like weights: for each layer the heads, then, of several, their mean and
    maximum; once with and once without the first token.
    """
    shown = []
    for prompt in prompts:
        small = np.stack([thumbnails(with_summaries(layer)) for layer in prompt.patterns])
        rest = [thumbnails(with_summaries(without_first(layer))) for layer in prompt.patterns]
        scores = {**prompt.scores, OPENING_SCORE: scores_beyond_average(prompt.patterns)}
        data: dict[str, Any] = {"text": prompt.text, "layers": prompt.layers, "heads": prompt.heads}
        data["tokens"] = [token_label(token) for token in prompt.tokens]
        # Six significant digits, and None for non-finite scores, which JSON lacks.
        data["scores"] = {
            name: [[float(f"{x:.6g}") if np.isfinite(x) else None for x in row] for row in score]
            for name, score in scores.items()
        }
        data["weights"] = [packed_heads(layer, reduction.levels) for layer in prompt.patterns]
        data["thumbnails"] = [packed(one, THUMBNAIL_LEVELS) for one in (small, np.stack(rest))]
        shown.append(data | {"still": still_picture(small)})
    page = {"model": model, "levels": reduction.levels, "prompts": shown}
    page["opening"], opening = opening_score(prompts[0])
    page["named"] = strongest_cell(prompts[0], opening)
    page["errors"] = [f"{reduction.error(weight):.6f}".rstrip("0") for weight in (1, 0.01)]
    page["thumbnail"] = {"levels": THUMBNAIL_LEVELS, "side": SIDE}
    # Pairs, because the page keeps their order.
    page["scores"] = [*SCORE_NAMES.items(), (OPENING_SCORE, "beyond average")]
    return page | {"colours": attention_colours()}


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
        # The root r of a weight is stored with an error of at most h = 0.5 / levels, so the weight
        # has an error of at most (r + h)² - r² = 2 h (r + h / 2) = (r + 0.25 / levels) / levels.
        return float(f"{(np.sqrt(weight) + 0.25 / self.levels) / self.levels:.1g}")


def choose_reduction(
    prompts: Sequence[AttentionPrompt], most_mb: float = MOST_MB, *, strict: bool = True
) -> Reduction:
    """Return the finest quantisation with which a page of all prompts stays within a size limit.

    With 16 bits, the limit is at most `MOST_MB_OF_16_BITS`.

    Args:
        prompts: prompts whose attention weights are stored.
        most_mb: largest page size in megabytes.
        strict: If False, return the coarsest quantisation instead of raising when nothing fits.

    Raises:
        DataError: The page exceeds the limit at every quantisation.
    """
    for levels in LEVELS:
        allowed = min(most_mb, MOST_MB_OF_16_BITS) if levels > 255 else most_mb
        sizes = []
        for prompt in prompts:
            # The heads of all layers, one after the other, and a random sample of them.
            heads = prompt.patterns.reshape(-1, *prompt.patterns.shape[2:])
            sample = heads[np.random.default_rng(0).permutation(len(heads))[:SAMPLE]]
            weights_size = sum(map(len, packed_heads(sample, levels))) / len(sample)
            side = min(len(prompt.tokens), SIDE)
            # For each head two thumbnails, triangles of side * (side + 1) / 2 codes, and a tile of
            # the static image of about side * (side + 1) pixels: 2 * side * (side + 1) bytes.
            sizes.append(len(heads) * (weights_size + BASE64 * 2 * side * (side + 1)) / 1e6)
        reduction = Reduction(levels, estimated_mb=PAGE_MB + sum(sizes))
        if reduction.estimated_mb * MARGIN <= allowed:
            return reduction
    # No quantisation makes the page small enough; `reduction` is the coarsest one.
    if not strict:
        return reduction
    raise DataError(
        f"{count_heads(prompts)} need a page of about {reduction.estimated_mb:,.1f} MB, even with "
        f"weights quantised to {LEVELS[-1]} levels; the limit is {most_mb:g} MB. Choose one layer "
        "or head, shorten the text, or raise the limit (--max-mb)."
    )


def count_heads(prompts: Sequence[AttentionPrompt]) -> str:
    """Return the number of heads and tokens, such as "12 heads × 2 texts of 5 to 30 tokens"."""
    counts = {len(prompt.layers) * len(prompt.heads) for prompt in prompts}
    sizes = [len(prompt.tokens) for prompt in prompts]
    least, most = min(sizes), max(sizes)
    lengths = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    texts = f" × {len(prompts):,} texts" if len(prompts) > 1 else ""
    heads = " or ".join(f"{n:,}" for n in sorted(counts))  # texts may have different heads
    ends = ["" if counts == {1} else "s", "" if most == 1 else "s"]
    return f"{heads} head{ends[0]}{texts} of {lengths} token{ends[1]}"


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


def attention_colours() -> dict[str, dict[str, list[list[int]]]]:
    """Return the stops of each colour scale as RGB from 0 to 255, for light and dark pages.

    >>> attention_colours()["weights"]["light"][0]
    [254, 245, 244]
    """
    weights = _stops(MAGNITUDES)
    light, dark = map(_stops, (SIGNED, _IN_THE_DARK.split()))
    return {
        "weights": {"light": weights, "dark": weights[::-1]},
        "differences": {"light": light, "dark": dark},
    }


def _stops(colours: Sequence[str]) -> list[list[int]]:
    """Return colours as red, green and blue; Plotly writes some as rgb(...), others as #..."""
    converted, _ = plotly.colors.convert_colors_to_same_type(list(colours))
    return [list(map(int, plotly.colors.unlabel_rgb(colour))) for colour in converted]


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
    starts = np.arange(side) * n // side  # first token of each pixel
    return np.maximum.reduceat(np.maximum.reduceat(patterns, starts, axis=-1), starts, axis=-2)


def still_picture(layers: NDArray[np.float32]) -> str:
    """Return a base64-encoded PNG of thumbnails in a grid: layers downwards, heads across.

    Colour is proportional to the square root of the weight; masked cells are grey.

    Args:
        layers: thumbnails of shape (n_layers, n_heads, side, side).
    """
    side = layers.shape[-1]
    codes = np.rint(np.sqrt(layers.clip(0, 1)) * (_N_WEIGHTS - 1)).astype(np.uint8)
    codes[..., ~np.tri(side, dtype=bool)] = _MASKED
    gap = max(1, side // 12)  # small next to a tile, but at least a pixel
    tiles = np.pad(codes, ((0, 0), (0, 0), (0, gap), (0, gap)), constant_values=_BETWEEN)
    n_layers, n_heads, tile_height, tile_width = tiles.shape
    # One picture: the tiles of a layer next to one another, and the layers below one another.
    pixels = tiles.transpose(0, 2, 1, 3).reshape(n_layers * tile_height, n_heads * tile_width)
    stops = np.array(_stops(MAGNITUDES))
    points = np.linspace(0, len(stops) - 1, _N_WEIGHTS)
    channels = [np.interp(points, np.arange(len(stops)), channel) for channel in stops.T]
    palette = np.rint(channels).T.astype(np.uint8).tobytes() + bytes(_WHITE + _GREY)
    # A PNG of one palette byte per pixel. Source: PNG specification, sections 5 and 11.

    def chunk(name: bytes, content: bytes) -> bytes:
        """Return the bytes of a chunk: length of the content, name, content, and checksum."""
        body = name + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    height, width = pixels.shape
    rows = np.pad(pixels, ((0, 0), (1, 0)))  # each row starts with its filter type: 0, none
    # 8 bits per pixel, colours of type 3 (palette), the only compression and filter methods (0),
    # not interlaced (0).
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"PLTE", palette)
    chunks += chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunks).decode()


def scores_beyond_average(patterns: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return by how much the largest weights of each head exceed its means for distance and key.

    The mean weight at a distance, over all other queries, is what a head that attends by relative
    position alone would give; the mean weight on a key, what a head that reads the same token from
    everywhere would give, such as a full stop. The score is the largest excess of each query over
    the larger one of both means, 0 if there is none, averaged over the queries from the third on.
    Weights on the first token are left out. One text cannot show whether a weight is due to content
    or to absolute position.

    Args:
        patterns: attention weights of shape (n_layers, n_heads, n, n), queries in rows.

    Returns:
        Scores of shape (n_layers, n_heads); NaN for texts of fewer than three tokens.

    >>> previous, single = np.eye(4, k=-1, dtype=np.float32), np.eye(4, dtype=np.float32)
    >>> single[3] = [0, 1, 0, 0]  # excess 0.5 at query 2 and at query 3
    >>> scores_beyond_average(np.stack([[previous, single]])).tolist()
    [[0.0, 0.5]]
    """
    scores = np.full(patterns.shape[:2], np.nan, np.float32)
    # Queries and keys without the first token.
    queries, keys = np.tril_indices(patterns.shape[-1] - 1)
    if len(queries) < _FIRST_QUERY:
        return scores
    # Groups of weights by distance and by key, and the number of others in the group of each.
    groups = [(g, np.maximum(np.bincount(g)[g] - 1, 1)) for g in (queries - keys, keys)]
    for place in np.ndindex(scores.shape):  # one head at a time, to save memory
        weights = patterns[place][1:, 1:][queries, keys].astype(np.float64)
        means = [(np.bincount(g, weights)[g] - weights) / n_others for g, n_others in groups]
        excess = weights - np.maximum(*means)
        largest = np.maximum.reduceat(excess, np.flatnonzero(keys == 0))  # of each query
        scores[place] = largest[_FIRST_QUERY - 1 :].clip(0).mean()
    return scores
