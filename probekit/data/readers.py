"""Data files into examples: CSV, TSV and JSON Lines here, CoNLL-U beside.

The format is always said, never guessed from a file's ending. Every cell stays the string that the
file holds: a label `no`, `1` or `1.0` is never turned into something else, and what cannot be read
for sure is an error with file and line.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from probekit.data.examples import Dataset, Example
from probekit.data.files import read_text
from probekit.data.treebank import ConlluColumns, read_treebank
from probekit.errors import ConfigError, DataError, nearest

DataFormat = Literal["csv", "tsv", "jsonl", "conllu"]
DataRow: TypeAlias = tuple[int, Mapping[str, Any]]  # the line it begins on, and its cells by column

# What pandas and others write where a value is missing. A class of that name is refused as well:
# one cannot be told from the other.
_WRITTEN_FOR_MISSING = frozenset(
    {"nan", "NaN", "NAN", "<NA>", "N/A", "n/a", "#N/A", "null", "NULL", "None"}
)

_LONGEST_NUMBER = 10  # digits; Python refuses to read thousands of them

_SEPARATORS = {"tab": "\t", "semicolon": ";", "comma": ","}


@dataclass(frozen=True)
class TableColumns:
    """The columns of a CSV, TSV or JSON Lines file that hold the fields of an example.

    Attributes:
        text: what the model reads.
        label: the class.
        group: None makes each row its own group.
        id: None names the rows `row 1`, `row 2`, ...
        span: the columns of first character and one past the last; None: the whole text.
        split: the column of "train" or "test"; None: the file assigns none.
    """

    text: str = "text"
    label: str = "label"
    group: str | None = None
    id: str | None = None
    span: tuple[str, str] | None = None
    split: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that are read."""
        single = (self.text, self.label, self.group, self.id, self.split)
        return tuple(name for name in (*single, *(self.span or ())) if name is not None)


def read_dataset(
    path: Path,
    *,
    format: DataFormat,
    columns: TableColumns | ConlluColumns | None = None,
    name: str | None = None,
) -> Dataset:
    r"""Return the examples of a data file, in its order.

    Args:
        path: a UTF-8 file.
        format: "csv", "tsv" (the same with tabs, quotes included), "jsonl" or "conllu".
        columns: where the fields stand; None: the defaults of the format.
        name: what reports call the data set; None: the file's name without its ending.

    Raises:
        ConfigError: the format is unknown, or a column is not in the file.
        MissingError: there is no such file.
        DataError: the contents are wrong; the message gives file and line.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "answers.csv"
    >>> _ = path.write_text('text,label\n"Yes, please.",yes\nNever.,no\n')
    >>> for example in read_dataset(path, format="csv").examples:
    ...     print(example.id, example.text, example.label)
    row 1 Yes, please. yes
    row 2 Never. no
    """
    if format not in get_args(DataFormat):
        raise ConfigError(
            f"{path}: unknown format {format!r}. {nearest(format, get_args(DataFormat))}"
        )
    if columns is None:
        columns = ConlluColumns() if format == "conllu" else TableColumns()
    name = path.stem if name is None else name
    if format == "conllu" and isinstance(columns, ConlluColumns):
        return read_treebank(path, columns, name=name)
    if format != "conllu" and isinstance(columns, TableColumns):
        return _read_table(path, format, columns, name)
    raise ConfigError(
        f"{path}: {type(columns).__name__} does not describe a {format} file. "
        "CoNLL-U takes ConlluColumns, all other formats take TableColumns."
    )


def read_column(path: Path, *, format: str, column: str) -> tuple[str, ...]:
    r"""Return the cells of one column of a CSV, TSV or JSON Lines file, in its order.

    Raises:
        ConfigError: the column is not in the file.
        MissingError: there is no such file.
        DataError: the contents are wrong, or a cell is empty; the message gives file and line.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "answers.tsv"
    >>> _ = path.write_text("text\tlabel\nYes, please.\tyes\n")
    >>> read_column(path, format="tsv", column="text")
    ('Yes, please.',)
    """
    text = read_text(path)
    found: list[str] = []
    header = f"{path}:{_first_line(text)}"
    for line, cells in _ROWS[format](path, text):
        where = f"{path}:{line}"
        _require_columns(where if found else header, (column,), cells, first=not found)
        cell = _string(f"{where}: column {column!r}", cells[column])
        if not cell.strip():
            raise DataError(f"{where}: column {column!r} is empty. Fill it in, or remove the row.")
        found.append(cell)
    if not found:
        raise DataError(f"{path}:1: the file holds no rows of data.")
    return tuple(found)


def _read_table(path: Path, format: str, columns: TableColumns, name: str) -> Dataset:
    examples: list[Example] = []
    line_of_id: dict[str, int] = {}
    kind_of_label: dict[type, int] = {}  # where each type first stands
    text = read_text(path)
    header = f"{path}:{_first_line(text)}"
    for line, cells in _ROWS[format](path, text):
        where = f"{path}:{line}"
        _require_columns(where if examples else header, columns.names, cells, first=not examples)
        example = _example(where, cells, columns, row=f"row {len(examples) + 1}")
        label = cells[columns.label]
        kind_of_label.setdefault(type(label), line)
        if len(kind_of_label) > 1:
            raise DataError(
                f"{where}: the label {json.dumps(label)} is of another type than those from line "
                f'{min(kind_of_label.values())} on: 1 and "1" would be one class. Write all of '
                "them alike."
            )
        if example.id in line_of_id:
            raise DataError(
                f"{where}: the id {example.id!r} stands on line {line_of_id[example.id]} already. "
                "Give each row its own, or name no id column."
            )
        line_of_id[example.id] = line
        examples.append(example)
    if not examples:
        raise DataError(f"{path}:1: the file holds no rows of data.")
    return Dataset(name, tuple(examples), has_groups=columns.group is not None)


def _first_line(text: str) -> int:
    """Return the number of the first line that holds something: of the header or the first row."""
    return text[: len(text) - len(text.lstrip())].count("\n") + 1


def _require_columns(
    where: str, columns: Sequence[str], cells: Mapping[str, Any], *, first: bool
) -> None:
    missing = next((column for column in columns if column not in cells), None)
    if missing is None:
        return
    message = f"{where}: no column {missing!r}. {nearest(missing, cells)}"
    alone = next(iter(cells)) if len(cells) == 1 else ""
    used = [name for name, separator in _SEPARATORS.items() if separator in alone]
    if used:
        message += f" Its only column holds a {used[0]}: is the format right?"
    # The first row shows what the file has; one that lacks a key later is at fault itself.
    raise ConfigError(message) if first else DataError(message)


def _example(where: str, cells: Mapping[str, Any], columns: TableColumns, row: str) -> Example:
    def string(column: str) -> str:
        return _string(f"{where}: column {column!r}", cells[column])

    text, label = string(columns.text), string(columns.label)
    id = string(columns.id) if columns.id else row
    group = string(columns.group) if columns.group else id
    split = string(columns.split) if columns.split else None
    span = _span(where, string(columns.span[0]), string(columns.span[1])) if columns.span else None
    if label in _WRITTEN_FOR_MISSING:
        raise DataError(
            f"{where}: the label is {label!r}, which programs write for a missing value. "
            "Remove the row; if it is a class, give it another name."
        )
    try:
        return Example(text, label, group, id, span, split)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def _string(where: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise DataError(f"{where} holds no value (null or NaN). Fill it in, or remove the row.")
    raise DataError(
        f"{where} holds {json.dumps(value)}. Allowed: a string or an integer. Write it in quotes."
    )


def _span(where: str, start: str, end: str) -> tuple[int, int]:
    for cell in (start, end):
        if not (cell.isascii() and cell.isdecimal() and len(cell) < _LONGEST_NUMBER):
            raise DataError(
                f"{where}: {cell!r} is not a position in the text. "
                "A span counts characters from 0 and ends one past its last."
            )
    return int(start), int(end)


def _delimited_rows(path: Path, text: str, *, delimiter: str) -> Iterator[DataRow]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    line = 1
    try:
        for cells in reader:
            if not header:
                header = cells
                _require_unique(f"{path}:{line}", header)
            elif cells:  # a blank line holds nothing
                yield line, _by_column(f"{path}:{line}", header, cells)
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}:{line}: the row that begins here cannot be read: {error}. "
            'A cell with a quote in it is wrapped in quotes, and its own quotes are doubled: "". '
            f"A cell has at most {csv.field_size_limit():,} characters."
        ) from error


def _require_unique(where: str, names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{where}: the name {twice[0]!r} stands twice. Give each its own name.")


def _by_column(where: str, header: list[str], cells: list[str]) -> Mapping[str, str]:
    if len(cells) != len(header):
        raise DataError(
            f"{where}: the row has {len(cells)} cells, the header has {len(header)}. "
            "A cell that holds the delimiter is wrapped in quotes."
        )
    return dict(zip(header, cells, strict=True))


def _json_rows(path: Path, text: str) -> Iterator[DataRow]:
    # Not splitlines: U+2028 and its like may stand inside a JSON string.
    for line, source in enumerate(text.split("\n"), start=1):
        if not source or source.isspace():
            continue
        where = f"{path}:{line}"
        try:
            value = json.loads(source, object_pairs_hook=partial(_object, where))
        except json.JSONDecodeError as error:
            raise DataError(
                f"{where}: not JSON: {error.msg} at column {error.colno}. "
                'Each line is one object, such as {"text": "...", "label": "..."}.'
            ) from error
        except DataError:  # a ValueError as well, but one whose message is complete
            raise
        except (ValueError, RecursionError) as error:  # a number or a nesting without measure
            raise DataError(f"{where}: not JSON that can be read: {error}.") from error
        if not isinstance(value, dict):
            raise DataError(f"{where}: a {type(value).__name__}. Allowed: one object on each line.")
        yield line, value


def _object(where: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _require_unique(where, [key for key, _ in pairs])
    return dict(pairs)


_ROWS: Mapping[str, Callable[[Path, str], Iterator[DataRow]]] = {
    "csv": partial(_delimited_rows, delimiter=","),
    "tsv": partial(_delimited_rows, delimiter="\t"),
    "jsonl": _json_rows,
}
