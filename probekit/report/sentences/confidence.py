"""The bins of a run's reliability.csv: read, and said in words."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from probekit.report.figures.reliability import COLUMNS
from probekit.report.figures.style import format_number
from probekit.results.record import reading_run_file
from probekit.results.table import check_columns, only

# Whose bins they are; the figure's own columns follow.
WHOSE = ("probe", "site", "head", "position")


def load_bins(path: Path) -> pd.DataFrame | None:
    """Return the bins with a column `series` that names probe and site; None if there are none.

    Raises:
        DataError: A column is missing, or a cell is no number.
    """
    if not path.exists():
        return None
    with reading_run_file(path):
        bins = pd.read_csv(path)
    check_columns(bins, (*WHOSE, *COLUMNS), path)
    with reading_run_file(path):
        bins = bins.astype(dict.fromkeys(COLUMNS, float))
    return None if bins.empty else bins.assign(series=bins["probe"])


def reliability_caption(bins: pd.DataFrame, table: pd.DataFrame) -> str:
    """Return what the reliability figure shows, with Brier score and calibration error."""
    test = only(table, target="task", split="test")
    scores = [text for _, own in bins.groupby("series", sort=False) if (text := _scores(own, test))]
    return (
        "How often guesses are right against how sure the probe is of them, in bins of equal width "
        "with 95 % intervals from resampling the test groups, each kind of probe at the site of "
        "its highest cross-validated accuracy. On the dashed line confidence is as good as its "
        f"word; below it the probe is too sure. Lower is better: {'; '.join(scores)}."
    )


def _scores(own: pd.DataFrame, test: pd.DataFrame) -> str:
    """Return Brier score and calibration error of a probe where its bins were counted."""
    whose = own.iloc[0]
    place = {name: str(whose[name]) for name in ("probe", "site", "position")}
    rows = only(test, **place)
    rows = rows[rows["head"].isna() if pd.isna(whose["head"]) else rows["head"] == whose["head"]]
    named = {"brier": "Brier score", "ece": "calibration error"}
    found = [
        f"{name} {format_number(row['value'], row['ci_low'], row['ci_high'])}"
        for metric, name in named.items()
        for _, row in only(rows, metric=metric).head(1).iterrows()
    ]
    return f"{place['probe']} at {place['site']}: {', '.join(found)}" if found else ""


def reliability_description(bins: pd.DataFrame) -> str:
    """Return the reliability figure in words."""
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
