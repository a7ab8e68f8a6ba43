"""Rows of data frames of any library that narwhals reads: pandas, polars, pyarrow, and others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from probekit.data.examples import RowSource
from probekit.data.tables.table import Table, TableRow, shown
from probekit.errors import ConfigError, DataError


def frame_table(
    frame: Any,
    columns: Collection[str],
    name: str,
    class_names: Mapping[str, Sequence[str]] | None = None,
) -> Table:
    """Return the rows of a data frame.

    Args:
        frame: a data frame that narwhals reads.
        columns: the columns to read; others are left out, and may be missing.
        name: name in messages.
        class_names: names of the classes of a column whose cells are numbers of classes.

    Raises:
        ConfigError: two columns have the same name.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"text": ["Yes."], "label": [True]}, index=["q7"])
    >>> [(str(row.source), row.cells) for row in frame_table(frame, ["label"], "DataFrame").rows]
    [("DataFrame index 'q7'", {'label': True})]
    """
    import narwhals as nw

    _require_unique_columns(frame, name)
    narrow = nw.from_native(frame, eager_only=True)
    of_text = {str(column): column for column in narrow.columns}
    read = {
        text: column_cells(
            narrow.get_column(of_text[text]).to_list(),
            is_narrow=narrow.schema[of_text[text]] == nw.Float32,
            classes=(class_names or {}).get(text),
        )
        for text in dict.fromkeys(columns)
        if text in of_text
    }
    labels = _index_labels(frame) if narrow.implementation.is_pandas_like() else None
    rows = _rows(name, read, range(len(narrow)) if labels is None else labels)
    return Table(name, name, rows, tuple(of_text), number_text)


def column_cells(
    values: Iterable[Any],
    *,
    is_narrow: bool = False,
    is_mixed: bool = False,
    classes: Sequence[str] | None = None,
) -> list[Any]:
    """Return the cells of a column as plain Python objects; None for missing values.

    Args:
        values: the cells.
        is_narrow: whether the cells are 32-bit floats, whose texts have fewer digits.
        is_mixed: whether integers among floats become floats, as in a data frame.
        classes: names of the classes that the cells count from 0; negative cells are missing.

    >>> column_cells([1, 0.5, float("nan")], is_mixed=True)
    [1.0, 0.5, None]
    """
    cells = [_plain(value) for value in values]
    if classes is not None:
        return [None if cell is None or cell < 0 else classes[cell] for cell in cells]
    if is_mixed and {type(cell) for cell in cells if cell is not None} == {int, float}:
        return [None if cell is None else float(cell) for cell in cells]
    return [None if cell is None else _narrow_text(cell) for cell in cells] if is_narrow else cells


def number_text(where: str, value: object) -> str:
    """Return a string unchanged, and a number or truth value as text, as in a CSV file of pandas.

    >>> number_text("", 1), number_text("", 1.0), number_text("", True), number_text("", 1e-7)
    ('1', '1.0', 'True', '1e-07')

    Raises:
        DataError: the value is missing or of another type.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    if value is None:
        raise DataError(f"{where} has no value (null or NaN). Fill it in, or remove the row.")
    raise DataError(
        f"{where} has the value {shown(value)} of type {type(value).__name__}. Allowed: texts, "
        "numbers, true and false. Convert the column to texts."
    )


def _rows(
    name: str, columns: Mapping[str, Sequence[Any]], labels: Iterable[object]
) -> Iterator[TableRow]:
    for position, label in enumerate(labels):
        cells = {column: values[position] for column, values in columns.items()}
        yield TableRow(RowSource(name, key=label), cells)


def _require_unique_columns(frame: Any, name: str) -> None:
    # The columns of pyarrow are not names.
    names = frame.column_names if hasattr(frame, "column_names") else frame.columns
    twice = [one for one, count in Counter(map(str, names)).items() if count > 1]
    if twice:
        raise ConfigError(f"{name}: two columns have the name {twice[0]!r}. Rename one of them.")


def _index_labels(frame: Any) -> list[object]:
    """Return the label of each row of a pandas data frame; with its position if not unique."""
    labels = [_plain(label) for label in frame.index]
    if frame.index.is_unique:
        return [_Label(label) for label in labels]
    return [_Label(label, position) for position, label in enumerate(labels)]


class _Label:
    """A label of an index, as it is written in messages."""

    __slots__ = ("label", "position")

    def __init__(self, label: object, position: int | None = None) -> None:
        self.label, self.position = label, position

    def __repr__(self) -> str:
        return repr(self.label) + ("" if self.position is None else f" (position {self.position})")


def _plain(value: Any) -> Any:
    """Return a scalar of NumPy as a Python object, and a missing value as None."""
    if value is None or type(value) in (str, int, bool):
        return value
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    to_python: Callable[[], Any] | None = getattr(value, "item", None)
    if type(value).__module__ == "numpy" and to_python is not None and not _has_axes(value):
        value = to_python()
    return None if isinstance(value, float) and math.isnan(value) else value


def _has_axes(value: Any) -> bool:
    return bool(getattr(value, "shape", ()))


def _narrow_text(value: float) -> str:
    import numpy as np

    return str(np.float32(value))
