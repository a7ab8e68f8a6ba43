"""Texts with what a probe reads of them: one answer a token, and one for the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Per = Literal["text", "token"]


@dataclass(frozen=True)
class RowPrediction:
    """What a probe says of one row of activations.

    Attributes:
        label: the class that the scores speak for; None for a probe of numbers.
        score: of two classes, that of the second, 0 at the boundary; of more, that of the label; of
            a probe of numbers, the number.
        scores: of more than two classes, one each; else empty.
    """

    label: str | None
    score: float
    scores: tuple[float, ...] = ()

    @property
    def text(self) -> str:
        """The answer in a few letters.

        >>> RowPrediction("plural", 1.25).text, RowPrediction(None, -0.5).text
        ('plural +1.25', '−0.50')
        """
        score = f"{self.score:+.2f}" if self.label is not None else f"{self.score:.2f}"
        return " ".join(part for part in (self.label, score.replace("-", "−")) if part is not None)


@dataclass(frozen=True)
class TextReading:
    """A text as a probe reads it.

    Attributes:
        text: the whole text.
        tokens: what each token shows by itself; bytes that are no text are written <0xE2>.
        spans: first character and one past the last of each token in the text.
        answers: one a token.
        answer: at the position that the probe was trained at; None where it has none, as a word.
        n_cut: tokens behind these that the model's context has no room for.
    """

    text: str
    tokens: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    answers: tuple[RowPrediction, ...]
    answer: RowPrediction | None = None
    n_cut: int = 0


def tidy_rows(
    readings: Sequence[TextReading], classes: Sequence[str], per: Per
) -> list[dict[str, Any]]:
    """Return one dictionary of plain values a text or a token, for a table or lines of JSON.

    Texts and tokens are numbered from 1 and 0. With more than two classes the score of each stands
    under its name.

    >>> b = RowPrediction("b", 0.5)
    >>> reading = TextReading("Hi", ("Hi",), ((0, 2),), (b,), b)
    >>> tidy_rows([reading], ("a", "b"), "text")
    [{'number': 1, 'text': 'Hi', 'label': 'b', 'score': 0.5}]
    """
    if per == "token":
        return [
            {"number": number, "position": place, "token": token, "start": start, "end": end}
            | _values(answer, classes)
            for number, reading in enumerate(readings, start=1)
            for place, (token, (start, end), answer) in enumerate(
                zip(reading.tokens, reading.spans, reading.answers, strict=True)
            )
        ]
    return [
        {"number": number, "text": reading.text} | _values(reading.answer, classes)
        for number, reading in enumerate(readings, start=1)
    ]


def _values(answer: RowPrediction | None, classes: Sequence[str]) -> dict[str, Any]:
    if answer is None:
        return {"label": None, "score": None}
    own = {"label": answer.label} if answer.label is not None else {}
    every = {f"score:{name}": s for name, s in zip(classes, answer.scores, strict=False)}
    return own | {"score": answer.score} | every
