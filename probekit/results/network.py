"""Measurements of a network itself: attention, attributions, heads, weights, patches, texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probekit.amounts import fixed, signed
from probekit.errors import DataError

if TYPE_CHECKING:  # checks of an experiment do without pandas, which takes half a second
    import pandas as pd

MEAN = "the mean of all tokens"
ROW_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class AttributedLogit:
    """Logit of a token in one text, decomposed into the contributions of parts of the network.

    Attributes:
        tokens: the tokens of the text.
        position: the position of the logit, counted from 0.
        token: the token whose logit is attributed.
        minus: the token whose logit is subtracted, `MEAN`, or "" for none.
        logit: the logit as computed by the network.
        probability: the probability of the token.
        rank: the rank of the token, 1 for the most probable.
        rows: one row per part, with the columns `part`, `layer`, `head` and `value`.
    """

    tokens: tuple[str, ...]
    position: int
    token: str
    minus: str
    logit: float
    probability: float
    rank: int
    rows: pd.DataFrame


class HeadScoreText(NamedTuple):
    """Title, definition and unit of a head score."""

    title: str
    meaning: str
    unit: str = ""


HEAD_TEXTS = {
    "previous_token": HeadScoreText("Previous token", "mean weight on the previous token"),
    "duplicate_token": HeadScoreText(
        "Duplicate token", "mean weight on earlier occurrences of the same token"
    ),
    "induction": HeadScoreText(
        "Induction", "mean weight on the tokens after earlier occurrences of the same token"
    ),
    "first_token": HeadScoreText("First token", "mean weight on the first token"),
    "entropy": HeadScoreText(
        "Entropy", "mean entropy of the attention weights, in nats", " (nats)"
    ),
    "distance": HeadScoreText(
        "Distance", "mean distance back to the attended tokens, in tokens", " (tokens)"
    ),
}


@dataclass(frozen=True, eq=False)
class ScoredHeads:
    """The scores of all heads of a model.

    Attributes:
        rows: one row per score and head, with the columns `score`, `layer`, `head`, `value`, `sd`
            and `n`.
        read: description of the input texts.
        known: for each score, the heads that the literature reports for this model, as (layer,
            head).
    """

    rows: pd.DataFrame
    read: str
    known: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)

    def strongest(self, score: str, n: int) -> pd.DataFrame:
        """Return the rows of the n heads with the highest values of a score, without NaN."""
        of_score = self.rows[self.rows["score"] == score].dropna(subset="value")
        return of_score.sort_values("value", ascending=False, kind="stable").head(n)


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """The weight matrices of the heads of one attention layer.

    Attributes:
        parts: the matrices of all heads by part: query, key and value of shape (n_heads, d_model,
            d_head), output of shape (n_heads, d_head, d_model).
        norms: Frobenius norms, shape (n_parts, n_heads).
        spectra: singular values by circuit (QK, OV), each of shape (n_heads, d_head). Empty if only
            one tensor of the layer is available.
        drawn: the parts contained in the tensor that the page shows.
    """

    parts: Mapping[str, NDArray[np.float32]]
    norms: NDArray[np.float64]
    spectra: Mapping[str, NDArray[np.float64]]
    drawn: Sequence[str]


@dataclass(frozen=True, eq=False)
class WeightTensor:
    """One weight tensor to draw.

    Attributes:
        row: its row of `summarise`, as a table with one row.
        numbers: its weights, a matrix [in, out] or a vector.
        columns: the columns drawn as curves; empty for most matrices.
        corner: the number of rows and columns drawn of a matrix; None draws it in full.
        heads: the matrices of the heads, for an attention tensor; else None.
    """

    row: pd.DataFrame
    numbers: NDArray[np.float32]
    columns: Sequence[int]
    corner: int | None
    heads: HeadWeights | None


@dataclass(frozen=True, eq=False)
class AttentionPrompt:
    """The attention patterns of one text.

    Attributes:
        text: The text itself.
        tokens: Its n tokens as text, with bytes that are not valid UTF-8 written as <0xE2>.
        patterns: Weights (n_layers, n_heads, n, n) from destination (row) to source (column). Rows
            sum to 1, with attention sinks to at most 1, and weights on later tokens are 0.
        layers: The layer number of each entry of the first axis; by default 0, 1, ...
        heads: The head number of each entry of the second axis; by default 0, 1, ...
        scores: Head scores by name, each of shape (n_layers, n_heads). The page can sort heads by
            them. NaN if a score is not defined.
        has_sinks: Whether attention sinks take a part of each row.

    >>> patterns = np.array([[1, 0], [0.4, 0.6]], dtype=np.float32)
    >>> prompt = AttentionPrompt("Hi you", ("Hi", " you"), np.tile(patterns, (1, 3, 1, 1)))
    >>> prompt.heads
    (0, 1, 2)
    """

    text: str
    tokens: tuple[str, ...]
    patterns: NDArray[np.float32]
    layers: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    scores: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    has_sinks: bool = False

    def __post_init__(self) -> None:
        """Validate the patterns and set default layer and head numbers.

        Raises:
            DataError: The patterns are not attention patterns.
        """
        object.__setattr__(self, "layers", self.layers or tuple(range(self.patterns.shape[0])))
        object.__setattr__(self, "heads", self.heads or tuple(range(self.patterns.shape[1])))
        for number, layer in zip(self.layers, self.patterns, strict=True):
            _check_weights(layer, number, self.heads, least=0 if self.has_sinks else 1)


def _check_weights(
    patterns: NDArray[np.float32], layer: int, heads: tuple[int, ...], least: float
) -> None:
    """Raise DataError unless the weights (n_heads, n, n) of a layer are attention patterns.

    Rows sum to `least` to 1.
    """
    sums = patterns.sum(axis=-1, dtype=np.float64, keepdims=True)
    is_off = np.broadcast_to(abs(sums - sums.clip(least, 1)) > ROW_SUM_TOLERANCE, patterns.shape)
    problems = [
        ("is not finite", ~np.isfinite(patterns)),
        ("is negative", patterns < 0),
        ("is on a later token", np.triu(patterns, k=1) != 0),
        (f"is in a row that does not sum to 1 within {ROW_SUM_TOLERANCE}", is_off),
    ]
    for problem, where in problems:
        if where.any():
            head, destination, source = np.argwhere(where)[0].tolist()
            raise DataError(
                f"Layer {layer}, head {heads[head]}, destination {destination}, source {source}: "
                f"weight {patterns[head, destination, source]} {problem}. "
                "Give the pattern after the causal mask and the softmax."
            )


@dataclass(frozen=True, eq=False)
class PatchedPair:
    """Effect of patching each site, head and position of one pair of texts.

    The measure is the logit of `answer` minus that of `wrong` after the last token.

    Attributes:
        clean: tokens of the base text.
        corrupt: tokens of its counterfactual, the source of the activations; equally many.
        answer: right token after the clean text.
        wrong: the token whose logit is subtracted.
        base: logit difference after the clean text.
        source: logit difference after the corrupt text.
        rows: one row per patch, in forward order, with the columns `site` (with its head or
            neuron), `layer`, `head`, `position` (missing if all positions are patched), `edited`
            (logit difference with the patch), `effect` (edited minus base), `recovery` (effect as a
            share of source minus base) and `estimate` (effect estimated by attribution patching).
            Missing values: `estimate` without attribution patching; the others where a patch is
            only estimated; recovery if source equals base.
        unspaced: answers without a leading space that are single tokens with one, too.

    >>> import pandas as pd
    >>> rows = pd.DataFrame({"estimate": [None]})
    >>> pair = PatchedPair(("a",), ("b",), " x", " y", 1.0, -1.0, rows)
    >>> pair.difference, pair.is_estimated
    (-2.0, False)
    """

    clean: tuple[str, ...]
    corrupt: tuple[str, ...]
    answer: str
    wrong: str
    base: float
    source: float
    rows: pd.DataFrame
    unspaced: tuple[str, ...] = ()

    @property
    def difference(self) -> float:
        """Source minus base, the denominator of recoveries."""
        return self.source - self.base

    @property
    def is_estimated(self) -> bool:
        """Whether attribution patching selected the patches."""
        return bool(self.rows["estimate"].notna().any())

    @property
    def of_positions(self) -> pd.DataFrame:
        """The rows of patches at one position."""
        return self.rows[self.rows["position"].notna()]

    @property
    def of_heads(self) -> pd.DataFrame:
        """The rows of heads patched at all positions."""
        return self.rows[self.rows["position"].isna()]

    def strongest(self, rows: pd.DataFrame, n: int) -> pd.DataFrame:
        """Return the n rows of measured patches, among these, with the largest absolute effects."""
        known = rows.dropna(subset="effect")
        order = np.argsort(-known["effect"].abs().to_numpy(), kind="stable")
        return known.iloc[order[:n]]


Per = Literal["text", "token"]


@dataclass(frozen=True)
class RowPrediction:
    """Prediction of a probe for one row of activations.

    Attributes:
        label: the predicted class; None for a probe of numbers.
        score: for two classes, the score of the second class: positive if it is predicted. For more
            classes, the score of `label`. For a probe of numbers, the predicted number.
        scores: the score of each class if there are more than two; else empty.
        alarm: whether a monitor raises an alarm; None without a threshold.
        compared: the score of the alarm's label, and the threshold that it must exceed.
    """

    label: str | None
    score: float
    scores: tuple[float, ...] = ()
    alarm: bool | None = None
    compared: tuple[float, float] | None = None

    @property
    def text(self) -> str:
        """The prediction as a short text.

        >>> RowPrediction("plural", 1.25).text, RowPrediction(None, -0.5).text
        ('plural +1.25', '−0.50')
        """
        if self.label is None:
            return fixed(self.score, 2)
        return f"{self.label} {signed(self.score)}{', alarm' if self.alarm else ''}"


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
        place: index of the token at that position; None if it is not a single token.
    """

    text: str
    tokens: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    answers: tuple[RowPrediction, ...]
    answer: RowPrediction | None = None
    n_cut: int = 0
    place: int | None = None


class TextReadings(list[TextReading]):
    """The predictions of a probe for texts, shown as a table.

    Attributes:
        classes: labels of the probe.
        per: unit of the rows of the table.
    """

    def __init__(
        self, readings: Iterable[TextReading], classes: Sequence[str], per: Per = "text"
    ) -> None:
        super().__init__(readings)
        self.classes, self.per = tuple(classes), per

    @property
    def table(self) -> pd.DataFrame:
        """A row for each text, or for each token."""
        import pandas as pd  # commands that read no texts do not need it

        return pd.DataFrame(tidy_rows(self, self.classes, self.per))

    def __repr__(self) -> str:
        return self.table.to_string(index=False, max_rows=20, max_colwidth=60)

    def _repr_html_(self) -> str:
        return self.table.to_html(index=False, max_rows=20)


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
    rows: list[dict[str, Any]] = []
    for number, reading in enumerate(readings, start=1):
        if per == "text":
            rows.append({"number": number, "text": reading.text} | _values(reading.answer, classes))
            continue
        tokens = zip(reading.tokens, reading.spans, reading.answers, strict=True)
        for position, (token, (start, end), answer) in enumerate(tokens):
            row = {"number": number, "position": position, "token": token}
            rows.append(row | {"start": start, "end": end} | _values(answer, classes))
    return rows


def _values(answer: RowPrediction | None, classes: Sequence[str]) -> dict[str, Any]:
    """Return the label, score and scores by class of a prediction as columns.

    A predicted number has no label. Without a prediction, label and score are None. There is an
    alarm only with a threshold.
    """
    if answer is None:
        return {"label": None, "score": None}
    label = {"label": answer.label} if answer.label is not None else {}
    by_class = zip(classes, answer.scores, strict=False)  # no scores for two classes
    alarm: dict[str, Any] = {} if answer.alarm is None else {"alarm": answer.alarm}
    if answer.compared is not None:
        alarm |= dict(zip(("alarm_score", "threshold"), answer.compared, strict=True))
    of_classes = {f"score:{name}": score for name, score in by_class}
    return label | {"score": answer.score} | alarm | of_classes
