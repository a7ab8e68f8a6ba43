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

from probekit.amounts import counted
from probekit.data.examples import Dataset, Example
from probekit.data.files import read_text
from probekit.data.treebank import ConlluColumns, read_treebank
from probekit.errors import ConfigError, DataError, UnknownNameError, nearest

DataFormat = Literal["csv", "tsv", "jsonl", "conllu"]
DataRow: TypeAlias = tuple[int, Mapping[str, Any]]  # the line it begins on, and its cells by column

# What pandas and others write where a value is missing. A class of that name is refused as well:
# one cannot be told from the other.
_WRITTEN_FOR_MISSING = frozenset(
    {"nan", "NaN", "NAN", "<NA>", "N/A", "n/a", "#N/A", "null", "NULL", "None"}
)

_SHOWN = 60  # characters of a cell in a message
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

    @property
    def defaults(self) -> tuple[str, ...]:
        """The names of the columns that have their default name."""
        return tuple(key for key in ("text", "label") if getattr(self, key) == key)


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
        if examples:
            _require_columns(where, columns.names, cells, first=False)
        else:
            _require_columns(header, columns.names, cells, first=True, defaults=columns.defaults)
        example = _example((str(path), line), cells, columns, row=f"row {len(examples) + 1}")
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
    where: str,
    columns: Sequence[str],
    cells: Mapping[str, Any],
    *,
    first: bool,
    defaults: Sequence[str] = (),
) -> None:
    """Raise an error if a column is missing; `defaults` are those that nobody has named."""
    missing = [column for column in columns if column not in cells]
    if not missing:
        return
    message = f"{where}: no column {missing[0]!r}. {nearest(missing[0], cells)}"
    alone = next(iter(cells)) if len(cells) == 1 else ""
    used = [name for name, separator in _SEPARATORS.items() if separator in alone]
    unnamed = [f"{column}: NAME" for column in missing if column in defaults]
    if used:
        message += f" Its only column holds a {used[0]}: is the format right?"
    elif missing[0].casefold() in map(str.casefold, cells):
        message += " Names of columns are case-sensitive."
    elif unnamed and "Nearest" not in message:
        message += f" Say which columns to read: `columns: {{{', '.join(unnamed)}}}`."
    # The first row shows what the file has; one that lacks a key later is at fault itself.
    raise UnknownNameError(message) if first else DataError(message)


def _example(
    at: tuple[str, int], cells: Mapping[str, Any], columns: TableColumns, row: str
) -> Example:
    file, line = at
    where = f"{file}:{line}"

    def string(column: str) -> str:
        return _string(f"{where}: column {column!r}", cells[column])

    text, label = string(columns.text), string(columns.label)
    id = string(columns.id) if columns.id else row
    group = string(columns.group) if columns.group else id
    split = string(columns.split) if columns.split else None
    span = _span(where, {name: string(name) for name in columns.span or ()})
    if label in _WRITTEN_FOR_MISSING:
        raise DataError(
            f"{where}: the label is {label!r}, which programs write for a missing value. "
            "Remove the row; if it is a class, give it another name."
        )
    try:
        return Example(text, label, group, id, span, split, file, line)
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


def _span(where: str, ends: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the span from the cells of its two columns, None without such columns."""
    for column, cell in ends.items():
        if not (cell.isascii() and cell.isdecimal() and len(cell) < _LONGEST_NUMBER):
            fault = f"holds {cell!r}, not a position in the text" if cell.strip() else "is empty"
            raise DataError(
                f"{where}: column {column!r} {fault}. Write a whole number: a span counts "
                "characters from 0 and ends one past its last."
            )
    start, end = map(int, ends.values()) if ends else (0, 0)
    return (start, end) if ends else None


def _delimited_rows(path: Path, text: str, *, delimiter: str) -> Iterator[DataRow]:
    _refuse_json(path, text)
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


def _refuse_json(path: Path, text: str) -> None:
    """Raise DataError if the first line of a table is a JSON object."""
    first = text.lstrip().partition("\n")[0]
    try:
        is_object = first.startswith("{") and isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return
    if is_object:
        raise DataError(
            f"{path}:{_first_line(text)}: the line is a JSON object, not the header of a table. "
            "Set `format: jsonl`."
        )


def _require_unique(where: str, names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{where}: the name {twice[0]!r} stands twice. Give each its own name.")


def _by_column(where: str, header: list[str], cells: list[str]) -> Mapping[str, str]:
    if len(cells) != len(header):
        n_more, n_less = len(cells) - len(header), len(header) - len(cells)
        fault = (
            f"the last, {cells[-1][:_SHOWN]!r}, has no column. Put a cell that holds the delimiter "
            "in quotes."
            if n_more > 0
            else f"there is none for {', '.join(header[-n_less:])}. Fill in the missing cells, or "
            "remove the row."
        )
        raise DataError(
            f"{where}: the row has {counted(len(cells), 'cell')}, the header has {len(header)}: "
            f"{fault}"
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
