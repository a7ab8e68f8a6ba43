"""Reading data sets in any format; see `probekit.data.formats` for the table of formats.

The format is always given, never guessed from the file extension. Every cell of a text file remains
the string in the file: a label `no`, `1` or `1.0` is not converted. Ambiguous contents raise an
error that names the row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probekit.data.examples import Dataset
from probekit.data.formats import FORMATS
from probekit.data.tables.columns import TableColumns
from probekit.data.tables.table import column_of, examples_of
from probekit.errors import ConfigError, nearest


def read_dataset(
    source: Any, *, format: str, columns: Any = None, name: str | None = None
) -> Dataset:
    r"""Return the examples of a data file, or of another source, in their order.

    Args:
        source: the path of a file; for the format "hub" a `HubData`, for "memory" a `MemoryData`.
        format: name in `FORMATS`, such as "csv" or "conllu".
        columns: columns of the fields: `TableColumns`, or the columns of the format; None means its
            defaults.
        name: name shown in reports; None means the file name without extension.

    Raises:
        ConfigError: the format is unknown, or a column is not in the file.
        MissingError: the file does not exist.
        DataError: the contents are invalid; the message names the row.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "answers.csv"
    >>> _ = path.write_text('text,label\n"Yes, please.",yes\nNever.,no\n')
    >>> for example in read_dataset(path, format="csv").examples:
    ...     print(example.id, example.text, example.label)
    row 1 Yes, please. yes
    row 2 Never. no
    """
    if format not in FORMATS:
        raise ConfigError(f"{source}: unknown format {format!r}. {nearest(format, FORMATS)}")
    chosen = FORMATS[format]
    columns = chosen.columns_class() if columns is None else columns
    if columns.__class__ is not chosen.columns_class:
        raise ConfigError(
            f"{source}: {type(columns).__name__} does not apply to the format {format}. Pass "
            f"{chosen.columns.partition(':')[2]}."
        )
    name = Path(source).stem if name is None else name
    if not isinstance(columns, TableColumns):
        words: Dataset = chosen.read(source, columns, name=name)
        return words
    return examples_of(chosen.read(source, (*columns.names, *columns.values)), columns, name)


def read_column(path: Path, *, format: str, column: str) -> tuple[str, ...]:
    r"""Return the cells of one column of a table, in file order.

    Raises:
        ConfigError: the column is not in the file.
        MissingError: the file does not exist.
        DataError: the contents are invalid, or a cell is empty; the message names the row.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "answers.tsv"
    >>> _ = path.write_text("text\tlabel\nYes, please.\tyes\n")
    >>> read_column(path, format="tsv", column="text")
    ('Yes, please.',)
    """
    return column_of(FORMATS[format].read(path, (column,)), column)
