"""Text files with errors that give file and line; tables in CSV, TSV and JSON Lines.

A cell of CSV or TSV remains the string in the file; one of JSON Lines is the JSON value.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from probekit.amounts import counted
from probekit.data.examples import RowSource
from probekit.data.table import Table, TableRow, distinct_cells, require_unique
from probekit.errors import DataError, MissingError
from probekit.files import regular


def read_text(path: Path) -> str:
    r"""Return the contents of a UTF-8 file without byte order mark, with line endings unchanged.

    Raises:
        MissingError: the file does not exist or cannot be read.
        DataError: the file is empty or not UTF-8; the message gives the line.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "words.csv"
    >>> _ = path.write_bytes(b"\xef\xbb\xbftext,label\r\n")
    >>> read_text(path)
    'text,label\r\n'
    """
    try:
        with reading_data(path):
            text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}:{line}: the byte {error.object[error.start]:#04x} is not UTF-8. "
            "Save the file as UTF-8."
        ) from error
    if not text.strip():
        raise DataError(f"{path}:1: the file is empty.")
    return text


@contextmanager
def reading_data(path: Path) -> Iterator[None]:
    """Raise MissingError if a file does not exist, is not a regular one, or cannot be read."""
    try:
        regular(path)
        yield
    except FileNotFoundError as error:
        text = f"The data file {path.absolute()} does not exist. Check the path."
        raise MissingError(text) from error
    except OSError as error:
        raise MissingError(f"{path.absolute()} cannot be read: {error.strerror}.") from error


def _table(path: Path, _columns: Collection[str], *, delimiter: str | None) -> Table:
    """Return the rows of a file with a delimiter; None reads JSON Lines.

    `_columns` is not used: all columns are read.
    """
    text = read_text(path)
    # The first line that is not blank is the header or the first row.
    header = text[: len(text) - len(text.lstrip())].count("\n") + 1
    where = f"{path}:{header}"
    if delimiter is None:
        return Table(where, _json_rows(path, text))
    return Table(where, _delimited_rows(path, text, delimiter))


csv_table = partial(_table, delimiter=",")
tsv_table = partial(_table, delimiter="\t")
json_table = partial(_table, delimiter=None)


def _delimited_rows(path: Path, text: str, delimiter: str) -> Iterator[TableRow]:
    """Yield the rows after the header, which is the first line that is not empty."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    line = 1  # where the next row begins: cells in quotes may contain line breaks
    try:
        for cells in reader:
            if not header:
                header = cells
                require_unique(f"{path}:{line}", header)
            elif cells:  # skips empty lines
                if len(cells) != len(header):
                    raise DataError(
                        f"{path}:{line}: the row has {counted(len(cells), 'cell')}, the header has "
                        f"{len(header)}. Put cells with a delimiter in quotes, and fill in missing "
                        "cells."
                    )
                yield TableRow(RowSource(str(path), line), dict(zip(header, cells, strict=True)))
            line = reader.line_num + 1
    except csv.Error as error:
        advice = 'Put a cell with a quote in quotes, and double its own quotes: "".'
        if "field limit" in str(error):
            advice = (
                "Is a quote at the end of a cell missing? Longer texts can be read from .jsonl."
            )
        raise DataError(
            f"{path}:{line}: the row that begins here is not valid CSV: {error}. {advice}"
        ) from error


def _json_rows(path: Path, text: str) -> Iterator[TableRow]:
    """Yield a row for each line that is not blank."""
    # `splitlines` would also split at U+2028, which is allowed in a JSON string.
    for line, source in enumerate(text.split("\n"), start=1):
        if not source or source.isspace():
            continue
        where = f"{path}:{line}"
        try:
            value = json.loads(source, object_pairs_hook=partial(distinct_cells, where))
        except json.JSONDecodeError as error:
            raise DataError(
                f"{where}: not valid JSON: {error.msg} at column {error.colno}. "
                'Each line must be an object, such as {"text": "...", "label": "..."}.'
            ) from error
        except DataError:  # also a ValueError, but with a complete message
            raise
        except (ValueError, RecursionError) as error:  # a number or a nesting that is too long
            raise DataError(f"{where}: the JSON cannot be parsed: {error}.") from error
        if not isinstance(value, dict):
            raise DataError(f"{where}: expected a JSON object, not a {type(value).__name__}.")
        yield TableRow(RowSource(str(path), line), value)
