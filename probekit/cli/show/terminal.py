"""Tables in the width of the terminal, and progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import rich.table
from rich.text import Text

from probekit.progress import Console, ProgressLines, terminal_bars
from probekit.report.pages.table import Cell, Column, ResultTable
from probekit.terminal import Watcher, escape_streams


def show_table(table: ResultTable, *, has_heads: bool = True) -> None:
    """Print a table: the first column and words to the left, numbers to the right."""
    from probekit.report.texts import line_label  # imports pandas

    shown = rich.table.Table(box=None, pad_edge=False, show_header=has_heads)
    for number, column in enumerate(table.headings):
        if number == 0 or column.css == "words":
            is_copied = column.form == "code"  # copied names must not be broken into two lines
            shown.add_column(Text(line_label(column.name)), no_wrap=is_copied)
        else:
            shown.add_column(Text(line_label(column.name)), justify="right", no_wrap=True)
    for row in table.rows:
        texts = (cell.line if isinstance(cell, Cell) else cell for cell in row)
        shown.add_row(*(Text(line_label(text)) for text in texts))
    # A pipe or file has no width: 400 characters are enough for most tables.
    Console(width=None if sys.stdout.isatty() else 400).print(shown)


def words(*names: str) -> list[Column | str]:
    """Return columns of words with these names."""
    return [Column(name, "words") for name in names]


@contextmanager
def watching() -> Iterator[Watcher]:
    """Yield a watcher that shows bars on a terminal and prints lines elsewhere."""
    if not sys.stderr.isatty():
        yield ProgressLines()
        return
    with terminal_bars(Console(stderr=True)) as bars:
        escape_streams()  # the progress bars have replaced both streams
        yield bars
