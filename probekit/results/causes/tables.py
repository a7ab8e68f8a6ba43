"""Reading the tables of a run's interventions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd

from probekit.errors import DataError
from probekit.files import inside
from probekit.results.causes.columns import DOSES, DOWNSTREAM, EFFECTS, VERDICTS
from probekit.results.causes.record import CausesRecord
from probekit.results.columns import TableColumn
from probekit.results.record import parse_record, reading_run_file
from probekit.results.table import check_layers, read_columns

FOLDER = "causes"  # within the folder of a run
RECORD = "causes.json"
TABLES: Mapping[str, tuple[TableColumn, ...]] = MappingProxyType(
    {"effects": EFFECTS, "verdicts": VERDICTS, "doses": DOSES, "downstream": DOWNSTREAM}
)
DIRECTION = ("site", "at", "along")  # columns that identify a direction
_ALWAYS = ("n", "groups", "layer", "head", "position")  # integers, or empty


def has_causes(run_dir: Path) -> bool:
    """Return whether a run has interventions."""
    return (run_dir / FOLDER / RECORD).exists()


@dataclass(frozen=True, eq=False)
class CauseTables:
    """Record and tables of the interventions of a run; a table without a file has no rows.

    Attributes:
        run_dir: folder of the run.
        record: facts about the interventions.
        effects: patches and ablations.
        verdicts: a row for each direction and question.
        doses: dose-response curves of directions.
        downstream: probes that were fitted again at later sites.
    """

    run_dir: Path
    record: CausesRecord
    effects: pd.DataFrame
    verdicts: pd.DataFrame
    doses: pd.DataFrame
    downstream: pd.DataFrame

    @classmethod
    def open(cls, run_dir: Path) -> CauseTables:
        """Return the interventions of a run.

        Args:
            run_dir: folder of the run, which contains the folder `causes`.

        Raises:
            MissingError: there is no causes/causes.json.
            DataError: a file cannot be read, a column is missing or a cell is invalid.
        """
        folder = run_dir / FOLDER
        path = folder / RECORD
        with reading_run_file(path):
            content = inside(path).read_bytes()
        record = parse_record(content, path, CausesRecord)
        tables = {name: _table(folder / f"{name}.csv", columns) for name, columns in TABLES.items()}
        _check_questions(tables["verdicts"], folder / "verdicts.csv")
        return cls(run_dir, record, **tables)


def _table(path: Path, columns: Sequence[TableColumn]) -> pd.DataFrame:
    if not path.exists() and not path.is_symlink():
        return _converted_types(pd.DataFrame(columns=[column.name for column in columns]), columns)
    table = read_columns(path, columns)
    for name in ("site", "erased"):
        if name in table:
            _check(table[name] != "", table[name], path, "Give the name of a site.")
            check_layers(table[name], path)
    for name in _ALWAYS:
        if name in table:
            cells = table[name]
            is_integer = cells.isna() | ((cells >= 0) & (cells % 1 == 0) & np.isfinite(cells))
            _check(is_integer, cells, path, "Allowed: an integer from 0.")
    return table


def _converted_types(table: pd.DataFrame, columns: Sequence[TableColumn]) -> pd.DataFrame:
    types = {"number": "float64", "boolean": "boolean", "text": "str"}
    return table.astype({column.name: types[column.type] for column in columns})


def _check(is_valid: pd.Series[bool], cells: pd.Series, path: Path, remedy: str) -> None:
    if not is_valid.all():
        row = int(np.flatnonzero(~is_valid)[0])
        raise DataError(
            f"{path}, line {row + 2}, column {cells.name!r}: {cells.iloc[row]!r} cannot be read. "
            f"{remedy} Run the experiment again to rewrite the file."
        )


def _check_questions(verdicts: pd.DataFrame, path: Path) -> None:
    """Raise DataError if a direction has two rows for a question, or one without a verdict."""
    twice = verdicts.duplicated([*DIRECTION, "question"])
    _check(~twice, verdicts["question"], path, "The direction has another row for this question.")
    has_answer = verdicts["answer"].ne("") | verdicts["question"].eq("swap")
    _check(has_answer, verdicts["answer"], path, "Allowed: yes, no, undecided.")
