"""The summary of a transfer: whether the probe of one data set works on another."""

import math
from dataclasses import replace

import pandas as pd
import pytest

from probekit.report.sentences.comparisons import transfer_answer
from probekit.results.comparison import COSINES, SCORES, Transfer

GOOD = {"value": 0.9, "ci_low": 0.8, "ci_high": 0.95, "difference": -0.02,
        "difference_low": -0.1, "difference_high": 0.05}  # fmt: skip
WORSE = GOOD | {"difference": -0.1, "difference_low": -0.15, "difference_high": -0.05}
CHANCE = WORSE | {"value": 0.52, "ci_low": 0.4, "ci_high": 0.6}
BELOW = WORSE | {"value": 0.1, "ci_low": 0.05, "ci_high": 0.2}
BARELY = {**GOOD, "value": 0.6, "ci_low": 0.51, "ci_high": 0.69}
LOSS = {"value": 0.1, "ci_low": 0.05, "ci_high": 0.2, "difference": 0.02,
        "difference_low": 0.01, "difference_high": 0.03}  # fmt: skip
UNDEFINED = dict.fromkeys(GOOD, math.nan)
UNCERTAIN = {**GOOD, "ci_low": math.nan, "ci_high": math.nan}


def made(*cells, names=("x", "y"), metric="accuracy"):
    """A transfer whose pairs off the diagonal have these scores, in order."""
    place = {"model": "m", "site": "s", "position": "last", "view": "raw", "probe": "logistic",
             "metric": metric, "chance": 0.5}  # fmt: skip
    pairs = [(train, test) for train in names for test in names]
    values = iter(cells)
    rows = [
        place | {"train": train, "test": test} | (GOOD if train == test else next(values))
        for train, test in pairs
    ]
    rows.reverse()  # the order of the table does not matter
    scores = pd.DataFrame(rows, columns=list(SCORES))
    cosines = pd.DataFrame(columns=list(COSINES))
    return Transfer(names, "m", scores, cosines, metric, ("s", "logistic"), ())


TRANSFERS = {
    "both directions work": made(GOOD, WORSE),
    "as well as the own probe": made(GOOD, GOOD),
    "in one direction only": made(GOOD, BELOW),
    "in no direction": made(CHANCE, BELOW),
    "verdicts hold for all pairs at once": made(BARELY, BARELY),
    "an interval above chance for all pairs at once": made({**BARELY, "ci_low": 0.53}, BARELY),
    "a score without an interval has no verdict": made(UNCERTAIN, GOOD),
    "a loss is better if lower": made(LOSS, CHANCE, metric="brier"),
    "many data sets are counted": made(GOOD, WORSE, CHANCE, BELOW, GOOD, GOOD, names="xyz"),
    "an undefined score is neither above nor at chance": made(GOOD, UNDEFINED),
    "one of many is undefined": made(UNDEFINED, WORSE, CHANCE, BELOW, GOOD, GOOD, names="xyz"),
    "no score is defined": made(UNDEFINED, UNDEFINED),
}


@pytest.mark.parametrize("name", TRANSFERS)
def test_answer_and_verdicts_are_those_that_are_stored(snapshot, name):
    found = TRANSFERS[name]
    verdicts = [
        f"{row['train']} on {row['test']}: {row['verdict']}" for _, row in found.verdicts.iterrows()
    ]
    assert "\n".join([transfer_answer(found), *verdicts]) == snapshot


def test_missing_pairs_are_undefined():
    found = made(GOOD, GOOD)
    none = replace(found, scores=found.scores[found.scores["train"] == found.scores["test"]])
    assert transfer_answer(none) == transfer_answer(TRANSFERS["no score is defined"])
