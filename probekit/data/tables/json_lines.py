"""Reading JSON Lines files: one object in each line."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from probekit.data.examples import RowSource
from probekit.data.files import first_line, read_text
from probekit.data.tables.table import Table, TableRow, require_unique
from probekit.errors import DataError


def json_table(path: Path, _columns: Collection[str]) -> Table:
    """Return the rows of a JSON Lines file."""
    text = read_text(path)
    return Table(f"{path}:1: the file", f"{path}:{first_line(text)}", _rows(path, text))


def _rows(path: Path, text: str) -> Iterator[TableRow]:
    # Not splitlines, which also splits at U+2028, allowed in a JSON string.
    for line, source in enumerate(text.split("\n"), start=1):
        if not source or source.isspace():
            continue
        where = f"{path}:{line}"
        try:
            value = json.loads(source, object_pairs_hook=partial(_object, where))
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


def _object(where: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    require_unique(where, [key for key, _ in pairs])
    return dict(pairs)
