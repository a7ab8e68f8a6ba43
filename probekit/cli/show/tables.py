"""Tables on stdout."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table


def print_table(table: Table) -> None:
    """Print a table; a pipe or a file has no width, so nothing is cut there."""
    Console(width=None if sys.stdout.isatty() else 400, highlight=False).print(table)
