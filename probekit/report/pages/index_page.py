"""The index of a folder's runs: what each asked, how far it is, and what it found."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from probekit.amounts import counted
from probekit.errors import ProbekitError
from probekit.report.pages.template import render
from probekit.report.sentences.answer import answer
from probekit.results.differences import load_differences, rival_differences
from probekit.results.record import STARTED, open_record
from probekit.results.table import load_table

_READ = ("results.csv", "differences.csv")  # of a finished run
QUIET = 120  # seconds without a new file after which a run looks as if it had been interrupted


@dataclass(frozen=True)
class Entry:
    """A run as the index shows it.

    Attributes:
        name: experiment and key, or the folders of a run that has no record yet.
        url: of its page, or empty.
        state: finished, running, quiet (nothing new for a while) or damaged.
        told: what it found, how far it is, or what is wrong with it.
        created: when, as the run says it.
        question: of the experiment.
    """

    name: str
    url: str
    state: str
    told: str
    created: str = ""
    question: str = ""


def find_runs(root: Path) -> list[Path]:
    """Return the folders of the runs under a root, the latest first.

    They lie there, or one or two folders below: root, root/KEY, root/NAME/KEY. A link that leads
    out of the root is left alone.
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
    """Return the page that lists the runs of a folder and draws itself anew while they go on."""
    entries = [
        entry(root, folder, time.time() if now is None else now) for folder in find_runs(root)
    ]
    return render("index.html", root=root.resolve().name, entries=entries)


def entry(root: Path, folder: Path, now: float) -> Entry:
    """Return the line of one run."""
    place = folder.relative_to(root).as_posix()
    if (folder / STARTED).exists():
        return _unfinished(folder, place, now)
    try:
        written = tuple(
            (folder / name).stat().st_mtime_ns if (folder / name).exists() else 0
            for name in ("run.json", *_READ)
        )
        return _finished(folder, place, written)
    except ProbekitError as error:
        return Entry(place, "", "damaged", str(error))


@lru_cache(maxsize=1000)  # the list is asked for every few seconds
def _finished(folder: Path, place: str, _written: tuple[int, ...]) -> Entry:
    record = open_record(folder, _READ)
    table = load_table(folder / "results.csv")
    told = answer(table, rival_differences(table, load_differences(folder / "differences.csv")))
    url = f"run/{quote(place)}/report.html"
    name = f"{record.run}/{record.key}"
    return Entry(name, url, "finished", told, record.created, record.question or "")


def _unfinished(folder: Path, place: str, now: float) -> Entry:
    sites = [path for path in folder.glob("sites/**/*.json") if path.stem != "baselines"]
    last = max(_times([folder / STARTED, *sites]), default=now)
    seconds = max(0, round(now - last))
    told = f"{counted(len(sites), 'site')} probed; the last file is {seconds:,} s old."
    if seconds > QUIET:
        told += " If it was interrupted, the same command goes on from there."
    return Entry(place, "", "quiet" if seconds > QUIET else "running", told)


def _times(paths: list[Path]) -> Iterator[float]:
    """Yield when the files were written; one that has gone meanwhile is left out."""
    for path in paths:
        try:
            yield path.stat().st_mtime
        except FileNotFoundError:
            continue
