"""Output files of a saved probe: predictions as a page or table, directions as numpy arrays."""

from __future__ import annotations

import glob
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from probekit.csv_files import csv_text
from probekit.drafts import sweep_drafts, write_atomic
from probekit.errors import ConfigError
from probekit.pipeline.look.endings import ANSWER_FILES, PAGE_OR_ROWS, check_ending
from probekit.probes.saved.saved_probe import SavedProbe
from probekit.provenance import pretty_json
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


def write_directions(probe: SavedProbe, path: Path, *, unit: bool = False) -> tuple[Path, Path]:
    """Write the directions (n_scores, n_features) as .npy, and their description as .json.

    Entry i of `names` in the JSON file names row i of the array.

    Args:
        probe: a linear probe.
        path: path of the .npy file; the .json file is written next to it.
        unit: whether to normalise each direction to length 1.

    Raises:
        ConfigError: the probe is not linear, or the path does not end with .npy.
        StoreError: the files cannot be written.
    """
    if path.suffix != ".npy":
        raise ConfigError(f"--out {path}: directions are written as .npy. Use this extension.")
    directions = probe.unit_directions if unit else probe.directions
    content = io.BytesIO()
    np.save(content, directions, allow_pickle=False)
    facts = {
        "names": list(probe.direction_names),
        "classes": list(probe.classes),
        "biases": probe.layers[0][1].tolist(),
        "unit": unit,
        "kind": probe.facts.kind,
        "sites": list(probe.facts.sites),
        "view": probe.facts.view,
        "model": probe.facts.model,
        "weights": probe.facts.weights,
        "is_tested": probe.facts.is_tested,
    }
    write_atomic(path, content.getvalue())
    write_atomic(path.with_suffix(".json"), pretty_json(facts))
    return path, path.with_suffix(".json")
