"""The table of all sites: what was measured at each, beside each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from probekit.report.figures import series_of
from probekit.report.style import format_number
from probekit.report.table import chosen_row, n_blocks, only, placed, same_features, tick

UNCONVERGED = "not converged"

# Each column with the target, split and metric of the row that fills it.
COLUMNS = {
    "accuracy": ("task", "test", "accuracy"),
    "cross-validated": ("task", "validation", "accuracy"),
    "control task": ("control", "test", "accuracy"),
    "selectivity": ("task", "test", "selectivity"),
    "random weights": ("random_weights", "test", "accuracy"),
    "C": ("task", "test", "accuracy"),
}


@dataclass(frozen=True)
class SiteRow:
    """One line of the table: each cell has a text and a smaller one below it."""

    layer: str
    site: str
    series: str
    cells: dict[str, tuple[str, str]]
    chosen: bool


@dataclass(frozen=True)
class SiteTable:
    """The lines of the table and the names of the columns that any of them fills."""

    rows: tuple[SiteRow, ...]
    columns: tuple[str, ...]


def site_table(table: pd.DataFrame) -> SiteTable:
    """Return a line for each site with a test row of the task, by series, from shallow to deep."""
    placed_rows = placed(table)
    chosen = chosen_row(table)
    rows = tuple(
        _site_row(name, task, series, n_blocks(placed_rows), chosen)
        for name, series in series_of(placed_rows)
        for _, task in only(series, target="task", split="test", metric="accuracy").iterrows()
    )
    return SiteTable(rows, tuple(name for name in COLUMNS if any(name in r.cells for r in rows)))


def _site_row(
    series_name: str, task: pd.Series, series: pd.DataFrame, blocks: int, chosen: pd.Series | None
) -> SiteRow:
    beside = same_features(series, task).set_index(["target", "split", "metric"])
    return SiteRow(
        layer=tick(task["depth"], blocks),
        site=task["site"],
        series=series_name,
        cells={
            column: _CELLS.get(column, _value_and_interval)(beside.loc[[key]].iloc[0])
            for column, key in COLUMNS.items()
            if key in beside.index
        },
        chosen=chosen is not None and not same_features(task.to_frame().T, chosen).empty,
    )


def _value_and_interval(row: pd.Series) -> tuple[str, str]:
    value, _, interval = format_number(row["value"], row["ci_low"], row["ci_high"]).partition(" ")
    return value, interval


def _c_and_convergence(row: pd.Series) -> tuple[str, str]:
    stopped = "" if pd.isna(row["converged"]) or row["converged"] else UNCONVERGED
    return f"{row['C']:g}".replace("nan", "–"), stopped


_CELLS: dict[str, Callable[[pd.Series], tuple[str, str]]] = {"C": _c_and_convergence}
