"""Tokens of texts that a network reads, as pages and terminals show them: labels and colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probekit.report.elements.texts import quote, token_label
from probekit.results.network import AttentionPrompt, RowPrediction, TextReading

LONGEST_TEXT = 9  # characters of a token that fit into a cell
LONGEST_HEADING = 100  # characters of a text

# Of negative and positive values, as in the maps: two classes, and bars of contributions.
# Distinguishable for colour-blind readers, and legible when mixed with a black or white background.
LOW, HIGH = "#8073AC", "#B35806"
NUMBER = "#009E73"
# Source: the qualitative scheme "Safe" of CARTOColors, made for colour-blind readers.
_SAFE = "#88CCEE #CC6677 #DDCC77 #117733 #332288 #AA4499 #44AA99 #999933 #882255 #661100 #888888"
HUES = tuple(_SAFE.split())
# Opacity of the strongest colour on the background.
DENSEST = 0.55
# Quantile of the scores at the end of the colour scale; larger scores are clipped.
TYPICAL = 0.95


def short_label(token: str, most: int = LONGEST_TEXT) -> str:
    """Return a token in visible characters, truncated to fit into a cell.

    >>> short_label(" the"), short_label(" incomprehensible"), short_label(" incomprehensible", 7)
    ('␣the', '␣incompr…', '␣incom…')
    """
    label = token_label(token)
    return label if len(label) <= most else f"{label[: most - 1]}…"


def short_heading(text: str, *, keeps_end: bool = False) -> str:
    """Return a text of at most `LONGEST_HEADING` characters; a long text is cut at one end.

    Args:
        text: The text.
        keeps_end: Whether the end of a long text is kept instead of its beginning.

    >>> short = short_heading("a" * 100 + "b", keeps_end=True)
    >>> len(short), short[0], short[-2:]
    (100, '…', 'ab')
    """
    if len(text) <= LONGEST_HEADING:
        return text
    n = LONGEST_HEADING - 1
    return f"…{text[-n:]}" if keeps_end else f"{text[:n]}…"


def strongest_cell(prompt: AttentionPrompt, scores: NDArray[np.float32]) -> tuple[int, ...]:
    """Return layer, head, query and key of the strongest cell of the head with the highest score.

    The key is neither the first token, nor the query or the token before it. The result is () if
    there is only one head, the text has fewer than four tokens, or all these weights are 0.

    Args:
        prompt: a text with the patterns of its heads.
        scores: scores of the heads, shape (n_layers, n_heads).
    """
    if scores.size == 1 or len(prompt.tokens) < 4:
        return ()
    place = np.unravel_index(np.nanargmax(scores), scores.shape)
    far = np.tril(prompt.patterns[place][:, 1:], -3)  # keys from the second token on
    query, key = np.unravel_index(far.argmax(), far.shape)
    return tuple(map(int, (*place, query, key + 1))) if far.max() > 0 else ()


def attention_answer(prompts: Sequence[AttentionPrompt], scores: NDArray[np.float32]) -> str:
    """Return the mean weight on the first token and the `strongest_cell`, as a sentence.

    Args:
        prompts: texts with their patterns; a second one has its weight in the same cell.
        scores: scores of the heads in the first text; see `strongest_cell`.
    """
    prompt = prompts[0]
    if not (cell := strongest_cell(prompt, scores)):
        return ""
    first = 100 * prompt.patterns[:, :, 1:, 0].mean(dtype=np.float64)
    query, key = (quote(prompt.tokens[at]) for at in cell[2:])
    same = [p.patterns[cell] for p in prompts[1:2] if p.patterns.shape == prompt.patterns.shape]
    opening = "In prompt 1, over" if len(prompts) > 1 else "Over"
    other = "".join(f" In prompt 2, the weight at this place is {weight:.2f}." for weight in same)
    return (
        f"{opening} all heads, {first:.0f} % of the attention of later tokens goes to the first "
        f"one. In L{prompt.layers[cell[0]]}H{prompt.heads[cell[1]]}, {query} gives {key} "
        f"{prompt.patterns[cell]:.2f}, the head's largest weight on a token other than the first, "
        f"the previous and itself.{other}"
    )


@dataclass(frozen=True)
class Paint:
    """Colour of a token: a hue as #rrggbb, and its strength from 0 to 1."""

    hue: str
    strength: float

    @property
    def on_white(self) -> str:
        """The colour over white, light enough for black ink.

        >>> Paint("#000000", 1.0).on_white, Paint("#000000", 0.0).on_white
        ('#737373', '#ffffff')
        """
        return "#" + "".join(
            f"{round(255 + (part - 255) * DENSEST * self.strength):02x}"
            for part in bytes.fromhex(self.hue[1:])
        )


@dataclass(frozen=True)
class Palette:
    """Mapping from the predictions of one probe to colours.

    Two classes use a scale that diverges at score 0; more classes have one hue each; regression
    uses one hue whose strength increases with the value.

    Attributes:
        classes: class names of the probe; empty for regression.
        low: score of the weakest colour for regression; 0 for classification.
        high: score of the strongest colour.
    """

    classes: tuple[str, ...]
    low: float
    high: float

    @classmethod
    def of(cls, texts: Iterable[TextReading], classes: Sequence[str], enough: int = 8) -> Palette:
        """Return the palette of these texts, from their scores.

        For classes, the scale ends at a high quantile of the absolute scores. Without classes,
        which is a regression, it reaches from a low to a high quantile of the scores.

        The first token of a text is ignored unless it is the only one: GPT-2 uses position 0 as an
        attention sink with a large norm, and its score would make all other tokens pale.

        Args:
            texts: the texts with their predictions.
            classes: class names of the probe; empty for regression.
            enough: number of texts whose scores at the tested position set the scale alone.

        >>> answers = tuple(RowPrediction("b", score) for score in (90.0, 3.0, -1.0))
        >>> Palette.of([TextReading("", (), (), answers)], ("a", "b")).high
        3.0
        """
        scores, tested = [], []
        for reading in texts:
            tested += [] if reading.answer is None else [reading.answer.score]
            answers = reading.answers[1:] or reading.answers
            scores += [answer.score for answer in answers]
        # The probe was tested at the positions of the answers: if enough, they set the scale.
        scores = tested if len(tested) >= enough else scores
        if classes:
            # 1 if the quantile is 0, so that scores can be divided by it.
            high = _quantile(list(map(abs, scores)), TYPICAL) or 1.0
            return cls(tuple(classes), low=0.0, high=high)
        return cls((), low=_quantile(scores, 1 - TYPICAL), high=_quantile(scores, TYPICAL))

    def paint(self, answer: RowPrediction) -> Paint:
        """Return the colour of a prediction.

        >>> Palette(("a", "b"), 0.0, 4.0).paint(RowPrediction("a", -2.0))
        Paint(hue='#8073AC', strength=0.5)
        """
        if answer.label is None:  # a predicted number; the weakest colour if all scores are equal
            span = self.high - self.low
            return Paint(NUMBER, _clipped((answer.score - self.low) / span if span else 0.0))
        if len(self.classes) == 2:
            hue = HIGH if answer.score > 0 else LOW
            return Paint(hue, _clipped(abs(answer.score) / self.high))
        return Paint(self.hue(answer.label), 1.0)

    def hue(self, label: str) -> str:
        """Return the hue of a class; hues repeat after eleven classes."""
        if len(self.classes) == 2:
            return (LOW, HIGH)[self.classes.index(label)]
        return HUES[self.classes.index(label) % len(HUES)]


def _quantile(scores: Sequence[float], share: float) -> float:
    """Return the quantile `share` of the scores, without interpolation; 0 without scores."""
    ordered = sorted(scores)
    return ordered[round(share * (len(ordered) - 1))] if ordered else 0.0


def _clipped(strength: float) -> float:
    return min(max(strength, 0.0), 1.0)
