"""The rich Console of all commands: colours and tables with control characters escaped."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from probekit.cli.streams import unfiltered
from probekit.escapes import visible

# A pipe or file has no width, so tables are not cut.
_WIDTH_OF_PIPES = 400


class Console(rich.console.Console):
    """A console that escapes control characters in text but not its own escape sequences.

    Args:
        stderr: whether to write to standard error instead of standard output.
        width: width in characters; None for the width of the terminal.
    """

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        file = unfiltered(sys.stderr if stderr else sys.stdout)
        super().__init__(file=file, width=width, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **given: Any) -> Text:
        """Return the escaped text, so that columns have the width of the displayed text."""
        return super().render_str(visible(text), **given)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments with escaped text."""
        for segment in super().render(renderable, options):
            is_control = segment.control is not None
            yield segment if is_control else segment._replace(text=visible(segment.text))


def print_table(table: Table) -> None:
    """Print a table in the width of the terminal, or uncut if stdout is not a terminal."""
    Console(width=None if sys.stdout.isatty() else _WIDTH_OF_PIPES).print(table)
