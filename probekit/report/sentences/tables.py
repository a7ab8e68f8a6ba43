"""Tables of a run's page: comparisons of the selected probe, all sites, and sparse features."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from probekit.amounts import LEVEL
from probekit.files import read_csv
from probekit.probes.score.metric_table import METRICS
from probekit.report.figures.layer_curve import series_of
from probekit.report.figures.style import decimals, fixed, format_number, format_p
from probekit.report.sentences.answer import rival_name
from probekit.report.sentences.method import grid_name
from probekit.results.record import BY_WORD, Control, reading_run_file
from probekit.results.selection import site_with_head
from probekit.results.table import (
    check_columns,
    concatenated,
    metric_name,
    n_blocks,
    of_all_folds,
    only,
    placed,
    row_tick,
    same_features,
)
from probekit.results.verdict import COMPARED, NOT_BETTER, SIGNIFICANT, Rival, Verdict

NONE = "–"
NO_SCORE = "none"
# The rule of the table of comparisons, below it.
RULE = (
    "An interval excludes 0 if the two-sided p < 0.05. A one-sided p tests whether predictions and "
    "labels are associated. * better or worse for all comparisons together (adjusted p < 0.05); "
    "where p is one-sided, p < 0.05 and the interval excludes 0. – in place of p: too few groups."
)


@dataclass(frozen=True)
class ComparedScore:
    """A score that the selected probe is compared with.

    Attributes:
        name: the other probe or baseline.
        score: its score.
        difference: the score of the selected probe minus this score, with a sign; "–" if unknown.
        interval: 95 % confidence interval of the difference; "" if unknown.
        p: two-sided p-value of the difference, which excludes 0 from the interval if it is below
            0.05, or one-sided p-value of the association between predictions and labels; "–" if
            there is none. A star follows if the difference is significant for all comparisons
            together.
        sided: "one-sided" for a p-value of the association, else "".
        verdict: "" if the selected probe is significantly better, or if there is no test; the
            reason if there is no such score.
    """

    name: str
    score: str
    difference: str
    interval: str
    p: str
    sided: str = ""
    verdict: str = ""


def comparison_table(v: Verdict, control: Control = BY_WORD) -> list[ComparedScore]:
    """Return the scores that the selected probe is compared with; [] if there is none.

    Args:
        v: The verdict of the run.
        control: The control task; if there is none, its row has the reason.
    """
    if v.score is None:
        return []
    names = [_name(target, v) for target in v.rivals] + [one.name for one in v.neighbours]
    rows = _compared([*v.rivals.values(), *v.neighbours], names)
    if control.why_none and "control" not in v.rivals:
        at = sum(target in v.rivals for target in COMPARED[: COMPARED.index("control")])
        reason = control.short_reason
        rows.insert(at, ComparedScore(_name("control", v), NO_SCORE, NONE, "", NONE, "", reason))
    return rows


def _name(target: str, v: Verdict) -> str:
    name = rival_name(target, v.metric).removeprefix("the ")
    several = target == "random_weights" and v.n_networks > 1
    return f"{name}, own best sites (mean of {v.n_networks})" if several else name


def differences_table(rivals: Sequence[Rival]) -> list[ComparedScore]:
    """Return a row for each difference, in the same format as `comparison_table`."""
    return _compared(rivals, [one.name for one in rivals])


def _compared(rivals: Sequence[Rival], names: Sequence[str]) -> list[ComparedScore]:
    # 2 decimals, or 3 if a difference or limit would be written as 0
    numbers = [x for one in rivals for x in (one.difference, one.ci_low, one.ci_high)]
    places, rows = decimals(numbers, most=3), []
    for name, one in zip(names, rivals, strict=True):
        known, has_p = not math.isnan(one.difference), not math.isnan(one.p)
        is_tested = one.is_named or has_p
        difference = "+" * (one.difference > 0) + fixed(one.difference, places)
        limits = f"[{fixed(one.ci_low, places)}, {fixed(one.ci_high, places)}]"
        has_star = is_tested and one.decisive_p < LEVEL and one.verdict != NOT_BETTER
        has_verdict = is_tested and one.verdict != SIGNIFICANT
        rows.append(
            ComparedScore(
                name,
                fixed(one.value, places),
                difference if known else NONE,
                "" if math.isnan(one.ci_low) else limits,
                format_p(one.p) + "*" * has_star,
                "one-sided" * (one.is_association and has_p),
                one.verdict.removeprefix("significantly ") if has_verdict else "",
            )
        )
    return rows


_HEAD = re.compile(r"^blocks\.(\d+)\..*\[head=(\d+)\]$")
NOT_CONVERGED = "not converged"
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


def site_table(table: pd.DataFrame, v: Verdict) -> SiteTable:
    """Return the table of all sites, folded if it has more than `MOST_ROWS` lines."""
    rows = site_rows(table, v)
    columns = filled_columns(rows)
    n_shown = len(rows) if len(rows) <= MOST_ROWS else BEST_ROWS
    if n_shown < len(rows):
        rows.sort(key=lambda row: row.cross_validated, reverse=True)
    return SiteTable(tuple(rows[:n_shown]), columns, tuple(rows[n_shown:]))


def site_rows(table: pd.DataFrame, v: Verdict) -> list[SiteRow]:
    """Return a line for each test score of the task at a site, by series, then by depth.

    Concatenated sites, which have no depth, come last.
    """
    chosen = Counter((one.name, one.position, one.probe, one.view) for one in v.choices)

    def badge(task: pd.Series) -> str:
        name = site_with_head(task["site"], task["head"])
        n = chosen[name, task["position"], task["probe"], task["view"]]
        of_folds = f"{n} of {len(v.choices)} outer folds" if v.is_nested else "cross-validation"
        return f"chosen by {of_folds}" if n else ""

    table = of_all_folds(table)
    placed_rows = placed(table).astype({"depth": object})
    sited = pd.concat([placed_rows, concatenated(table).assign(depth=None)])
    rows = [
        _site_row(name, task, series, n_blocks(placed_rows), badge(task))
        for name, series in (series_of(sited) if len(sited) else ())
        for metric in v.main_metrics
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
    stopped = "" if pd.isna(row["converged"]) or row["converged"] else NOT_CONVERGED
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


FEATURE_COLUMNS = ("site", "rank", "feature", "k", "share", "label")
MOST_FEATURES = 20  # shown without unfolding the table


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
    check_columns(table, FEATURE_COLUMNS, path)
    rows = tuple(table.to_dict("records"))
    return FeatureTable(str(table["site"].iloc[0]), rows[:MOST_FEATURES], rows[MOST_FEATURES:])
