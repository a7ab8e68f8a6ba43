"""Console and progress: bars on terminals and in notebooks, lines in files and pipes."""

import html
import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import rich.console
from rich import progress as rich_bars
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from probekit.amounts import duration
from probekit.errors import check_has
from probekit.files import write_atomic
from probekit.terminal import SILENT, Watcher, command_line, unfiltered, visible

SECONDS_BETWEEN_LINES = 10
SECONDS_BETWEEN_PICTURES = 0.2  # of a notebook; each one is a message to the browser
MOST_MESSAGES = 20  # shown in a notebook
STAGE = ".stage.json"  # in the folder of a run until it ends; no result
SECONDS_BETWEEN_STAGES = 1.0
LONGEST_STAGE = 10_000  # characters of the file
# Stage, time left and way to resume, as long as they are unknown.
UNKNOWN_STAGE = ("preparation", "", "the same command or call")


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


@contextmanager
def shown_progress(watcher: Watcher | None = None, *, progress: bool = True) -> Iterator[Watcher]:
    """Yield a watcher that shows progress: the given one, or one that fits where the code runs.

    Notebooks and terminals show bars. Elsewhere there is a line on stderr at the end of each step
    and every ten seconds.

    Args:
        watcher: receives the progress instead, whatever `progress` is.
        progress: False shows nothing if no watcher is given.

    Raises:
        ConfigError: the watcher has no method `progress`.
    """
    if watcher is not None:
        remedy = "Omit it, or give an object with the methods of Watcher."
        check_has("watcher", watcher, "progress", remedy)
    if watcher is not None or not progress:
        yield watcher or SILENT
    elif _has_kernel():
        notebook = NotebookBars()
        try:
            yield notebook
        finally:
            notebook.end()
    elif sys.stderr.isatty():
        with terminal_bars(Console(stderr=True)) as bars:
            yield bars
    else:
        yield ProgressLines()


@contextmanager
def terminal_bars(console: Console) -> Iterator[Watcher]:
    """Yield a watcher that shows bars on a console."""
    name = rich_bars.TextColumn("{task.description}", markup=False)
    counts, left = rich_bars.MofNCompleteColumn(), rich_bars.TimeRemainingColumn()
    columns = (name, rich_bars.BarColumn(), counts, _Rate(), left)
    with rich_bars.Progress(*columns, console=console) as bars:
        yield _TerminalBars(bars)


class _Rate(rich_bars.ProgressColumn):
    """Items per second, or seconds per item."""

    def render(self, task: rich_bars.Task) -> Text:
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        return Text(f"{speed:,.1f}/s" if speed >= 1 else f"{1 / speed:,.1f} s each")


class _TerminalBars:
    """Progress bars of a terminal."""

    def __init__(self, bars: rich_bars.Progress) -> None:
        self.left = ""  # time left of the run, in words
        self._bars = bars
        self._tasks: dict[str, Any] = {}

    def progress(self, step: str, done: float, total: int) -> None:
        # A step that starts again gets a new bar.
        if step not in self._tasks or done < self._bars.tasks[self._tasks[step]].completed:
            self._tasks[step] = self._bars.add_task(visible(step), total=total)
        text = visible(f"{step}, {self.left}" if self.left and done < total else step)
        self._bars.update(self._tasks[step], completed=done, description=text)

    def tell(self, message: str) -> None:
        self._bars.console.print(Text(visible(message)))


def _done(done: float) -> str:
    """Return a number of completed units, with one decimal unless it is an integer.

    >>> _done(4320), _done(1.4375)
    ('4,320', '1.4')
    """
    # An integer has up to 12 digits and no decimal point, also if its type is float.
    return f"{done:,.12g}" if done == int(done) else f"{done:,.1f}"


class ProgressLines:
    """Plain lines on stderr: one at the end of a step and one every ten seconds."""

    def __init__(self) -> None:
        self.left = ""  # time left of the run, in words
        self._last = time.monotonic()
        self._line = ""

    def progress(self, step: str, done: float, total: int) -> None:
        """Write a line if the step is complete or the last line is ten seconds old.

        A line is not written again if nothing has changed.
        """
        line = f"{step}: {_done(done)} of {total:,}"
        line += f", {self.left}" if self.left and done < total else ""
        is_due = done == total or time.monotonic() - self._last > SECONDS_BETWEEN_LINES
        if is_due and line != self._line:
            self._last, self._line = time.monotonic(), line
            self.tell(line)

    def tell(self, message: str) -> None:
        """Write a message as a line."""
        sys.stderr.write(f"{visible(message)}\n")
        sys.stderr.flush()


class NotebookBars:
    """Progress bars as the output of a notebook cell; one line of text after the last step.

    They are plain HTML, so that no extension is needed and a saved notebook still shows them.
    """

    def __init__(self) -> None:
        self.steps: dict[str, tuple[float, int]] = {}  # units done and in total, by step
        self.messages: list[str] = []
        self.is_over = False
        self._start = time.monotonic()
        self._drawn = -SECONDS_BETWEEN_PICTURES  # time of the last picture; the first one is due
        self._handle: Any = None  # of IPython, for the picture; None before the first one

    def progress(self, step: str, done: float, total: int) -> None:
        """Show that `done` of `total` units of a step are complete."""
        self.steps[step] = (done, total)
        self.draw(is_due=done == total)

    def tell(self, message: str) -> None:
        """Show a message below the bars."""
        self.messages = [*self.messages, message][-MOST_MESSAGES:]
        self.draw(is_due=True)

    def end(self) -> None:
        """Replace the bars by one line, above the messages."""
        self.is_over = True
        if self._handle is not None:
            self._handle.update(self)

    def draw(self, *, is_due: bool) -> None:
        """Show the present state, at most every `SECONDS_BETWEEN_PICTURES` unless it is due."""
        if not is_due and time.monotonic() - self._drawn < SECONDS_BETWEEN_PICTURES:
            return
        self._drawn = time.monotonic()
        if self._handle is None:
            # Only notebooks have IPython.
            self._handle = import_module("IPython.display").display(self, display_id=True)
        else:
            self._handle.update(self)

    def __repr__(self) -> str:
        counts = (f"{step} {_done(n)} of {total:,}" for step, (n, total) in self.steps.items())
        seconds = time.monotonic() - self._start
        return "\n".join([f"{', '.join(counts)}; {seconds:,.0f} s", *self.messages])

    def _repr_html_(self) -> str:
        messages = "".join(f"<div>{html.escape(visible(text))}</div>" for text in self.messages)
        if self.is_over:
            # After the first line, `repr` has the messages.
            summary = html.escape(visible(repr(self).partition("\n")[0]))
            return f'<div style="opacity:.7">{summary}{messages}</div>'
        rows = "".join(
            f"<tr><td>{html.escape(visible(step))}</td>"
            f'<td><progress value="{done:g}" max="{total}"></progress></td>'
            f"<td>{_done(done)} of {total:,}</td></tr>"
            for step, (done, total) in self.steps.items()
        )
        return f"<table>{rows}</table>{messages}"


def _has_kernel() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class StageWriter:
    """A watcher that reports to another one, and writes the stage of a run to a file.

    It gives the other one the time left, if that has an attribute `left`. The time left is that of
    the present step at its mean speed so far, plus the estimates of later steps.
    """

    def __init__(self, watcher: Watcher, path: Path) -> None:
        self._watcher, self._path = watcher, path
        self._later: dict[str, float] = {}  # estimated seconds of later steps
        self._step, self._seconds, self._last = "", 0.0, 0.0
        self._start, self._first, self._written = 0.0, 0.0, 0.0
        command = command_line()
        self._resume = f"`{command}` in {Path.cwd()}" if command else UNKNOWN_STAGE[-1]
        write_atomic(path, json.dumps([*UNKNOWN_STAGE[:-1], self._resume]))

    def expect(self, step: str, seconds: float | None) -> None:
        """Set the estimated duration of a later step; None if it is unknown."""
        if seconds is not None:
            self._later[step] = seconds

    def progress(self, step: str, done: float, total: int) -> None:
        """Report progress, with the time left; write the stage at most once a second."""
        now = time.monotonic()
        if is_new := step != self._step or done < self._last:
            self._step, self._start, self._first = step, now, done
            self._seconds = self._later.pop(step, 0.0)  # until there is a speed
        self._last = done
        seconds = self._seconds
        if self._first < done <= total:
            seconds = (now - self._start) * (total - done) / (done - self._first)
        seconds += sum(self._later.values())
        left = f"{duration(seconds)} left" if seconds else ""
        if hasattr(self._watcher, "left"):
            self._watcher.left = left
        self._watcher.progress(step, done, total)
        if is_new or now - self._written > SECONDS_BETWEEN_STAGES:
            self._written = now
            stage = f"{step}: {_done(done)} of {total:,}"
            write_atomic(self._path, json.dumps([stage, left, self._resume]))

    def tell(self, message: str) -> None:
        """Report a message."""
        self._watcher.tell(message)


@contextmanager
def recorded_stage(folder: Path, watcher: Watcher) -> Iterator[StageWriter]:
    """Yield a watcher that reports to the given one and records the stage in the folder of a run.

    The record is removed at the end of the block, but not if the block raises.

    Raises:
        StoreError: the stage cannot be written.
    """
    yield StageWriter(watcher, folder / STAGE)
    with suppress(OSError):  # on Windows, while another process reads it
        (folder / STAGE).unlink(missing_ok=True)
