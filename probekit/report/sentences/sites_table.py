"""The table of all sites: what was measured at each, beside each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from probekit.report.figures.layer_curve import series_of
from probekit.report.figures.style import format_number, format_p
from probekit.report.sentences.warnings import grid_name
from probekit.results.metrics import MAIN_METRICS, metric_name
from probekit.results.selection import chosen_row, selection
from probekit.results.table import concatenated, n_blocks, only, placed, same_features, tick

UNCONVERGED = "not converged"
NO_LAYER = "–"

# More lines than the first are cut to the second, the rest folded.
MOST_ROWS = 30
BEST_ROWS = 20


def columns_of(metric: str) -> dict[str, tuple[str, str, str]]:
    """Return each column with the target, split and metric of the row that fills it.

    >>> list(columns_of("r2"))[:2]
    ['R²', 'cross-validated']
    """
    return {
        metric_name(metric): ("task", "test", metric),
        "cross-validated": ("task", "validation", metric),
        "control task": ("control", "test", metric),
        "selectivity": ("task", "test", "selectivity"),
        "random weights": ("random_weights", "test", metric),
        "p": ("task", "test", "p_best"),
        "compression": ("task", "online", "compression"),
        "C": ("task", "test", metric),
    }


@dataclass(frozen=True)
class SiteRow:
    """One line of the table: each cell has a text and a smaller one below it."""

    layer: str
    site: str
    series: str
    probe: str
    position: str
    cells: dict[str, tuple[str, str]]
    metric: str
    cross_validated: float
    chosen: bool


@dataclass(frozen=True)
class SiteTable:
    """The lines of the table and the names of the columns that any of them fills.

    Where there are too many lines, `rows` are the best by cross-validation, the best first, and
    `folded` are the others.
    """

    rows: tuple[SiteRow, ...]
    columns: tuple[str, ...]
    folded: tuple[SiteRow, ...] = ()


def site_table(table: pd.DataFrame) -> SiteTable:
    """Return the lines of all sites, the best of very many apart from the others."""
    rows = site_rows(table)
    columns = filled_columns(rows)
    n_shown = len(rows) if len(rows) <= MOST_ROWS else BEST_ROWS
    if n_shown < len(rows):
        rows.sort(key=lambda row: row.cross_validated, reverse=True)
    return SiteTable(tuple(rows[:n_shown]), columns, tuple(rows[n_shown:]))


def site_rows(table: pd.DataFrame) -> list[SiteRow]:
    """Return a line for each site with a test row of the task, by series, from shallow to deep.

    Concatenated sites, which have no depth, come last.
    """
    chosen = chosen_row(table)
    placed_rows = placed(table).astype({"depth": object})
    sited = pd.concat([placed_rows, concatenated(table).assign(depth=None)])
    return [
        _site_row(name, task, series, n_blocks(placed_rows), chosen)
        for name, series in (series_of(sited) if len(sited) else ())
        for metric in MAIN_METRICS
        for _, task in only(series, target="task", split="test", metric=metric).iterrows()
    ]


def filled_columns(rows: Sequence[SiteRow]) -> tuple[str, ...]:
    """Return the columns that any of the lines fills."""
    measured = [name for row in rows for name in columns_of(row.metric)]
    # The scores first, also where rows of two metrics stand in one table.
    all_columns = dict.fromkeys([metric_name(row.metric) for row in rows] + measured)
    return tuple(name for name in all_columns if any(name in row.cells for row in rows))


def _site_row(
    series_name: str, task: pd.Series, series: pd.DataFrame, blocks: int, chosen: pd.Series | None
) -> SiteRow:
    beside = same_features(series, task).set_index(["target", "split", "metric"])
    return SiteRow(
        layer=NO_LAYER if task["depth"] is None else tick(task["depth"], blocks),
        site=selection(task["site"], task["head"]),
        series=series_name,
        probe=task["probe"],
        position=task["position"],
        cells={
            column: _CELLS.get(column, _value_and_interval)(beside.loc[[key]].iloc[0])
            for column, key in columns_of(task["metric"]).items()
            if key in beside.index
        },
        metric=task["metric"],
        cross_validated=_cross_validated(beside, task["metric"]),
        chosen=chosen is not None and not same_features(task.to_frame().T, chosen).empty,
    )


def _cross_validated(beside: pd.DataFrame, metric: str) -> float:
    key = ("task", "validation", metric)
    return float(beside.loc[[key]]["value"].iloc[0]) if key in beside.index else -math.inf


def _value(row: pd.Series) -> tuple[str, str]:
    return format_number(row["value"]), ""


def _value_and_interval(row: pd.Series) -> tuple[str, str]:
    value, _, interval = format_number(row["value"], row["ci_low"], row["ci_high"]).partition(" ")
    return value, interval


def _c_and_convergence(row: pd.Series) -> tuple[str, str]:
    stopped = "" if pd.isna(row["converged"]) or row["converged"] else UNCONVERGED
    if pd.isna(row["C"]):
        return "–", stopped
    name = grid_name(row["probe"])
    return f"{'' if name == 'C' else f'{name} '}{row['C']:g}", stopped


def _p(row: pd.Series) -> tuple[str, str]:
    return format_p(row["value"]), ""


_CELLS: dict[str, Callable[[pd.Series], tuple[str, str]]] = {
    "cross-validated": _value,
    "p": _p,
    "C": _c_and_convergence,
}
