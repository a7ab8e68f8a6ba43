"""Unlabelled texts: the lines of a file, or one column of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from probekit.data.files import read_text
from probekit.data.readers import read_column
from probekit.errors import ConfigError, DataError, nearest

TextFormat = Literal["txt", "csv", "tsv", "jsonl", "parquet"]


def read_texts(path: Path, format: str | None = None, column: str | None = None) -> tuple[str, ...]:
    r"""Return the texts of a file, in file order.

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
    if format in (None, "txt"):
        if column is not None:
            raise ConfigError(
                f"{path} is read as lines of text, which have no column {column!r}. Pass --format "
                "csv, tsv, jsonl or parquet."
            )
        return _lines(path)
    assert format is not None
    return read_column(path, format=format, column=column or "text")


def _lines(path: Path) -> tuple[str, ...]:
    # Not splitlines, which also splits at U+2028 and similar characters.
    lines = (line.removesuffix("\r") for line in read_text(path).split("\n"))
    texts = tuple(line for line in lines if line.strip())
    if not texts:
        raise DataError(f"{path}:1: the file has no text.")
    return texts
