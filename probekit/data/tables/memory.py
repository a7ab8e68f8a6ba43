"""Rows in memory: data frames, lists of dicts, and data sets of the Hugging Face library."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from probekit.data.examples import RowSource
from probekit.data.tables.frames import column_cells, frame_table, number_text
from probekit.data.tables.table import Table, TableRow
from probekit.errors import ConfigError, DataError

_SIDES = ("train", "test")

_ALLOWED = (
    "Allowed: a data frame of pandas or polars, a list of dicts, a `datasets.Dataset`, or a dict "
    'with two of these: {"train": ..., "test": ...}.'
)


@dataclass(frozen=True, eq=False)
class MemoryData:
    """One table in memory.

    Attributes:
        rows: a data frame, a list of dicts, or a `datasets.Dataset`.
        side: "train" or "test" for one of two tables, else "".
    """

    rows: Any
    side: str = ""

    @property
    def kind(self) -> str:
        """The type of the table in words, such as "pandas DataFrame".

        >>> import pandas as pd
        >>> MemoryData(pd.DataFrame()).kind, MemoryData([{"text": "a"}]).kind
        ('pandas DataFrame', 'list of dicts')
        """
        library = type(self.rows).__module__.partition(".")[0]
        return "list of dicts" if _is_list(self.rows) else f"{library} {type(self.rows).__name__}"

    @property
    def name(self) -> str:
        """The name of the table in messages, such as "DataFrame" or "train DataFrame"."""
        name = "list" if _is_list(self.rows) else type(self.rows).__name__
        return f"{self.side} {name}".lstrip()


def tables_in(data: Any) -> tuple[MemoryData, ...]:
    """Return the one table in `data`, or its tables of training and test rows.

    >>> [table.name for table in tables_in({"train": [{"text": "a"}], "test": [{"text": "b"}]})]
    ['train list', 'test list']

    Raises:
        ConfigError: the type of `data` is not supported, or there are other tables.
    """
    if isinstance(data, Mapping):
        if set(data) != set(_SIDES):
            choose = next((f"data[{key!r}]" for key in _SIDES if key in data), None)
            remedy = "To read columns, pass pandas.DataFrame(data)."
            raise ConfigError(
                f"data is a {type(data).__name__} with the keys {_names(data)}. {_ALLOWED} "
                + (remedy if choose is None else f"To read one table, pass {choose}.")
            )
        tables = tuple(MemoryData(data[side], side) for side in _SIDES)
    else:
        tables = (MemoryData(data),)
    for table in tables:
        _check_type(table)
    return tables


def memory_table(data: MemoryData, columns: Collection[str]) -> Table:
    """Return the rows of a table in memory; only the given columns are read.

    Raises:
        ConfigError: two columns have the same name.
        DataError: an entry of a list is not a dict.
    """
    if _is_list(data.rows):
        return _of_dicts(data, columns)
    if _is_dataset(data.rows):
        return dataset_table(data.rows, columns, data.name)
    return frame_table(data.rows, columns, data.name)


def dataset_table(dataset: Any, columns: Collection[str], name: str) -> Table:
    """Return the rows of a `datasets.Dataset`; numbers of classes become names of classes.

    Args:
        dataset: the data set.
        columns: the columns to read.
        name: name in messages.
    """
    read = [column for column in dataset.column_names if column in columns]
    # The data set may have another format, such as tensors, and a selection of its rows.
    frame = dataset.with_format("arrow").select_columns(read)[:]
    class_names = {
        column: list(feature.names)
        for column, feature in dataset.features.items()
        if type(feature).__name__ == "ClassLabel"
    }
    return replace(
        frame_table(frame, columns, name, class_names), names=tuple(dataset.column_names)
    )


def _of_dicts(data: MemoryData, columns: Collection[str]) -> Table:
    rows = list(data.rows)
    for position, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(
                f"{RowSource(data.name, key=position)} is of type {type(row).__name__}. Each "
                'entry must be a dict, such as {"text": "...", "label": "..."}.'
            )
    cells: list[dict[str, Any]] = [{} for _ in rows]
    for column in dict.fromkeys(columns):
        having = [number for number, row in enumerate(rows) if column in row]
        values = column_cells((rows[number][column] for number in having), is_mixed=True)
        for number, value in zip(having, values, strict=True):
            cells[number][column] = value
    return Table(data.name, data.name, _rows(data.name, rows, cells), None, number_text)


def _rows(
    name: str, rows: Sequence[Mapping[Any, Any]], cells: Sequence[Mapping[str, Any]]
) -> Iterator[TableRow]:
    for position, (row, read) in enumerate(zip(rows, cells, strict=True)):
        # Columns that are not read are in the message if one is missing.
        others = {str(key): None for key in row}
        yield TableRow(RowSource(name, key=position), others | dict(read))


def _check_type(table: MemoryData) -> None:
    """Raise ConfigError unless the type of a table is supported."""
    if _is_list(table.rows) or _is_dataset(table.rows):
        return
    name = f"data[{table.side!r}]" if table.side else "data"
    kind = type(table.rows)
    if isinstance(table.rows, str) or hasattr(table.rows, "__fspath__"):
        raise ConfigError(
            f"{name} is the {kind.__name__} {str(table.rows)[:80]!r}. For a file, set `format` and "
            f"`file` in the section `data` of the experiment. {_ALLOWED}"
        )
    if kind.__name__ in ("LazyFrame", "IterableDataset"):
        remedy = ".collect()" if kind.__name__ == "LazyFrame" else "datasets.Dataset.from_list(...)"
        raise ConfigError(
            f"{name} is of type {kind.__name__}: its rows are not in memory. Read them with "
            f"{remedy}."
        )
    import narwhals as nw

    # Duplicate names are reported with the table, when it is read.
    if nw.dependencies.is_into_dataframe(table.rows):
        return
    raise ConfigError(f"{name} is of type {kind.__module__}.{kind.__qualname__}. {_ALLOWED}")


def _is_list(rows: Any) -> bool:
    return isinstance(rows, list | tuple)


def _is_dataset(rows: Any) -> bool:
    """Return whether an object is a `datasets.Dataset`; the library is not imported."""
    kind = type(rows)
    return kind.__module__.partition(".")[0] == "datasets" and kind.__name__ == "Dataset"


def _names(data: Mapping[Any, Any]) -> str:
    names = [repr(key) for key in data][:6]
    return ", ".join(names + ["..."] * (len(data) > len(names))) or "of an empty dict"
