"""Tables of a study: a row for each cell, and one for each of its rivals; its result in Python."""

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import scipy

from probekit.amounts import LEVEL, counted, format_number, format_p, signed
from probekit.errors import DataError, MissingError, path_of
from probekit.probes.score.exchange import holm
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.unpaired import signed_rank
from probekit.probes.targets import TARGETS
from probekit.results.record import STARTED, RecordPart, changed_files, read_record
from probekit.results.table import TableColumn, limits, only, read_columns
from probekit.results.verdict import RIVALS

STUDY, STUDY_RIVALS, STUDY_RECORD = "study.csv", "study_rivals.csv", "study.json"
MOST_CELLS = 20  # of the text of a result
FIRST = "bag_of_words"  # the rival that cells are compared with, if it was measured
# Columns of study.csv; after the first two there is one for each varied key but `data`.
STUDY_COLUMNS = (
    TableColumn("cell", "name of the cell, and of the folder of its runs"),
    TableColumn("dataset", "name of the data set"),
    TableColumn("metric", "main metric"),
    TableColumn("score", "reported score on the test rows", "number"),
    *limits("ci_", "its 95 % interval"),
    TableColumn("chance", "score at chance level", "number"),
    TableColumn("p", "p-value of the association of predictions and labels", "number"),
    TableColumn("n", "number of test rows", "integer"),
    TableColumn("n_groups", "number of groups of these rows", "integer"),
    TableColumn("verdict", "verdict of the run in one word or phrase"),
    TableColumn("site", "chosen site; with outer folds the one that most folds chose"),
    TableColumn("layer", "block of the site chosen by the scores of all folds", "number"),
    TableColumn("position", "probed position"),
    TableColumn("probe", "kind of probe"),
    TableColumn(
        "repeated", "share of test rows whose text occurs in their training rows", "number"
    ),
    TableColumn("published", "published score of the data set", "number"),
    TableColumn("caveats", "reasons to doubt the result, most serious first, one per line"),
    TableColumn("folder", "folder of the run of the cell, relative to that of the study"),
    TableColumn("error", "error of a cell that failed; empty for the others"),
)
# Columns of study_rivals.csv.
RIVAL_COLUMNS = (
    TableColumn("cell", "name of the cell"),
    TableColumn("rival", "what else was scored on its test rows", allowed=RIVALS),
    TableColumn("value", "score of the rival", "number"),
    TableColumn("difference", "reported score of the cell minus `value`", "number"),
    *limits("ci_", "the 95 % interval of the difference"),
    TableColumn("p", "p-value of the difference; for the majority class `p` of the cell", "number"),
    TableColumn(
        "is_constant",
        "whether the rival predicts the same for all rows, as the majority class does",
        "boolean",
    ),
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
        table = self._read(STUDY, STUDY_COLUMNS)
        varied = {"data", *table} - {column.name for column in STUDY_COLUMNS}
        if wrong := sorted(set(self.record.keys) - varied):
            raise DataError(
                f"{self.folder} is damaged: {STUDY_RECORD} has the varied key {wrong[0]!r}, which "
                f"{STUDY} lacks. Run the study again."
            )
        return table

    @cached_property
    def rivals(self) -> pd.DataFrame:
        """The rows of study_rivals.csv, one for each finished cell and rival.

        Raises:
            DataError: study_rivals.csv is damaged.
        """
        return self._read(STUDY_RIVALS, RIVAL_COLUMNS)

    def _read(self, name: str, columns: Sequence[TableColumn]) -> pd.DataFrame:
        """Return a table of the study after comparing all files with their digests."""
        damages = [
            f"{name} {damage}" for name, damage in changed_files(self.folder, self.record.files)
        ]
        if damages:
            raise DataError(f"{self.folder} is damaged: {', '.join(damages)}. Run the study again.")
        return read_columns(self.folder / name, columns)

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
        rival = main_rival(self.rivals)
        rows = compared_cells(self.table, self.rivals, rival)
        # The embedding is no target and has its own name.
        title = TARGETS[rival].title if rival in TARGETS else rival
        n_failed = len(self.failed)
        lines = [f"Study {self.record.study}: {self.record.question or 'no question'}"]
        lines += [f"{counted(len(self.table), 'cell')}, {n_failed} of them failed"]
        for _, row in by_gain(rows).head(MOST_CELLS).iterrows():
            score = format_number(row["score"], row["score_low"], row["score_high"])
            lead, p = signed(row["difference"]), format_p(row["p"])
            lines.append(f"  {row['cell']}: {row['metric']} {score}, to {title} {lead} (p {p})")
        if len(rows) > MOST_CELLS:
            lines.append(f"  and {len(rows) - MOST_CELLS} more")
        lines.append(f"Page: {self.report}" if self.report else f"Folder: {self.folder}")
        return "\n".join([*lines, "Also: .table, .rivals, .failed, .record"])


def measured_rivals(rivals: pd.DataFrame) -> list[str]:
    """Return the rivals that any cell has a difference from, the one of the answer first."""
    measured = set(rivals.loc[rivals["difference"].notna(), "rival"])
    return sorted(measured, key=[FIRST, *RIVALS].index)


def main_rival(rivals: pd.DataFrame) -> str:
    """Return the rival of the answer: the first of `measured_rivals`, `FIRST` without any."""
    return next(iter(measured_rivals(rivals)), FIRST)


# Results of a comparison with a rival. A rival that predicts the same for all rows has no test of
# the difference; there the probe can be above chance.
BETTER, WORSE, ABOVE_CHANCE = "better", "worse", "above chance"


def compared_cells(table: pd.DataFrame, rivals: pd.DataFrame, rival: str) -> pd.DataFrame:
    """Return the finished cells with their difference from a rival, in the order of the study.

    Columns: those of study.csv, where the ends of the interval of the score are `score_low` and
    `score_high`, and those of study_rivals.csv, so that `ci_low`, `ci_high` and `p` are of the
    difference; `holm` and `fdr`, the result after adjustment of the p-values for all cells, or ""
    if it is not significant. Holm's adjustment limits the probability of any false result to 5 %.
    The false discovery rate is that of Benjamini and Yekutieli, because cells that share texts or a
    network have dependent p-values, and two-sided p-values do not have the positive dependence that
    the procedure of Benjamini and Hochberg requires. Both allow any dependence.

    A rival that predicts the same for all rows has the p-value of the association of predictions
    and labels: it counts in the adjustment, and its result is `ABOVE_CHANCE` if the interval of the
    difference excludes 0. `is_constant` is false for cells without a p-value.

    Simulated by `python -m benchmarks.claims.studies` in 2,000 studies of 8 and of 30 cells without
    any true difference, with correlations from 0 to 0.9 between cells: there is any false result in
    0.9 to 5.4 % of studies with Holm, standard error 0.5 %. If a third of the cells are better by
    four standard errors, at most 1.6 % of the results are false by false discovery rate.

    Args:
        table: the rows of study.csv.
        rivals: the rows of study_rivals.csv.
        rival: one of `RIVALS`.

    Source: Holm (1979), A simple sequentially rejective multiple test procedure; Benjamini and
    Yekutieli (2001), The control of the false discovery rate in multiple testing under dependency.
    """
    own = table[table["error"] == ""].rename(
        columns={"ci_low": "score_low", "ci_high": "score_high"}
    )
    rows = own.drop(columns="p").merge(only(rivals, rival=rival), on="cell", how="left")
    signs = rows["metric"].map(lambda name: METRICS[name].sign)
    lead, low, high = (rows[name] * signs for name in ("difference", "ci_low", "ci_high"))
    p = rows["p"].dropna()
    rows["is_constant"] = rows["is_constant"].eq(True) & rows["p"].notna()
    result = np.where(lead > 0, BETTER, np.where(lead < 0, WORSE, ""))
    above = np.where(np.minimum(low, high) > 0, ABOVE_CHANCE, "")
    result = np.where(rows["is_constant"], above, result)
    by = scipy.stats.false_discovery_control(p, method="by") if len(p) else p
    for name, adjusted in {"holm": holm(p.to_numpy()), "fdr": by}.items():
        is_significant = pd.Series(adjusted, p.index).reindex(rows.index) < LEVEL
        rows[name] = np.where(is_significant, result, "")
    return rows


def by_gain(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `compared_cells`, those that are most better than the rival first."""
    lead = rows["difference"] * rows["metric"].map(lambda name: METRICS[name].sign)
    return rows.loc[lead.sort_values(ascending=False, kind="stable").index]


def compared_settings(table: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return the paired differences over data sets of each two values of each varied key.

    A data set counts once, with the mean over the values of the other keys. Pairs in which a cell
    failed, and cells with another main metric than most, are left out.

    Columns: `key`, the values `a` and `b`, `n` data sets, the median `difference` a - b with
    `ci_low` and `ci_high`, `p` of `signed_rank`, and `p_holm`, adjusted for all comparisons. The
    last four are NaN with fewer than 6 data sets. The p-values hold for data sets that are drawn
    independently; those that share texts are not.

    Simulated by `python -m benchmarks.claims.studies` in 2,000 draws of 6, 8, 12 and 30 data sets,
    with normal, tied, heavy-tailed and unlike differences. Without a difference, p < 0.05 in 0.9 to
    5.6 % of draws; the exact test has at most 3.1, 3.9, 4.2 and 5.0 %, and in 15,000 draws of 30
    normal differences it is 4.8 %. Intervals cover in 94.3 to 99.0 %.

    Args:
        table: the rows of study.csv.
        keys: the varied keys; `data` is ignored.
    """
    main = table.loc[table["score"].notna(), "metric"].mode()[:1]
    rows = table.assign(score=table["score"].where(table["metric"].isin(main)))
    settings, found = [key for key in keys if key != "data"], []
    for key in settings:
        others = [other for other in settings if other != key]
        scores = rows.pivot_table(index=["dataset", *others], columns=key, values="score")
        values = [value for value in table[key].unique() if value in scores]
        for a, b in combinations(values, 2):
            by_data = (scores[a] - scores[b]).dropna().groupby("dataset").mean()
            one, p = signed_rank(by_data.to_numpy())
            found.append((key, a, b, len(by_data), one.value, one.low, one.high, p))
    columns = ["key", "a", "b", "n", "difference", "ci_low", "ci_high", "p"]
    compared = pd.DataFrame(found, columns=columns)
    tested = compared["p"].dropna()
    return compared.assign(p_holm=pd.Series(holm(tested.to_numpy()), tested.index))
