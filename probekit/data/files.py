"""Reading text files, with errors that give file and line."""

from __future__ import annotations

from pathlib import Path

from probekit.errors import DataError, MissingError


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
    require_file(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise MissingError(f"{path.absolute()} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}:{line}: the byte {error.object[error.start]:#04x} is not UTF-8. "
            "Save the file as UTF-8."
        ) from error
    if not text.strip():
        raise DataError(f"{path}:1: the file is empty.")
    return text


def require_file(path: Path) -> None:
    """Raise MissingError if a path is not that of an existing file."""
    try:
        if path.is_dir():
            raise MissingError(f"{path.absolute()} is a folder. Give the path of a data file.")
        if not path.is_file():
            raise MissingError(f"The data file {path.absolute()} does not exist. Check the path.")
    except MissingError:
        raise
    except OSError as error:
        raise MissingError(f"{path.absolute()} cannot be read: {error.strerror}.") from error


def first_line(text: str) -> int:
    r"""Return the number of the first non-blank line, which is the header or the first row.

    >>> first_line("\n\ntext,label\n")
    3
    """
    return text[: len(text) - len(text.lstrip())].count("\n") + 1
