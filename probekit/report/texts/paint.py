"""Token colours: hue encodes the predicted class, strength encodes the score.

Colour is never the only encoding: pages also show the label or the score as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from probekit.results.network import RowPrediction, TextReading

# Distinguishable for colour-blind readers, and legible when mixed with a black or white background.
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
# Opacity of the strongest colour on the background.
DENSEST = 0.55
# Quantile of the scores at the end of the colour scale; larger scores are clipped.
TYPICAL = 0.95


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
            for part in _parts(self.hue)
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
    def of(cls, readings: Iterable[TextReading], classes: Sequence[str]) -> Palette:
        """Return the palette of these texts; its scale ends at a high quantile of their scores.

        The first token of a text is ignored unless it is the only one: GPT-2 uses position 0 as an
        attention sink with a large norm, and its score would make all other tokens pale.

        >>> answers = tuple(RowPrediction("b", score) for score in (90.0, 3.0, -1.0))
        >>> Palette.of([TextReading("", (), (), answers)], ("a", "b")).high
        3.0
        """
        scores = [a.score for reading in readings for a in reading.answers[1:] or reading.answers]
        if classes:
            return cls(tuple(classes), 0.0, _quantile([abs(s) for s in scores], TYPICAL) or 1.0)
        return cls((), _quantile(scores, 1 - TYPICAL), _quantile(scores, TYPICAL))

    def paint(self, answer: RowPrediction) -> Paint:
        """Return the colour of a prediction.

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
        """Return the hue of a class; hues repeat after eleven classes."""
        if len(self.classes) == 2:
            return (LOW, HIGH)[self.classes.index(label)]
        return HUES[self.classes.index(label) % len(HUES)]


def _quantile(scores: Sequence[float], share: float) -> float:
    """Return the quantile `share` of the scores, without interpolation; 0 without scores."""
    ordered = sorted(scores)
    return ordered[round(share * (len(ordered) - 1))] if ordered else 0.0


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _parts(hue: str) -> tuple[int, ...]:
    return tuple(int(hue[at : at + 2], 16) for at in (1, 3, 5))
