"""Comparisons of runs, transfers, and sources left out whole, in sentences."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from probekit.amounts import counted, decimals, first_names, fixed, format_difference, joined_names
from probekit.probes.score.intervals import FEWEST_SOURCES
from probekit.probes.score.metric_table import METRICS
from probekit.report.elements.texts import capitalised
from probekit.report.sentences.answer import folds_of, p_words
from probekit.results.comparison import (
    BELOW,
    PARTLY,
    TOO_FEW,
    TRANSFERS,
    UNDEFINED,
    RunComparison,
    Transfer,
    place_name,
)
from probekit.results.site_results import NESTED_SITE
from probekit.results.table import metric_name
from probekit.results.verdict import SourceScores, Verdict

LONGEST = 90  # characters of a clause that answers
MOST_SETTINGS = 3  # named in the sentence under the answer

INPUTS = ("digest of ", "version of ")  # beginnings of the names of facts that are no settings


def comparison_question(comparison: RunComparison) -> str:
    """Return the question that a comparison answers."""
    a, b = comparison.names
    is_paired = comparison.is_paired
    return f"Is “{a}” better than “{b}”?" if is_paired else f"Does “{a}” score higher than “{b}”?"


def comparison_answer(comparison: RunComparison) -> str:
    """Return which of the two selected probes is better, with interval and p-value, as a sentence.

    Interval and p-value are adjusted for all comparisons, as is the verdict. If no adjusted
    interval is defined, it is the one that is not adjusted.
    """
    row = comparison.chosen
    if row is None:
        return f"The selected probes have no scores that can be compared. {comparison.verdict}"
    value_a, value_b = fixed(row["value_a"], _places(row)), fixed(row["value_b"], _places(row))
    a, b = (f"“{name}”" for name in comparison.names)
    p, both = row["p_adjusted"], "both " * pd.notna(row["adjusted_low"])
    test = "no p" if pd.isna(p) else f"{p_words(p)} ({both}adjusted)"
    numbers = (
        f"{metric_name(comparison.metric)} {value_a} for {a}, {value_b} for {b}, difference "
        f"{_interval(row, ('adjusted_low', 'adjusted_high'))}, {test}."
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

    They are named up to `MOST_SETTINGS`; of more, the number and the first names.

    Args:
        names: titles of the two runs.
        settings: the values in both runs, by name.

    >>> settings_words(("x", "y"), {"split.seed": ("0", "1"), "version of torch": ("2", "3")})
    'Settings that differ: split.seed is 0 in “x” and 1 in “y”.'
    """
    a, b = names
    parts = {
        name: f"{name} is {in_a} in “{a}” and {in_b} in “{b}”"
        for name, (in_a, in_b) in settings.items()
        if not name.startswith(INPUTS)
    }
    if not parts:
        return ""
    if len(parts) > MOST_SETTINGS:
        return f"{len(parts)} settings differ: {first_names([*parts])}."
    return f"Settings that differ: {'; '.join(parts.values())}."


def _interval(row: pd.Series, limits: tuple[str, str] = ("ci_low", "ci_high")) -> str:
    """Return the difference with its sign and interval, with as few decimals as keep them from 0.

    The limits are the named columns, or those that are not adjusted if these are undefined. If
    there are none, the difference has three decimals.

    >>> _interval(pd.Series({"difference": 0.051, "ci_low": 0.014, "ci_high": 0.09}))
    '+0.05 [0.01, 0.09]'
    """
    low, high = row[list(limits)]
    if pd.isna(low):
        # Without adjusted limits there is no verdict that the others could contradict.
        low, high = row["ci_low"], row["ci_high"]
    if pd.isna(low):
        return format_difference(row["difference"])
    sign = "+" if row["difference"] > 0 else ""
    places = max(_places(row), decimals([low, high], most=4))
    return f"{sign}{fixed(row['difference'], places)} [{fixed(low, places)}, {fixed(high, places)}]"


def _places(row: pd.Series) -> int:
    return decimals([row["difference"], row["ci_low"], row["ci_high"]], most=4)


def clause(lead: str, names: Sequence[str]) -> str:
    """Return a sentence of at most `LONGEST` characters with as many of the names as fit.

    >>> clause("2 of 8 cells beat words", ["number", "contrast"])
    '2 of 8 cells beat words: number, contrast.'
    """
    texts = [f"{lead}: {first_names(names, n)}." for n in range(1, len(names) + 1)]
    fitting = [text for text in texts if len(text) <= LONGEST]
    return fitting[-1] if fitting else f"{lead}."


def transfer_answer(transfer: Transfer) -> list[str]:
    """Return which probes work on other data sets, as a clause, then the numbers as a sentence.

    The probes are those of the selected site and kind. With more than two data sets, the numbers
    are those of the best pair, above chance if there is one.
    """
    pairs = transfer.verdicts
    if pairs["value"].isna().all():  # also without pairs
        return ["No score of a probe on another data set is defined."]
    works, below = pairs["verdict"].isin([TRANSFERS, PARTLY]), pairs["verdict"] == BELOW
    named, reversed_ones = (
        [f"{row['train']} to {row['test']}" for _, row in pairs[those].iterrows()]
        for those in (works, below)
    )
    if len(pairs) <= 2:
        is_open = pairs["verdict"].isin([UNDEFINED, TOO_FEW]).any()
        none = "Not shown in either direction" if is_open else "No, neither works on the other"
        lead = "Yes" if works.all() else "Shown in one direction only" if named else none
        numbers = "; ".join(_pair(row, transfer) for _, row in pairs.iterrows())
        return [clause(lead, named), f"{capitalised(numbers)}."]
    ordered = pairs.dropna(subset="value").sort_values("value", kind="stable")
    if METRICS[transfer.metric].lower_is_better:
        ordered = ordered[::-1]
    verb = "is" if len(named) == 1 else "are"
    lead = f"{len(named)} of {counted(len(ordered), 'transfer')} {verb} shown to be above chance"
    above = ordered[works[ordered.index]] if named else ordered
    which = "The best score: " if not named else "Best of these: " * (len(named) > 1)
    texts = [clause(lead, named), capitalised(f"{which}{_pair(above.iloc[-1], transfer)}.")]
    if reversed_ones:
        n, are = len(reversed_ones), "is" if len(reversed_ones) == 1 else "are"
        texts.append(clause(f"{n} of {len(ordered)} {are} below chance", reversed_ones))
    return texts


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
    numbers.append(f"own probe of {row['test']} on these rows {fixed(own, 2)}")
    numbers.append(f"n = {row['n_test']:,.0f} in {row['n_groups']:,.0f} groups")
    return f"the probe of {row['train']} {row['verdict']} on {row['test']} ({', '.join(numbers)})"


def transfer_question(names: Sequence[str]) -> str:
    """Return the question that a transfer answers.

    >>> transfer_question(["a", "b"]), transfer_question(["a", "b", "c"])
    ('Does a probe of a work on b, and the reverse?', 'Do probes of a, b, c work on one another?')
    """
    if len(names) == 2:
        return f"Does a probe of {names[0]} work on {names[1]}, and the reverse?"
    return f"Do probes of {', '.join(names)} work on one another?"


def site_words(v: Verdict) -> str:
    """Return the chosen site, or the number of sites that the outer folds chose."""
    places = dict.fromkeys(choice.place for choice in v.choices)
    return next(iter(places)) if len(places) == 1 else f"{len(places)} sites, by fold"


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
    ...     n_above=1, worst="Ann", worst_value=0.03, worst_chance=0.5,
    ...     left_out={"Bob": "only yes"},
    ... ))
    >>> print(sentence)  # doctest: +NORMALIZE_WHITESPACE
    Above chance on 1 of 3 unseen sources (95 % interval of score minus chance): mean AUROC 0.72
    [0.10, 1.00], compared with 0.92 [0.90, 0.94] on seen sources; worst: “Ann”
    (0.03, chance 0.50). Not averaged: Bob (only yes).
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
    whole, chance = f"{counted(sources.n, 'unseen source')}", sources.worst_chance
    few = " (too few for an interval)" if sources.n < FEWEST_SOURCES else ""
    inside = f"compared with {words(*sources.within)} on seen sources"
    if math.isnan(sources.within[0]):
        inside = "no score on seen sources, because some are a single group"
    level = "" if math.isnan(chance) else f", chance {words(chance)}"
    worst = f"worst: “{sources.worst}” ({words(sources.worst_value)}{level})"
    lead = f"On {whole}"
    if level and sources.n_above is not None:
        lead = f"Above chance on {sources.n_above} of {whole} (95 % interval of score minus chance)"
    mean = f"mean {metric.title} {words(*sources.mean)}{few}"
    return f"{lead}: {mean}, {inside}; {worst}.{others}"
