"""Summary of a transfer in sentences: which probes work on other data sets, and how much worse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import pandas as pd

from probekit.amounts import LEVEL, counted
from probekit.probes.score.metric_table import METRICS
from probekit.report.figures.style import fixed
from probekit.results.metrics import metric_name
from probekit.results.table import only
from probekit.results.transfer import Transfer

# Verdict on a pair of data sets -> the phrase for the score of the transferred probe.
TRANSFERS = "works"
PARTLY = "works less well"
AT_CHANCE = "is not significantly different from chance"
BELOW = "is below chance"
TOO_FEW = "has too few test groups for a verdict"
UNDEFINED = "has no score"


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
    verdicts = [_verdict(row, lower_is_better, wider) for _, row in others.iterrows()]
    return others.assign(verdict=verdicts)


def _wider(n_pairs: int) -> float:
    """Return the factor that widens 95 % intervals to hold for all pairs at once (Bonferroni)."""
    normal, tail = NormalDist(), LEVEL / 2
    return normal.inv_cdf(1 - tail / max(n_pairs, 1)) / normal.inv_cdf(1 - tail)


def _verdict(row: pd.Series, lower_is_better: bool, wider: float) -> str:
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
