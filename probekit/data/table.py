"""Rows of a table, the examples that they contain, and the readers of text files and tables.

A cell of CSV or TSV remains the string in the file; one of JSON Lines is the JSON value.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

from pydantic import BeforeValidator, Field, model_validator

from probekit.amounts import counted
from probekit.data.examples import Dataset, Example, RowSource, Turns, join_turns
from probekit.errors import DataError, MissingError, UnknownNameError, nearest
from probekit.files import regular
from probekit.section import Section, rule_error

# Spellings of a missing value by pandas and other programs. A class with such a name cannot be
# distinguished from it.
_MISSING_VALUES = frozenset(
    {"nan", "NaN", "NAN", "<NA>", "N/A", "n/a", "#N/A", "null", "NULL", "None"}
)
_LISTED = methodcaller("tolist")  # of NumPy -> of Python
_READ = ("role", "content")  # keys of a message
_SHOWN = 60  # characters of a cell in a message
_MAX_DIGITS = 10  # int() raises ValueError for thousands of digits
_SEPARATORS = {"tab": "\t", "semicolon": ";", "comma": ","}


def _number_as_text(given: Any) -> Any:
    return str(given) if isinstance(given, int) and not isinstance(given, bool) else given


# Columns of words have numbers instead of names.
ColumnName = Annotated[str, BeforeValidator(_number_as_text, json_schema_input_type=str | int)]
OptionalColumn = Annotated[
    str | None, BeforeValidator(_number_as_text, json_schema_input_type=str | int | None)
]


class Columns(Section):
    """Names of the columns of the data.

    Without a label, "", each text is its own label.

    Attributes:
        text: column with the text; for the format `columns` its number, from 1
        label: column with the label to predict; for CoNLL-U UPOS, XPOS, DEPREL, HEAD, LEMMA, FORM
            or `FEATS:Name`; for the format `columns` its number, from 1
        group: column with the group of a row; a group is never split in train and test; for words
            `sentence` (the default) or `document`; null makes every row its own group
        id: column with a unique name of the row; null numbers the rows
        start: column with the first character of the probed span
        end: column with the character after the last one of the span
        split: column with `train` or `test`
        reply: column with the assistant's turn, for `tokens.chat: true`
        messages: instead of `text`, for `tokens.chat: true`: column with conversations, each a list
            of {role, content} or its JSON; user and assistant in turn, after at most one system
        answers: two columns with answers, or two answers, such as [Yes, No], whose logits the
            baseline `output` compares at the probed token
    """

    text: OptionalColumn = "text"
    label: ColumnName = "label"
    group: OptionalColumn = None
    id: OptionalColumn = None
    start: OptionalColumn = None
    end: OptionalColumn = None
    split: OptionalColumn = None
    reply: OptionalColumn = None
    messages: OptionalColumn = None
    answers: Annotated[tuple[str, str] | None, Field(strict=False)] = None

    @property
    def span(self) -> tuple[str, str] | None:
        """Columns of the ends of the span; None if it is the whole text."""
        return None if self.start is None or self.end is None else (self.start, self.end)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that must exist."""
        single = (self.messages or self.text, self.label, self.group, self.id, self.split)
        return tuple(name for name in (*single, self.reply, *(self.span or ())) if name)

    @model_validator(mode="before")
    @classmethod
    def _messages_replace_text(cls, given: Any) -> Any:
        """Leave out the default of `text` if `messages` are given."""
        has_messages = isinstance(given, Mapping) and given.get("messages") is not None
        return {"text": None, **given} if has_messages else given

    @model_validator(mode="after")
    def _span_is_whole(self) -> Columns:
        if (self.text is None) == (self.messages is None):
            raise rule_error("give either `text` or `messages`", "text")
        if (self.start is None) != (self.end is None):
            key = "end" if self.start is None else "start"
            raise rule_error("`start` and `end` must be given together, or neither", key)
        return self


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
        where: location of the column names in messages, or name of the object.
        rows: the rows in order.
        names: names of all columns; None if they are known only from the cells of each row.
        nested: names of the columns whose cells are known to be lists or objects.
        text: function that converts a cell to text, given its location and its value.
    """

    where: str
    rows: Iterable[TableRow]
    names: Collection[str] | None = None
    nested: Collection[str] = ()
    text: Callable[[str, object], str] = plain_text


def examples_of(
    table: Table, columns: Columns, name: str, values: Sequence[str] = (), pairs: str | None = None
) -> Dataset:
    """Return the examples in the rows of a table, in their order.

    Args:
        table: the rows.
        columns: names of the columns that are read.
        name: name shown in reports.
        values: columns whose cells the examples keep, as far as they exist.
        pairs: column of the counterfactual text; None without one.

    Raises:
        UnknownNameError: a column is not in the table.
        DataError: the contents are invalid; the message names the row.
    """
    examples: list[Example] = []
    row_of_id: dict[str, RowSource] = {}
    first: TableRow | None = None
    names = [(columns.label, "label", "class"), (columns.group or "", "group", "group")]
    names += [(column, "source", "source") for column in values]
    # Columns with their default name, which the user probably did not choose.
    defaults = [key for key in ("text", "label") if getattr(columns, key) == key]
    needed = columns.names if pairs is None else (*columns.names, pairs)
    for row in _rows_with(table, needed, defaults):
        example = _example(table, row, columns, f"row {len(examples) + 1}", values, pairs)
        first = row if first is None else first
        for column, name_of, unit in names:
            value = row.cells.get(column)
            if type(value) is not type(first.cells.get(column)):
                raise DataError(
                    f"{row.source}: the {name_of} {shown(value)} has another type than those from "
                    f'{first.source.row} on, so that 1 and "1" would be one {unit}. Write all '
                    f"{name_of}s with the same type."
                )
        if example.id in row_of_id:
            raise DataError(
                f"{row.source}: the id {example.id!r} is a duplicate of "
                f"{row_of_id[example.id].row}. Make each id unique, or configure no id column."
            )
        row_of_id[example.id] = row.source
        examples.append(example)
    return Dataset(name, tuple(examples), has_groups=columns.group is not None)


def distinct_cells(where: object, pairs: Collection[tuple[str, Any]]) -> dict[str, Any]:
    """Return cells by name, as of a JSON object; raise DataError if a name occurs twice."""
    require_unique(where, [name for name, _ in pairs])
    return dict(pairs)


def require_unique(where: object, names: Sequence[str]) -> None:
    """Raise DataError if a name occurs twice."""
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise DataError(f"{where}: duplicate name {twice!r}. Make each name unique.")


def column_of(table: Table, column: str) -> tuple[str, ...]:
    """Return the cells of one column, which must not be empty.

    Raises:
        UnknownNameError: the column is not in the table.
        DataError: a cell is empty or has another type; the message names the row.
    """
    rows = _rows_with(table, (column,), ())
    return tuple(_filled(row, column, _text(table, row, column)) for row in rows)


def shown(value: object) -> str:
    """Return a cell as text for a message: JSON if possible, and not too long.

    >>> shown("a"), shown(1.5), shown({1})
    ('"a"', '1.5', '{1}')
    """
    try:
        text = json.dumps(value, default=repr if isinstance(value, list | dict) else None)
    except (TypeError, ValueError, RecursionError):
        text = object.__repr__(value) if isinstance(value, list | dict) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."


def _rows_with(
    table: Table, columns: Sequence[str], defaults: Collection[str]
) -> Iterator[TableRow]:
    """Yield the rows of a table, which must have the given columns and at least one row.

    For `defaults` see `_require`.
    """
    if table.names is not None:
        _require(table.where, columns, table.names, defaults)
    rows = iter(table.rows)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{table.where}: there are no rows.")
    # If the first row lacks a column, the configuration is wrong (UnknownNameError); if a later row
    # does, the row itself is (DataError).
    _require(table.where, columns, first.cells, defaults)
    yield first
    for row in rows:
        try:
            _require(str(row.source), columns, row.cells, ())
        except UnknownNameError as error:
            raise DataError(str(error)) from error
        yield row


def _require(
    where: str, columns: Sequence[str], present: Collection[str], defaults: Collection[str]
) -> None:
    """Raise UnknownNameError if a column is missing.

    `defaults` are columns that the user did not choose: the message may advise to name others.
    """
    missing = [column for column in columns if column not in present]
    if not missing:
        return
    names = tuple(present)
    if not names:
        raise UnknownNameError(f"{where}: there are no columns, and {missing[0]!r} is needed.")
    message = f"{where}: no column {missing[0]!r}. {nearest(missing[0], names)}"
    only_column = names[0] if len(names) == 1 else ""
    used = [name for name, separator in _SEPARATORS.items() if separator in only_column]
    unnamed = [f"{column}: NAME" for column in missing if column in defaults]
    if used:
        message += f" The name of the only column contains a {used[0]}. Check the format."
    elif unnamed and "Nearest" not in message:  # no column has a similar name
        message += f" Set the columns to read: `columns: {{{', '.join(unnamed)}}}`."
    raise UnknownNameError(message)


def _text(table: Table, row: TableRow, column: str) -> str:
    """Return a cell as text."""
    value = row.cells[column]
    if isinstance(value, str):  # the location is not formatted for cells that need none
        return value
    return table.text(f"{row.source}: column {column!r}", value)


def _filled(row: TableRow, column: str, cell: str) -> str:
    """Return a cell unchanged; raise DataError if it is empty."""
    if not cell.strip():
        raise DataError(f"{row.source}: column {column!r} is empty. Fill it in, or remove the row.")
    return cell


def _example(
    table: Table, row: TableRow, columns: Columns, id: str, values: Sequence[str], pairs: str | None
) -> Example:
    """Return the example in a row; `id` is its id if there is no column of ids.

    The other arguments are those of `examples_of`.
    """

    def string(column: str) -> str:
        """Return the cell of a column as text."""
        return _text(table, row, column)

    turns: Turns = ()
    if columns.messages is None:
        text = string(columns.text or "")
    else:
        cell = row.cells[columns.messages]
        text, turns = read_messages(f"{row.source}: column {columns.messages!r}", cell)
    # Without a column, the label has no meaning; it must not contain NUL, as texts may.
    label = string(columns.label) if columns.label else text.replace("\0", "\ufffd")
    id = string(columns.id) if columns.id else id
    group = string(columns.group) if columns.group else id
    split = string(columns.split) if columns.split else None
    ends = tuple(_position(row, name, string(name)) for name in columns.span or ())
    span = cast(tuple[int, int], ends) if ends else None
    if columns.label and label in _MISSING_VALUES:
        raise DataError(
            f"{row.source}: the label {label!r} is a common spelling of a missing value. Remove "
            "the row, or, if it is a class, rename it."
        )
    contrast = string(pairs) if pairs else None
    cells = tuple((name, string(name)) for name in values if name in row.cells)
    if columns.reply:
        reply = _filled(row, columns.reply, string(columns.reply))
        text, turns = join_turns([text, reply])
        if contrast:
            contrast, _ = join_turns([contrast, reply])
    try:
        return Example(text, label, group, id, span, split, contrast, turns, cells, row.source)
    except DataError as error:
        raise DataError(f"{row.source}: {error}") from error


def read_messages(where: str, cell: Any) -> tuple[str, Turns]:
    """Return the text of a conversation, and its turns.

    Args:
        where: location of the cell, for messages.
        cell: a list of {"role": ..., "content": ...}, or its JSON. Roles are `user` and `assistant`
            in turn, after at most one `system`. The turns keep other keys, except those of null,
            which Parquet files write in place of an absent key.

    Raises:
        DataError: the cell is not such a list, or a message is empty.

    >>> read_messages("", '[{"role": "user", "content": "Is it far?", "name": "Ann"}]')
    ('Is it far?', (Turn(start=0, end=10, role='user', others='{"name": "Ann"}'),))
    """
    fault = ""
    try:
        read = partial(json.loads, object_pairs_hook=partial(distinct_cells, where))
        messages: Any = list(read(cell) if isinstance(cell, str) else cell)
        listed = [(one["role"], one["content"]) for one in messages]
        others = [
            {k: v for k, v in m.items() if k not in _READ and v is not None} for m in messages
        ]
        for key, value in (pair for one in others for pair in one.items()):
            fault = f"{key!r} is of type {type(value).__name__} in "
            json.dumps(value, default=_LISTED)
        written = [json.dumps(one, default=_LISTED) if one else "" for one in others]
    except DataError:  # also a ValueError, but with a complete message
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise DataError(
            f'{where} is not a list of {{"role": ..., "content": ...}}: {fault}{shown(cell)}.'
        ) from error
    roles = [role for role, _ in listed]
    has_system = roles[:1] == ["system"]
    n_turns = len(roles) - has_system
    expected = [*["system"][:has_system], *(["user", "assistant"] * n_turns)[:n_turns]]
    if not n_turns or roles != expected:
        raise DataError(
            f"{where} has the roles {shown(roles)}. Allowed: user and assistant in turn, the user "
            "first, after at most one system."
        )
    for number, (_, content) in enumerate(listed, start=1):
        if not isinstance(content, str) or not content.strip():
            raise DataError(f"{where}: message {number} has no text: {shown(content)}.")
    return join_turns([content for _, content in listed], roles, written)


def _position(row: TableRow, column: str, cell: str) -> int:
    """Return an end of a span from its cell."""
    if cell.isascii() and cell.isdecimal() and len(cell) < _MAX_DIGITS:
        return int(cell)
    fault = f"has the value {cell!r}, which is not a position" if cell.strip() else "is empty"
    raise DataError(
        f"{row.source}: column {column!r} {fault}. Write an integer: a span counts characters "
        "from 0 and ends one past its last."
    )


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

    The delimiter "" is the comma, semicolon or tab that the first line has most of. `_columns` is
    not used: all columns are read.
    """
    text = read_text(path)
    if delimiter == "":
        delimiter = max(",;\t", key=text.lstrip("\r\n").partition("\n")[0].count)
    # The first line that is not blank is the header or the first row.
    header = text[: len(text) - len(text.lstrip())].count("\n") + 1
    rows = _delimited_rows(path, text, delimiter) if delimiter else _json_rows(path, text)
    return Table(f"{path}:{header}", rows)


csv_table = partial(_table, delimiter="")
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
