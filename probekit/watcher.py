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


class Here:
    """A watcher that hears of this process alone: a copy sent to another one is silent."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def progress(self, step: str, done: float, total: int) -> None:
        """Pass it on."""
        self._watcher.progress(step, done, total)

    def tell(self, message: str) -> None:
        """Pass it on."""
        self._watcher.tell(message)

    def __reduce__(self) -> tuple[type[Silent], tuple[()]]:
        return Silent, ()
