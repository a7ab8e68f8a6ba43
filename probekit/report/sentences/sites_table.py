"""Table of all sites: one line per site, one column per score."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from probekit.probes.score.metric_table import METRICS
from probekit.report.figures.layer_curve import series_of
from probekit.report.figures.style import format_number, format_p
from probekit.report.sentences.warnings import grid_name
from probekit.results.metrics import metric_name
from probekit.results.selection import choices, is_nested, main_metrics, site_with_head
from probekit.results.table import (
    concatenated,
    n_blocks,
    of_all_folds,
    only,
    placed,
    row_tick,
    same_features,
)

_HEAD = re.compile(r"^blocks\.(\d+)\..*\[head=(\d+)\]$")
UNCONVERGED = "not converged"
NO_LAYER = "–"

# A table of more than MOST_ROWS lines shows the best BEST_ROWS and folds the rest.
MOST_ROWS = 30
BEST_ROWS = 20


def columns_of(metric: str) -> dict[str, tuple[str, str, str]]:
    """Return, for each column of the table, the target, split and metric of the row that fills it.

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
    """Line of the table for one site and probe.

    Attributes:
        layer: Label of the layer, `NO_LAYER` for concatenated sites.
        site: Name of the site, with its head.
        series: Name of the series, empty if there is only one.
        probe: Kind of probe.
        position: Probed position.
        cells: Text of each cell and the smaller text below it, by column title.
        metric: Main metric of the line.
        cross_validated: Cross-validated score, negated if lower is better; -inf if it was not
            measured.
        badge: Note on sites that cross-validation selected, such as "chosen by 2 of 5 outer
            folds"; empty for other sites.
    """

    layer: str
    site: str
    series: str
    probe: str
    position: str
    cells: dict[str, tuple[str, str]]
    metric: str
    cross_validated: float
    badge: str = ""

    @property
    def chosen(self) -> bool:
        """Whether cross-validation selected this site, in at least one outer fold."""
        return bool(self.badge)


@dataclass(frozen=True)
class SiteTable:
    """Lines of the table, and titles of the columns that at least one line fills.

    If there are more than `MOST_ROWS` lines, they are sorted by cross-validated score, `rows` are
    the best `BEST_ROWS` and `folded` are the others.
    """

    rows: tuple[SiteRow, ...]
    columns: tuple[str, ...]
    folded: tuple[SiteRow, ...] = ()


def site_table(table: pd.DataFrame) -> SiteTable:
    """Return the table of all sites, folded if it has more than `MOST_ROWS` lines."""
    rows = site_rows(table)
    columns = filled_columns(rows)
    n_shown = len(rows) if len(rows) <= MOST_ROWS else BEST_ROWS
    if n_shown < len(rows):
        rows.sort(key=lambda row: row.cross_validated, reverse=True)
    return SiteTable(tuple(rows[:n_shown]), columns, tuple(rows[n_shown:]))


def site_rows(table: pd.DataFrame) -> list[SiteRow]:
    """Return a line for each test score of the task at a site, by series, then by depth.

    Concatenated sites, which have no depth, come last.
    """
    chosen = choices(table)
    badge = (
        f"chosen by {{}} of {len(chosen)} outer folds"
        if is_nested(table)
        else "chosen by cross-validation"
    )
    table = of_all_folds(table)
    placed_rows = placed(table).astype({"depth": object})
    sited = pd.concat([placed_rows, concatenated(table).assign(depth=None)])
    rows = [
        _site_row(name, task, series, n_blocks(placed_rows), _badge(task, chosen, badge))
        for name, series in (series_of(sited) if len(sited) else ())
        for metric in main_metrics(table)
        for _, task in only(series, target="task", split="test", metric=metric).iterrows()
    ]
    return _heads_by_block(rows)


def _heads_by_block(rows: list[SiteRow]) -> list[SiteRow]:
    """Return rows of single heads sorted by block, then head; others in their order."""
    heads = [_HEAD.search(row.site) for row in rows]
    if not any(heads):
        return rows
    series = list(dict.fromkeys((row.probe, row.position) for row in rows))
    keys = [
        (
            series.index((row.probe, row.position)),
            not head,
            *map(int, head.groups() if head else ()),
        )
        for row, head in zip(rows, heads, strict=True)
    ]
    return [rows[n] for n in sorted(range(len(rows)), key=keys.__getitem__)]


def filled_columns(rows: Sequence[SiteRow]) -> tuple[str, ...]:
    """Return the titles of the columns that at least one line fills."""
    measured = [name for row in rows for name in columns_of(row.metric)]
    # Main scores first, also if the lines have two main metrics.
    all_columns = dict.fromkeys([metric_name(row.metric) for row in rows] + measured)
    return tuple(name for name in all_columns if any(name in row.cells for row in rows))


def _site_row(
    series_name: str, task: pd.Series, series: pd.DataFrame, blocks: int, badge: str
) -> SiteRow:
    measured = same_features(series, task).set_index(["target", "split", "metric"])
    return SiteRow(
        layer=NO_LAYER if task["depth"] is None else row_tick(task, blocks),
        site=site_with_head(task["site"], task["head"]),
        series=series_name,
        probe=task["probe"],
        position=task["position"],
        cells={
            column: _CELLS.get(column, _value_and_interval)(measured.loc[[key]].iloc[0])
            for column, key in columns_of(task["metric"]).items()
            if key in measured.index
        },
        metric=task["metric"],
        cross_validated=_cross_validated(measured, task["metric"]),
        badge=badge,
    )


def _badge(task: pd.Series, chosen: Sequence[pd.Series], template: str) -> str:
    """Return the template, filled with how often this site was chosen; empty if it was not."""
    own = task.to_frame().T
    n_chosen = sum(not same_features(own, row).empty for row in chosen)
    return template.format(n_chosen) if n_chosen else ""


def _cross_validated(measured: pd.DataFrame, metric: str) -> float:
    key = ("task", "validation", metric)
    if key not in measured.index:
        return -math.inf
    return METRICS[metric].sign * float(measured.loc[[key]]["value"].iloc[0])


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
