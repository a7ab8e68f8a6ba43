"""Errors on a page: the confusion matrix, and the worst errors of the probes, from wrong.json."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from pydantic import Field

from probekit.amounts import percent, signed
from probekit.chosen.page import Shown
from probekit.probes.score.metric_table import METRICS
from probekit.report.elements.page import FigurePart, PageSection, Paragraph, View, figure_json
from probekit.report.elements.style import MAGNITUDES, plotly_text
from probekit.report.elements.texts import class_label, pieces
from probekit.report.elements.tokens import DENSEST, HIGH, LOW, Palette
from probekit.report.figures.maps import MOST_TEXTS, Colours, text_map
from probekit.report.pages.texts_page import painted_tokens
from probekit.results.network import RowPrediction, TextReading
from probekit.results.record import MOST_CLASSES, RecordPart, read_record
from probekit.results.scores import site_with_head

MOST_CONFUSED = 6  # pairs named in the description of a matrix


class Token(RecordPart):
    """A token of an example, the characters it covers, and the prediction of the probe there."""

    token: str
    span: tuple[int, int]
    label: str | None
    score: float


class WrongRow(RecordPart):
    """A test row that a probe misclassifies; `where` is its line in the file, or its name."""

    text: str
    span: tuple[int, int] | None
    group: str
    label: str
    where: str = ""


class WrongExample(WrongRow):
    """A misclassified test row; `ahead` is the score of the predicted minus the true label.

    It is None if the probe was not fitted on the true label, whose score is then minus infinity.
    `probed` has the characters of the token that the probe read; None if it read several.
    """

    guess: str
    ahead: float | None
    probed: tuple[int, int] | None = None
    tokens: tuple[Token, ...] = ()

    def css(self, token: Token) -> str:
        """Return `span` for a token in the labelled span, and `probed` for the probed token."""
        start, end = self.span or (0, 0)  # no token overlaps an empty span
        is_marked = token.span[0] < end and token.span[1] > start
        marks = {"span": is_marked, "probed": token.span == self.probed}
        return " ".join(name for name, holds in marks.items() if holds)


class ErrorOfProbe(RecordPart):
    """An error of a probe at a single site; `row` is an index of `WrongExamples.rows`."""

    row: int = Field(ge=0)
    guess: str
    ahead: float | None
    probed: tuple[int, int] | None = None


class WrongOfProbe(RecordPart):
    """The worst errors of a probe at a single site; `name` is its name in differences.csv."""

    name: str
    site: str
    head: int | None
    position: str
    probe: str
    n_wrong: int
    n_rows: int
    errors: list[ErrorOfProbe]


class WrongExamples(RecordPart):
    """Contents of wrong.json: the class names, and the examples with the worst errors.

    `examples` are those of the selected probe, `probes` those of each probe at a single site.
    """

    classes: list[str]
    examples: list[WrongExample]
    probes: tuple[WrongOfProbe, ...]
    rows: tuple[WrongRow, ...]

    @property
    def has_tokens(self) -> bool:
        """Whether the examples have predictions at tokens: either all have them, or none."""
        return bool(self.examples) and bool(self.examples[0].tokens)

    @property
    def titled(self) -> list[tuple[str, WrongOfProbe]]:
        """Each of `probes` with its title: its site, and position and kind if they differ."""
        has_positions = len({probe.position for probe in self.probes}) > 1
        has_kinds = len({probe.probe for probe in self.probes}) > 1
        titled = []
        for probe in self.probes:
            details = [probe.position] * has_positions + [probe.probe] * has_kinds
            site = site_with_head(probe.site, probe.head)
            titled.append((" · ".join([site, *details]), probe))
        return titled

    def painted(self) -> list[tuple[WrongExample, list[tuple[dict[str, Any], str]]]]:
        """Return each example with its coloured tokens and their classes in the style sheet."""
        readings = [
            TextReading(
                example.text,
                tuple(token.token for token in example.tokens),
                tuple(token.span for token in example.tokens),
                tuple(RowPrediction(token.label, token.score) for token in example.tokens),
            )
            for example in self.examples
        ]
        palette = Palette.of(readings, self.classes)
        parts = [painted_tokens(reading, palette) for reading in readings]
        return [
            (example, list(zip(tokens, map(example.css, example.tokens), strict=True)))
            for example, tokens in zip(self.examples, parts, strict=True)
        ]

    @property
    def has_marks(self) -> bool:
        """Whether a token of any example overlaps the labelled span of that example."""
        return any("span" in row.css(token) for row in self.examples for token in row.tokens)


def figures(run: Shown) -> Iterator[FigurePart]:
    """Yield the confusion matrix, if there is one."""
    rows = run.rows("confusion.csv")
    if rows is None:
        return
    counts = confusion_counts(rows)
    shares = confusion_shares(counts)
    wrong = rows[rows["truth"] != rows["guess"]].nlargest(MOST_CONFUSED, "n")
    named = [
        f"{class_label(row['truth'])} predicted as {class_label(row['guess'])}: {row['n']:,} "
        f"rows ({percent(shares.loc[row['truth'], row['guess']])} of that label)"
        for _, row in wrong[wrong["n"] > 0].iterrows()
    ]
    yield FigurePart(
        "Confusion matrix",
        figure_json(confusion_matrix(rows)),
        f"True labels (rows) and labels predicted by {run.probe} (columns), on "
        f"{counts.to_numpy().sum():,} held-out rows. Numbers: rows; colours: shares of a label.",
        f"Confusion matrix of {run.probe}. {'; '.join(named) or 'No row is misclassified'}.",
        is_open=False,
        height=10 + 1.9 * max(len(counts), 5),
    )


def details(run: Shown) -> Iterator[Paragraph]:
    """Yield a note instead of the figures that runs with many classes do not have."""
    n_classes = len(run.record.data.training_labels)
    # `fits` gets every kind of prediction that a metric of classes may need, so that only the kind
    # of labels decides.
    is_of_classes = METRICS[run.verdict.metric].fits("class", {"scores", "probabilities", "alarms"})
    if is_of_classes and n_classes > MOST_CLASSES and run.rows("confusion.csv") is None:
        yield Paragraph(
            f"The data have {n_classes:,} classes. Confusion matrix, scatter plots, cosines of "
            f"directions and errors are computed for at most {MOST_CLASSES}.",
            "note",
        )


def examples(run: Shown) -> Iterator[PageSection]:
    """Yield the worst errors of the selected probe, and of each single probe, if there are any.

    Raises:
        DataError: wrong.json cannot be read or has an unexpected content.
    """
    path = run.folder / "wrong.json"
    if path.exists():
        wrong = read_record(path, WrongExamples, is_sealed=False)
        yield errors_section(wrong, is_nested=run.verdict.is_nested)


def errors_section(wrong: WrongExamples, *, is_nested: bool) -> PageSection:
    """Return the section with the worst errors."""
    probed = [example.probed for example in wrong.examples]
    probed += [error.probed for probe in wrong.probes for error in probe.errors]
    values = {"wrong": wrong, "has_probed": any(probed), "is_nested": is_nested}
    values |= {"densest": DENSEST, "label_text": class_label, "pieces": pieces, "signed": signed}
    values["hues"] = list(zip(wrong.classes, (LOW, HIGH), strict=False))
    view = View("errors.html", values, scripts=("errors.js",) if wrong.probes else ())
    return PageSection("Worst errors", [view], "errors")


def confusion_matrix(rows: pd.DataFrame) -> go.Figure:
    """Return the confusion matrix: true labels down, predicted labels across, rows sum to 1.

    The row of a label without test rows is empty.

    Args:
        rows: true label `truth`, predicted label `guess` and count `n` for every pair of labels.

    >>> figure = confusion_matrix(pd.DataFrame(
    ...     [("a", "a", 3), ("a", "b", 1), ("b", "a", 0), ("b", "b", 2)],
    ...     columns=["truth", "guess", "n"]))
    >>> figure.data[0].z
    ([0.75, 0.25], [0.0, 1.0])
    """
    counts = confusion_counts(rows)
    labels = [plotly_text(class_label(label)) for label in counts.index]
    shares = confusion_shares(counts).to_numpy()
    hover = [
        f"<b>{truth}</b> predicted as <b>{guess}</b><br>{n:,} of {row.sum():,} rows"
        for truth, row in zip(labels, counts.to_numpy(), strict=True)
        for guess, n in zip(labels, row, strict=True)
    ]
    colours, most = Colours(0.0, 1.0, MAGNITUDES, is_diverging=False), 2 * MOST_TEXTS
    axes: Any = {"across": labels, "down": labels, "title": "predicted", "down_title": "true"}
    texts = [f"{n:,}" for n in counts.to_numpy().ravel()]
    figure = text_map(shares, hover, colours, **axes, texts=texts, most_texts=most)
    figure.update_xaxes(constrain="domain")
    return figure.update_yaxes(scaleanchor="x", constrain="domain")


def confusion_counts(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the counts with true labels down and predicted labels across, both sorted.

    The count of a pair without a row is 0.
    """
    counts = rows.pivot_table("n", "truth", "guess", aggfunc="sum")
    labels = sorted({*counts.index, *counts.columns})
    return counts.reindex(index=labels, columns=labels, fill_value=0).fillna(0).astype(int)


def confusion_shares(counts: pd.DataFrame) -> pd.DataFrame:
    """Return the counts divided by their row sums; NaN for a label without test rows."""
    return counts.div(counts.sum(axis=1).replace(0, np.nan), axis=0)
