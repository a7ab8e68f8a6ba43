"""Comparisons of two runs, and transfers between data sets, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from probekit.amounts import counted, decimals, fixed, format_number, joined_names
from probekit.probes.score.metric_table import METRICS
from probekit.report.sentences.answer import p_words
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

MOST_SETTINGS = 3  # named in the sentence under the answer

INPUTS = ("digest of ", "version of ")  # beginnings of the names of facts that are no settings


def comparison_question(comparison: RunComparison) -> str:
    """Return the question that a comparison answers."""
    a, b = comparison.names
    if comparison.is_paired:
        return f"Is {a} better than {b}?"
    return f"Does {a} score higher than {b}?"


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
    if pd.isna(p):
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
