"""Rows of a table, from any source, and the examples that they contain."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from probekit.data.examples import Dataset, Example, RowSource
from probekit.data.tables.columns import TableColumns
from probekit.data.turns import Turns, join_turns
from probekit.errors import DataError, UnknownNameError, nearest

# Spellings of a missing value by pandas and other programs. A class with such a name cannot be
# distinguished from it.
_MISSING_VALUES = frozenset(
    {"nan", "NaN", "NAN", "<NA>", "N/A", "n/a", "#N/A", "null", "NULL", "None"}
)

_SHOWN = 60  # characters of a cell in a message
_MAX_DIGITS = 10  # int() raises ValueError for thousands of digits

_SEPARATORS = {"tab": "\t", "semicolon": ";", "comma": ","}


class TableRow(NamedTuple):
    """A row: its source, and its cells by the name of the column."""

    source: RowSource
    cells: Mapping[str, Any]


def plain_text(where: str, value: object) -> str:
    """Return a string unchanged, and an integer as text.

    Raises:
        DataError: the value is missing, or of another type, such as a number whose text depends on
            the program that writes it.
    """
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


@dataclass(frozen=True)
class Table:
    """The rows of a table, which are read once.

    Attributes:
        name: name of the file or object in messages.
        header: location of the column names in messages.
        rows: the rows in order.
        names: names of all columns; None if each row has its own.
        text: function that converts a cell to text, given its location and its value.
    """

    name: str
    header: str
    rows: Iterable[TableRow]
    names: tuple[str, ...] | None = None
    text: Callable[[str, object], str] = plain_text


def examples_of(table: Table, columns: TableColumns, name: str) -> Dataset:
    """Return the examples in the rows of a table, in their order.

    Args:
        table: the rows.
        columns: names of the columns that are read.
        name: name shown in reports.

    Raises:
        UnknownNameError: a column is not in the table.
        DataError: the contents are invalid; the message names the row.
    """
    examples: list[Example] = []
    row_of_id: dict[str, RowSource] = {}
    row_of_type: dict[type, RowSource] = {}  # first row with a label of each type
    names = columns.names
    if table.names is not None:
        _require_columns(table.header, names, table.names, columns.defaults)
    for row in table.rows:
        if table.names is None:
            _require_of_row(table, row, names, columns.defaults, is_first=not examples)
        example = _example(table, row, columns, id=f"row {len(examples) + 1}")
        label = row.cells[columns.label]
        row_of_type.setdefault(type(label), row.source)
        if len(row_of_type) > 1:
            raise DataError(
                f"{row.source}: the label {shown(label)} has another type than those from "
                f'{next(iter(row_of_type.values())).row} on, so that 1 and "1" would be one class. '
                "Write all labels with the same type."
            )
        if example.id in row_of_id:
            raise DataError(
                f"{row.source}: the id {example.id!r} is a duplicate of "
                f"{row_of_id[example.id].row}. Make each id unique, or configure no id column."
            )
        row_of_id[example.id] = row.source
        examples.append(example)
    if not examples:
        raise DataError(f"{table.name} has no rows.")
    return Dataset(name, tuple(examples), has_groups=columns.group is not None)


def column_of(table: Table, column: str) -> tuple[str, ...]:
    """Return the cells of one column, which must not be empty.

    Raises:
        UnknownNameError: the column is not in the table.
        DataError: a cell is empty or has another type; the message names the row.
    """
    if table.names is not None:
        _require_columns(table.header, (column,), table.names, ())
    values: list[str] = []
    for row in table.rows:
        if table.names is None:
            _require_of_row(table, row, (column,), (), is_first=not values)
        cell = table.text(f"{row.source}: column {column!r}", row.cells[column])
        if not cell.strip():
            raise DataError(
                f"{row.source}: column {column!r} is empty. Fill it in, or remove the row."
            )
        values.append(cell)
    if not values:
        raise DataError(f"{table.name} has no rows.")
    return tuple(values)


def shown(value: object) -> str:
    """Return a cell as text for a message: JSON if possible, and not too long.

    >>> shown("a"), shown(1.5), shown({1})
    ('"a"', '1.5', '{1}')
    """
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."


def require_unique(where: str, names: Sequence[str]) -> None:
    """Raise DataError if a name occurs twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"{where}: duplicate name {name!r}. Make each name unique.")
        seen.add(name)


def _require_of_row(
    table: Table, row: TableRow, columns: Sequence[str], defaults: Sequence[str], *, is_first: bool
) -> None:
    """Raise an error if a row of a table whose rows have their own columns lacks one."""
    if all(column in row.cells for column in columns):
        return
    # In the first row the configuration is wrong; in a later one, the row itself.
    try:
        where = table.header if is_first else str(row.source)
        _require_columns(where, columns, row.cells, defaults if is_first else ())
    except UnknownNameError as error:
        if is_first:
            raise
        raise DataError(str(error)) from error


def _require_columns(
    where: str, columns: Sequence[str], present: Iterable[str], defaults: Sequence[str]
) -> None:
    """Raise an error if a column is missing; `defaults` are columns with their default name."""
    names = tuple(present)
    missing = [column for column in columns if column not in names]
    if not missing:
        return
    if not names:
        raise UnknownNameError(f"{where}: there are no columns, and {missing[0]!r} is needed.")
    message = f"{where}: no column {missing[0]!r}. {nearest(missing[0], names)}"
    only_column = names[0] if len(names) == 1 else ""
    used = [name for name, separator in _SEPARATORS.items() if separator in only_column]
    unnamed = [f"{column}: NAME" for column in missing if column in defaults]
    if used:
        message += f" The name of the only column contains a {used[0]}. Check the format."
    elif missing[0].casefold() in map(str.casefold, names):
        message += " Column names are case-sensitive."
    elif unnamed and "Nearest" not in message:
        message += f" Set the columns to read: `columns: {{{', '.join(unnamed)}}}`."
    raise UnknownNameError(message)


def _example(table: Table, row: TableRow, columns: TableColumns, id: str) -> Example:
    def string(column: str) -> str:
        value = row.cells[column]
        # The location is not formatted for cells that need none.
        is_text = isinstance(value, str)
        return value if is_text else table.text(f"{row.source}: column {column!r}", value)

    text, label = string(columns.text), string(columns.label)
    id = string(columns.id) if columns.id else id
    group = string(columns.group) if columns.group else id
    split = string(columns.split) if columns.split else None
    span = None
    if columns.span is not None:
        span = _span(str(row.source), {name: string(name) for name in columns.span})
    if label in _MISSING_VALUES:
        raise DataError(
            f"{row.source}: the label {label!r} is a common spelling of a missing value. Remove "
            "the row, or, if it is a class, rename it."
        )
    other = string(columns.counterfactual) if columns.counterfactual else None
    values = tuple((name, string(name)) for name in columns.values if name in row.cells)
    turns: Turns = ()
    if columns.reply:
        reply = string(columns.reply)
        if not reply.strip():
            raise DataError(
                f"{row.source}: column {columns.reply!r} is empty. Fill it in, or remove the row."
            )
        other = join_turns([other, reply])[0] if other else other
        text, turns = join_turns([text, reply])
    try:
        return Example(text, label, group, id, span, split, other, turns, values, row.source)
    except DataError as error:
        raise DataError(f"{row.source}: {error}") from error


def _span(where: str, ends: Mapping[str, str]) -> tuple[int, int]:
    """Return the span from the cells of its two columns."""
    for column, cell in ends.items():
        if not (cell.isascii() and cell.isdecimal() and len(cell) < _MAX_DIGITS):
            fault = (
                f"has the value {cell!r}, which is not a position" if cell.strip() else "is empty"
            )
            raise DataError(
                f"{where}: column {column!r} {fault}. Write an integer: a span counts characters "
                "from 0 and ends one past its last."
            )
    start, end = map(int, ends.values())
    return start, end
