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
        """Discard the progress."""

    def tell(self, message: str) -> None:
        """Discard the message."""


SILENT = SilentWatcher()


class InProcessWatcher:
    """Wraps a watcher that works in this process only; a copy sent to another process is silent."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def progress(self, step: str, done: float, total: int) -> None:
        """Pass the progress to the wrapped watcher."""
        self._watcher.progress(step, done, total)

    def tell(self, message: str) -> None:
        """Pass the message to the wrapped watcher."""
        self._watcher.tell(message)

    def __reduce__(self) -> tuple[type[SilentWatcher], tuple[()]]:
        return SilentWatcher, ()
