"""Table of verdicts: a row for each direction, with answer, effect, interval and p-value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from probekit.report.causes.directions import QUESTIONS, Direction
from probekit.report.causes.edits import METHODS, interval_in_words
from probekit.report.figures.style import fixed
from probekit.report.sentences.score_words import p_words
from probekit.report.texts import capitalised

MOST_ROWS = 12  # directions shown before the fold
COLUMNS = (*QUESTIONS, "swap")
UNITS = {
    "AUROC - 0.5": "AUROC − 0.5",
    "share": "share of the effect",
    "recovery": "recovery",
}
MUCH = 0.5  # share of a direction in the kernel that is reported
_NUMBERS = " Verdicts: "  # in a summary, before numbers that the table contains


@dataclass(frozen=True)
class VerdictCell:
    """One verdict as texts: the answer, the effect with its interval, the p-value and a remark."""

    answer: str
    effect: str
    p: str
    remark: str = ""


@dataclass(frozen=True)
class VerdictRow:
    """One direction of the table.

    Attributes:
        site: the site in words.
        name: its name, with its head or neuron.
        details: method and edited tokens, as far as directions differ in them.
        cells: the verdicts, in the order of the columns; None without one.
        remarks: flags of the direction.
        summary: the verdicts in a sentence.
    """

    site: str
    name: str
    details: str
    cells: Sequence[VerdictCell | None]
    remarks: Sequence[str]
    summary: str


@dataclass(frozen=True)
class VerdictTable:
    """Verdicts on all directions.

    Attributes:
        columns: name and unit of each column.
        rows: the directions that are shown: all, or the first ones.
        folded: all others.
    """

    columns: Sequence[tuple[str, str]]
    rows: Sequence[VerdictRow]
    folded: Sequence[VerdictRow]


def verdict_table(directions: Sequence[Direction]) -> VerdictTable:
    """Return the table of verdicts; of many directions, those that are used come first."""
    present = [name for name in COLUMNS if any(name in one.found for one in directions)]
    columns = [(name, _unit(directions, name)) for name in present]
    methods = {one.row["along"] for one in directions}
    tokens = {one.row["at"] for one in directions}
    rows = []
    ordered = list(directions)
    if len(ordered) > MOST_ROWS:
        ordered.sort(key=lambda one: (not one.is_used, -one.size))
    for one in ordered:
        details = [METHODS[one.row["along"]]] * (len(methods) > 1)
        details += [{"all": "all tokens"}.get(one.row["at"], "probed token")] * (len(tokens) > 1)
        rows.append(
            VerdictRow(
                one.place if "_" in one.place else capitalised(one.place),
                str(one.row["site"]),
                ", ".join(details),
                [_cell(one, name) for name in present],
                remarks_of(one),
                summary_of(one),
            )
        )
    return VerdictTable(columns, rows[:MOST_ROWS], rows[MOST_ROWS:])


def _unit(directions: Sequence[Direction], name: str) -> str:
    """Return the unit of a column; "" if directions differ in it."""
    units = {str(one.found[name]["unit"]) for one in directions if name in one.found}
    unit = units.pop() if len(units) == 1 else ""
    return UNITS.get(unit, unit).replace("standard deviation", "SD")


def _cell(one: Direction, name: str) -> VerdictCell | None:
    row = one.found.get(name)
    if row is None:
        return None
    p = row["p"] if pd.isna(row["p_holm"]) else row["p_holm"]
    return VerdictCell(
        str(row["answer"]) if name != "swap" else "",
        "–" if math.isnan(row["effect"]) else _effect(row),
        "" if pd.isna(p) else p_words(float(p)),
        "; ".join(filter(None, [str(row["reason"]), _of_permuted_labels(row)])),
    )


def _of_permuted_labels(row: pd.Series[Any]) -> str:
    """Return the range of the effects on permuted labels, which decides if nothing else does."""
    low, high = row["null_low"], row["null_high"]
    if row["answer"] != "undecided" or pd.isna(low) or not row["low"] > 0:
        return ""
    ends = " to ".join(fixed(end, 2) for end in (low, high))
    return f"95 % of the directions on permuted labels have an effect of {ends}"


def _effect(row: pd.Series[Any]) -> str:
    return interval_in_words(row["effect"], row["low"], row["high"])


def remarks_of(one: Direction) -> list[str]:
    """Return the flags of a direction as short sentences."""
    found = []
    if any(_holds(row["exceeds_whole"]) for row in one.found.values()):
        found.append("Moves more than its whole vector: possible artefact.")
    kernel = float(one.row["kernel_share"])
    if kernel > MUCH:
        found.append(f"{fixed(100 * kernel, 0)} % is in the kernel of the output matrix.")
    steers = one.found.get("steers")
    if steers is not None and one.answer("steers") == "yes":
        if steers["effect"] < 0:
            found.append("Steers away from the class that it detects.")
        if not math.isnan(steers["wrong_way"]):
            found.append(f"{fixed(100 * steers['wrong_way'], 0)} % of texts move the wrong way.")
    return found


def _holds(cell: Any) -> bool:
    return not pd.isna(cell) and bool(cell)


def summary_of(one: Direction) -> str:
    """Return the sentence on the verdicts of a direction, without the numbers of the table."""
    texts = (str(row["summary"]) for row in one.found.values())
    return next(filter(None, texts), "").partition(_NUMBERS)[0]
