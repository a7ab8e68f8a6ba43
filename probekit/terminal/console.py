"""The rich Console of all output: control characters are escaped."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from probekit.terminal.streams import unfiltered, visible


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
