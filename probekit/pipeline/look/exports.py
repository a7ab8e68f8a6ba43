"""Output files of commands: formats by file extension, pages, tables, predictions of a probe."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from probekit.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from probekit.probes.saved_probe import SavedProbe
    from probekit.report.elements.page import Page
    from probekit.results.network import Per, TextReading

# The command line reads these before any work, so that this file imports little.
ANSWER_FILES = (".html", ".csv", ".jsonl")
FIGURE_FILES = (".pdf", ".svg", ".png")
PAGE_OR_ROWS = (".csv", ".html", *FIGURE_FILES)
ATTENTION_FILES = (".html", *FIGURE_FILES)


def check_ending(path: Path, allowed: Sequence[str], note: str = "") -> None:
    """Check extension and folder of an output file before any work.

    A note on the allowed extensions is part of the message.

    Raises:
        ConfigError: the extension is not one of the allowed ones, or the folder is read-only.
    """
    if path.suffix not in allowed:
        raise ConfigError(
            f"--out {path}: the file extension sets the format{note}. Allowed: "
            f"{', '.join(allowed)}."
        )
    folder = next(filter(Path.exists, path.parents), Path())
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"--out {path}: the folder {folder} is read-only. Choose another one.")


def _write(path: Path, content: str) -> None:
    """Write a file and remove temporary files of it left by killed processes."""
    from probekit.files import sweep_drafts, write_atomic

    write_atomic(path, content)
    sweep_drafts(path.parent.glob(f".{glob.escape(path.name)}.*"))


def write_page_or_rows(
    path: Path,
    page: Callable[[], Page],
    rows: pd.DataFrame | None = None,
    paper: Mapping[str, Any] = MappingProxyType({}),
) -> list[Path]:
    """Write a page (.html), its figures (.pdf, .svg, .png) or its rows (.csv); return the paths.

    Args:
        path: output file; with several figures, that of the first one, next to the others.
        page: returns the page.
        rows: the numbers of the page; None if it has none as rows.
        paper: how figures are drawn; see `probekit.report.figures.figure_files.Paper`.

    Raises:
        ConfigError: the extension is not one of these.
        DataError: figures are requested, and the page has none.
        UnknownNameError: the font is not installed, or no figure has a name to be replaced.
        StoreError: a file cannot be written.
    """
    from probekit.files import csv_text

    check_ending(path, ATTENTION_FILES if rows is None else PAGE_OR_ROWS)
    if path.suffix in FIGURE_FILES:
        from probekit.report.figures import figure_files

        figures = figure_files.figures_of(page())
        return figure_files.write_pictures(figures, path, figure_files.Paper(**paper))
    _write(path, page().html() if rows is None or path.suffix == ".html" else csv_text(rows))
    return [path]


def write_answers(path: Path, readings: Sequence[TextReading], probe: SavedProbe, per: Per) -> Path:
    """Write predictions as a page (.html) or as rows per text or token (.csv, otherwise .jsonl).

    Rows per text have no label and no score if the probe cannot predict per text; see `choose_per`.

    Raises:
        StoreError: the file cannot be written.
    """
    import pandas as pd

    from probekit.files import csv_text
    from probekit.report.pages.texts_page import texts_page
    from probekit.results.network import tidy_rows

    if path.suffix == ".html":
        content = texts_page(readings, probe.classes, probe.facts)
    else:
        rows = tidy_rows(readings, probe.classes, per)
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        content = csv_text(pd.DataFrame(rows)) if path.suffix == ".csv" else "".join(lines)
    _write(path, content)
    return path
