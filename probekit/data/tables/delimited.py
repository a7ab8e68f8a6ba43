"""Reading CSV and TSV files; every cell remains the string in the file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path

from probekit.amounts import counted
from probekit.data.examples import RowSource
from probekit.data.files import first_line, read_text
from probekit.data.tables.table import Table, TableRow, require_unique
from probekit.errors import DataError

_SHOWN = 60  # characters of a cell in a message


def _delimited_table(path: Path, _columns: Collection[str], *, delimiter: str) -> Table:
    text = read_text(path)
    header = f"{path}:{first_line(text)}"
    return Table(f"{path}:1: the file", header, _rows(path, text, delimiter))


csv_table = partial(_delimited_table, delimiter=",")
tsv_table = partial(_delimited_table, delimiter="\t")


def _rows(path: Path, text: str, delimiter: str) -> Iterator[TableRow]:
    _check_not_json(path, text)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    line = 1
    try:
        for cells in reader:
            if not header:
                header = cells
                require_unique(f"{path}:{line}", header)
            elif cells:  # skips blank lines
                by_column = _by_column(f"{path}:{line}", header, cells)
                yield TableRow(RowSource(str(path), line), by_column)
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}:{line}: the row that begins here is not valid CSV: {error}. "
            'Put a cell with a quote in quotes, and double its own quotes: "". '
            f"A cell has at most {csv.field_size_limit():,} characters."
        ) from error


def _check_not_json(path: Path, text: str) -> None:
    """Raise DataError if the first line of a table is a JSON object."""
    first = text.lstrip().partition("\n")[0]
    try:
        is_object = first.startswith("{") and isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return
    if is_object:
        raise DataError(
            f"{path}:{first_line(text)}: the line is a JSON object, not the header of a table. "
            "Set `format: jsonl`."
        )


def _by_column(where: str, header: list[str], cells: list[str]) -> Mapping[str, str]:
    if len(cells) != len(header):
        n_extra, n_missing = len(cells) - len(header), len(header) - len(cells)
        fault = (
            f"the last, {cells[-1][:_SHOWN]!r}, has no column. Put cells with a delimiter in "
            "quotes."
            if n_extra > 0
            else f"there is none for {', '.join(header[-n_missing:])}. Fill in the missing cells, "
            "or remove the row."
        )
        raise DataError(
            f"{where}: the row has {counted(len(cells), 'cell')}, the header has {len(header)}: "
            f"{fault}"
        )
    return dict(zip(header, cells, strict=True))
