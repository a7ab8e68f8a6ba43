"""Index page of a results folder: question, state and main result of each run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from probekit.amounts import counted
from probekit.errors import ProbekitError
from probekit.report.pages.pretraining_page import load_pretraining
from probekit.report.pages.template import render
from probekit.report.sentences.answer import answer
from probekit.report.sentences.pretraining import pretraining_answer
from probekit.results.finished_run import load_config
from probekit.results.record import STARTED, open_record
from probekit.results.titles import TitledRun, date_text, run_titles
from probekit.training.log import read_log, read_verified_log
from probekit.training.progress import LOG, STATE, is_pretraining, read_progress

_READ = (
    "config.yaml",
    "results.csv",
    "differences.csv",
)  # files of a finished run that the index verifies
QUIET = 120  # seconds without a new file after which a run is shown as possibly interrupted


@dataclass(frozen=True)
class Entry:
    """A run in the index.

    Attributes:
        title: experiment, and the settings that differ from other runs of it.
        folder: path of the run, relative to the folder of the index.
        url: URL of its report, or empty.
        state: finished, running, quiet (no new file for a while) or damaged.
        summary: main result, progress or error message.
        created: creation time from the run's record.
        question: question of the experiment.
        titled: facts that the title is made of; None for a run that has no record yet.
    """

    title: str
    folder: str
    url: str
    state: str
    summary: str
    created: str = ""
    question: str = ""
    titled: TitledRun | None = None


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
    folders = {path.parent: path.stat().st_mtime for path in files if path.exists()}
    return sorted(folders, key=lambda folder: (-folders[folder], str(folder)))


def index_page(root: Path, *, now: float | None = None) -> str:
    """Return the HTML page that lists the runs of a folder; it refreshes itself when served."""
    entries = [
        entry(root, folder, time.time() if now is None else now) for folder in find_runs(root)
    ]
    return render("index.html", root=root.resolve().name, entries=_with_titles(entries))


def _with_titles(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries, those of finished runs with titles that distinguish them."""
    titles = iter(run_titles([e.titled for e in entries if e.titled], with_names=True))
    return [replace(e, title=next(titles)) if e.titled else e for e in entries]


def entry(root: Path, folder: Path, now: float) -> Entry:
    """Return the index entry of a run; `now` is the current time in seconds."""
    path = folder.relative_to(root).as_posix()
    if (folder / STARTED).exists():
        return _unfinished(folder, path, now)
    try:
        if is_pretraining(folder):
            return _pretraining(folder, path, _modified(folder, ("run.json", LOG, STATE)), now)
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


def _pretraining(folder: Path, path: str, written: tuple[int, ...], now: float) -> Entry:
    """Return the entry of a pretraining run, finished or in progress."""
    run, n_steps, step, summary = _progress(folder, written)
    seconds = now - max(written) / 1e9
    state = "finished" if step >= n_steps else "quiet" if seconds > QUIET else "running"
    url = f"run/{quote(path)}/report.html" if step else ""
    return Entry(f"{run}, pretraining", path, url, state, summary)


@lru_cache(maxsize=100)
def _progress(folder: Path, _written: tuple[int, ...]) -> tuple[str, int, int, str]:
    """Return name, number of steps, completed steps and summary of a pretraining run."""
    record = load_pretraining(folder)
    # Read before the log; only its header, because the page is requested every few seconds.
    progress = read_progress(folder, verify=False)
    if progress is not None:
        log = read_verified_log(folder / LOG, progress.step, progress.log)
    else:
        log = read_log(folder / LOG) if (folder / LOG).exists() else ()
    if not log:
        return record.run, record.steps, 0, f"No step of {record.steps:,} is logged yet."
    return record.run, record.steps, log[-1].step, pretraining_answer(log, record.steps)


@lru_cache(maxsize=1000)  # the page is requested every few seconds
def _finished(folder: Path, path: str, _written: tuple[int, ...]) -> Entry:
    record = open_record(folder, _READ)
    return Entry(
        title=record.run,
        folder=path,
        url=f"run/{quote(path)}/report.html",
        state="finished",
        summary=answer(record.verdict, record.question),
        created=date_text(record.created, " %H:%M"),
        question=record.question or "",
        titled=TitledRun.of(load_config(folder / "config.yaml"), record),
    )


def _unfinished(folder: Path, path: str, now: float) -> Entry:
    sites = [path for path in folder.glob("sites/**/*.json") if path.stem != "baselines"]
    last = max(_times([folder / STARTED, *sites]), default=now)
    seconds = max(0, round(now - last))
    summary = f"{counted(len(sites), 'site')} probed; last file written {seconds:,} s ago."
    if seconds > QUIET:
        summary += " If the run was interrupted, repeat the same command to resume it."
    state = "quiet" if seconds > QUIET else "running"
    return Entry(_experiment(folder), path, "", state, summary)


def _times(paths: list[Path]) -> Iterator[float]:
    """Yield the modification times of the files; files deleted in the meantime are skipped."""
    for path in paths:
        try:
            yield path.stat().st_mtime
        except FileNotFoundError:
            continue
