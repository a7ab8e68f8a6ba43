"""What the pages of the analyses of the selected probe are made from: a run, and its tables."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from probekit.amounts import fixed, format_number, format_p, percent
from probekit.chosen.registry import doors
from probekit.report.elements.page import Paragraph
from probekit.report.elements.table import Column, ResultTable
from probekit.report.elements.texts import class_label
from probekit.results.record import RunRecord
from probekit.results.scores import Scores
from probekit.results.table import metric_name, page_table
from probekit.results.verdict import Verdict

# Column of a file of `PAGE_TABLES` -> how a table writes its values, if they are neither texts nor
# written by `format_number`.
_FORMATS: Mapping[str, Callable[..., str]] = {
    **dict.fromkeys(("feature", "false_positives"), str),
    **dict.fromkeys(("rank", "k"), "{:,}".format),
    "label": class_label,
    "metric": metric_name,
    **dict.fromkeys(("p", "p_holm"), format_p),
    "n_equal": "{:,.0f}".format,
    "fpr": lambda rate: f"{100 * rate:g} %",
    "fpr_bound": partial(percent, places=2),
    "cost": percent,
}
# Heading of a column -> its column of a file; an interval in the file follows its number.
Columns: TypeAlias = Mapping[Column | str, str]
TESTED: Columns = {"difference": "difference", "p": "p"}
TEST_RATES: Columns = {"test TPR": "tpr", "test FPR": "test_fpr"}


@dataclass(frozen=True, eq=False)
class Shown:
    """The numbers of a run that its page shows.

    Attributes:
        folder: the folder of the run.
        record: the record of the run.
    """

    folder: Path
    record: RunRecord

    @cached_property
    def scores(self) -> Scores:
        """Its scores, which are read when they are first needed."""
        return Scores.load(self.folder / "results.csv")

    @property
    def verdict(self) -> Verdict:
        """The verdict of the run."""
        return self.record.verdict

    @property
    def probe(self) -> str:
        """The selected probe in a sentence."""
        best = self.verdict.best
        if self.verdict.is_nested or best is None:
            return "the probes that the folds chose"
        return f"the {best.probe} probe at {best.name}"

    def rows(self, file: str) -> pd.DataFrame | None:
        """Return the rows of another file, see `page_table`; None if the run has none."""
        return page_table(self.folder, file)


def of_analyses(door: str, run: Shown) -> Iterator[Any]:
    """Yield sentences, figures or sections of the analyses of the selected probe.

    Args:
        door: the name of the place; see `probekit.chosen.registry`.
        run: the numbers of the run.
    """
    for _, shown in doors("page", door):
        yield from shown(run)


def estimate(row: pd.Series, name: str) -> list[float]:
    """Return a number of a file with the limits of its interval."""
    return [float(row[one]) for one in (name, f"{name}_low", f"{name}_high")]


def estimate_words(row: pd.Series, name: str, *, in_percent: bool = False) -> str:
    """Return a number of a file with its interval, in two decimals or in percent.

    >>> row = pd.Series({"tpr": 0.0, "tpr_low": 0.0, "tpr_high": 0.0151})
    >>> estimate_words(row, "tpr", in_percent=True), estimate_words(row, "tpr")
    ('0 % [0, 1.5]', '0.00 [0.00, 0.02]')
    """
    numbers = estimate(row, name)
    if in_percent:
        places = 1 if numbers[2] < 0.1 else 0  # of small shares
        value, low, high = (fixed(100 * one, places).removesuffix(".0") for one in numbers)
        value += " %"
    else:
        value, low, high = (fixed(one, 2) for one in numbers)
    sign = "+" if name == "difference" and numbers[0] > 0 else ""
    return f"{sign}{value}" if low == "nan" else f"{sign}{value} [{low}, {high}]"


def sentence(text: str, *, is_useless: bool = False) -> Paragraph:
    """Return an answer of an analysis, which pages show in red if it found nothing of use."""
    return Paragraph(text, "bad" if is_useless else "")


def written_table(title: str, columns: Columns, rows: pd.DataFrame, **options: Any) -> ResultTable:
    """Return rows of a file as a table with these columns, and other options of `ResultTable`."""
    parts = [[name, f"{name}_low", f"{name}_high"] for name in columns.values()]

    def written(row: Mapping[Any, Any], names: Sequence[str]) -> str:
        """Return the cell of a number with its interval, or of another value."""
        usual = str if isinstance(row[names[0]], str) else format_number
        if pd.isna(row[names[0]]):
            return "–"
        return _FORMATS.get(names[0], usual)(*(row[name] for name in names if name in row))

    cells = [tuple(written(row, names) for names in parts) for row in rows.to_dict("records")]
    return ResultTable(title, list(columns), cells, css="narrow", **options)
