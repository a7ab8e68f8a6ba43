"""Titles of runs on pages, and their dates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import PurePosixPath

from probekit.results.finished_run import ABSENT, differing
from probekit.results.record import RunRecord

MOST_SETTINGS = 3  # in a title
LONGEST_VALUE = 30  # characters


def run_titles(runs: Sequence[tuple[RunRecord, Mapping[str, str]]]) -> list[str]:
    """Return a unique title for each run: its name, and settings in which runs of a name differ.

    A name that all runs have is left out. Titles that would be equal are numbered.

    Args:
        runs: the record of each run, and its settings as `settings_of` returns them.
    """
    has_names, titles = len(runs) == 1 or len({record.run for record, _ in runs}) > 1, []
    for record, settings in runs:
        differ = differing([other for one, other in runs if one.run == record.run])
        parts = [f"{key} {_short(settings.get(key, ABSENT))}" for key in differ][:MOST_SETTINGS]
        titles.append(" · ".join([record.run] * has_names + parts))
    return [
        title if titles.count(title) == 1 else f"{title} · run {number}".removeprefix(" · ")
        for number, title in enumerate(titles, start=1)
    ]


def _short(text: str) -> str:
    """Return the end of a value; of an absolute path, its last part."""
    text = PurePosixPath(text).name if text.startswith("/") else text
    return text if len(text) <= LONGEST_VALUE else f"…{text[1 - LONGEST_VALUE :]}"


def date_text(created: str, time: str = "") -> str:
    """Return the date of a time in ISO 8601, with its time in this format; other text unchanged.

    >>> date_text("2026-11-02T01:39:33+00:00"), date_text("2026-11-02T01:39:33+00:00", " %H:%M")
    ('2 Nov 2026', '2 Nov 2026 01:39')
    """
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{moment.day} {moment:%b %Y}{moment.strftime(time)}"
