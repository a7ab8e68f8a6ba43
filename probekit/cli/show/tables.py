"""Tables of commands, in the width of the terminal."""

from __future__ import annotations

import sys

import rich.table
from rich.text import Text

from probekit.progress import Console
from probekit.report.pages.table import Cell, ResultTable
from probekit.report.texts import line_label

# A pipe or file has no width, so tables are not cut.
_WIDTH_OF_PIPES = 400


def show_table(table: ResultTable, *, has_heads: bool = True) -> None:
    """Print a table: the first column and words to the left, numbers to the right."""
    shown = rich.table.Table(box=None, pad_edge=False, show_header=has_heads)
    for number, column in enumerate(table.headings):
        if number == 0 or column.css == "words":
            shown.add_column(Text(line_label(column.name)))
        else:
            shown.add_column(Text(line_label(column.name)), justify="right", no_wrap=True)
    for row in table.rows:
        texts = (one.line if isinstance(one, Cell) else one for one in row)
        shown.add_row(*(Text(line_label(text)) for text in texts))
    print_table(shown)


def print_table(table: rich.table.Table) -> None:
    """Print a table in the width of the terminal, or uncut if stdout is not a terminal."""
    Console(width=None if sys.stdout.isatty() else _WIDTH_OF_PIPES).print(table)
