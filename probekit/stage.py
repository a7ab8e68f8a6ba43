"""The present stage of a run, in a file of its folder: `probekit view` shows it.

The file is no result. It is removed at the end of the run; a run that is stopped leaves it behind.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from probekit.amounts import counted
from probekit.files import inside, write_atomic
from probekit.terminal import Watcher

STAGE = ".stage.json"
SECONDS_BETWEEN_WRITES = 1.0


@dataclass(frozen=True)
class Stage:
    """The stage of a run when it was last written.

    Attributes:
        step: name of the step; "" before the first one.
        done: completed units of the step.
        total: number of its units.
        seconds_left: time to the end of the step at its mean speed so far; None if unknown.
        command: command that resumes the run; "" if it was not started by a command.
        cwd: working folder of the command.
    """

    step: str = ""
    done: float = 0
    total: int = 0
    seconds_left: float | None = None
    command: str = ""
    cwd: str = ""

    def __str__(self) -> str:
        """Return step and progress.

        >>> str(Stage("probe", 2, 8)), str(Stage())
        ('probe: 2 of 8', 'starting')
        """
        return f"{self.step}: {self.done:,.0f} of {self.total:,}" if self.step else "starting"

    @property
    def time_left(self) -> str:
        """The time left in words; "" if unknown.

        >>> Stage(seconds_left=130.0).time_left
        'about 3 minutes left'
        """
        if self.seconds_left is None:
            return ""
        return f"about {counted(max(1, math.ceil(self.seconds_left / 60)), 'minute')} left"


class _StageWriter:
    """A watcher that also writes the stage to a file, about once a second."""

    def __init__(self, watcher: Watcher, path: Path) -> None:
        self._watcher, self._path = watcher, path
        self._stage = Stage(command=command_line(), cwd=str(Path.cwd()))
        self._begun, self._done_before, self._written = 0.0, 0.0, 0.0
        self._write(time.monotonic())

    def progress(self, step: str, done: float, total: int) -> None:
        self._watcher.progress(step, done, total)
        now, is_new = time.monotonic(), step != self._stage.step or done < self._stage.done
        if is_new:
            self._begun, self._done_before = now, done
        newly_done = done - self._done_before
        left = (now - self._begun) * (total - done) / newly_done if newly_done else None
        self._stage = replace(self._stage, step=step, done=done, total=total, seconds_left=left)
        if is_new or now - self._written > SECONDS_BETWEEN_WRITES:
            self._write(now)

    def tell(self, message: str) -> None:
        self._watcher.tell(message)

    def _write(self, now: float) -> None:
        self._written = now
        write_atomic(self._path, json.dumps(asdict(self._stage)))


@contextmanager
def recorded_stage(folder: Path, watcher: Watcher) -> Iterator[Watcher]:
    """Yield a watcher that reports to the given one and records the stage in the folder of a run.

    The record is removed at the end of the block, but not if the block raises.

    Raises:
        StoreError: The stage cannot be written.
    """
    yield _StageWriter(watcher, folder / STAGE)
    (folder / STAGE).unlink(missing_ok=True)


def read_stage(folder: Path) -> Stage:
    """Return the last recorded stage of a run; `Stage()` if there is none that can be read."""
    with suppress(OSError, ValueError, TypeError):
        return Stage(**json.loads(inside(folder / STAGE).read_text("utf-8")))
    return Stage()


def command_line() -> str:
    """Return the command line of this process; "" if Python code or a notebook was started."""
    script = Path(sys.argv[0])
    program = [script.name] if script.stem == "probekit" else []
    if script.parts[-2:] == ("probekit", "__main__.py"):
        program = ["python", "-m", "probekit"]
    return shlex.join([*program, *sys.argv[1:]]) if program else ""
