"""The one writer and reader of CSV files: no text cell is a formula for a spreadsheet.

A spreadsheet computes a cell that begins with `=`, `+`, `-`, `@`, a tab or a line break, and may
start programs doing so. Such a text is written with a single quote in front, as OWASP recommends;
numbers are written as they are. `parse_csv` removes the quote, so that every text is read back
unchanged: a text that has quotes before such a character gets one more.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from probekit.disk import inside

# The last four are full-width forms, which some spreadsheets take for the first four.
_FORMULA = "[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"
_TO_QUOTE = re.compile(f"'*{_FORMULA}")
_QUOTED = re.compile(f"'+{_FORMULA}")


def quoted(cell: Any) -> Any:
    """Return a text that a spreadsheet would compute with a quote in front; others as they are.

    >>> quoted("=1+1"), quoted("-1"), quoted(-1), quoted("'-1"), quoted("it's"), quoted("'tis")
    ("'=1+1", "'-1", -1, "''-1", "it's", "'tis")
    """
    return f"'{cell}" if isinstance(cell, str) and _TO_QUOTE.match(cell) else cell


def unquoted(cell: Any) -> Any:
    """Return a cell as it was given to `quoted`.

    >>> unquoted("'=1+1"), unquoted("'-1"), unquoted("''-1"), unquoted("'tis")
    ('=1+1', '-1', "'-1", "'tis")
    """
    return cell[1:] if isinstance(cell, str) and _QUOTED.match(cell) else cell


def csv_text(table: pd.DataFrame) -> str:
    r"""Return a table as CSV with quoted texts, without its index.

    >>> csv_text(pd.DataFrame({"label": ["-1", "a"], "score": [-1.5, None]}))
    "label,score\n'-1,-1.5\na,\n"
    """
    safe = _mapped(table, quoted)
    has_return = any(_has_return(safe[name]) for name in safe if not _holds_numbers(safe[name]))
    # The csv module leaves a lone carriage return bare, and readers end the row there.
    if has_return:
        return safe.to_csv(index=False, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    return safe.to_csv(index=False, lineterminator="\n")


def read_csv(path: Path, **options: Any) -> pd.DataFrame:
    """Return the table of a CSV in the folder of a run, with the texts that `csv_text` was given.

    Args:
        path: links that lead out of its folder are refused.
        options: of `pandas.read_csv`.

    Raises:
        DataError: The file is a link out of its folder, or no regular file.
        OSError, ValueError: It cannot be read.
    """
    return parse_csv(inside(path).read_bytes(), **options)


def parse_csv(content: bytes, **options: Any) -> pd.DataFrame:
    """Return the table that `csv_text` made a text of.

    >>> parse_csv(csv_text(pd.DataFrame({"=label": ["-1"]})).encode()).to_dict("list")
    {'=label': ['-1']}
    """
    return _mapped(pd.read_csv(BytesIO(content), **options), unquoted)


def _mapped(table: pd.DataFrame, change: Callable[[Any], Any]) -> pd.DataFrame:
    """Return the table with its texts changed, those of the header too."""
    columns = {
        change(name): column if _holds_numbers(column) else _changed(column, change)
        for name, column in table.items()
    }
    return pd.DataFrame(columns, index=table.index)


def _changed(column: pd.Series[Any], change: Callable[[Any], Any]) -> pd.Series[Any]:
    # Series.map would guess a type anew, and turn whole numbers beside None into fractions.
    return pd.Series([change(cell) for cell in column], column.index, dtype=column.dtype)


def _has_return(column: pd.Series[Any]) -> bool:
    return any(isinstance(cell, str) and "\r" in cell for cell in column)


def _holds_numbers(column: pd.Series[Any]) -> bool:
    return is_numeric_dtype(column) or is_bool_dtype(column)
