"""Warnings of a run: one sentence for each reason to doubt the result at the selected site.

Sentences about the data are findings, made before the run by `probekit.data.checks` and
`probekit.pipeline.experiment.record`; this module makes those about the scores.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import pandas as pd

from probekit.amounts import counted, joined_names
from probekit.probes.kinds.registry import kind_of
from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import TARGETS
from probekit.report.figures.style import format_number
from probekit.report.sentences.answer import comparison_rows
from probekit.report.sentences.choice import chosen_words
from probekit.results.differences import RivalDifferences
from probekit.results.metrics import MAIN_METRICS
from probekit.results.record import ControlBy, RunRecord
from probekit.results.selection import (
    choice_counts,
    choices,
    is_nested,
    reported_row,
    selection,
)
from probekit.results.table import differs

# Comparisons that can explain away the result: the fact, and what it implies for the result.
RIVALS = {
    "control": (
        "The control task scores {rival}",
        "at this position a probe can memorise labels of individual {types}.",
    ),
    "majority": (
        "Always predicting {guess} scores {rival}",
        "the probe may have learnt nothing.",
    ),
    "random_weights": (
        "A network with random weights scores {rival} at {where}",
        "the result may not depend on what the network has learnt.",
    ),
    "word_identity": (
        "Word identity alone scores {rival}",
        "the probe may not use the context.",
    ),
    "bag_of_words": (
        "A bag of words scores {rival}",
        "the result may not require the network.",
    ),
    "length": (
        "Text length alone scores {rival}",
        "the probe may use only the length.",
    ),
    "embedding": (
        "The embedding scores {rival}",
        "the layers may add nothing.",
    ),
}
UNPAIRED = "{fact} (task {task}): {doubt}"
PAIRED = "{fact} (task {task}, paired difference {difference}): {doubt}"
LENGTH_LEADS = (
    "Text length alone scores {length}, more than a bag of words, {words}: texts of different "
    "labels differ in length."
)
WORDS_DO_NOT_HELP = (
    " Memorised words do not explain the task score, because word identity alone scores {rival}."
)
MOST_NAMES = 12  # in a list of sites


def warnings(
    table: pd.DataFrame, record: RunRecord, comparisons: RivalDifferences | None = None
) -> list[str]:
    """Return a sentence for each reason to doubt the result at the selected site.

    A control or baseline gives a warning if the selected probe is not significantly better, or,
    without a paired difference, if its score reaches the interval of the task.
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


def _compared(table: pd.DataFrame) -> dict[str, pd.Series]:
    chosen = reported_row(table)
    return {} if chosen is None else comparison_rows(chosen, table)


def _rivals(table: pd.DataFrame, comparisons: RivalDifferences, control_by: ControlBy) -> list[str]:
    compared = _compared(table)
    if "task" not in compared:
        return []
    task = compared["task"]
    sentences = {
        name: _rival(name, compared[name], task, comparisons, control_by)
        for name in RIVALS
        if name in compared
    }
    is_answered = "word_identity" in compared and not sentences["word_identity"]
    if sentences.get("control") and control_by == "word" and is_answered:
        value = format_number(compared["word_identity"]["value"])
        sentences["control"] += WORDS_DO_NOT_HELP.format(rival=value)
    return list(filter(None, sentences.values()))


def _rival(
    name: str,
    rival: pd.Series,
    task: pd.Series,
    comparisons: RivalDifferences,
    control_by: ControlBy,
) -> str:
    """Return the warning about a control or baseline; "" if the task is clearly better."""
    paired = comparisons.find(name, rival["value"])
    if not (rival["value"] >= task["ci_low"] if paired is None else paired.is_doubtful):
        return ""
    fact, doubt = RIVALS[name]
    is_mean = METRICS[task["metric"]].beats_the_mean
    guess = "the mean label" if is_mean else "the most frequent label"
    fields = {
        "fact": fact.format(
            rival=format_number(rival["value"]),
            guess=guess,
            where="its own nested choice" if TARGETS[task["target"]].choice_of else "this site",
        ),
        "task": format_number(task["value"], task["ci_low"], task["ci_high"]),
        "doubt": doubt.format(types=f"{control_by}s"),
    }
    if paired is None:
        return UNPAIRED.format(**fields)
    difference = format_number(paired.difference, paired.ci_low, paired.ci_high)
    return PAIRED.format(**fields, difference=difference)


def _length_leads(table: pd.DataFrame) -> list[str]:
    compared = _compared(table)
    if not {"length", "bag_of_words"} <= set(compared):
        return []
    length, words = compared["length"], compared["bag_of_words"]
    # A difference within the interval may be due to chance.
    if not length["ci_low"] > words["value"]:
        return []
    fields = {"length": format_number(length["value"]), "words": format_number(words["value"])}
    return [LENGTH_LEADS.format(**fields)]


def _edge_of_grid(table: pd.DataFrame, grid: Sequence[float]) -> list[str]:
    rows = choices(table)
    counts = Counter(fact for row in rows for fact in _at_edge(row, grid))
    where = "at the chosen site"
    return [
        f"{name} is {end:g} {f'in {n} of {len(rows)} outer folds' if is_nested(table) else where}, "
        f"the {which} value of the grid: {advice}"
        for (name, end, which, advice), n in counts.items()
    ]


def _at_edge(chosen: pd.Series, grid: Sequence[float]) -> list[tuple[str, float, str, str]]:
    """Return name, value, end of the grid and advice if the penalty is at an end of its grid."""
    name, values = grid_name(chosen["probe"]), grid
    advice = "a wider grid (probe.C) may change the scores."
    if name != "C":
        values = penalties(chosen["probe"])
        advice = "another penalty may change the scores."
    if len(values) < 2:
        return []
    return [
        (name, end, which, advice)
        for which, end in {"smallest": min(values), "largest": max(values)}.items()
        if math.isclose(chosen["C"], end)
    ]


def grid_name(probe: str) -> str:
    """Return the name of a probe's penalty parameter; "C" if it has none or is unknown.

    >>> grid_name("mlp:64"), grid_name("logistic")
    ('alpha', 'C')
    """
    grid = _grid(probe)
    return "C" if grid is None else grid[0]


def penalties(probe: str) -> tuple[float, ...]:
    """Return the default penalty grid of a kind of probe; empty if it has none or is unknown."""
    grid = _grid(probe)
    return () if grid is None else grid[1]


def _grid(probe: str) -> tuple[str, tuple[float, ...]] | None:
    kind = kind_of(probe)
    return None if kind is None else kind.grid


def _unconverged(table: pd.DataFrame) -> list[str]:
    fits = table[table["metric"].isin([*MAIN_METRICS, "compression"])]
    fits = fits[fits["converged"].notna()]
    stopped = fits[~fits["converged"].astype(bool)]
    if stopped.empty:
        return []
    sites = _abbreviated(list(stopped["site"].unique()))
    return [
        f"{len(stopped):,} of {len(fits):,} scores come from fits that did not "
        f"converge{_breakdown(stopped, fits)}, at {sites}: they may be inaccurate. Raise "
        "probe.max_iter or lower the largest probe.C."
    ]


def _breakdown(stopped: pd.DataFrame, fits: pd.DataFrame) -> str:
    """Return the number of unconverged fits by kind of probe, and by curve if not test scores."""
    parts = []
    if differs(fits["probe"]):
        parts += [f"{probe} {n:,}" for probe, n in stopped["probe"].value_counts().items()]
    names = {"learning": "in the learning curve", "online": "in the description length"}
    counts = stopped["split"].value_counts()
    parts += [f"{counts[split]:,} {name}" for split, name in names.items() if split in counts]
    return f" ({', '.join(parts)})" if parts else ""


def _abbreviated(names: Sequence[str]) -> str:
    """Return the first `MOST_NAMES` names, and the number of others."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _other_choice(table: pd.DataFrame, record: RunRecord) -> list[str]:
    best = record.best
    if best is None or not choices(table):
        return []
    if is_nested(table):
        recorded = joined_names(
            [f"{site} in {counted(n, 'fold')}" for site, n in best.sites.items()]
        )
        agree = best.sites == choice_counts(table)
    else:
        recorded = selection(best.site or "", best.head)
        agree = recorded == chosen_words(table)
    if agree:
        return []
    return [
        f"run.json names {recorded} as the chosen site, but the cross-validated scores in "
        f"results.csv select {chosen_words(table)}, which is shown here."
    ]
