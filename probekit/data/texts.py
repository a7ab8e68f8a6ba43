"""Texts without labels, to be read by a probe: lines of a file, or one column of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from probekit.data.files import read_text
from probekit.data.readers import read_column
from probekit.errors import ConfigError, DataError, nearest

TextFormat = Literal["txt", "csv", "tsv", "jsonl"]


def read_texts(path: Path, format: str | None = None, column: str | None = None) -> tuple[str, ...]:
    r"""Return the texts of a file, in its order.

    Args:
        path: a UTF-8 file.
        format: `txt`, one text a line with blank lines left out, or `csv`, `tsv`, `jsonl`; None
            means `txt`, and refuses a file whose ending says that it is a table.
        column: of a table; None means `text`.

    Raises:
        ConfigError: the format is unknown, or there is no such column.
        MissingError: there is no such file.
        DataError: the contents are wrong; the message gives file and line.

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
            f"{path} looks like a table: say --format {ending}, and --column for the column of the "
            "texts; or --format txt if each of its lines is one text."
        )
    if format in (None, "txt"):
        if column is not None:
            raise ConfigError(
                f"{path} is read line by line and has no column {column!r}: say --format csv, tsv "
                "or jsonl."
            )
        return _lines(path)
    assert format is not None
    return read_column(path, format=format, column=column or "text")


def _lines(path: Path) -> tuple[str, ...]:
    # Not splitlines: U+2028 and its like may stand inside a text.
    lines = (line.removesuffix("\r") for line in read_text(path).split("\n"))
    texts = tuple(line for line in lines if line.strip())
    if not texts:
        raise DataError(f"{path}:1: the file holds no text.")
    return texts
