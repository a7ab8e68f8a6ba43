"""The colours of tokens: what a probe says as a hue, how strongly as its strength.

Colour is never alone: the label or the score stands beside it wherever there is more than a hue to
tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from probekit.results.text_readings import RowPrediction, TextReading

# Stay apart for colour-blind readers, and mix with black or white ground under legible ink.
LOW, HIGH = "#0072B2", "#D55E00"
NUMBER = "#009E73"
# Source: the qualitative scheme "Safe" of CARTOColors, made for colour-blind readers.
HUES = (
    "#88CCEE",
    "#CC6677",
    "#DDCC77",
    "#117733",
    "#332288",
    "#AA4499",
    "#44AA99",
    "#999933",
    "#882255",
    "#661100",
    "#888888",
)
# How much of a hue the strongest paint is; the rest is the ground.
DENSEST = 0.55
# The share of tokens within the scale; the paint of those beyond goes no deeper.
TYPICAL = 0.95


@dataclass(frozen=True)
class Paint:
    """A hue as #rrggbb, and how much of it, from 0 to 1."""

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
            for part in _parts(self.hue)
        )


@dataclass(frozen=True)
class Palette:
    """How the answers of one probe are coloured.

    Two classes diverge from score 0; of more each has its hue; a number deepens from the least to
    the largest.

    Attributes:
        classes: of the probe; none for a probe of numbers.
        low: the score of the faintest number; 0 with classes.
        high: the score of the strongest paint.
    """

    classes: tuple[str, ...]
    low: float
    high: float

    @classmethod
    def of(cls, readings: Iterable[TextReading], classes: Sequence[str]) -> Palette:
        """Return the palette for these texts, in which all but the extreme scores can be told.

        The first token of a text has no say where there are others: GPT-2 rests its attention on
        position 0, whose norm, and with it the score, would leave all others pale.

        >>> answers = tuple(RowPrediction("b", score) for score in (90.0, 3.0, -1.0))
        >>> Palette.of([TextReading("", (), (), answers)], ("a", "b")).high
        3.0
        """
        scores = [a.score for reading in readings for a in reading.answers[1:] or reading.answers]
        if classes:
            return cls(tuple(classes), 0.0, _quantile([abs(s) for s in scores], TYPICAL) or 1.0)
        return cls((), _quantile(scores, 1 - TYPICAL), _quantile(scores, TYPICAL))

    def paint(self, answer: RowPrediction) -> Paint:
        """Return the paint of an answer.

        >>> Palette(("a", "b"), 0.0, 4.0).paint(RowPrediction("a", -2.0))
        Paint(hue='#0072B2', strength=0.5)
        """
        if answer.label is None:
            span = self.high - self.low
            return Paint(NUMBER, _share((answer.score - self.low) / span if span else 0.0))
        if len(self.classes) == 2:
            return Paint(HIGH if answer.score > 0 else LOW, _share(abs(answer.score) / self.high))
        return Paint(self.hue(answer.label), 1.0)

    def hue(self, label: str) -> str:
        """Return the hue of a class; past eleven classes they come again."""
        if len(self.classes) == 2:
            return (LOW, HIGH)[self.classes.index(label)]
        return HUES[self.classes.index(label) % len(HUES)]


def _quantile(scores: Sequence[float], share: float) -> float:
    """Return the score that this share of all reaches at most; one of them, 0 without any."""
    ordered = sorted(scores)
    return ordered[round(share * (len(ordered) - 1))] if ordered else 0.0


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _parts(hue: str) -> tuple[int, ...]:
    return tuple(int(hue[at : at + 2], 16) for at in (1, 3, 5))
