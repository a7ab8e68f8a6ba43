"""The warnings: each reason to doubt the result at the chosen site, in a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from probekit.probes.kinds.registry import KINDS
from probekit.probes.score.metric_table import METRICS
from probekit.report.figures.style import format_number
from probekit.report.sentences.answer import company_of
from probekit.results.differences import RivalDifferences
from probekit.results.metrics import MAIN_METRICS
from probekit.results.record import ControlBy, RunRecord
from probekit.results.selection import chosen_row, selection
from probekit.results.table import differs

# What a rival reaches, and what it takes from the result.
RIVALS = {
    "control": (
        "The control task reaches {rival} there",
        "a probe can learn {types} by heart at this position.",
    ),
    "majority": (
        "Always guessing {guess} gives {rival}",
        "the probe may have found nothing.",
    ),
    "random_weights": (
        "A network with random weights reaches {rival} there",
        "the result may not rest on what the network has learnt.",
    ),
    "word_identity": (
        "Knowing the word alone gives {rival}",
        "the result may not need the context.",
    ),
    "bag_of_words": (
        "The words of the text without their order give {rival}",
        "the result may not need a network.",
    ),
    "length": (
        "The length of the text alone gives {rival}",
        "the probe may read no more than that.",
    ),
    "embedding": (
        "The embedding gives {rival} already",
        "the layers may add nothing.",
    ),
}
UNPAIRED = "{fact}, and the task {task}: {doubt}"
PAIRED = "{fact}; the task, {task}, differs from that by {difference} on the same rows: {doubt}"
LENGTH_LEADS = (
    "The length of the text alone gives {length}, more than its words, {words}: texts of different "
    "labels differ in length."
)
WORDS_DO_NOT_HELP = " Here that does not help: knowing the word alone gives {rival}."
MOST_NAMES = 12  # in a list of sites


def warnings(
    table: pd.DataFrame, record: RunRecord, comparisons: RivalDifferences | None = None
) -> list[str]:
    """Return a sentence for each reason to doubt the result at the chosen site.

    A rival is one whose paired difference to the chosen probe does not exclude 0; where that
    difference was not measured, one that reaches the interval of the task.
    """
    return [
        *_rivals(table, comparisons or RivalDifferences(), record.control_by),
        *_length_leads(table),
        *_edge_of_grid(table, record.C_grid),
        *_unconverged(table),
        *(finding.message for finding in record.data.findings if finding.level != "info"),
        *_other_choice(table, record),
        *record.warnings,
    ]


def _company(table: pd.DataFrame) -> dict[str, pd.Series]:
    chosen = chosen_row(table)
    return {} if chosen is None else company_of(chosen, table)


def _rivals(table: pd.DataFrame, comparisons: RivalDifferences, control_by: ControlBy) -> list[str]:
    company = _company(table)
    if "task" not in company:
        return []
    task = company["task"]
    told = {
        name: _rival(name, company[name], task, comparisons, control_by)
        for name in RIVALS
        if name in company
    }
    is_answered = "word_identity" in company and not told["word_identity"]
    if told.get("control") and control_by == "word" and is_answered:
        value = format_number(company["word_identity"]["value"])
        told["control"] += WORDS_DO_NOT_HELP.format(rival=value)
    return list(filter(None, told.values()))


def _rival(
    name: str,
    rival: pd.Series,
    task: pd.Series,
    comparisons: RivalDifferences,
    control_by: ControlBy,
) -> str:
    """Return what is to be said of one in the company; "" if it is far enough below the task."""
    paired = comparisons.find(name, rival["value"])
    if not (rival["value"] >= task["ci_low"] if paired is None else paired.ci_low <= 0):
        return ""
    fact, doubt = RIVALS[name]
    is_mean = METRICS[task["metric"]].beats_the_mean
    guess = "the mean label" if is_mean else "the most frequent label"
    told = {
        "fact": fact.format(rival=format_number(rival["value"]), guess=guess),
        "task": format_number(task["value"], task["ci_low"], task["ci_high"]),
        "doubt": doubt.format(types=f"{control_by}s"),
    }
    if paired is None:
        return UNPAIRED.format(**told)
    difference = format_number(paired.difference, paired.ci_low, paired.ci_high)
    return PAIRED.format(**told, difference=difference)


def _length_leads(table: pd.DataFrame) -> list[str]:
    company = _company(table)
    if not {"length", "bag_of_words"} <= set(company):
        return []
    length, words = company["length"], company["bag_of_words"]
    # Values that only differ by luck are no lead.
    if not length["ci_low"] > words["value"]:
        return []
    told = {"length": format_number(length["value"]), "words": format_number(words["value"])}
    return [LENGTH_LEADS.format(**told)]


def _edge_of_grid(table: pd.DataFrame, grid: Sequence[float]) -> list[str]:
    chosen = chosen_row(table)
    if chosen is None:
        return []
    name, values = grid_name(chosen["probe"]), grid
    mend = "a wider grid (probe.C) may move the numbers."
    if name != "C":
        values = penalties(chosen["probe"])
        mend = "another penalty may move the numbers."
    if len(values) < 2:
        return []
    return [
        f"{name} is {chosen['C']:g} at the chosen site, the {which} of those offered: {mend}"
        for which, end in {"smallest": min(values), "largest": max(values)}.items()
        if math.isclose(chosen["C"], end)
    ]


def grid_name(probe: str) -> str:
    """Return what a kind of probe calls its penalty; "C" where it has none or is not known.

    >>> grid_name("mlp:64"), grid_name("logistic")
    ('alpha', 'C')
    """
    grid = _grid(probe)
    return "C" if grid is None else grid[0]


def penalties(probe: str) -> tuple[float, ...]:
    """Return the penalties that a kind of probe offers by itself."""
    grid = _grid(probe)
    return () if grid is None else grid[1]


def _grid(probe: str) -> tuple[str, tuple[float, ...]] | None:
    kind = KINDS.get(probe.partition(":")[0])
    return None if kind is None else kind.grid


def _unconverged(table: pd.DataFrame) -> list[str]:
    fits = table[table["metric"].isin([*MAIN_METRICS, "compression"])]
    fits = fits[fits["converged"].notna()]
    stopped = fits[~fits["converged"].astype(bool)]
    if stopped.empty:
        return []
    sites = _some(list(stopped["site"].unique()))
    return [
        f"{len(stopped):,} of {len(fits):,} scores rest on fits that stopped before they "
        f"converged{_of_which(stopped, fits)}, at {sites}: they may still move. Raise "
        "probe.max_iter or lower the largest probe.C."
    ]


def _of_which(stopped: pd.DataFrame, fits: pd.DataFrame) -> str:
    """Return how the stopped fits divide by kind of probe, and which are no test scores."""
    parts = []
    if differs(fits["probe"]):
        parts += [f"{probe} {n:,}" for probe, n in stopped["probe"].value_counts().items()]
    names = {"learning": "in the learning curve", "online": "in the description length"}
    counts = stopped["split"].value_counts()
    parts += [f"{counts[split]:,} {name}" for split, name in names.items() if split in counts]
    return f" ({', '.join(parts)})" if parts else ""


def _some(names: Sequence[str]) -> str:
    """Return the first of the names, and how many more there are."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _other_choice(table: pd.DataFrame, record: RunRecord) -> list[str]:
    chosen = chosen_row(table)
    if record.best is None or chosen is None:
        return []
    named = selection(record.best.site, record.best.head)
    found = selection(chosen["site"], chosen["head"])
    if named == found:
        return []
    return [
        f"run.json names {named} as the chosen site, the cross-validation in results.csv says "
        f"{found}; this page goes by the latter."
    ]
