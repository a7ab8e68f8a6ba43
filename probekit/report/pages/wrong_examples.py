"""The worst errors of the probes of a run, read from wrong.json."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import Field

from probekit.amounts import signed
from probekit.report.elements.page import PageSection, View
from probekit.report.pages.texts_page import painted_tokens
from probekit.report.texts import DENSEST, HIGH, LOW, Palette, class_label
from probekit.results.network import RowPrediction, TextReading
from probekit.results.record import ExampleRecord, RecordPart, read_record
from probekit.results.scores import site_with_head


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
        return " ".join(["span"] * is_marked + ["probed"] * (token.span == self.probed))


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
            site = site_with_head(probe.site, probe.head)
            details = [probe.position] if has_positions else []
            details += [probe.probe] if has_kinds else []
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


def load_wrong(run_dir: Path) -> WrongExamples | None:
    """Return the worst errors of the probes of a run, or None if the run has no wrong.json.

    Raises:
        DataError: wrong.json cannot be read or has an unexpected content.
    """
    path = run_dir / "wrong.json"
    return read_record(path, WrongExamples, is_sealed=False) if path.exists() else None


def errors_section(wrong: WrongExamples, *, is_nested: bool) -> PageSection:
    """Return the section with the worst errors of the selected probe, and of each single probe."""
    probed = [example.probed for example in wrong.examples]
    probed += [error.probed for probe in wrong.probes for error in probe.errors]
    values = {
        "wrong": wrong,
        "has_probed": any(probed),
        "is_nested": is_nested,
        "densest": DENSEST,
        "label_text": class_label,
        "hues": list(zip(wrong.classes, (LOW, HIGH), strict=False)),
        "pieces": _pieces,
        "signed": signed,
    }
    return PageSection("Worst errors", [View("errors.html", values)], "errors")


def examples(rows: Sequence[ExampleRecord]) -> View:
    """Return a list of examples with their labels and splits; the labelled span is marked."""
    values = {"rows": rows, "label_text": class_label, "pieces": _pieces}
    return View("examples.html", values)


def _pieces(
    text: str, span: tuple[int, int] | None, probed: tuple[int, int] | None = None
) -> list[tuple[str, str]]:
    """Return the pieces of a text with their class in the style sheet: `span`, `probed` or both.

    >>> _pieces("the old dog", (4, 7), (7, 11))
    [('the ', ''), ('old', 'span'), (' ', ''), ('dog', 'probed')]
    """
    if probed is not None:  # a token may begin with a space
        start = probed[1] - len(text[slice(*probed)].lstrip())
        probed = (start, probed[1])
    named = [(name, ends) for name, ends in (("span", span), ("probed", probed)) if ends]
    cuts = sorted({0, len(text), *(end for _, ends in named for end in ends)})
    return [
        (text[a:b], " ".join(name for name, (start, end) in named if start <= a and b <= end))
        for a, b in pairwise(cuts)
    ]
