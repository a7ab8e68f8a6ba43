"""Figures of the selected probe, and its most confident errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from pydantic import Field, ValidationError, model_validator

from probekit.csv_files import read_csv
from probekit.disk import inside
from probekit.errors import DataError
from probekit.report.figures.chosen_figures import (
    confusion_counts,
    confusion_matrix,
    confusion_shares,
    direction_map,
    neuron_ranking,
    ranked_neurons,
    scatter_plane,
)
from probekit.report.figures.style import format_number
from probekit.report.pages.parts import FigurePart, figure_json
from probekit.report.pages.texts_page import TokenPart, text_part
from probekit.report.sentences.answer import comparison_rows
from probekit.report.sentences.choice import REFITTED, SITE_OF_ALL_FOLDS, pooled_ranking
from probekit.report.texts.paint import Palette
from probekit.results.record import RecordPart, reading_run_file
from probekit.results.selection import chosen_row, is_nested, site_with_head
from probekit.results.table import check_columns
from probekit.results.text_readings import RowPrediction, TextReading

COLUMNS = {
    "confusion.csv": ("truth", "guess", "n"),
    "scatter.csv": ("method", "x", "y", "axis_x", "axis_y", "label"),
    "cosines.csv": ("site_a", "site_b", "cosine", "n_directions", "n_features"),
}
TEXT = ("truth", "guess", "label")  # read as strings, because "NA" and "1" are valid labels
NULL = "null_high"  # column of cosines.csv, which older releases did not write
MOST_CONFUSED = 6  # pairs named in the description of a matrix


class Token(RecordPart):
    """A token of an example, with the prediction of the probe at that token.

    `span` are the characters that the token covers; runs of older releases do not store it.
    """

    token: str
    span: tuple[int, int] = (0, 0)
    label: str | None
    score: float


class WrongExample(RecordPart):
    """A misclassified test row; `ahead` is the score of the predicted minus the true label.

    It is None if the probe was not fitted on the true label, whose score is then minus infinity.
    """

    text: str
    span: tuple[int, int] | None
    group: str
    label: str
    guess: str
    ahead: float | None
    tokens: tuple[Token, ...] = ()

    def is_marked(self, token: Token) -> bool:
        """Return whether a token overlaps the labelled span."""
        start, end = self.span or (0, 0)
        return token.span[0] < end and token.span[1] > start


class WrongRow(RecordPart):
    """A test row that a probe at a single site misclassifies."""

    text: str
    span: tuple[int, int] | None
    group: str
    label: str


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

    `examples` are those of the selected probe, `probes` those of each probe at a single site, which
    runs of older releases do not store.
    """

    classes: list[str]
    examples: list[WrongExample]
    probes: tuple[WrongOfProbe, ...] = ()
    rows: tuple[WrongRow, ...] = ()

    @model_validator(mode="after")
    def _rows_exist(self) -> WrongExamples:
        if any(error.row >= len(self.rows) for one in self.probes for error in one.errors):
            raise ValueError("an error refers to a row that does not exist")
        return self

    @property
    def has_tokens(self) -> bool:
        """Whether the examples have predictions at tokens."""
        return bool(self.examples) and bool(self.examples[0].tokens)

    def titles(self) -> list[str]:
        """Return the title of each of `probes`: its site, and position and kind if they differ."""
        parts = {
            "position": len({one.position for one in self.probes}) > 1,
            "probe": len({one.probe for one in self.probes}) > 1,
        }
        return [
            " · ".join(
                [
                    site_with_head(one.site, one.head),
                    *(str(getattr(one, name)) for name, differ in parts.items() if differ),
                ]
            )
            for one in self.probes
        ]

    def painted(self) -> list[tuple[WrongExample, list[tuple[TokenPart, bool]]]]:
        """Return each example with its coloured tokens; True marks a token in the labelled span."""
        readings = [_reading(example) for example in self.examples]
        palette = Palette.of(readings, self.classes)
        parts = [text_part(reading, palette).tokens for reading in readings]
        return [
            (example, list(zip(tokens, map(example.is_marked, example.tokens), strict=True)))
            for example, tokens in zip(self.examples, parts, strict=True)
        ]

    @property
    def has_marks(self) -> bool:
        """Whether any token overlaps its labelled span."""
        return any(one.is_marked(token) for one in self.examples for token in one.tokens)


def _reading(example: WrongExample) -> TextReading:
    return TextReading(
        example.text,
        tuple(token.token for token in example.tokens),
        tuple(token.span for token in example.tokens),
        tuple(RowPrediction(token.label, token.score) for token in example.tokens),
    )


def load_wrong(run_dir: Path) -> WrongExamples | None:
    """Return the worst errors of the selected probe, or None if the run has no wrong.json.

    Raises:
        DataError: wrong.json cannot be read or has an unexpected content.
    """
    path = run_dir / "wrong.json"
    if not path.exists():
        return None
    with reading_run_file(path):
        content = inside(path).read_bytes()
    try:
        return WrongExamples.model_validate_json(content)
    except ValidationError as error:
        raise DataError(
            f"{path} does not have the expected content: {error.errors()[0]['msg']}. "
            "Run the experiment again to rewrite it."
        ) from error


def chosen_parts(run_dir: Path, table: pd.DataFrame) -> Iterator[FigurePart]:
    """Yield the figures of the selected probe for which the run has saved the data.

    Raises:
        DataError: A file of the run cannot be read.
    """
    chosen = chosen_row(table)
    if chosen is None:
        return
    probe = f"the {chosen['probe']} probe at {site_with_head(chosen['site'], chosen['head'])}"
    if is_nested(table):
        probe = "the nested choice"
    confusion, scatter, cosines = (_load(run_dir / name) for name in COLUMNS)
    if confusion is not None:
        yield _confusion_part(confusion, probe)
    if not ranked_neurons(table).empty:
        yield _neuron_part(table)
    if scatter is not None:
        yield from _scatter_parts(scatter, chosen, table)
    if cosines is not None:
        yield _cosine_part(cosines, str(chosen["probe"]), REFITTED if is_nested(table) else "")


def _load(path: Path) -> pd.DataFrame | None:
    if not path.exists():
        return None
    with reading_run_file(path):
        table = read_csv(path, keep_default_na=False, dtype=dict.fromkeys(TEXT, str))
        if NULL in table:  # empty without probes on permuted labels
            table[NULL] = table[NULL].replace("", "nan").astype(float)
    check_columns(table, COLUMNS[path.name], path)
    return table


def _confusion_part(rows: pd.DataFrame, probe: str) -> FigurePart:
    counts = confusion_counts(rows)
    shares = confusion_shares(counts)
    wrong = rows[rows["truth"] != rows["guess"]].nlargest(MOST_CONFUSED, "n")
    named = [
        f"{row['truth']} predicted as {row['guess']}: {row['n']:,} rows "
        f"({shares.loc[row['truth'], row['guess']]:.0%} of that label)"
        for _, row in wrong[wrong["n"] > 0].iterrows()
    ]
    return FigurePart(
        "Confusion matrix",
        figure_json(confusion_matrix(rows)),
        f"True labels (rows) and labels predicted by {probe} (columns), on "
        f"{counts.to_numpy().sum():,} held-out rows. Each row sums to 1; hover for counts.",
        f"Confusion matrix of {probe}. {'; '.join(named) or 'No row is misclassified'}.",
        is_open=False,
        height=10 + 1.9 * max(len(counts), 5),
    )


def _neuron_part(table: pd.DataFrame) -> FigurePart:
    rows = ranked_neurons(table)
    return FigurePart(
        "Single neurons, ranked",
        figure_json(neuron_ranking(table)),
        "Neurons by layer and index, in descending order of the cross-validated score on training "
        "rows. Markers: scores on held-out rows, with 95 % intervals. Dashed line: chance. "
        f"{pooled_ranking(table)}".rstrip(),
        "Neurons, best first: "
        + "; ".join(f"{row['site']} {format_number(row['value'])}" for _, row in rows.iterrows()),
        is_open=False,
        height=8 + 1.2 * len(rows),
    )


def _scatter_parts(
    rows: pd.DataFrame, chosen: pd.Series, table: pd.DataFrame
) -> Iterator[FigurePart]:
    site = site_with_head(chosen["site"], chosen["head"])
    n_test = comparison_rows(chosen, table)["task"]["n_test"]
    axes = {
        "PCA": "the first two principal components",
        "LDA": "the axes of LDA on the first 50 principal components",
    }
    for method, own in rows.groupby("method", sort=False):
        centroids = own.groupby("label")[["x", "y"]].mean()
        yield FigurePart(
            f"{site} by {method}",
            figure_json(scatter_plane(rows, str(method))),
            f"{len(own):,} of {n_test:,.0f} held-out rows at {site}, projected on "
            f"{axes[str(method)]}. Scaling and projection were fitted on other rows. "
            f"{SITE_OF_ALL_FOLDS if is_nested(table) else ''}The "
            "projection is for illustration only: the probe uses all dimensions.",
            f"{method} of {site}. Centroids of the labels: "
            + "; ".join(
                f"{label} at {x:.1f}, {y:.1f}"
                for label, (x, y) in zip(centroids.index, centroids.to_numpy(), strict=True)
            ),
            is_open=False,
        )


def _cosine_part(rows: pd.DataFrame, probe: str, caveat: str) -> FigurePart:
    n_directions = rows["n_directions"].iloc[0]
    pairs = rows[rows["site_a"] < rows["site_b"]]
    mean = f", mean over {n_directions} labels" if n_directions > 1 else ""
    return FigurePart(
        "Cosine similarity between probe directions",
        figure_json(direction_map(rows)),
        f"Cosine similarity between the weights of the {probe} probes (for unscaled activations) "
        f"at each pair of sites{mean}. {_null_of_cosines(pairs)} {caveat}".rstrip(),
        "Cosine similarities: "
        + "; ".join(
            f"{row['site_a']} and {row['site_b']} {row['cosine']:.2f}"
            for _, row in pairs.iterrows()
        ),
        is_open=False,
        height=10 + 1.9 * max(rows["site_a"].nunique(), 5),
    )


def _null_of_cosines(pairs: pd.DataFrame) -> str:
    """Return the sentence about cosines of probes on permuted labels."""
    if NULL not in pairs:
        return (
            "An older version of probekit wrote this run, without cosines of probes on permuted "
            "labels to compare with."
        )
    bounds = pairs[NULL].dropna()
    if bounds.empty:
        return "No probes were fitted on permuted labels to compare with."
    low, high = f"{bounds.min():.2f}", f"{bounds.max():.2f}"
    return (
        "For comparison: of probes fitted on permuted labels at one site (whole groups are "
        "permuted, or rows within groups that have several labels; same penalty), 95 % have an "
        "absolute cosine with the probe of the other site of at most "
        f"{low if low == high else f'{low} to {high}, depending on the sites'}."
    )
