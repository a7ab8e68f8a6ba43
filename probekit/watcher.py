"""Progress reporting of long computations; the library itself prints nothing."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    """Receiver of progress and messages, implemented by the command line, a notebook or a test."""

    def progress(self, step: str, done: float, total: int) -> None:
        """Report that `done` of `total` units of a step are complete."""

    def tell(self, message: str) -> None:
        """Report a message to the user."""


class SilentWatcher:
    """A watcher that discards everything."""

    def progress(self, step: str, done: float, total: int) -> None:
        """Ignore it."""

    def tell(self, message: str) -> None:
        """Ignore it."""


SILENT = SilentWatcher()


class InProcessWatcher:
    """A watcher for this process only: unpickling it in another process gives a silent one."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def progress(self, step: str, done: float, total: int) -> None:
        """Pass it on."""
        self._watcher.progress(step, done, total)

    def tell(self, message: str) -> None:
        """Pass it on."""
        self._watcher.tell(message)

    def __reduce__(self) -> tuple[type[SilentWatcher], tuple[()]]:
        return SilentWatcher, ()
