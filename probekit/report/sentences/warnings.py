"""Warnings of a run: one sentence for each reason to doubt the result at the selected site.

Sentences about the data are findings, made before the run by `probekit.data.checks` and
`probekit.pipeline.experiment.record`; this module makes those about the scores.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from probekit.amounts import LEVEL, counted, joined_names
from probekit.probes.kinds.registry import kind_of
from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import BASELINE_GRIDS, HEADLINE, TARGETS
from probekit.report.figures.style import fixed
from probekit.report.sentences.answer import (
    comparison_rows,
    doubtful_rivals,
    reaches,
    rival_name,
    selected_p,
)
from probekit.report.sentences.choice import chosen_words, folds_of_sites
from probekit.report.sentences.comparison_table import selectivity_row
from probekit.report.sentences.random_networks import nowhere_better
from probekit.report.sentences.severity import Caveat, most_serious_first
from probekit.results.differences import (
    NOT_BETTER,
    NOT_SIGNIFICANT,
    SIGNIFICANTLY_WORSE,
    RivalDifference,
    RivalDifferences,
)
from probekit.results.record import ControlBy, FindingRecord, RunRecord
from probekit.results.selection import (
    choice_counts,
    choices,
    is_nested,
    main_metrics,
    reported_row,
    site_with_head,
)
from probekit.results.table import differs, only, placed, same_features

# What it implies if the selected probe is not better than a rival.
DOUBTS = {
    "majority": "the probe may have learnt nothing",
    "random_weights": "the result may not depend on what the network has learnt",
    "word_identity": "the probe may not use the context",
    "bag_of_words": "the result may not require the network",
    "n_grams": "the result may not require the network",
    "neighbouring_words": "the probe may use only the adjacent words",
    "length": "the probe may use only the length",
    "embedding": "the layers may add nothing",
}
RELATIONS = {
    SIGNIFICANTLY_WORSE: "significantly worse than",
    NOT_SIGNIFICANT: "not significantly better than",
    NOT_BETTER: "not significantly better than",
}
NOT_MORE_OFTEN_CORRECT = (
    "its predictions are associated with the labels, but the interval of the difference contains 0"
)
# Advice that follows, by metric: those that a constant prediction does not raise.
OTHER_METRICS = {
    "accuracy": "; probe.metric may be set to balanced_accuracy or auroc",
    "balanced_accuracy": "; probe.metric may be set to auroc",
    "macro_f1": "; probe.metric may be set to balanced_accuracy or auroc",
}
SWAPPED = "labels may be swapped, or depend on something else, in some groups"
RIVAL = "The probe is {relation} {rivals}: {doubt}."
CONTROL = (
    "The control task is learnt, and selectivity is not above 0: at this position a probe can "
    "memorise labels of individual {types}."
)
LENGTH_LEADS = (
    "Text length alone is better than a bag of words: length is associated with the label."
)
LENGTH_IS_COMPARED = (
    "Length is associated with the label: compare the score with that of the length alone."
)
WORDS_DO_NOT_HELP = (
    " Memorised words do not explain the task score, because the probe is better than word "
    "identity."
)
# Metrics at a threshold of training rows: the metric with the false positive rate on the test rows,
# and the rate that the threshold allows.
ACHIEVED = {"tpr_at_fpr_1": ("achieved_fpr_1", 0.01), "tpr_at_fpr_5": ("achieved_fpr_5", 0.05)}
MOST_NAMES = 12  # in a list of sites


def warnings(
    table: pd.DataFrame,
    record: RunRecord,
    comparisons: RivalDifferences | None = None,
) -> list[str]:
    """Return a sentence for each reason to doubt the result, most serious first.

    There is a warning about a baseline if the selected probe is not significantly better. Without a
    paired difference, there is one if the baseline reaches the interval of the probe's score. There
    is a warning about the control task if its interval is above chance and that of selectivity is
    not above 0. Probes without a selected site, such as structural probes, are compared with random
    networks at every site.

    Args:
        table: Rows of results.csv.
        record: Contents of run.json.
        comparisons: Paired differences from the selected probe, from differences.csv.
    """
    has_length = any(one.code == "length" and one.level != "info" for one in record.data.findings)
    of_scores = {
        "nowhere-better": nowhere_better(table),
        "achieved-fpr": _achieved_fpr(table),
        "length-leads": [] if has_length else _length_leads(table),
        "edge-of-grid": _edge_of_grid(table, record.C_grid),
        "edge-of-baseline": _edges_of_baselines(table),
        "unconverged": _unconverged(table),
        "other-choice": _other_choice(table, record),
    }
    return most_serious_first(
        [
            *_rivals(table, comparisons or RivalDifferences(), record.control_by),
            *(Caveat(kind, text) for kind, texts in of_scores.items() for text in texts),
            *(
                Caveat(one.code, _finding(one, table), one.level == "error")
                for one in record.data.findings
                if one.level != "info"
            ),
        ]
    )


def _finding(finding: FindingRecord, table: pd.DataFrame) -> str:
    """Return the message of a finding; without a second score of the length if it is a baseline."""
    if finding.code == "length" and "length" in _compared(table):
        return LENGTH_IS_COMPARED
    return finding.message


def _compared(table: pd.DataFrame) -> dict[str, pd.Series]:
    chosen = reported_row(table)
    return {} if chosen is None else comparison_rows(chosen, table)


def _rivals(
    table: pd.DataFrame, comparisons: RivalDifferences, control_by: ControlBy
) -> list[Caveat]:
    compared = _compared(table)
    if "task" not in compared:
        return []
    doubtful = doubtful_rivals(compared, comparisons)
    control = _control(compared, table, control_by)
    is_answered = "word_identity" in compared and "word_identity" not in doubtful
    if control and control_by == "word" and is_answered:
        control += WORDS_DO_NOT_HELP
    p = selected_p(table, comparisons)
    if "majority" in doubtful and p is not None and not p < LEVEL:
        doubtful = {"majority": doubtful["majority"]}  # nothing was decoded that others explain
    caveats = _by_doubt(doubtful, compared["task"]["metric"])
    return [*caveats, *([Caveat("control", control)] if control else [])]


def _by_doubt(doubtful: Mapping[str, RivalDifference | None], metric: str) -> list[Caveat]:
    """Return a warning for each group of rivals that imply the same doubt for the same reason."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for kind, paired in doubtful.items():
        # Without a test, the interval decides.
        relation = RELATIONS.get(
            "" if paired is None else paired.verdict, "not clearly better than"
        )
        doubt = DOUBTS[kind]
        if paired is not None and paired.verdict == NOT_BETTER:
            doubt = NOT_MORE_OFTEN_CORRECT + OTHER_METRICS.get(metric, "")
        elif paired is not None and paired.is_opposite:
            doubt = SWAPPED
        kinds.setdefault((relation, doubt), []).append(kind)
    return [
        Caveat(
            names[0],
            RIVAL.format(
                relation=relation,
                rivals=joined_names([rival_name(name, metric) for name in names]),
                doubt=doubt,
            ),
        )
        for (relation, doubt), names in kinds.items()
    ]


def _control(compared: Mapping[str, pd.Series], table: pd.DataFrame, control_by: ControlBy) -> str:
    """Return the warning that a probe learns the control task as well as the task; else ""."""
    control, selectivity = compared.get("control"), selectivity_row(table, compared["task"])
    if control is None or selectivity is None:
        return ""
    sign = METRICS[control["metric"]].sign
    worst = control["ci_low" if sign > 0 else "ci_high"]
    is_learnt = sign * (worst - control["chance"]) > 0
    if not (is_learnt and selectivity["ci_low"] <= 0):  # unknown limits are no evidence
        return ""
    return CONTROL.format(types=f"{control_by}s")


def _achieved_fpr(table: pd.DataFrame) -> list[str]:
    """Return the false positive rate on the test rows, if the main metric allows a lower one."""
    chosen = reported_row(table)
    if chosen is None or chosen["metric"] not in ACHIEVED:
        return []
    metric, allowed = ACHIEVED[chosen["metric"]]
    rows = only(table, metric=metric, split="test")
    if is_nested(table):
        rows = only(rows, target=HEADLINE)
    else:
        rows = same_features(placed(only(rows, target="task")), chosen)
    return [
        f"The false positive rate on the test rows is {_percentages(row)}, above the "
        f"{100 * allowed:g} % that the threshold allows on training rows: a threshold for "
        f"{100 * allowed:g} % on the test rows would detect fewer positive rows."
        for _, row in rows.iterrows()
        if row["value"] > allowed
    ]


def _percentages(row: pd.Series) -> str:
    """Return a share with its interval, in per cent.

    >>> _percentages(pd.Series({"value": 0.0823, "ci_low": 0.05, "ci_high": 0.12}))
    '8.2 % [5.0, 12.0]'
    """
    value, low, high = (fixed(100 * row[name], 1) for name in ("value", "ci_low", "ci_high"))
    return f"{value} %" if pd.isna(row["ci_low"]) else f"{value} % [{low}, {high}]"


def _length_leads(table: pd.DataFrame) -> list[str]:
    compared = _compared(table)
    if not {"length", "bag_of_words"} <= set(compared):
        return []
    length, words = compared["length"], compared["bag_of_words"]
    # A difference within the interval may be due to chance.
    if pd.isna(length["ci_low"]) or reaches(words, length):
        return []
    return [LENGTH_LEADS]


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
    """Return the penalty's name, value, end of the grid and advice; [] unless it is at an end."""
    name, values = grid_name(chosen["probe"]), grid
    advice = "a wider grid (probe.C) may change the scores."
    if name != "C":
        values = penalties(chosen["probe"])
        advice = "another penalty may change the scores."
    return [(name, chosen["C"], which, advice) for which in _ends(chosen["C"], values)]


def _edges_of_baselines(table: pd.DataFrame) -> list[str]:
    """Return a warning for each baseline whose selected penalty is at an end of its grid.

    There is no warning if all its predictions are correct, nor if the penalty is the strongest
    one and the baseline scores at most as high as the majority class.
    """
    compared = _compared(table)
    if "task" not in compared:
        return []
    name, values = BASELINE_GRIDS["number" if _reads_numbers(compared["task"]) else "class"]
    strongest = "smallest" if name == "C" else "largest"
    metric = METRICS[compared["task"]["metric"]]
    best = metric.sign * metric.range[metric.sign > 0]
    majority = (
        compared["majority"]["value"] if "majority" in compared else compared["task"]["chance"]
    )
    return [
        f"{name} of the baseline {TARGETS[target].title} is {row['C']:g}, the {which} value of its "
        "grid: with another value it might score higher."
        for target, row in compared.items()
        if target in TARGETS and TARGETS[target].is_tuned
        for which in _ends(row["C"], values)
        if metric.sign * row["value"] < best
        if which != strongest or metric.sign * (row["value"] - majority) > 0
    ]


def _ends(value: float, grid: Sequence[float]) -> list[str]:
    """Return "smallest" or "largest" if the value is at that end of a grid of several values."""
    if len(grid) < 2:
        return []
    ends = {"smallest": min(grid), "largest": max(grid)}
    return [which for which, end in ends.items() if math.isclose(value, end)]


def _reads_numbers(row: pd.Series) -> bool:
    return METRICS[row["metric"]].beats_the_mean


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
    fits = table[table["metric"].isin([*main_metrics(table), "compression"])]
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
        selected = folds_of_sites(table)
        agree = best.sites == choice_counts(table)
    else:
        recorded, selected = site_with_head(best.site or "", best.head), chosen_words(table)
        agree = recorded == selected
    if agree:
        return []
    return [
        f"run.json names {recorded} as the chosen site, but the cross-validated scores in "
        f"results.csv select {selected}, which is shown here."
    ]
