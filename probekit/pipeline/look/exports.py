"""Output files of a saved probe: predictions as a page or as a table."""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from probekit.files import csv_text, sweep_drafts, write_atomic
from probekit.pipeline.look.endings import ANSWER_FILES, PAGE_OR_ROWS, check_ending
from probekit.probes.saved_probe import SavedProbe
from probekit.report.pages.texts_page import texts_page
from probekit.results.network import Per, TextReading, tidy_rows


def _write(path: Path, content: str) -> None:
    """Write a file and remove temporary files of it left by killed processes."""
    write_atomic(path, content)
    sweep_drafts(path.parent.glob(f".{glob.escape(path.name)}.*"))


def write_page_or_rows(path: Path, page: Callable[[], str], rows: pd.DataFrame) -> Path:
    """Write a page (.html) or its rows (.csv) and return the path.

    Raises:
        ConfigError: the extension is not one of these.
        StoreError: the file cannot be written.
    """
    check_ending(path, PAGE_OR_ROWS)
    is_page = path.suffix == ".html"
    _write(path, page() if is_page else csv_text(rows))
    return path


def write_answers(path: Path, readings: Sequence[TextReading], probe: SavedProbe, per: Per) -> Path:
    """Write predictions as a page (.html) or as rows per text or token (.csv, .jsonl).

    Raises:
        ConfigError: the extension is not one of these, or the probe cannot predict per text.
        StoreError: the file cannot be written.
    """
    check_ending(path, ANSWER_FILES)
    if path.suffix == ".html":
        _write(path, texts_page(readings, probe.classes, probe.facts))
        return path
    rows = tidy_rows(readings, probe.classes, per)
    if path.suffix == ".csv":
        _write(path, csv_text(pd.DataFrame(rows)))
    else:
        _write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path
