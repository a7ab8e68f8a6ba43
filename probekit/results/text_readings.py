"""Predictions of a probe for texts: one for each token, and one for the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Per = Literal["text", "token"]


@dataclass(frozen=True)
class RowPrediction:
    """Prediction of a probe for one row of activations.

    Attributes:
        label: the predicted class; None for a probe of numbers.
        score: for two classes, the score of the second class: positive if it is predicted. For more
            classes, the score of `label`. For a probe of numbers, the predicted number.
        scores: the score of each class if there are more than two; else empty.
    """

    label: str | None
    score: float
    scores: tuple[float, ...] = ()

    @property
    def text(self) -> str:
        """The prediction as a short text.

        >>> RowPrediction("plural", 1.25).text, RowPrediction(None, -0.5).text
        ('plural +1.25', '−0.50')
        """
        score = f"{self.score:+.2f}" if self.label is not None else f"{self.score:.2f}"
        return " ".join(part for part in (self.label, score.replace("-", "−")) if part is not None)


@dataclass(frozen=True)
class TextReading:
    """A text with the predictions of a probe for its tokens.

    Attributes:
        text: the whole text.
        tokens: each token as text, with bytes that are not valid UTF-8 written as <0xE2>.
        spans: start and end (exclusive) of each token in the text, in characters.
        answers: one prediction per token.
        answer: the prediction at the position that the probe was trained at; None if the text has
            no such position, such as a marked word.
        n_cut: number of tokens that were cut off because they exceed the model's context.
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
    """Return one dictionary of plain values per text or per token, for a table or JSON lines.

    Texts are numbered from 1, tokens from 0. With more than two classes, the score of each class
    has the key `score:CLASS`.

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
