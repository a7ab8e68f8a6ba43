"""Index page of a results folder: a table with answer, curve, model and data of each run."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from probekit.amounts import date_text, format_number
from probekit.chosen.page import Shown
from probekit.errors import DamagedError, ProbekitError, StoreError
from probekit.files import inside, is_held
from probekit.probes.score.metric_table import METRICS
from probekit.progress import LONGEST_STAGE, STAGE, UNKNOWN_STAGE
from probekit.report.elements.page import Page, View
from probekit.report.elements.texts import model_title
from probekit.report.pages.losses import Plan, loss_answer
from probekit.report.pages.run_page import run_answers
from probekit.report.pages.study_page import study_answer
from probekit.report.sentences.answer import score_texts
from probekit.report.sentences.comparisons import LONGEST, site_words
from probekit.results.record import CELLS, STARTED, RunRecord, open_record, read_record
from probekit.results.study import STUDY_RECORD, StudyResult
from probekit.training.run_files import LOG, STATE, is_pretraining, read_log, read_progress

# The first clauses of a long sentence: of 35 characters or more, up to a colon or semicolon.
_CLAUSES = re.compile(r".{35,}?(?=[;:] )")
# Files of a finished run that the index verifies.
_READ = ("config.yaml", "results.csv", "differences.csv")


@dataclass(frozen=True)
class Entry:
    """A run in the index.

    Attributes:
        title: name of the experiment; of a pretraining run its name and "pretraining".
        folder: path of the run, relative to the folder of the index.
        url: URL of its report, or of the losses of a pretraining run; "" if there is none yet.
        state: finished, running, stopped, damaged or written by another version.
        summary: first clauses of the answer; progress or error message.
        css: class of the summary, that of the sentence on the run's page.
        seconds: time of creation since 1970; of an unfinished run, time of its last change.
        details: all sentences of the answer; "" unless an experiment has finished.
        score: the reported score, its interval, and the site; "" without.
        curve: the scores by depth, or the held-out losses by step, as a small figure; see `_curve`.
        record: record of a finished experiment; None for other runs.
    """

    title: str
    folder: str
    url: str
    state: str
    summary: str
    seconds: float
    css: str = ""
    details: str = ""
    score: tuple[str, str, str] = ("", "", "")
    curve: Mapping[str, Any] = field(default_factory=dict)
    record: RunRecord | None = None

    @property
    def date(self) -> str:
        """Date and time of `seconds`, in UTC as on the pages of runs."""
        return date_text(datetime.fromtimestamp(self.seconds, UTC).isoformat(), " %H:%M")


def find_runs(root: Path, *, with_cells: bool = False) -> list[Path]:
    """Return the folders of the runs and studies under a root.

    Runs are searched in root, root/KEY and root/NAME/KEY. Links that lead out of the root are
    ignored.

    Args:
        root: folder of results.
        with_cells: whether to include the runs of the cells of studies.
    """
    cells = (f"{CELLS}/*/*/", f"*/{CELLS}/*/*/") if with_cells else ()
    inside = root.resolve()
    folders = (
        path.parent
        for pattern in ("", "*/", "*/*/", *cells)
        for name in ("run.json", STARTED, STUDY_RECORD)
        for path in root.glob(f"{pattern}{name}")
        if path.resolve().is_relative_to(inside)
    )
    return list(dict.fromkeys(folders))


def index_page(root: Path) -> str:
    """Return the page with a table of the runs of a folder, latest first.

    It refreshes itself if it is served.
    """
    entries = [entry(root, folder) for folder in find_runs(root)]
    entries.sort(key=lambda one: (-one.seconds, one.folder))
    return Page(
        eyebrow=["probekit", f"folder {root.resolve().name}"],
        title="All runs",
        answer="",
        sections=[View("index.html", {"entries": entries, "model_title": model_title})],
        styles=["report.css", "index.css"],
        scripts=[("tables.js", "index.js")],
        is_live=True,
    ).html()


def entry(root: Path, folder: Path) -> Entry:
    """Return the index entry of a run."""
    path = folder.relative_to(root).as_posix()  # "." for the root itself, which a URL cannot have
    url = quote(str(PurePosixPath("run", path, "report.html")))
    # When its files were modified, in nanoseconds; 0 for files that do not exist.
    written = dict.fromkeys(("run.json", STARTED, STAGE, LOG, STATE, STUDY_RECORD, *_READ), 0)
    for name in written:
        with suppress(FileNotFoundError):  # a run that finishes in the meantime removes files
            written[name] = (folder / name).stat().st_mtime_ns
    named = folder if (folder / CELLS).exists() else folder.parent  # OUT/NAME of OUT/NAME/KEY
    times = tuple(written.values())
    shown = bare = Entry(named.resolve().name, path, "", "", "", max(times) / 1e9)
    try:
        if not (folder / STARTED).exists():
            read = _pretraining if is_pretraining(folder) else _finished
            read = _study if (folder / STUDY_RECORD).exists() else read
            shown = replace(shown, **{"url": url} | read(folder, times))
        if shown.state != "finished":
            stage, left, resume = read_stage(folder)
            state, summary = "running", ", ".join(filter(None, [shown.summary or stage, left]))
            if not is_held(folder):
                state = "stopped"
                summary = f"{shown.summary or f'At {stage}'}. Resume it with {resume}."
            shown = replace(shown, state=state, summary=summary)
    except ProbekitError as error:
        why = error.__cause__
        is_other = isinstance(why, StoreError) and not isinstance(why, DamagedError)
        state = "written by another version" if is_other else "damaged"
        return replace(bare, state=state, summary=str(error))
    return shown


@lru_cache(maxsize=100)
def _study(folder: Path, written: tuple[int, ...]) -> dict[str, Any]:
    """Return fields of the entry of a finished study; for `written` see `_pretraining`."""
    answers, title = study_answer(StudyResult(folder)), f"{folder.resolve().name}, study"
    texts = {"title": title, "summary": answers[0], "details": " ".join(answers)}
    return texts | {"state": "finished", "seconds": max(written) / 1e9}


@lru_cache(maxsize=100)
def _pretraining(folder: Path, written: tuple[int, ...]) -> dict[str, Any]:
    """Return fields of the entry of a pretraining run; its state is "" if it is not finished.

    If there is a state, steps logged after it are ignored. A run whose files have changed since
    `written` is not taken from the cache.
    """
    record = read_record(folder / "run.json", Plan)
    # A running process writes the log before the state. Reading the state first ensures that the
    # log covers it. Only the header of the state is read, because the page is requested every few
    # seconds.
    progress = read_progress(folder, verify=False)
    # A missing log is an error only if there is a state; else no step has been logged yet.
    is_logged = progress is not None or (folder / LOG).exists()
    log = read_log(folder / LOG, progress) if is_logged else ()
    last = log[-1].step if log else 0
    measured = [row for row in log if not math.isnan(row.held_out_loss)]
    state, title = "finished" if last >= record.steps else "", f"{record.run}, pretraining"
    curve = _curve([row.held_out_loss for row in measured], "Held-out loss by step")
    found = {"title": title, "state": state, "curve": curve, "seconds": max(written) / 1e9}
    none = f"0 of {record.steps:,} steps, no held-out loss yet"
    found["summary"] = loss_answer(log, record) if log else none
    return found if log else found | {"url": ""}


@lru_cache(maxsize=1000)  # the page is requested every few seconds
def _finished(folder: Path, written: tuple[int, ...]) -> dict[str, Any]:
    """Return fields of the entry of a finished run; for `written` see `_pretraining`."""
    record, seconds = open_record(folder, _READ), max(written) / 1e9
    with suppress(ValueError):  # no date
        seconds = datetime.fromisoformat(record.created).timestamp()
    v = record.verdict
    metric, chance = METRICS[v.metric], math.nan if v.score is None else v.score.chance
    best = metric.range[1 if metric.sign > 0 else 0]
    first, *_ = answers = run_answers(Shown(folder, record))
    details = " ".join(one.text for one in answers)
    texts: dict[str, Any] = {"title": record.run, "details": details, "css": first.css}
    clauses = _CLAUSES.match(first.text) if len(first.text) > LONGEST else None
    texts["summary"] = f"{clauses[0]}\N{NO-BREAK SPACE}…" if clauses else first.text
    if (score := v.score) is not None:
        numbers = (score.value, score.ci_low, score.ci_high, score.chance)
        (value, low, high, _), unit = score_texts(numbers, metric.in_percent)
        interval = "" if math.isnan(score.ci_low) else f"[{low}, {high}]"
        texts["score"] = (f"{metric.title}: {value}{unit}", interval, site_words(v))
    curve = _curve(v.curve, f"{metric.title} by layer", chance, best)
    return texts | {"state": "finished", "curve": curve, "seconds": seconds, "record": record}


def _curve(
    values: Sequence[float], name: str, level: float = math.nan, best: float = math.nan
) -> dict[str, Any]:
    """Return the values of a small curve and the ends of its axis; {} with fewer than two values.

    Args:
        values: the values, from left to right; NaN are left out.
        name: what they are, for screen readers.
        level: value of a dotted line, such as chance; NaN for none.
        best: the best possible value, which is the other end of the axis; NaN for none.
    """
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return {}
    ends = [value for value in (*known, level, best) if math.isfinite(value)]
    words = f"{name}, {format_number(min(known))} to {format_number(max(known))}"
    return {"values": known, "level": level, "low": min(ends), "high": max(ends), "words": words}


def read_stage(folder: Path) -> tuple[str, str, str]:
    """Return the last stage of a run, the time left, and how to resume it, in words.

    The time is "" if it is unknown.
    """
    with suppress(OSError, ValueError, TypeError, RecursionError):
        text = inside(folder / STAGE).read_text("utf-8")
        stage, left, resume = map(str, json.loads(text[:LONGEST_STAGE]))
        f"{stage}{left}{resume}".encode()  # raises for half a surrogate pair
        return stage, left, resume
    return UNKNOWN_STAGE
