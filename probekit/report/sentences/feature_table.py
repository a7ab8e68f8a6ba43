"""Table of the features that k-sparse probes select, from features.csv."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probekit.files import read_csv
from probekit.results.record import reading_run_file
from probekit.results.table import check_columns

COLUMNS = ("site", "rank", "feature", "k", "share", "label")
MOST_ROWS = 20  # shown without unfolding the table


@dataclass(frozen=True)
class FeatureTable:
    """Features at the best site of the k-sparse probes, best first.

    `rows` are shown; `folded` are the rest.
    """

    site: str
    rows: tuple[dict[Hashable, Any], ...]
    folded: tuple[dict[Hashable, Any], ...]


def load_features(run_dir: Path) -> FeatureTable | None:
    """Return the features that a run's k-sparse probes selected; None without features.csv.

    Raises:
        DataError: features.csv cannot be read.
    """
    path = run_dir / "features.csv"
    if not path.exists():
        return None
    with reading_run_file(path):
        table = read_csv(path, keep_default_na=False, dtype={"label": str})
    check_columns(table, COLUMNS, path)
    rows = tuple(table.to_dict("records"))
    return FeatureTable(str(table["site"].iloc[0]), rows[:MOST_ROWS], rows[MOST_ROWS:])
