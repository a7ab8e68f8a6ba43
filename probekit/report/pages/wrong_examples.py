"""The worst errors of the probes of a run, read from wrong.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from probekit.report.pages.page import PageSection, View
from probekit.report.pages.texts_page import painted_tokens
from probekit.report.texts import DENSEST, Palette, class_label
from probekit.results.network import RowPrediction, TextReading
from probekit.results.record import ExampleRecord, RecordPart, read_record
from probekit.results.selection import site_with_head


class Token(RecordPart):
    """A token of an example, the characters it covers, and the prediction of the probe there."""

    token: str
    span: tuple[int, int]
    label: str | None
    score: float


class WrongRow(RecordPart):
    """A test row that a probe misclassifies."""

    text: str
    span: tuple[int, int] | None
    group: str
    label: str


class WrongExample(WrongRow):
    """A misclassified test row; `ahead` is the score of the predicted minus the true label.

    It is None if the probe was not fitted on the true label, whose score is then minus infinity.
    """

    guess: str
    ahead: float | None
    tokens: tuple[Token, ...] = ()

    def is_marked(self, token: Token) -> bool:
        """Return whether a token overlaps the labelled span."""
        start, end = self.span or (0, 0)  # no token overlaps an empty span
        return token.span[0] < end and token.span[1] > start


class ErrorOfProbe(RecordPart):
    """An error of a probe at a single site; `row` is an index of `WrongExamples.rows`."""

    row: int = Field(ge=0)
    guess: str
    ahead: float | None


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

    @model_validator(mode="after")
    def _rows_exist(self) -> WrongExamples:
        if any(error.row >= len(self.rows) for probe in self.probes for error in probe.errors):
            raise ValueError("an error refers to a row that does not exist")
        return self

    @property
    def has_tokens(self) -> bool:
        """Whether the examples have predictions at tokens: either all have them, or none."""
        return bool(self.examples) and bool(self.examples[0].tokens)

    def titles(self) -> list[str]:
        """Return the title of each of `probes`: its site, and position and kind if they differ."""
        has_positions = len({probe.position for probe in self.probes}) > 1
        has_kinds = len({probe.probe for probe in self.probes}) > 1
        titles = []
        for probe in self.probes:
            site = site_with_head(probe.site, probe.head)
            details = [probe.position] if has_positions else []
            details += [probe.probe] if has_kinds else []
            titles.append(" · ".join([site, *details]))
        return titles

    def painted(self) -> list[tuple[WrongExample, list[tuple[dict[str, Any], bool]]]]:
        """Return each example with its coloured tokens; True marks a token in the labelled span."""
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
            (example, list(zip(tokens, map(example.is_marked, example.tokens), strict=True)))
            for example, tokens in zip(self.examples, parts, strict=True)
        ]

    @property
    def has_marks(self) -> bool:
        """Whether a token of any example overlaps the labelled span of that example."""
        return any(row.is_marked(token) for row in self.examples for token in row.tokens)


def load_wrong(run_dir: Path) -> WrongExamples | None:
    """Return the worst errors of the probes of a run, or None if the run has no wrong.json.

    Raises:
        DataError: wrong.json cannot be read or has an unexpected content.
    """
    path = run_dir / "wrong.json"
    return read_record(path, WrongExamples, is_sealed=False) if path.exists() else None


def errors_section(wrong: WrongExamples, *, is_nested: bool) -> PageSection:
    """Return the section with the worst errors of the selected probe, and of each single probe."""
    values = {
        "wrong": wrong,
        "is_nested": is_nested,
        "densest": DENSEST,
        "label_text": class_label,
        "around_span": _around_span,
    }
    return PageSection("Worst errors", [View("errors.html", values)], "errors")


def examples(rows: Sequence[ExampleRecord]) -> View:
    """Return a list of examples with their labels and splits; the labelled span is marked."""
    values = {"rows": rows, "label_text": class_label, "around_span": _around_span}
    return View("examples.html", values)


def _around_span(example: ExampleRecord | WrongRow) -> tuple[str, str, str]:
    """Return the text of an example before, inside and after its span.

    Without a span the whole text is before it.
    """
    start, end = example.span or (len(example.text), len(example.text))
    return example.text[:start], example.text[start:end], example.text[end:]
