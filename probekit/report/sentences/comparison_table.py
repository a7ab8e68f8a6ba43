"""Table of the first screen: scores that the selected probe is compared with, and differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from probekit.amounts import LEVEL
from probekit.probes.targets import BASELINES, NETWORKS
from probekit.report.figures.style import decimals, fixed, format_p
from probekit.report.sentences.answer import comparison_rows, rival_name
from probekit.results.differences import (
    NOT_BETTER,
    SIGNIFICANT,
    RivalDifference,
    RivalDifferences,
    answers_name,
)
from probekit.results.record import BY_WORD, Control
from probekit.results.selection import reported_row
from probekit.results.table import only

# Rows of the table, in this order; neighbouring sites and other kinds of probe follow.
ROWS = (*BASELINES, "random_weights", "embedding", "control", "concatenated")
NONE = "–"
NO_SCORE = "none"
# The rule of the table, below it.
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


def comparison_table(
    table: pd.DataFrame, comparisons: RivalDifferences, control: Control = BY_WORD
) -> list[ComparedScore]:
    """Return the scores that the selected probe is compared with; [] if there is none.

    Args:
        table: Rows of results.csv.
        comparisons: Paired differences from the selected probe, from differences.csv.
        control: The control task; if there is none, its row has the reason.
    """
    chosen = reported_row(table)
    compared = {} if chosen is None else comparison_rows(chosen, table)
    if "task" not in compared:
        return []
    task = compared["task"]
    n_networks = len(set(NETWORKS) & set(table["target"]))
    found = [
        _paired(name, compared[name], task, table, comparisons) for name in ROWS if name in compared
    ]
    names = [_name(name, task["metric"], n_networks) for name in ROWS if name in compared]
    others = [one for one in comparisons.named if not one.key]
    everything = [*found, *others]
    places = _places(everything)
    rows = [
        _compared_score(name, one, places)
        for name, one in zip([*names, *(one.name for one in others)], everything, strict=True)
    ]
    if control.why_none and "control" not in compared:
        at = sum(name in compared for name in ROWS[: ROWS.index("control")])
        name = _name("control", task["metric"], n_networks)
        row = ComparedScore(name, NO_SCORE, NONE, "", NONE, verdict=control.short_reason)
        rows.insert(at, row)
    return rows


def differences_table(differences: Sequence[RivalDifference]) -> list[ComparedScore]:
    """Return a row for each difference, in the same format as `comparison_table`."""
    places = _places(differences)
    return [_compared_score(one.name, one, places) for one in differences]


def selectivity_row(table: pd.DataFrame, task: pd.Series) -> pd.Series | None:
    """Return the row with the selectivity of the probe of a test row; None if not measured."""
    place = {name: task[name] for name in ("run", "target", "site", "position", "probe")}
    rows = only(table, metric="selectivity", split="test", **place)
    rows = rows[rows["head"].fillna(-1) == (-1 if pd.isna(task["head"]) else task["head"])]
    return next((row for _, row in rows.iterrows()), None)


def _name(target: str, metric: str, n_networks: int) -> str:
    name = rival_name(target, metric).removeprefix("the ")
    several = target == "random_weights" and n_networks > 1
    return f"{name}, own best sites (mean of {n_networks})" if several else name


def _paired(
    name: str,
    row: pd.Series,
    task: pd.Series,
    table: pd.DataFrame,
    comparisons: RivalDifferences,
) -> RivalDifference:
    """Return the difference from a row; for the control task it is the selectivity."""
    paired = comparisons.find(name, row["value"])
    if paired is not None:
        return paired
    own = selectivity_row(table, task) if name == "control" else None
    if own is not None:
        limits = own["value"], own["ci_low"], own["ci_high"]
        return RivalDifference("", name, row["value"], *limits, math.nan, row["metric"])
    same = [one for one in comparisons.others if row["site"] and one.name == answers_name(row)]
    nan = math.nan
    unknown = RivalDifference("", name, row["value"], nan, nan, nan, nan, row["metric"])
    return next(iter(same), unknown)


def _compared_score(name: str, one: RivalDifference, places: int) -> ComparedScore:
    known = not math.isnan(one.difference)
    limits = f"[{_number(one.ci_low, places)}, {_number(one.ci_high, places)}]"
    is_tested = bool(one.key) or not math.isnan(one.p)
    has_verdict = is_tested and one.verdict != SIGNIFICANT
    has_star = is_tested and one.decisive_p < LEVEL and one.verdict != NOT_BETTER
    return ComparedScore(
        name,
        _number(one.other, places),
        "+" * (known and one.difference > 0) + _number(one.difference, places) if known else NONE,
        "" if math.isnan(one.ci_low) else limits,
        format_p(one.p) + "*" * has_star,
        "one-sided" * (one.is_association and not math.isnan(one.p)),
        one.verdict.removeprefix("significantly ") if has_verdict else "",
    )


def _places(differences: Sequence[RivalDifference]) -> int:
    """Return the number of decimals: 2, or 3 if a difference or limit would be written as 0."""
    numbers = [x for one in differences for x in (one.difference, one.ci_low, one.ci_high)]
    return decimals(numbers, most=3)


def _number(value: float, places: int) -> str:
    return fixed(value, places)
