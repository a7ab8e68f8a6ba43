"""Reading a text file whole, with errors that name the file and the line."""

from __future__ import annotations

from pathlib import Path

from probekit.errors import DataError, MissingError


def read_text(path: Path) -> str:
    r"""Return the contents of a UTF-8 file, without a byte order mark, line ends as they are.

    Raises:
        MissingError: there is no such file.
        DataError: the file is empty or not UTF-8; the message gives the line.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "words.csv"
    >>> _ = path.write_bytes(b"\xef\xbb\xbftext,label\r\n")
    >>> read_text(path)
    'text,label\r\n'
    """
    try:
        if path.is_dir():
            raise MissingError(f"{path.absolute()} is a folder; give a data file in it.")
        if not path.is_file():
            raise MissingError(f"There is no data file at {path.absolute()}. Check the path.")
        text = path.read_bytes().decode("utf-8-sig")
    except MissingError:
        raise
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
