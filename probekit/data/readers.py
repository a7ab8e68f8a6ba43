"""Readers of data sets and texts in any format, and the table of formats.

The format is always given, never guessed from the file extension. A cell of a CSV or TSV file
remains the string in the file: a label `no`, `1` or `1.0` is not converted. Ambiguous contents
raise an error that names the row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from probekit.data import table
from probekit.data.examples import Dataset
from probekit.data.frames import hub_table, memory_table, parquet_table
from probekit.data.table import Columns
from probekit.data.words import read_treebank, read_word_columns
from probekit.errors import ConfigError, nearest

TableFormat = Literal["csv", "tsv", "jsonl", "parquet"]
FormatName = Literal[TableFormat, "conllu", "columns", "hub", "memory"]
TextFormat = Literal["txt", TableFormat]
DEFAULT_COLUMNS = Columns()


@dataclass(frozen=True)
class DataFormat:
    """One data format.

    Attributes:
        read: function that returns a `Table`, or for a format of words the whole `Dataset`.
        keys: keys of the section `columns` that apply to it.
        has_words: whether each example is a word of a sentence, with its span in the text.
        is_file: whether the data are files, named by `file`, or `train` and `test`.
        has_names: whether each example has an id of its own even without a column of ids.
    """

    read: Callable[..., Any]
    keys: tuple[str, ...] = (
        "text", "label", "group", "id", "start", "end", "split", "reply", "messages",
        "answers",
    )  # fmt: skip
    has_words: bool = False
    is_file: bool = True
    has_names: bool = False


FORMATS: dict[str, DataFormat] = {
    "csv": DataFormat(table.csv_table),
    "tsv": DataFormat(table.tsv_table),
    "jsonl": DataFormat(table.json_table),
    "parquet": DataFormat(parquet_table),
    "conllu": DataFormat(read_treebank, ("label", "group"), has_words=True, has_names=True),
    "columns": DataFormat(read_word_columns, ("text", "label", "group"), has_words=True),
    "hub": DataFormat(hub_table, is_file=False),
    "memory": DataFormat(memory_table, is_file=False),
}


def read_dataset(
    source: Any,
    *,
    format: str,
    columns: Columns = DEFAULT_COLUMNS,
    name: str | None = None,
    values: Sequence[str] = (),
    pairs: str | None = None,
    **options: Any,
) -> Dataset:
    r"""Return the examples of a data file, or of another source, in their order.

    Args:
        source: the path of a file; a `HubSection` for "hub", a `MemoryData` for "memory".
        format: name in `FORMATS`, such as "csv" or "conllu".
        columns: columns of the fields.
        name: name shown in reports; None means the file name without extension, so that a source
            other than a file needs a name.
        values: columns whose cells the examples of a table keep; see `examples_of`.
        pairs: column of the counterfactual text of a table; None without one.
        options: further arguments of the reader, such as the delimiter of a table.

    Raises:
        ConfigError: a column is not in the file.
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
    chosen = FORMATS[format]
    name = Path(source).stem if name is None else name
    if chosen.has_words:  # the reader makes the examples
        words: Dataset = chosen.read(source, columns, name=name)
        return words
    read = (*columns.names, *values) if pairs is None else (*columns.names, pairs, *values)
    found = table.examples_of(chosen.read(source, read, **options), columns, name, values, pairs)
    return replace(found, tables=(partial(chosen.read, source, **options),))


def read_texts(path: Path, format: str | None = None, column: str | None = None) -> tuple[str, ...]:
    r"""Return the unlabelled texts of a file: its lines, or one column of a table, in file order.

    Args:
        path: the file; UTF-8, unless it is a Parquet file.
        format: `txt` (one text per line, blank lines are skipped), `csv`, `tsv`, `jsonl` or
            `parquet`. None means `txt`, and raises an error if the file extension is that of a
            table.
        column: column of a table; None means `text`.

    Raises:
        ConfigError: the format or the column is unknown.
        MissingError: the file does not exist.
        DataError: the contents are invalid; the message gives file and line.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "texts.txt"
    >>> _ = path.write_text("One text.\n\nAnother.\n")
    >>> read_texts(path)
    ('One text.', 'Another.')
    """
    allowed = get_args(TextFormat)
    if format is not None and format not in allowed:
        raise ConfigError(f"{path}: unknown format {format!r}. {nearest(format, allowed)}")
    ending = path.suffix.removeprefix(".")
    if format is None and ending != "txt" and ending in allowed:
        raise ConfigError(
            f"{path} looks like a table. Pass --format {ending}, and --column for the column with "
            "the texts, or --format txt if each line is a text."
        )
    if format is not None and format != "txt":
        column = column or "text"
        return table.column_of(FORMATS[format].read(path, (column,)), column)
    if column is not None:
        raise ConfigError(
            f"{path} is read as lines of text, which have no column {column!r}. Pass --format "
            "csv, tsv, jsonl or parquet."
        )
    # `splitlines` would also split at U+2028 and similar characters.
    lines = (line.removesuffix("\r") for line in table.read_text(path).split("\n"))
    return tuple(line for line in lines if line.strip())
