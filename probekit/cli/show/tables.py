"""The only Console of rich: colours, tables and progress bars around text that is made visible."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from probekit.cli.streams import unfiltered, visible

# A pipe or a file has no width; no table is cut there.
_WIDTH_OF_PIPES = 400


class Console(rich.console.Console):
    """A console that shows control characters of the text; its own sequences reach the terminal.

    Args:
        stderr: whether it writes to standard error instead of standard output.
        width: in characters; None for that of the terminal.
    """

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        file = unfiltered(sys.stderr if stderr else sys.stdout)
        super().__init__(file=file, width=width, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **given: Any) -> Text:
        """Return a visible text, so that columns are as wide as what they show."""
        return super().render_str(visible(text), **given)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments with visible text."""
        for segment in super().render(renderable, options):
            is_control = segment.control is not None
            yield segment if is_control else segment._replace(text=visible(segment.text))


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal, and whole where there is none."""
    Console(width=None if sys.stdout.isatty() else _WIDTH_OF_PIPES).print(table)
