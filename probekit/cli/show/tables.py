"""Tables of commands, in the width of the terminal."""

from __future__ import annotations

import sys

from rich.table import Table

from probekit.progress import Console

# A pipe or file has no width, so tables are not cut.
_WIDTH_OF_PIPES = 400


def print_table(table: Table) -> None:
    """Print a table in the width of the terminal, or uncut if stdout is not a terminal."""
    Console(width=None if sys.stdout.isatty() else _WIDTH_OF_PIPES).print(table)
