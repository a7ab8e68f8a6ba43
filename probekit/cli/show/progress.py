"""Progress on stderr: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from probekit.cli import streams
from probekit.cli.show.tables import Console
from probekit.watcher import Watcher

_SECONDS_BETWEEN_LINES = 10


class _Rate(ProgressColumn):
    """Items per second, or seconds per item."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        return Text(f"{speed:,.1f}/s" if speed >= 1 else f"{1 / speed:,.1f} s each")


class _Bars:
    """Progress bars, for a terminal."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, Any] = {}

    def progress(self, step: str, done: float, total: int) -> None:
        if step not in self._tasks or done < self._bars.tasks[self._tasks[step]].completed:
            self._tasks[step] = self._bars.add_task(step, total=total)
        self._bars.update(self._tasks[step], completed=done)

    def tell(self, message: str) -> None:
        self._bars.console.print(Text(message))


class _Lines:
    """Plain lines for a file or pipe: one at the end of a step and one every ten seconds."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._line = ""

    def progress(self, step: str, done: float, total: int) -> None:
        line = f"{step}: {done:,.12g} of {total:,}"
        is_due = done == total or time.monotonic() - self._last > _SECONDS_BETWEEN_LINES
        if is_due and line != self._line:
            self._last, self._line = time.monotonic(), line
            self.tell(line)

    def tell(self, message: str) -> None:
        click.echo(message, err=True)


@contextmanager
def watching() -> Iterator[Watcher]:
    """Yield a watcher that shows bars on a terminal and prints lines elsewhere."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        streams.install()  # the progress bars have replaced both streams
        yield _Bars(bars)
