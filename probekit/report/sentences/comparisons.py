"""Comparisons of runs, transfers, sources left out whole, and studies, in sentences."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd

from probekit.amounts import (
    FEWEST_UNITS,
    LEVEL,
    counted,
    decimals,
    first_names,
    fixed,
    format_number,
    joined_names,
    percent,
)
from probekit.probes.score.intervals import FEWEST_SOURCES
from probekit.probes.score.metric_table import METRICS
from probekit.report.sentences.answer import folds_of, p_words, rival_name
from probekit.results import study as studies
from probekit.results.comparison import (
    PARTLY,
    TRANSFERS,
    UNDEFINED,
    RunComparison,
    Transfer,
    place_name,
)
from probekit.results.site_results import NESTED_SITE
from probekit.results.table import metric_name
from probekit.results.verdict import SourceScores, Verdict

MOST_SETTINGS = 3  # named in the sentence under the answer
MANY_REPEATED = 0.05  # share of test rows whose text occurs in their training rows

INPUTS = ("digest of ", "version of ")  # beginnings of the names of facts that are no settings


def comparison_question(comparison: RunComparison) -> str:
    """Return the question that a comparison answers."""
    question = "Is {} better than {}?" if comparison.is_paired else "Does {} score higher than {}?"
    return question.format(*comparison.names)


def comparison_answer(comparison: RunComparison) -> str:
    """Return which of the two selected probes is better, with interval and p-value, as a sentence.

    Interval and p-value are adjusted for all comparisons, as is the verdict. If no adjusted
    interval is defined, it is the one that is not adjusted.
    """
    row = comparison.chosen
    if row is None:
        return f"The selected probes have no scores that can be compared. {comparison.verdict}"
    value_a, value_b = fixed(row["value_a"], _places(row)), fixed(row["value_b"], _places(row))
    rows_a, rows_b = (
        f"{row[f'n_{side}']:,.0f} test rows in {row[f'n_groups_{side}']:,.0f} groups"
        for side in ("a", "b")
    )
    rows = f"the same {rows_a}" if comparison.is_paired else f"different rows ({rows_a}; {rows_b})"
    p = row["p_adjusted"]
    numbers = (
        f"{metric_name(comparison.metric)} {value_a} for {comparison.a}, {value_b} for "
        f"{comparison.b}, difference {_interval(row, ('adjusted_low', 'adjusted_high'))}, "
        f"{'no p' if pd.isna(p) else f'adjusted {p_words(p)}'}, on {rows}."
    )
    sites = comparison.sites
    n_significant = int(sites["holds"].sum())
    at_sites = ""
    if n_significant and not row["holds"]:
        of_sites = f"{n_significant} of {counted(len(sites), 'single site')}"
        at_sites = f" At {of_sites} the difference is significant."
    is_nested = row["site_a"] == row["site_b"] == NESTED_SITE
    where = " at the sites that the folds chose" if is_nested else ""
    lower_is_better, difference = METRICS[comparison.metric].lower_is_better, row["difference"]
    a, b = comparison.names
    if not METRICS[comparison.metric].is_tested:
        verdict = "Not tested (compare calibration by the Brier score)"
    elif pd.isna(p):
        verdict = "Too few groups to decide"
    elif not row["holds"]:
        verdict = "No significant difference"
    elif comparison.is_paired:
        verdict = f"{a if (difference > 0) != lower_is_better else b} is better"
    else:
        verdict = f"{a if difference > 0 else b} scores higher"
    return f"{verdict}{where}: {numbers}{at_sites}"


def comparison_warnings(comparison: RunComparison) -> list[str]:
    """Return a warning if baselines differ as much as the selected probes of unpaired runs."""
    easier = comparison.easier_baselines
    if easier.empty:
        return []
    named = [f"{place_name(row, 'a')} ({_interval(row)})" for _, row in easier.iterrows()]
    return [
        f"Baselines without the network differ at least as much: {joined_names(named)}. The "
        "difference may come from the data and not from the network."
    ]


def difference_words(row: pd.Series) -> str:
    """Return the difference of a comparison with its sign and interval, as in the tables.

    >>> difference_words(pd.Series({"difference": 0.051, "ci_low": 0.014, "ci_high": 0.09}))
    '+0.051 [0.014, 0.090]'
    """
    sign = "+" if row["difference"] > 0 else ""
    return sign + format_number(row["difference"], row["ci_low"], row["ci_high"])


def result_words(row: pd.Series) -> str:
    """Return whether the difference of a comparison is significant, exactly 0, or without a test.

    >>> result_words(pd.Series({"difference": 0.0, "ci_low": 0.0, "ci_high": 0.0, "holds": False}))
    'equal'
    """
    if row["holds"]:
        return "significant"
    is_equal = all(row[name] == 0 for name in ("difference", "ci_low", "ci_high"))
    if is_equal:
        return "equal"
    if not METRICS[row["metric"]].is_tested:
        return "not tested"
    return "too few groups" if pd.isna(row["p_adjusted"]) else "not significant"


def settings_words(names: tuple[str, str], settings: Mapping[str, Sequence[str]]) -> str:
    """Return the settings that differ, other than digests and versions, as a sentence; "" if none.

    They are named up to `MOST_SETTINGS`; of more, their number is given.

    Args:
        names: titles of the two runs.
        settings: the values in both runs, by name.

    >>> settings_words(("x", "y"), {"split.seed": ("0", "1"), "version of torch": ("2", "3")})
    'Settings that differ: split.seed is 0 in x and 1 in y.'
    """
    a, b = names
    parts = [
        f"{name} is {in_a} in {a} and {in_b} in {b}"
        for name, (in_a, in_b) in settings.items()
        if not name.startswith(INPUTS)
    ]
    if not parts:
        return ""
    if len(parts) > MOST_SETTINGS:
        return f"{len(parts)} settings differ; see below."
    return f"Settings that differ: {'; '.join(parts)}."


def _interval(row: pd.Series, limits: tuple[str, str] = ("ci_low", "ci_high")) -> str:
    """Return the difference with its sign and interval, with as few decimals as keep them from 0.

    The limits are the named columns, or those that are not adjusted if these are undefined. If
    there are none, the difference has three decimals.

    >>> _interval(pd.Series({"difference": 0.051, "ci_low": 0.014, "ci_high": 0.09}))
    '+0.05 [0.01, 0.09]'
    """
    sign = "+" if row["difference"] > 0 else ""
    low, high = row[list(limits)]
    if pd.isna(low):
        # Without adjusted limits there is no verdict that the others could contradict.
        low, high = row["ci_low"], row["ci_high"]
    if pd.isna(low):
        return f"{sign}{format_number(row['difference'])}"
    places = max(_places(row), decimals([low, high], most=4))
    return f"{sign}{fixed(row['difference'], places)} [{fixed(low, places)}, {fixed(high, places)}]"


def _places(row: pd.Series) -> int:
    return decimals([row["difference"], row["ci_low"], row["ci_high"]], most=4)


def transfer_answer(transfer: Transfer) -> str:
    """Return whether the probe of each data set works on the others, as a sentence.

    The probes are those of the selected site and kind. With more than two data sets, the pairs are
    counted and the best and the worst one are named.
    """
    pairs = transfer.verdicts
    if pairs["value"].isna().all():  # also without pairs
        return "No score of a probe on another data set is defined."
    works = pairs["verdict"].isin([TRANSFERS, PARTLY])
    if len(pairs) <= 2:
        some_or_none = "In one direction only" if works.any() else "No"
        lead = "Yes" if works.all() else some_or_none
        return f"{lead}: {'; '.join(_pair(row, transfer) for _, row in pairs.iterrows())}."
    ordered = pairs.dropna(subset="value").sort_values("value", kind="stable")
    if METRICS[transfer.metric].lower_is_better:
        ordered = ordered[::-1]
    n, verb = int(works.sum()), "is" if works.sum() == 1 else "are"
    return (
        f"{n} of {counted(len(pairs), 'transfer')} {verb} above chance; at best, "
        f"{_pair(ordered.iloc[-1], transfer)}; at worst, {_pair(ordered.iloc[0], transfer)}."
    )


def _pair(row: pd.Series, transfer: Transfer) -> str:
    """Return the result of one probe on one other data set, as a clause."""
    if row["verdict"] == UNDEFINED:
        return f"the score of the probe of {row['train']} on {row['test']} is undefined"
    name = metric_name(transfer.metric)
    limits = ""
    if not pd.isna(row["ci_low"]):
        limits = f" [{fixed(row['ci_low'], 2)}, {fixed(row['ci_high'], 2)}]"
    # The difference is the value minus the score of the probe that was trained on `test`.
    own = row["value"] - row["difference"]
    numbers = [f"{name} {fixed(row['value'], 2)}{limits}", f"chance {fixed(row['chance'], 2)}"]
    numbers.append(f"own probe of {row['test']} {fixed(own, 2)}")
    return f"the probe of {row['train']} {row['verdict']} on {row['test']} ({', '.join(numbers)})"


def transfer_question(names: Sequence[str]) -> str:
    """Return the question that a transfer answers.

    >>> transfer_question(["a", "b"]), transfer_question(["a", "b", "c"])
    ('Does a probe of a work on b, and the reverse?', 'Do probes of a, b, c work on one another?')
    """
    if len(names) == 2:
        return f"Does a probe of {names[0]} work on {names[1]}, and the reverse?"
    return f"Do probes of {', '.join(names)} work on one another?"


def study_answer(study: studies.StudyResult) -> str:
    """Return in how many cells the probe is better than words or another rival, as sentences."""
    rival = studies.main_rival(study.rivals)
    found = studies.compared_cells(study.table, study.rivals, rival).dropna(subset="p")
    name, n_failed = _rival_name(study.table, rival), len(study.failed)
    constant = int(found["is_constant"].sum())
    by_holm, by_fdr = (found[column].value_counts() for column in ("holm", "fdr"))
    tested, texts = len(found) - constant, list[str]()
    if tested:
        n_holm, n_fdr = (counts.get(studies.BETTER, 0) for counts in (by_holm, by_fdr))
        texts.append(
            f"The probe beats {name} in {n_holm} of {counted(tested, 'cell')} with "
            f"a test (Holm; {n_fdr} with a false discovery rate of {percent(LEVEL)})."
        )
    if by_holm.get(studies.WORSE, 0):
        texts.append(f"It is worse in {by_holm[studies.WORSE]}.")
    if constant:
        texts.append(
            f"The probe is above chance in {by_holm.get(studies.ABOVE_CHANCE, 0)} of "
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


def study_warnings(study: studies.StudyResult) -> Iterator[str]:
    """Yield a sentence for each reason to doubt the counts, most serious first."""
    table, failed, rivals = study.table, study.failed, studies.measured_rivals(study.rivals)
    if len(failed):
        yield f"{_cells(failed)} failed, for reasons that are below."
    rival = studies.main_rival(study.rivals)
    done = studies.compared_cells(table, study.rivals, rival)
    repeated = done[done["repeated"] > MANY_REPEATED]
    if len(repeated):
        yield (
            f"More than {percent(MANY_REPEATED)} of the test rows have a text of their training "
            f"rows in {_cells(repeated)}, at most {percent(done['repeated'].max())}. Set "
            "`split.drop_repeated`."
        )
    untested = done[done["p"].isna()]
    if len(untested):
        name = _rival_name(table, rival)
        yield f"The difference from {name} has no test in {_cells(untested)}."
    listed, n_tested = list[str](), 0
    for one in rivals:
        tested = studies.compared_cells(table, study.rivals, one).dropna(subset="p")
        # p-values of sign patterns and of exchanged labels cannot be arbitrarily small.
        least = tested["p"].where(tested["is_constant"], 2.0 ** (1 - tested["n_groups"]))
        is_coarse = (least * len(tested) >= LEVEL) & (tested["p"] < LEVEL) & (tested["holm"] == "")
        if is_coarse.any():
            listed.append(f"{_cells(tested[is_coarse])} compared with {_rival_name(table, one)}")
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


def _rival_name(table: pd.DataFrame, rival: str) -> str:
    return rival_name(rival, next((name for name in table["metric"] if name), "accuracy"))


def _cells(rows: pd.DataFrame) -> str:
    """Return the number of cells with the names of the first ones."""
    return f"{counted(len(rows), 'cell')} ({first_names(rows['cell'].tolist())})"


def chosen_words(v: Verdict) -> str:
    """Return the chosen site, or how the outer folds chose; "–" without a choice."""
    if v.best is None:
        return "–"
    if not v.is_nested:
        return v.best.name
    counts = Counter(choice.name for choice in v.choices)
    n_folds = counted(counts.total(), "fold")
    if len(counts) == 1:
        return f"{next(iter(counts))} in all {n_folds}"
    return f"different sites in {n_folds}: {folds_of(counts)}"


def sources_sentence(sources: SourceScores) -> str:
    r"""Return the mean score of sources that were left out whole, and inside the sources.

    >>> sentence = sources_sentence(SourceScores(
    ...     column="author", metric="auroc", n=3, mean=(0.72, 0.1, 1.0), within=(0.92, 0.9, 0.94),
    ...     difference=-0.2, n_worse=2, worst="Ann", worst_value=0.03, left_out={"Bob": "only yes"},
    ... ))
    >>> print(*sentence.split("; "), sep="\n")
    Each author left out whole: mean AUROC 0.72 [0.10, 1.00] over 3 sources
    0.92 [0.90, 0.94] inside the sources, which is better in 2 of 3
    worst for Ann, 0.03. Not averaged: Bob (only yes).
    """
    metric = METRICS[sources.metric]
    scale, unit, places = (100, " %", 0) if metric.in_percent else (1, "", 2)

    def words(value: float, low: float = math.nan, high: float = math.nan) -> str:
        """Return a score with its interval, if there is one."""
        texts = [fixed(scale * number, places) for number in (value, low, high)]
        return f"{texts[0]}{unit}" + ("" if math.isnan(low) else f" [{texts[1]}, {texts[2]}]")

    absent = []
    for name, why in sources.left_out.items():
        score = sources.other_scores.get(name, math.nan)
        absent.append(f"{name} ({why}{'' if math.isnan(score) else f', {words(score)}'})")
    others = f" Not averaged: {', '.join(absent)}." if absent else ""
    if not sources.n:
        return f"Each {sources.column} left out whole: no score can be averaged.{others}"
    n = counted(sources.n, "source")
    few = " (too few for an interval)" if sources.n < FEWEST_SOURCES else ""
    inside = (
        f"{words(*sources.within)} inside the sources, which is better in {sources.n_worse} of "
        f"{sources.n}"
    )
    if math.isnan(sources.within[0]):
        inside = "no score inside the sources, because some are a single group"
    return (
        f"Each {sources.column} left out whole: mean {metric.title} {words(*sources.mean)} over "
        f"{n}{few}; {inside}; worst for {sources.worst}, "
        f"{words(sources.worst_value)}.{others}"
    )
