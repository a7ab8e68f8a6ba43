"""Tables and texts in the width of the terminal."""

import sys
from collections.abc import Sequence

import click
import rich.table
from rich.cells import cell_len
from rich.padding import Padding
from rich.text import Text

from probekit.progress import Console
from probekit.report.elements.table import Cell, Column, ResultTable


def show_rows(columns: Sequence[Column | str], rows: Sequence[Sequence[Cell | str]]) -> None:
    """Print a table with these headings and rows."""
    show_table(ResultTable("", columns, rows))


def show_table(table: ResultTable) -> None:
    """Print a table: the first column and words to the left, numbers to the right.

    Words wrap at spaces; numbers, and names that are copied, stay whole. If there is no room for
    that, each row is a paragraph: its name, then the heading and text of each other cell.
    """
    from probekit.report.elements.texts import line_label  # imports pandas

    # A pipe or file has no width: 400 characters are enough for most tables.
    console = Console(width=None if sys.stdout.isatty() else 400)
    heads = [line_label(column.name) for column in table.headings]
    rows = [
        [line_label(cell.line if isinstance(cell, Cell) else cell) for cell in row]
        for row in table.rows
    ]
    is_word = [number == 0 or one.css == "words" for number, one in enumerate(table.headings)]
    least, most = [], []  # smallest and largest useful width of each column
    for number, column in enumerate(table.headings):
        cells = [row[number] for row in rows]
        wraps = is_word[number] and column.form != "code"
        parts = heads[number].split() + (" ".join(cells).split() if wraps else cells)
        least.append(max(map(cell_len, parts), default=0))
        most.append(max(map(cell_len, [heads[number], *cells])))
    spare = console.width - 2 * (len(heads) - 1) - sum(least)  # two spaces between columns
    if spare < 0:
        for name, *others in rows:
            named = zip(heads[1:], others, strict=True)
            text = "; ".join(f"{head} {cell}".strip() for head, cell in named if cell)
            console.print(Text(name), Padding(Text(text), (0, 0, 0, 2)), sep="\n")
        return
    wishes = sorted((high - low, n) for n, (low, high) in enumerate(zip(least, most, strict=True)))
    for rank, (wish, number) in enumerate(wishes):  # small wishes first: long texts wrap
        given = min(wish, spare // (len(wishes) - rank))
        least[number] += given
        spare -= given
    shown = rich.table.Table(box=None, pad_edge=False)
    for head, width, word in zip(heads, least, is_word, strict=True):
        shown.add_column(Text(head), justify="left" if word else "right", width=width)
    for row in rows:
        shown.add_row(*map(Text, row))
    console.print(shown)


def echo(text: str = "", *, err: bool = False) -> None:
    """Print a text; on a terminal, its lines are wrapped at spaces."""
    if (sys.stderr if err else sys.stdout).isatty():
        Console(stderr=err).print(Text(text))
    else:
        click.echo(text, err=err)


def words(*names: str) -> list[Column | str]:
    """Return columns of words with these names."""
    return [Column(name, "words") for name in names]
