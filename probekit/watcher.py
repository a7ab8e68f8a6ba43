"""Who is told how far long work has come; the library prints nothing by itself."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    """What the command line, a notebook or a test gives to long work to hear of it."""

    def progress(self, step: str, done: float, total: int) -> None:
        """Hear that `done` of `total` units of a step are done."""

    def tell(self, message: str) -> None:
        """Hear what a user should know."""


class Silent:
    """A watcher that ignores everything."""

    def progress(self, step: str, done: float, total: int) -> None:
        """Ignore it."""

    def tell(self, message: str) -> None:
        """Ignore it."""


SILENT = Silent()
