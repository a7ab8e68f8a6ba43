"""Index page of a results folder: question, state and main result of each run."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from probekit.amounts import counted
from probekit.errors import ProbekitError
from probekit.report.causes.findings import run_answers
from probekit.report.pages.page import Page, View
from probekit.results.finished_run import date_text
from probekit.results.record import STARTED, RecordPart, open_record, read_record
from probekit.training.run_files import LOG, STATE, is_pretraining, read_log, read_progress

# Files of a finished run that the index verifies.
_READ = ("config.yaml", "results.csv", "differences.csv")
QUIET = 120  # seconds without a new file after which a run is shown as possibly interrupted


@dataclass(frozen=True)
class Entry:
    """A run in the index.

    Attributes:
        title: name of the experiment; of a pretraining run its name and "pretraining".
        folder: path of the run, relative to the folder of the index.
        url: URL of its report, or of the losses of a pretraining run; "" if there is none yet.
        state: finished, running, quiet (no new file for a while) or damaged.
        summary: main result, progress or error message.
        created: creation time from the run's record; "" unless an experiment has finished.
        question: question of the experiment; "" without one, or unless it has finished.
    """

    title: str
    folder: str
    url: str
    state: str
    summary: str
    created: str = ""
    question: str = ""


class _PretrainRecord(RecordPart):
    """Fields of run.json of a pretraining run that the index shows."""

    run: str
    steps: int


def find_runs(root: Path) -> list[Path]:
    """Return the folders of the runs under a root, latest first.

    Runs are searched in root, root/KEY and root/NAME/KEY. Links that lead out of the root are
    ignored.
    """
    inside = root.resolve()
    files = [
        path
        for pattern in ("", "*/", "*/*/")
        for name in ("run.json", STARTED)
        for path in root.glob(f"{pattern}{name}")
        if path.resolve().is_relative_to(inside)
    ]
    folders: dict[Path, float] = {}
    for path in files:
        with suppress(FileNotFoundError):  # a run that finishes in the meantime removes STARTED
            folders[path.parent] = path.stat().st_mtime
    return sorted(folders, key=lambda folder: (-folders[folder], str(folder)))


def index_page(root: Path, *, now: float | None = None) -> str:
    """Return the HTML page that lists the runs of a folder; it refreshes itself when served.

    `now` is the time in seconds to which the ages of files are compared, by default the clock's.
    """
    entries = [
        entry(root, folder, time.time() if now is None else now) for folder in find_runs(root)
    ]
    return Page(
        eyebrow=["probekit"],
        title=f"Runs in {root.resolve().name}",
        answer="",
        sections=[View("index.html", {"entries": entries})],
        styles=["index.css"],
        scripts=["index.js"],
        is_live=True,
    ).html()


def entry(root: Path, folder: Path, now: float) -> Entry:
    """Return the index entry of a run; `now` is the current time in seconds."""
    path = folder.relative_to(root).as_posix()
    if (folder / STARTED).exists():  # the run has not finished
        # One file for each probed site and position; a file baselines.json belongs to no site.
        sites = [file for file in folder.glob("sites/**/*.json") if file.stem != "baselines"]
        times = []
        for file in (folder / STARTED, *sites):
            with suppress(FileNotFoundError):  # deleted in the meantime
                times.append(file.stat().st_mtime)
        # The clock of a file server may be ahead, so that the age would be negative. It is 0 if all
        # files were deleted.
        seconds, state = max(0, round(now - max(times, default=now))), "running"
        probed = counted(len({file.name for file in sites}), "site")
        summary = f"{probed} probed; last file written {seconds:,} s ago."
        if seconds > QUIET:
            summary += " If the run was interrupted, repeat the same command to resume it."
            state = "quiet"
        return Entry(_experiment(folder), path, "", state, summary)
    try:
        if is_pretraining(folder):
            written = _modified(folder, ("run.json", LOG, STATE))
            run, n_steps, step, summary = _progress(folder, written)
            is_quiet = now - max(written) / 1e9 > QUIET
            unfinished = "quiet" if is_quiet else "running"
            state = "finished" if step >= n_steps else unfinished
            url = f"run/{quote(path)}/report.html" if step else ""
            return Entry(f"{run}, pretraining", path, url, state, summary)
        return _finished(folder, path, _modified(folder, ("run.json", *_READ)))
    except ProbekitError as error:
        return Entry(_experiment(folder), path, "", "damaged", str(error))


def _experiment(folder: Path) -> str:
    """Return the name of the experiment of a run, from its folder OUT/NAME/KEY."""
    return folder.resolve().parent.name


def _modified(folder: Path, names: Sequence[str]) -> tuple[int, ...]:
    """Return the modification times of files in nanoseconds, 0 for files that do not exist."""
    paths = [folder / name for name in names]
    return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)


@lru_cache(maxsize=100)
def _progress(folder: Path, _written: tuple[int, ...]) -> tuple[str, int, int, str]:
    """Return name, number of steps, last logged step and summary of a pretraining run.

    If there is a state, steps logged after it are ignored. The last step is 0 if none is logged.
    `_written` only makes the cache forget a run whose files have changed.
    """
    record = read_record(folder / "run.json", _PretrainRecord)
    # A running process writes the log before the state. Reading the state first ensures that the
    # log covers it. Only the header of the state is read, because the page is requested every few
    # seconds.
    progress = read_progress(folder, verify=False)
    # A missing log is an error only if there is a state; else no step has been logged yet.
    is_logged = progress is not None or (folder / LOG).exists()
    log = read_log(folder / LOG, progress) if is_logged else ()
    if not log:
        return record.run, record.steps, 0, f"No step of {record.steps:,} is logged yet."
    last = log[-1].step
    measured = [row for row in log if not math.isnan(row.held_out_loss)]
    summary = f"{last:,} of {record.steps:,} steps, no held-out loss yet."
    if measured:
        loss = f"{measured[-1].held_out_loss:.2f} nats per token at step {measured[-1].step:,}"
        summary = f"{last:,} of {record.steps:,} steps, held-out loss {loss}."
    return record.run, record.steps, last, summary


@lru_cache(maxsize=1000)  # the page is requested every few seconds
def _finished(folder: Path, path: str, _written: tuple[int, ...]) -> Entry:
    """Return the entry of a finished run; for `_written` see `_progress`."""
    record = open_record(folder, _READ)
    return Entry(
        title=record.run,
        folder=path,
        url=f"run/{quote(path)}/report.html",
        state="finished",
        summary=run_answers(folder, record)[0],
        created=date_text(record.created, " %H:%M"),
        question=record.question or "",
    )
