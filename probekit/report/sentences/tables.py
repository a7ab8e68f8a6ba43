"""Tables of a run's page: comparisons of the selected probe, all sites, and sparse features."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, cast

import pandas as pd

from probekit.amounts import decimals, fixed, format_number, format_p
from probekit.probes.score.metric_table import METRICS
from probekit.report.elements.table import Cell, Column, ResultTable
from probekit.report.figures.layer_curve import series_of
from probekit.report.sentences.answer import grid_name, rival_name
from probekit.results.record import BY_WORD, Control
from probekit.results.scores import Scores, site_with_head
from probekit.results.table import SAME_FEATURES, metric_name, row_tick
from probekit.results.verdict import COMPARED, SIGNIFICANT, Rival, Verdict

NONE = "–"
NO_SCORE = "none"
DIFFERENCE = "difference [95 %]"
TESTED = (DIFFERENCE, "adjusted p")
LONG = 18  # characters of a verdict; a longer one takes two lines
# The rule of the table of comparisons, below it.
RULE = (
    "p is adjusted for all comparisons, the intervals are not. A one-sided p, of an association "
    "with the label, is not adjusted either."
)


def comparison_table(v: Verdict, control: Control = BY_WORD) -> ResultTable | None:
    """Return the scores that the selected probe is compared with.

    The result is None if there are none, or if the run has no reported score.

    Args:
        v: The verdict of the run.
        control: The control task; if there is none, its row has the reason.
    """
    if v.score is None:
        return None
    n = v.score.n
    names = [
        f"{_name(target, v)}, on {one.n:,} of {n:,} rows" if 0 < one.n < n else _name(target, v)
        for target, one in v.rivals.items()
    ] + [rival.name for rival in v.neighbours]
    rows = _compared([*v.rivals.values(), *v.neighbours], names)
    if control.why_none and "control" not in v.rivals:
        # The row of the control task has its place in the order of `COMPARED`.
        before = [name for name in COMPARED[: COMPARED.index("control")] if name in v.rivals]
        reason = _p_cell(NONE, control.short_reason)
        rows.insert(len(before), (_name("control", v), NO_SCORE, Cell(NONE), reason))
    title = "Scores that the selected probe is compared with"
    columns = (Column("compared with", "site", "phrase"), metric_name(v.metric), *TESTED)
    return ResultTable(title, columns, rows, css="compact") if rows else None


def in_words(compared: ResultTable) -> ResultTable:
    """Return a table of comparisons for texts: the verdicts have a column of their own."""
    rows = []
    for name, score, difference, p in compared.rows:
        assert isinstance(p, Cell)
        (verdict, _), (sided, _) = p.small  # in the order of `_p_cell`
        rows.append((name, score, difference, f"{p.text} ({sided})" if sided else p.text, verdict))
    return replace(compared, columns=(*compared.columns, Column("", "words")), rows=rows)


def _name(target: str, v: Verdict) -> str:
    """Return the name of a rival in the table, without article."""
    name = rival_name(target, v.metric).removeprefix("the ")
    # Networks that have chosen no sites are scored at that of the selected probe.
    is_own = target == "random_weights" and "chosen_random_weights" in v.named
    mean = f"s (mean of {v.n_networks})" if v.n_networks > 1 else "s" * v.is_nested
    return f"{name}, own best site{mean}" if is_own else name


def _compared(rivals: Sequence[Rival], names: Sequence[str]) -> list[tuple[str, str, Cell, Cell]]:
    """Return name, score, difference with its interval, and p with the verdict of each rival.

    The p-value is adjusted for all comparisons; that of an association, which is not, is marked as
    one-sided. The verdict is "" if the selected probe is significantly better, or if the rival was
    not named before the test rows were used and has no test.
    """
    # Numbers have 2 decimals, or 3 if a difference or limit would be written as 0.
    numbers = [(rival.difference, rival.ci_low, rival.ci_high) for rival in rivals]
    places, rows = decimals(chain.from_iterable(numbers), most=3), []
    for name, rival in zip(names, rivals, strict=True):
        difference, limits = NONE, ""
        if not math.isnan(rival.difference):
            difference = f"{'+' * (rival.difference > 0)}{fixed(rival.difference, places)}"
        if not math.isnan(rival.ci_low):
            limits = f"[{fixed(rival.ci_low, places)}, {fixed(rival.ci_high, places)}]"
        has_p = not math.isnan(rival.p)
        has_verdict = (rival.is_named or has_p) and rival.verdict != SIGNIFICANT
        verdict = rival.verdict.removeprefix("significantly ") if has_verdict else ""
        sided = "one-sided" if rival.is_association and has_p else ""
        p = _p_cell(format_p(rival.decisive_p), verdict, sided)
        rows.append((name, fixed(rival.value, places), Cell(difference, [(limits, "")]), p))
    return rows


def _p_cell(p: str, verdict: str, sided: str = "") -> Cell:
    """Return the cell of p, with the verdict and whether the test is one-sided in smaller texts."""
    css = "verdict long" if len(verdict) > LONG else "verdict"
    return Cell(p, [(verdict, css), (sided, "sided")], css="bad" if verdict == "worse" else "")


# Name of the site of a single head -> its block and head.
_HEAD = re.compile(r"^blocks\.(\d+)\..*\[head=(\d+)\]$")
NOT_CONVERGED = "not converged"

# Target of a score at a site -> column with the reported score minus that score.
CHOSEN_MINUS = {
    "task": "chosen minus site",
    "random_weights": "chosen minus random",
    "control": "chosen minus control",
}

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
        layer: Label of the layer, "–" for concatenated sites.
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

    def line(self, columns: Sequence[str]) -> list[Cell | str]:
        """Return the cells of the line: layer, site, then these columns."""
        site = Cell(self.site, [(self.series, ""), (self.badge, "badge")])
        line: list[Cell | str] = [self.layer, site]
        for name in columns:
            text, below = self.cells.get(name, (NONE, ""))
            line.append(Cell(text, [(below, "")], css="bad" if below == NOT_CONVERGED else ""))
        return line


def site_tables(
    scores: Scores, v: Verdict, differences: Mapping[str, Rival] = MappingProxyType({})
) -> list[ResultTable]:
    """Return the table of all sites; of more than `MOST_ROWS`, the best and the others.

    Of several tables, the rows are in the order of the cross-validated score.

    Args:
        scores: The scores of the run.
        v: The verdict of the run.
        differences: Differences of the reported score, by the other's name in differences.csv.
    """
    rows = site_rows(scores, v)
    compared = _compared(list(differences.values()), list(differences))
    found = {name: (difference, p.text) for name, _, difference, p in compared}
    for row in rows:
        for target, column in CHOSEN_MINUS.items():
            name = f"{row.site} {row.position} {row.probe} {target}"
            if name in found:
                difference, p = found[name]
                (limits, _), *_ = difference.small
                row.cells[column] = (difference.text, limits if p == NONE else f"{limits} p {p}")
    n_shown = len(rows) if len(rows) <= MOST_ROWS else BEST_ROWS
    if n_shown < len(rows):
        rows.sort(key=lambda row: row.cross_validated, reverse=True)
    columns = filled_columns(rows)
    named = {f"Table of {'the best' if rows[n_shown:] else 'all'} sites": rows[:n_shown]}
    named["Table of the other sites"] = rows[n_shown:]
    headings: list[Column | str] = ["layer", Column("site", "site", "code"), *columns]
    tables = []
    for title, shown in named.items():
        if shown:
            lines = [row.line(columns) for row in shown]
            chosen = [n for n, row in enumerate(shown) if row.chosen]
            table = ResultTable(title, headings, lines, is_sortable=True, head=1, chosen=chosen)
            tables.append(table)
    return tables


def site_rows(scores: Scores, v: Verdict) -> list[SiteRow]:
    """Return a line for each test score of the task at a site, by series, then by depth.

    Concatenated sites, which have no depth, come last. If any site is a single head, lines are by
    probe and position instead, and of these first the heads by block and head.
    """
    times_chosen = Counter(
        (choice.name, choice.position, choice.probe, choice.view) for choice in v.choices
    )
    scores, rows = scores.of_all_folds, list[SiteRow]()
    sited = pd.concat([scores.sited, scores.concatenated])
    for name, series in series_of(sited) if len(sited) else ():
        # The rows on the same features, by target, split and metric.
        measured: dict[tuple[str, ...], dict[tuple[str, str, str], Mapping[str, Any]]] = {}
        for row in cast(list[dict[str, Any]], series.to_dict("records")):
            of_features = measured.setdefault(tuple(row[key] for key in SAME_FEATURES), {})
            of_features.setdefault((row["target"], row["split"], row["metric"]), row)
        for metric in v.main_metrics:
            for of_features in measured.values():
                task = of_features.get(("task", "test", metric))
                if task is None:
                    continue
                score = -math.inf
                if validation := of_features.get(("task", "validation", metric)):
                    score = METRICS[metric].sign * float(validation["value"])
                site = site_with_head(task["site"], task["head"])
                n = times_chosen[site, task["position"], task["probe"], task["view"]]
                by = f"{n} of {len(v.choices)} outer folds" if v.is_nested else "cross-validation"
                layer = NONE if pd.isna(task["depth"]) else row_tick(task, scores.blocks)
                place = layer, site, name, task["probe"], task["position"]
                cells = {
                    column: _cell_texts(column, of_features[key])
                    for column, key in columns_of(metric).items()
                    if key in of_features
                }
                rows.append(SiteRow(*place, cells, metric, score, f"chosen by {by}" if n else ""))
    # Rows without single heads are in order already.
    if not any(_HEAD.search(row.site) for row in rows):
        return rows
    order = list(dict.fromkeys((row.probe, row.position) for row in rows))

    def key(row: SiteRow) -> tuple[int, ...]:
        """Of one probe and position, single heads first by block and head; others in order."""
        head = _HEAD.search(row.site)
        block_and_head = map(int, head.groups()) if head else ()
        return (order.index((row.probe, row.position)), head is None, *block_and_head)

    return sorted(rows, key=key)


def filled_columns(rows: Sequence[SiteRow]) -> tuple[str, ...]:
    """Return the titles of the columns that at least one line fills."""
    measured = [name for row in rows for name in columns_of(row.metric)]
    # Main scores first, also if the lines have two main metrics.
    main = [metric_name(row.metric) for row in rows]
    all_columns = dict.fromkeys([*main, *measured, *CHOSEN_MINUS.values()])
    return tuple(name for name in all_columns if any(name in row.cells for row in rows))


def _cell_texts(column: str, row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the text of a cell and the smaller text below it: an interval, or a remark on C."""
    if column == "C":
        remark = "" if pd.isna(row["converged"]) or row["converged"] else NOT_CONVERGED
        name = grid_name(row["probe"])
        value = f"{'' if name == 'C' else f'{name} '}{row['C']:g}"
        return (NONE if pd.isna(row["C"]) else value), remark
    if column == "p":
        return format_p(row["value"]), ""
    if column == "cross-validated":
        return format_number(row["value"]), ""
    value, _, interval = format_number(row["value"], row["ci_low"], row["ci_high"]).partition(" ")
    return value, interval
