"""Studies in sentences: how many cells are better than a rival, paired settings, and warnings."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from probekit.amounts import FEWEST_UNITS, LEVEL, counted, first_names, joined_names, percent
from probekit.probes.score.metric_table import METRICS
from probekit.report.sentences.answer import p_words, rival_name
from probekit.report.sentences.comparisons import difference_words
from probekit.results.study import (
    ABOVE_CHANCE,
    BETTER,
    WORSE,
    StudyResult,
    compared_cells,
    main_rival,
    measured_rivals,
)
from probekit.results.table import metric_name

MANY_REPEATED = 0.05  # share of test rows whose text occurs in their training rows


def study_answer(study: StudyResult) -> str:
    """Return in how many cells the probe is better than words or another rival, as sentences."""
    rival = main_rival(study.rivals)
    found = compared_cells(study.table, study.rivals, rival).dropna(subset="p")
    name, n_failed = _name(study.table, rival), len(study.failed)
    constant = int(found["is_constant"].sum())
    by_holm, by_fdr = (found[column].value_counts() for column in ("holm", "fdr"))
    tested, texts = len(found) - constant, list[str]()
    if tested:
        n_fdr = by_fdr.get(BETTER, 0)
        texts.append(
            f"The probe beats {name} in {by_holm.get(BETTER, 0)} of {counted(tested, 'cell')} with "
            f"a test (Holm; {n_fdr} with a false discovery rate of {percent(LEVEL)})."
        )
    if by_holm.get(WORSE, 0):
        texts.append(f"It is worse in {by_holm[WORSE]}.")
    if constant:
        texts.append(
            f"The probe is above chance in {by_holm.get(ABOVE_CHANCE, 0)} of "
            f"{counted(constant, 'cell')} in which {name} predicts the same for all rows (Holm)."
        )
    if not len(found):
        texts.append(f"No cell has a test of the difference from {name}.")
    if n_failed:
        texts.append(f"{counted(n_failed, 'cell')} failed.")
    return " ".join(texts)


def settings_answer(compared: pd.DataFrame, metric: str) -> str:
    """Return the most significant comparison of two settings, as a sentence.

    Args:
        compared: rows of `compared_settings`, at least one.
        metric: the metric of their scores.
    """
    row = compared.sort_values("p", kind="stable").iloc[0]
    a, b = row["a"], row["b"]
    if pd.isna(row["p"]):
        return (
            f"Too few data sets to compare {a} and {b} ({row['key']}): {row['n']}; a test requires "
            f"{FEWEST_UNITS}."
        )
    lead = f"No significant difference between {a} and {b}"
    if row["p_holm"] < LEVEL:
        better = a if row["difference"] * METRICS[metric].sign > 0 else b
        lead = f"{better} is better than {b if better == a else a}"
    n_tested = compared["p"].count()
    adjusted = f", adjusted for {n_tested} comparisons" if n_tested > 1 else ""
    return (
        f"{lead} ({row['key']}): median difference of {metric_name(metric)} ({a} minus {b}) "
        f"{difference_words(row)}, {p_words(row['p_holm'])}{adjusted} (exact signed-rank test over "
        f"{row['n']} data sets)."
    )


def study_warnings(study: StudyResult) -> Iterator[str]:
    """Yield a sentence for each reason to doubt the counts, most serious first."""
    table, failed, rivals = study.table, study.failed, measured_rivals(study.rivals)
    if len(failed):
        yield f"{_cells(failed)} failed, for reasons that are below."
    rival = main_rival(study.rivals)
    done = compared_cells(table, study.rivals, rival)
    repeated = done[done["repeated"] > MANY_REPEATED]
    if len(repeated):
        yield (
            f"More than {percent(MANY_REPEATED)} of the test rows have a text of their training "
            f"rows in {_cells(repeated)}, at most {percent(done['repeated'].max())}. Set "
            "`split.drop_repeated`."
        )
    untested = done[done["p"].isna()]
    if len(untested):
        name = _name(table, rival)
        yield f"The difference from {name} has no test in {_cells(untested)}."
    listed, n_tested = list[str](), 0
    for one in rivals:
        tested = compared_cells(table, study.rivals, one).dropna(subset="p")
        # p-values of sign patterns and of exchanged labels cannot be arbitrarily small.
        least = tested["p"].where(tested["is_constant"], 2.0 ** (1 - tested["n_groups"]))
        is_coarse = (least * len(tested) >= LEVEL) & (tested["p"] < LEVEL) & (tested["holm"] == "")
        if is_coarse.any():
            listed.append(f"{_cells(tested[is_coarse])} compared with {_name(table, one)}")
            n_tested = max(n_tested, len(tested))
    if listed:
        yield (
            f"p is below {LEVEL}, but cannot be small enough for {counted(n_tested, 'cell')}, in "
            f"{joined_names(listed)}. This requires more groups or, where the rival predicts the "
            f"same for all rows, `probe.permutations` of {20 * n_tested:,} or more."
        )
    metrics = done["metric"].value_counts()
    if len(metrics) > 1:
        names = joined_names([f"{metric_name(str(one))} ({n})" for one, n in metrics.items()])
        yield f"Cells have different metrics: {names}. Settings are compared by the first only."
    doubted = done[done["caveats"] != ""]
    if len(doubted):
        yield f"{len(doubted)} of {counted(len(done), 'run')} have warnings, which are below."
    n_unused = study.record.n_unused
    if n_unused:
        yield f"{counted(n_unused, 'published score')} of other data sets: not used."


def _name(table: pd.DataFrame, rival: str) -> str:
    return rival_name(rival, next((name for name in table["metric"] if name), "accuracy"))


def _cells(rows: pd.DataFrame) -> str:
    """Return the number of cells with the names of the first ones."""
    return f"{counted(len(rows), 'cell')} ({first_names(rows['cell'].tolist())})"
