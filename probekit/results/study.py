"""The tables of a study: study.csv, with one row for each cell, and the result in Python."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import pandas as pd

from probekit.amounts import counted, format_number, format_p, signed
from probekit.errors import DataError, MissingError, path_of
from probekit.probes.targets import TARGETS
from probekit.results.record import STARTED, RecordPart, changed_files, read_record
from probekit.results.table import TableColumn, read_columns
from probekit.results.verdict import RIVALS

STUDY, STUDY_RECORD = "study.csv", "study.json"
MOST_CELLS = 20  # of the text of a result

# Columns of study.csv; after the first two there is one for each varied key but `data`.
STUDY_COLUMNS = (
    TableColumn("cell", "name of the cell, and of the folder of its runs"),
    TableColumn("dataset", "name of the data set"),
    TableColumn("metric", "main metric"),
    TableColumn("score", "reported score on the test rows", "number"),
    TableColumn("ci_low", "lower end of its 95 % interval", "number"),
    TableColumn("ci_high", "upper end of its 95 % interval", "number"),
    TableColumn("chance", "score at chance level", "number"),
    TableColumn("p", "p-value of the association of predictions and labels", "number"),
    TableColumn("n", "number of test rows", "integer"),
    TableColumn("n_groups", "number of groups of these rows", "integer"),
    TableColumn("verdict", "verdict of the run in one word or phrase"),
    TableColumn("site", "chosen site; with outer folds the one that most folds chose"),
    TableColumn("layer", "block of the site chosen by the scores of all folds", "number"),
    TableColumn("position", "probed position"),
    TableColumn("probe", "kind of probe"),
    *(
        column
        for name in RIVALS
        for column in (
            TableColumn(
                name, f"score of {TARGETS[name].title if name in TARGETS else name}", "number"
            ),
            TableColumn(f"{name}_difference", "reported score minus this one", "number"),
            TableColumn(
                f"{name}_low", "lower end of the 95 % interval of the difference", "number"
            ),
            TableColumn(f"{name}_high", "upper end of the interval", "number"),
            TableColumn(
                f"{name}_p", "p-value of the difference; for the majority class `p`", "number"
            ),
        )
    ),
    TableColumn(
        "repeated", "share of test rows whose text occurs in their training rows", "number"
    ),
    TableColumn("published", "published score of the data set", "number"),
    TableColumn("caveats", "reasons to doubt the result, most serious first, one per line"),
    TableColumn("folder", "folder of the run of the cell, relative to that of the study"),
    TableColumn("error", "error of a cell that failed; empty for the others"),
)


class StudyRecord(RecordPart):
    """The contents of study.json: what study.csv does not contain, and its digest.

    `keys` are the varied keys, `n_unused` is the number of published scores of other data sets.
    """

    study: str
    question: str | None = None
    keys: list[str]
    n_unused: int = 0
    files: dict[str, str]


class StudyResult:
    """A finished study, whose table is read when it is needed.

    `probekit.run` returns it for an experiment with the section `over`.

    Args:
        folder: the folder of the study, `<out>/<name>`, with study.csv and the runs of the cells.

    Raises:
        MissingError: the folder has no finished study.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = path_of("folder", folder)
        if (self.folder / STARTED).exists() or not (self.folder / STUDY_RECORD).exists():
            raise MissingError(
                f"{self.folder} has no finished study. Run the study again with the same --out to "
                "resume it."
            )

    @cached_property
    def record(self) -> StudyRecord:
        """The contents of study.json.

        Raises:
            DataError: a file is damaged.
        """
        return read_record(self.folder / STUDY_RECORD, StudyRecord)

    @cached_property
    def table(self) -> pd.DataFrame:
        """The rows of study.csv, one for each cell, in the order of the study.

        Empty cells are "" in text columns and NaN in number columns.

        Raises:
            DataError: study.csv is damaged.
        """
        damages = [
            f"{name} {damage}" for name, damage in changed_files(self.folder, self.record.files)
        ]
        if damages:
            raise DataError(f"{self.folder} is damaged: {', '.join(damages)}. Run the study again.")
        return read_columns(self.folder / STUDY, STUDY_COLUMNS)

    @property
    def failed(self) -> pd.DataFrame:
        """The rows of the cells that failed; their column `error` has the reason."""
        return self.table[self.table["error"] != ""]

    @property
    def report(self) -> Path | None:
        """The path of report.html; None if no page was written."""
        page = self.folder / "report.html"
        return page if page.exists() else None

    def __repr__(self) -> str:
        """Return the result as text: a line for each of the first cells, by what they add."""
        rows = self.table.sort_values("bag_of_words_difference", ascending=False, kind="stable")
        rows = rows[rows["error"] == ""]
        n_failed = len(self.failed)
        lines = [f"Study {self.record.study}: {self.record.question or 'no question'}"]
        lines += [f"{counted(len(self.table), 'cell')}, {n_failed} of them failed"]
        for _, row in rows.head(MOST_CELLS).iterrows():
            score = format_number(row["score"], row["ci_low"], row["ci_high"])
            words = signed(row["bag_of_words_difference"])
            p = format_p(row["bag_of_words_p"])
            lines.append(
                f"  {row['cell']}: {row['metric']} {score}, to bag of words {words} (p {p})"
            )
        if len(rows) > MOST_CELLS:
            lines.append(f"  and {len(rows) - MOST_CELLS} more")
        lines.append(f"Page: {self.report}" if self.report else f"Folder: {self.folder}")
        return "\n".join([*lines, "Also: .table, .failed, .record"])
