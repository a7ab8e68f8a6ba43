"""Reading data files: CSV, TSV and JSON Lines; CoNLL-U is in treebank.py.

The format is always given, never guessed from the file extension. Every cell remains the string in
the file: a label `no`, `1` or `1.0` is not converted. Ambiguous contents raise an error with file
and line.
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
DataRow: TypeAlias = tuple[int, Mapping[str, Any]]  # first line of the row, and its cells by column

# Spellings of a missing value by pandas and other programs. A class with such a name cannot be
# distinguished from it.
_MISSING_VALUES = frozenset(
    {"nan", "NaN", "NAN", "<NA>", "N/A", "n/a", "#N/A", "null", "NULL", "None"}
)

_SHOWN = 60  # characters of a cell in a message
_MAX_DIGITS = 10  # int() raises ValueError for thousands of digits

_SEPARATORS = {"tab": "\t", "semicolon": ";", "comma": ","}


@dataclass(frozen=True)
class TableColumns:
    """Names of the columns of a CSV, TSV or JSON Lines file that contain the fields of an example.

    Attributes:
        text: column of the text.
        label: column of the class.
        group: column of the group; None makes each row its own group.
        id: column of the id; None names the rows `row 1`, `row 2`, ...
        span: columns of the first character and one past the last; None means the whole text.
        split: column with "train" or "test"; None if the file assigns no split.
    """

    text: str = "text"
    label: str = "label"
    group: str | None = None
    id: str | None = None
    span: tuple[str, str] | None = None
    split: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that are read."""
        single = (self.text, self.label, self.group, self.id, self.split)
        return tuple(name for name in (*single, *(self.span or ())) if name is not None)

    @property
    def defaults(self) -> tuple[str, ...]:
        """Names of the required columns for which the user chose no other name."""
        return tuple(key for key in ("text", "label") if getattr(self, key) == key)


def read_dataset(
    path: Path,
    *,
    format: DataFormat,
    columns: TableColumns | ConlluColumns | None = None,
    name: str | None = None,
) -> Dataset:
    r"""Return the examples of a data file, in file order.

    Args:
        path: a UTF-8 file.
        format: "csv", "tsv" (CSV with tabs instead of commas), "jsonl" or "conllu".
        columns: columns of the fields; None means the defaults of the format.
        name: name shown in reports; None means the file name without extension.

    Raises:
        ConfigError: the format is unknown, or a column is not in the file.
        MissingError: the file does not exist.
        DataError: the contents are invalid; the message gives file and line.

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
        f"{path}: {type(columns).__name__} does not apply to the format {format}. "
        "Pass ConlluColumns for CoNLL-U, TableColumns for all other formats."
    )


def read_column(path: Path, *, format: str, column: str) -> tuple[str, ...]:
    r"""Return the cells of one column of a CSV, TSV or JSON Lines file, in file order.

    Raises:
        ConfigError: the column is not in the file.
        MissingError: the file does not exist.
        DataError: the contents are invalid, or a cell is empty; the message gives file and line.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "answers.tsv"
    >>> _ = path.write_text("text\tlabel\nYes, please.\tyes\n")
    >>> read_column(path, format="tsv", column="text")
    ('Yes, please.',)
    """
    text = read_text(path)
    values: list[str] = []
    header = f"{path}:{_first_line(text)}"
    for line, cells in _ROWS[format](path, text):
        where = f"{path}:{line}"
        _require_columns(where if values else header, (column,), cells, first=not values)
        cell = _string(f"{where}: column {column!r}", cells[column])
        if not cell.strip():
            raise DataError(f"{where}: column {column!r} is empty. Fill it in, or remove the row.")
        values.append(cell)
    if not values:
        raise DataError(f"{path}:1: the file has no rows.")
    return tuple(values)


def _read_table(path: Path, format: str, columns: TableColumns, name: str) -> Dataset:
    examples: list[Example] = []
    line_of_id: dict[str, int] = {}
    line_of_type: dict[type, int] = {}  # first line with a label of each type
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
        line_of_type.setdefault(type(label), line)
        if len(line_of_type) > 1:
            raise DataError(
                f"{where}: the label {json.dumps(label)} has another type than those from line "
                f'{min(line_of_type.values())} on, so that 1 and "1" would be one class. Write all '
                "labels with the same type."
            )
        if example.id in line_of_id:
            raise DataError(
                f"{where}: the id {example.id!r} is a duplicate of line {line_of_id[example.id]}. "
                "Make each id unique, or configure no id column."
            )
        line_of_id[example.id] = line
        examples.append(example)
    if not examples:
        raise DataError(f"{path}:1: the file has no rows.")
    return Dataset(name, tuple(examples), has_groups=columns.group is not None)


def _first_line(text: str) -> int:
    """Return the number of the first non-blank line, which is the header or the first row."""
    return text[: len(text) - len(text.lstrip())].count("\n") + 1


def _require_columns(
    where: str,
    columns: Sequence[str],
    cells: Mapping[str, Any],
    *,
    first: bool,
    defaults: Sequence[str] = (),
) -> None:
    """Raise an error if a column is missing; `defaults` are columns with their default name."""
    missing = [column for column in columns if column not in cells]
    if not missing:
        return
    message = f"{where}: no column {missing[0]!r}. {nearest(missing[0], cells)}"
    only_column = next(iter(cells)) if len(cells) == 1 else ""
    used = [name for name, separator in _SEPARATORS.items() if separator in only_column]
    unnamed = [f"{column}: NAME" for column in missing if column in defaults]
    if used:
        message += f" The name of the only column contains a {used[0]}. Check the format."
    elif missing[0].casefold() in map(str.casefold, cells):
        message += " Column names are case-sensitive."
    elif unnamed and "Nearest" not in message:
        message += f" Set the columns to read: `columns: {{{', '.join(unnamed)}}}`."
    # In the first row the configuration is wrong; in a later one, the row itself.
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
    if label in _MISSING_VALUES:
        raise DataError(
            f"{where}: the label {label!r} is a common spelling of a missing value. Remove the "
            "row, or, if it is a class, rename it."
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
        raise DataError(f"{where} has no value (null or NaN). Fill it in, or remove the row.")
    raise DataError(
        f"{where} has the value {json.dumps(value)}. Allowed: a string or an integer. Put it in "
        "quotes."
    )


def _span(where: str, ends: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the span from the cells of its two columns, or None without such columns."""
    for column, cell in ends.items():
        if not (cell.isascii() and cell.isdecimal() and len(cell) < _MAX_DIGITS):
            fault = (
                f"has the value {cell!r}, which is not a position" if cell.strip() else "is empty"
            )
            raise DataError(
                f"{where}: column {column!r} {fault}. Write an integer: a span counts characters "
                "from 0 and ends one past its last."
            )
    start, end = map(int, ends.values()) if ends else (0, 0)
    return (start, end) if ends else None


def _delimited_rows(path: Path, text: str, *, delimiter: str) -> Iterator[DataRow]:
    _check_not_json(path, text)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    line = 1
    try:
        for cells in reader:
            if not header:
                header = cells
                _require_unique(f"{path}:{line}", header)
            elif cells:  # skips blank lines
                yield line, _by_column(f"{path}:{line}", header, cells)
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
            f"{path}:{_first_line(text)}: the line is a JSON object, not the header of a table. "
            "Set `format: jsonl`."
        )


def _require_unique(where: str, names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"{where}: duplicate name {twice[0]!r}. Make each name unique.")


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


def _json_rows(path: Path, text: str) -> Iterator[DataRow]:
    # Not splitlines, which also splits at U+2028, allowed in a JSON string.
    for line, source in enumerate(text.split("\n"), start=1):
        if not source or source.isspace():
            continue
        where = f"{path}:{line}"
        try:
            value = json.loads(source, object_pairs_hook=partial(_object, where))
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
        yield line, value


def _object(where: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _require_unique(where, [key for key, _ in pairs])
    return dict(pairs)


_ROWS: Mapping[str, Callable[[Path, str], Iterator[DataRow]]] = {
    "csv": partial(_delimited_rows, delimiter=","),
    "tsv": partial(_delimited_rows, delimiter="\t"),
    "jsonl": _json_rows,
}
