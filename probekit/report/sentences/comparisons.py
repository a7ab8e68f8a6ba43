"""Comparisons of two runs, and transfers between data sets, in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist

import pandas as pd

from probekit.amounts import LEVEL, counted, joined_names
from probekit.probes.score.metric_table import METRICS
from probekit.report.figures.style import decimals, fixed, format_number
from probekit.report.sentences.answer import p_words
from probekit.results.comparison import RunComparison, Transfer, place_name
from probekit.results.site_results import NESTED_SITE
from probekit.results.table import metric_name, only

MOST_SETTINGS = 3  # named in the sentence under the answer

# Verdict on a pair of data sets -> the phrase for the score of the transferred probe.
TRANSFERS = "works"
PARTLY = "works less well"
AT_CHANCE = "is not significantly different from chance"
BELOW = "is below chance"
TOO_FEW = "has too few test groups for a verdict"
UNDEFINED = "has no score"


def comparison_question(comparison: RunComparison) -> str:
    """Return the question that a comparison answers."""
    a, b = comparison.names
    if _is_paired(comparison):
        return f"Is {a} better than {b}?"
    return f"Does {a} score higher than {b}?"


def comparison_answer(comparison: RunComparison) -> str:
    """Return which of the two selected probes is better, with interval and p-value, as a sentence.

    Interval and p-value are adjusted for all comparisons, as is the verdict.
    """
    chosen = comparison.rows[comparison.rows["what"] == "chosen"]
    if chosen.empty:
        return f"The selected probes have no scores that can be compared. {comparison.verdict}"
    row = chosen.iloc[0]
    numbers = (
        f"{metric_name(comparison.metric)} {_values(row, comparison)}, "
        f"difference {_interval(row, ('adjusted_low', 'adjusted_high'))}, {_p(row)}, "
        f"{_rows(row, comparison)}."
    )
    n_sites = int((comparison.rows["what"] == "site").sum())
    n_significant = int(comparison.rows.loc[comparison.rows["what"] == "site", "holds"].sum())
    at_sites = (
        f" At {n_significant} of {counted(n_sites, 'single site')} the difference is significant."
        if n_significant and not row["holds"]
        else ""
    )
    is_nested = row["site_a"] == row["site_b"] == NESTED_SITE
    where = " at the sites that the folds chose" if is_nested else ""
    return f"{_verdict(row, comparison)}{where}: {numbers}{at_sites}"


def comparison_warnings(comparison: RunComparison) -> list[str]:
    """Return a warning if baselines differ as much as the selected probes of unpaired runs."""
    rows = comparison.rows
    chosen = rows[rows["what"] == "chosen"]
    if _is_paired(comparison) or chosen.empty or not chosen["holds"].iloc[0]:
        return []
    difference = chosen["difference"].iloc[0]
    same_sign = rows["difference"] * difference > 0
    as_much = rows["difference"].abs() >= abs(difference)
    easier = rows[(rows["what"] == "baseline") & rows["holds"].astype(bool) & same_sign & as_much]
    if easier.empty:
        return []
    named = [f"{place_name(row, 'a')} ({_interval(row)})" for _, row in easier.iterrows()]
    return [
        f"Baselines without the network differ at least as much: {joined_names(named)}. The "
        "difference may come from the data and not from the network."
    ]


def _is_paired(comparison: RunComparison) -> bool:
    return comparison.pairing == "paired"


def _verdict(row: pd.Series, comparison: RunComparison) -> str:
    a, b = comparison.names
    if pd.isna(row["p_adjusted"]):
        return "Too few groups to decide"
    if not row["holds"]:
        return "No significant difference"
    lower_is_better = METRICS[comparison.metric].lower_is_better
    if not _is_paired(comparison):
        return f"{a if row['difference'] > 0 else b} scores higher"
    return f"{a if (row['difference'] > 0) != lower_is_better else b} is better"


def difference_words(row: pd.Series) -> str:
    """Return the difference of a comparison with its sign and interval, as in the tables.

    >>> difference_words(pd.Series({"difference": 0.051, "ci_low": 0.014, "ci_high": 0.09}))
    '+0.051 [0.014, 0.090]'
    """
    sign = "+" if row["difference"] > 0 else ""
    return sign + format_number(row["difference"], row["ci_low"], row["ci_high"])


def result_words(row: pd.Series) -> str:
    """Return whether the difference of a comparison is significant, or that it has no test.

    >>> result_words(pd.Series({"difference": 0.0, "ci_low": 0.0, "ci_high": 0.0, "holds": False}))
    'equal'
    """
    if row["holds"]:
        return "significant"
    is_equal = all(row[name] == 0 for name in ("difference", "ci_low", "ci_high"))
    if is_equal:
        return "equal"
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
    own = {
        name: values
        for name, values in settings.items()
        if not name.startswith(("digest of ", "version of "))
    }
    if not own:
        return ""
    if len(own) > MOST_SETTINGS:
        return f"{len(own)} settings differ; see below."
    parts = [f"{name} is {x} in {a} and {y} in {b}" for name, (x, y) in own.items()]
    return f"Settings that differ: {'; '.join(parts)}."


def _values(row: pd.Series, comparison: RunComparison) -> str:
    """Return the scores of both runs with their names."""
    a, b = comparison.names
    places = _places(row)
    value_a, value_b = (fixed(row[side], places) for side in ("value_a", "value_b"))
    return f"{value_a} for {a}, {value_b} for {b}"


def _interval(row: pd.Series, limits: tuple[str, str] = ("ci_low", "ci_high")) -> str:
    """Return the difference with its sign and interval, with as few decimals as keep them from 0.

    >>> _interval(pd.Series({"difference": 0.051, "ci_low": 0.014, "ci_high": 0.09}))
    '+0.05 [0.01, 0.09]'
    """
    sign = "+" if row["difference"] > 0 else ""
    if pd.isna(row[limits[0]]):
        limits = "ci_low", "ci_high"  # there is no verdict that they could contradict
    if pd.isna(row[limits[0]]):
        return f"{sign}{format_number(row['difference'])}"
    value, low, high = (fixed(row[name], _places(row)) for name in ("difference", *limits))
    return f"{sign}{value} [{low}, {high}]"


def _places(row: pd.Series) -> int:
    return decimals([row["difference"], row["ci_low"], row["ci_high"]], most=4)


def _p(row: pd.Series) -> str:
    return "no p" if pd.isna(row["p_adjusted"]) else f"adjusted {p_words(row['p_adjusted'])}"


def _rows(row: pd.Series, comparison: RunComparison) -> str:
    """Return the number of test rows and groups of both runs, as a phrase."""
    a, b = (
        f"{row[f'n_{side}']:,.0f} test rows in {row[f'n_groups_{side}']:,.0f} groups"
        for side in ("a", "b")
    )
    return f"on the same {a}" if _is_paired(comparison) else f"on different rows ({a}; {b})"


def transfer_answer(transfer: Transfer) -> str:
    """Return whether the probe of each data set works on the others, as a sentence.

    The probes are those of the selected site and kind. With more than two data sets, the pairs are
    counted and the best and the worst one are named.
    """
    pairs = transferred(transfer)
    if pairs["value"].isna().all():  # also without pairs
        return "No score of a probe on another data set is defined."
    works = pairs["verdict"].isin([TRANSFERS, PARTLY])
    if len(pairs) <= 2:
        lead = "Yes" if works.all() else "In one direction only" if works.any() else "No"
        return f"{lead}: {'; '.join(_pair(row, transfer) for _, row in pairs.iterrows())}."
    ordered = pairs.dropna(subset="value").sort_values("value", kind="stable")
    if METRICS[transfer.metric].lower_is_better:
        ordered = ordered[::-1]
    n, verb = int(works.sum()), "is" if works.sum() == 1 else "are"
    return (
        f"{n} of {counted(len(pairs), 'transfer')} {verb} above chance; at best, "
        f"{_pair(ordered.iloc[-1], transfer)}; at worst, {_pair(ordered.iloc[0], transfer)}."
    )


def transferred(transfer: Transfer) -> pd.DataFrame:
    """Return the scores of the selected probes on other data sets, each with its `verdict`."""
    site, probe = transfer.chosen
    rows = only(transfer.scores, metric=transfer.metric, site=site, probe=probe)
    others = rows[rows["train"] != rows["test"]]
    others = others.sort_values(
        ["train", "test"], key=lambda names: names.map(list(transfer.names).index)
    )
    lower_is_better = METRICS[transfer.metric].lower_is_better
    wider = _wider(len(others))
    verdicts = [_transfer_verdict(row, lower_is_better, wider) for _, row in others.iterrows()]
    return others.assign(verdict=verdicts)


def _wider(n_pairs: int) -> float:
    """Return the factor that widens 95 % intervals to hold for all pairs at once (Bonferroni)."""
    normal, tail = NormalDist(), LEVEL / 2
    return normal.inv_cdf(1 - tail / max(n_pairs, 1)) / normal.inv_cdf(1 - tail)


def _transfer_verdict(row: pd.Series, lower_is_better: bool, wider: float) -> str:
    """Return how the score of a transferred probe compares with chance and with the own probe.

    Args:
        row: a row of `transferred`.
        lower_is_better: whether lower scores are better.
        wider: factor of the distances from values to the limits of their intervals.
    """
    sign = -1 if lower_is_better else 1
    if math.isnan(row["value"]):
        return UNDEFINED
    if pd.isna(row["ci_low"]) or pd.isna(row["ci_high"]):
        return TOO_FEW
    ends = sorted(
        sign * (row["value"] + wider * (row[end] - row["value"]) - row["chance"])
        for end in ("ci_low", "ci_high")
    )
    if ends[1] < 0:
        return BELOW
    if not ends[0] > 0:
        return AT_CHANCE
    lost = sorted(
        sign * (row["difference"] + wider * (row[end] - row["difference"]))
        for end in ("difference_low", "difference_high")
    )
    return PARTLY if lost[1] < 0 else TRANSFERS


def _pair(row: pd.Series, transfer: Transfer) -> str:
    """Return the result of one probe on one other data set, as a clause."""
    if row["verdict"] == UNDEFINED:
        return f"the score of the probe of {row['train']} on {row['test']} is undefined"
    name = metric_name(transfer.metric)
    own = row["value"] - row["difference"]
    value, low, high, chance, of_own = (
        fixed(number, 2)
        for number in (*row[["value", "ci_low", "ci_high", "chance"]].astype(float), own)
    )
    limits = "" if pd.isna(row["ci_low"]) else f" [{low}, {high}]"
    numbers = [f"{name} {value}{limits}", f"chance {chance}"]
    numbers.append(f"own probe of {row['test']} {of_own}")
    return f"the probe of {row['train']} {row['verdict']} on {row['test']} ({', '.join(numbers)})"


def transfer_question(names: Sequence[str]) -> str:
    """Return the question that a transfer answers.

    >>> transfer_question(["a", "b"]), transfer_question(["a", "b", "c"])
    ('Does a probe of a work on b, and the reverse?', 'Do probes of a, b, c work on one another?')
    """
    if len(names) == 2:
        return f"Does a probe of {names[0]} work on {names[1]}, and the reverse?"
    return f"Do probes of {', '.join(names)} work on one another?"
