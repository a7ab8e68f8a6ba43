"""The attention explorer: a self-contained page for browsing the pattern of every head."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import DataError, path_of
from probekit.files import write_atomic
from probekit.report.attention.packing import (
    MOST_MB,
    SIDE,
    Reduction,
    attention_colours,
    choose_reduction,
    count_heads,
    packed,
    packed_heads,
    scores_beyond_distance,
    still_picture,
    thumbnails,
    with_summaries,
    without_first,
)
from probekit.report.pages.heads_page import SCORES
from probekit.report.pages.page import Page, View
from probekit.report.texts import token_label
from probekit.results.network import AttentionPrompt

THUMBNAIL_LEVELS = 255
SCORE_NAMES = {name: f"{score.title.lower()}{score.unit}" for name, score in SCORES.items()}
EXPLORER_STYLES = ("attention/explorer.css",)
_PARTS = "data colours sheet box matrix lines text grid words picture state explorer"
EXPLORER_SCRIPTS = tuple(f"attention/{name}.js" for name in _PARTS.split())  # in order, one module
OPENING_SCORE = "beyond_distance"  # the page opens on the head with the largest one


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
        """The head that the page opens on, and why, as a sentence; "" if there is no choice."""
        prompt = self.prompts[0]
        scores = scores_beyond_distance(prompt.patterns)
        n_heads = scores.size
        if np.isnan(scores).all() or n_heads == 1:
            return ""
        layer, head = np.unravel_index(int(np.nanargmax(scores)), scores.shape)
        return (
            f"The page opens on L{prompt.layers[layer]}H{prompt.heads[head]}: of {n_heads} heads, "
            "its attention depends least on distance alone (beyond distance "
            f"{scores[layer, head]:.2f})."
        )

    def page(self) -> str:
        """Return the page as HTML."""
        data = attention_data(self.prompts, self.model, self.reduction)
        return Page(
            eyebrow=["probekit", self.model],
            title=f"Attention of {self.model}",
            answer="",
            sections=[View("attention/explorer.html", {"attention": data})],
            styles=("attention/page.css", *EXPLORER_STYLES),
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


def attention_data(
    prompts: Sequence[AttentionPrompt], model: str, reduction: Reduction
) -> dict[str, Any]:
    """Return the JSON data of the explorer's template and script.

    Thumbnails are packed like weights: for each layer the heads, then their mean and maximum; once
    with and once without the first token.
    """
    return {
        "model": model,
        "levels": reduction.levels,
        "errors": [f"{reduction.error(weight):.6f}".rstrip("0") for weight in (1, 0.01)],
        "thumbnail": {"levels": THUMBNAIL_LEVELS, "side": SIDE},
        "colours": attention_colours(),
        # Pairs, because the page keeps their order.
        "scores": [*SCORE_NAMES.items(), (OPENING_SCORE, "beyond distance")],
        "opening": OPENING_SCORE,
        "prompts": [_prompt_data(prompt, reduction.levels) for prompt in prompts],
    }


def _prompt_data(prompt: AttentionPrompt, levels: int) -> dict[str, Any]:
    plain = np.stack([thumbnails(with_summaries(layer)) for layer in prompt.patterns])
    rest = np.stack([thumbnails(with_summaries(without_first(layer))) for layer in prompt.patterns])
    scores = {**prompt.scores, OPENING_SCORE: scores_beyond_distance(prompt.patterns)}
    return {
        "text": prompt.text,
        "tokens": [token_label(token) for token in prompt.tokens],
        "layers": prompt.layers,
        "heads": prompt.heads,
        "scores": {name: _finite(score) for name, score in scores.items()},
        "weights": [packed_heads(layer, levels) for layer in prompt.patterns],
        "thumbnails": [packed(small, THUMBNAIL_LEVELS) for small in (plain, rest)],
        "still": still_picture(plain),
    }


def _finite(score: NDArray[np.float32]) -> list[list[float | None]]:
    """Return scores with six significant digits, and None for non-finite ones, which JSON lacks."""
    return [[float(f"{x:.6g}") if np.isfinite(x) else None for x in row] for row in score]
