"""Bins of reliability.csv, and caption and description of the reliability diagram."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from probekit.files import read_csv
from probekit.report.figures.chosen_figures import BIN_COLUMNS
from probekit.report.figures.style import format_number
from probekit.report.sentences.choice import pooled_ranking
from probekit.results.metrics import metric_name
from probekit.results.record import reading_run_file
from probekit.results.selection import main_metric
from probekit.results.table import check_columns, only

# Columns that identify the probe of a bin; in the file they precede the columns of the figure.
PROBE_COLUMNS = ("probe", "site", "head", "position")


def load_bins(path: Path) -> pd.DataFrame | None:
    """Return the bins, with a column `series` that names the probe; None without file or rows.

    Raises:
        DataError: A column is missing, or a cell is not a number.
    """
    if not path.exists():
        return None
    with reading_run_file(path):
        bins = read_csv(path)
    check_columns(bins, (*PROBE_COLUMNS, *BIN_COLUMNS), path)
    with reading_run_file(path):
        bins = bins.astype(dict.fromkeys(BIN_COLUMNS, float))
    return None if bins.empty else bins.assign(series=bins["probe"])


def reliability_caption(bins: pd.DataFrame, table: pd.DataFrame) -> str:
    """Return the caption of the reliability diagram, with Brier score and calibration error."""
    test = only(table, target="task", split="test")
    scores = [text for _, own in bins.groupby("series", sort=False) if (text := _scores(own, test))]
    return (
        "Accuracy by confidence of the predictions, in bins of equal width, with 95 % intervals "
        "for new test groups (jackknife). Each kind of probe is shown at the site of its best "
        f"cross-validated {metric_name(main_metric(test))}. On the dashed line the probe is "
        f"calibrated; below it, overconfident. Lower is better: {'; '.join(scores)}. "
        f"{pooled_ranking(table)}"
    ).rstrip()


def _scores(own: pd.DataFrame, test: pd.DataFrame) -> str:
    """Return Brier score and calibration error of the probe whose bins are given, as text."""
    first = own.iloc[0]
    key = {name: str(first[name]) for name in ("probe", "site", "position")}
    rows = only(test, **key)
    rows = rows[rows["head"].isna() if pd.isna(first["head"]) else rows["head"] == first["head"]]
    named = {"brier": "Brier score", "ece": "calibration error"}
    scores = [
        f"{name} {format_number(row['value'], row['ci_low'], row['ci_high'])}"
        for metric, name in named.items()
        for _, row in only(rows, metric=metric).head(1).iterrows()
    ]
    return f"{key['probe']} at {key['site']}: {', '.join(scores)}" if scores else ""


def reliability_description(bins: pd.DataFrame) -> str:
    """Return the text alternative of the reliability diagram."""
    parts = [
        f"{name}: "
        + ", ".join(
            f"confidence {row['confidence']:.2f} accuracy {row['accuracy']:.2f} "
            f"({row['n_rows']:.0f} rows)"
            for _, row in own.iterrows()
        )
        for name, own in bins.groupby("series", sort=False)
    ]
    return f"Accuracy against confidence. {'; '.join(parts)}."
