"""Writing and reading CSV files that are safe to open in a spreadsheet.

A spreadsheet evaluates a cell that begins with `=`, `+`, `-`, `@`, a tab or a line break as a
formula, which may start programs. Such texts are written with a leading single quote, as OWASP
recommends; numbers are written unchanged. `parse_csv` removes the quote, so every text is read back
as it was: if a text already has quotes before such a character, one more is added.
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

# The last four are full-width forms, which some spreadsheets treat like the first four.
_FORMULA = "[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"
_TO_QUOTE = re.compile(f"'*{_FORMULA}")
_QUOTED = re.compile(f"'+{_FORMULA}")


def quoted(cell: Any) -> Any:
    """Add a leading quote to a text that looks like a formula; return other cells unchanged.

    >>> quoted("=1+1"), quoted("-1"), quoted(-1), quoted("'-1"), quoted("it's"), quoted("'tis")
    ("'=1+1", "'-1", -1, "''-1", "it's", "'tis")
    """
    return f"'{cell}" if isinstance(cell, str) and _TO_QUOTE.match(cell) else cell


def unquoted(cell: Any) -> Any:
    """Remove the leading quote that `quoted` added to a text; return other cells unchanged.

    >>> unquoted("'=1+1"), unquoted("'-1"), unquoted("''-1"), unquoted("'tis")
    ('=1+1', '-1', "'-1", "'tis")
    """
    return cell[1:] if isinstance(cell, str) and _QUOTED.match(cell) else cell


def csv_text(table: pd.DataFrame) -> str:
    r"""Return a table as CSV text without its index; texts that look like formulas are quoted.

    >>> csv_text(pd.DataFrame({"label": ["-1", "a"], "score": [-1.5, None]}))
    "label,score\n'-1,-1.5\na,\n"
    """
    safe = _mapped(table, quoted)
    has_return = any(_has_return(safe[name]) for name in safe if not _holds_numbers(safe[name]))
    # The csv module does not quote a lone carriage return, and readers end the row there.
    if has_return:
        return safe.to_csv(index=False, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    return safe.to_csv(index=False, lineterminator="\n")


def read_csv(path: Path, **options: Any) -> pd.DataFrame:
    """Return the table in a CSV file of a run folder, with the quotes of `csv_text` removed.

    Args:
        path: the file. A link that leads out of its folder is an error.
        options: keyword arguments of `pandas.read_csv`.

    Raises:
        DataError: the file is a link out of its folder, or not a regular file.
        OSError, ValueError: the file cannot be read or parsed.
    """
    return parse_csv(inside(path).read_bytes(), **options)


def parse_csv(content: bytes, **options: Any) -> pd.DataFrame:
    """Return the table in the bytes of a CSV file, with the quotes of `csv_text` removed.

    >>> parse_csv(csv_text(pd.DataFrame({"=label": ["-1"]})).encode()).to_dict("list")
    {'=label': ['-1']}
    """
    return _mapped(pd.read_csv(BytesIO(content), **options), unquoted)


def _mapped(table: pd.DataFrame, change: Callable[[Any], Any]) -> pd.DataFrame:
    """Apply `change` to all texts of a table, column names included."""
    columns = {
        change(name): column if _holds_numbers(column) else _changed(column, change)
        for name, column in table.items()
    }
    return pd.DataFrame(columns, index=table.index)


def _changed(column: pd.Series[Any], change: Callable[[Any], Any]) -> pd.Series[Any]:
    # Series.map would infer a new dtype and turn integers next to None into floats.
    return pd.Series([change(cell) for cell in column], column.index, dtype=column.dtype)


def _has_return(column: pd.Series[Any]) -> bool:
    return any(isinstance(cell, str) and "\r" in cell for cell in column)


def _holds_numbers(column: pd.Series[Any]) -> bool:
    return is_numeric_dtype(column) or is_bool_dtype(column)
