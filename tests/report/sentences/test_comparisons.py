"""Summaries of comparisons and of transfers between data sets."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from probekit.report.sentences import comparisons
from probekit.results.comparison import COSINES, SCORES, Transfer, both_places
from tests.report.pictures import make_comparison


def changed(comparison, *, what="chosen", pairing="paired", metric="accuracy", **columns):
    """The comparison with other values in the rows of one kind."""
    rows = comparison.rows.copy()
    for name, value in columns.items():
        rows.loc[rows["what"] == what, name] = value
    return replace(comparison, rows=rows, pairing=pairing, metric=metric)


MADE = replace(make_comparison("x"), b="y")  # x minus y: 0.8 and 0.6, not significant
BETTER = changed(MADE, holds=True, p_adjusted=0.0004)
UNPAIRED = changed(MADE, pairing="unpaired", holds=True)
BASELINE = {"what": "baseline", "pairing": "unpaired"}
LARGE = changed(UNPAIRED, **BASELINE, holds=True, difference=0.3)
FOLDS = changed(MADE, site_a="chosen", site_b="chosen", probe_a="chosen")
COMPARISONS = {
    "a difference that is not significant": MADE,
    "the better run is named": BETTER,
    "a lower score is better": changed(BETTER, metric="brier"),
    "unpaired runs are not called better": changed(UNPAIRED, pairing="unpaired", difference=-0.2),
    "too few groups": changed(
        MADE, **dict.fromkeys(("p_adjusted", "adjusted_low", "ci_low"), np.nan)
    ),
    "calibration errors are not tested": replace(
        MADE,
        rows=MADE.rows.assign(
            **dict.fromkeys(("p_adjusted", "adjusted_low", "ci_low", "ci_high"), np.nan),
            metric="ece",
            holds=False,
        ),
        metric="ece",
    ),
    "runs without a selected probe": replace(MADE, rows=MADE.rows[MADE.rows["what"] != "chosen"]),
    "equal scores are not called a test result": changed(
        MADE, difference=0.0, ci_low=0.0, ci_high=0.0, holds=False
    ),
    "a baseline that differs as much is a warning": LARGE,
    "a baseline that differs less is none": changed(LARGE, **BASELINE, difference=0.1),
    "a baseline that differs the other way is none": changed(LARGE, **BASELINE, difference=-0.3),
    "a baseline without a significant difference is none": changed(LARGE, **BASELINE, holds=False),
    "a baseline of paired runs is none": replace(LARGE, pairing="paired"),
    "choices of the folds are no single site": changed(FOLDS, position_a="mean"),
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_question_answer_and_warnings_are_those_that_are_stored(snapshot, name):
    made = COMPARISONS[name]
    chosen = [row for _, row in made.rows.iterrows() if row["what"] == "chosen"]
    places = [f"{both_places(row)}: {comparisons.result_words(row)}" for row in chosen]
    lines = [
        comparisons.comparison_question(made),
        comparisons.comparison_answer(made),
        *comparisons.comparison_warnings(made),
    ]
    assert "\n".join([*lines, *places]) == snapshot


def test_settings_that_differ_are_a_sentence(snapshot):
    settings = {"tokens.position.at": ("mean", "last"), "digest of activations (task)": ("1", "2")}
    for given in (settings, {f"key {n}": ("a", "b") for n in range(5)}, {}):
        assert comparisons.settings_words(("x", "y"), given) == snapshot


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
             "metric": metric, "chance": 0.5, "n_test": 80, "n_groups": 20}  # fmt: skip
    pairs = [(train, test) for train in names for test in names]
    values = iter(cells)
    rows = [
        place | {"train": train, "test": test} | (GOOD if train == test else next(values))
        for train, test in pairs
    ]
    leads = [{f"lead_{end}": one[f"ci_{end}"] - one["chance"] for end in ("low", "high")}
             for one in rows]  # fmt: skip
    # The order of the table does not matter.
    rows = [lead | row for lead, row in zip(leads, rows, strict=True)][::-1]
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
    "chance varies, too": made(
        {**GOOD, "lead_low": -0.01, "lead_high": 0.5},
        {**CHANCE, "lead_low": 0.01, "lead_high": 0.1},
    ),
    "too few groups": made({**GOOD, "n_groups": 5}, GOOD),
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
    assert "\n".join([*comparisons.transfer_answer(found), *verdicts]) == snapshot


def test_missing_pairs_are_undefined():
    found = made(GOOD, GOOD)
    none = replace(found, scores=found.scores.query("train == test"))
    undefined = TRANSFERS["no score is defined"]
    assert comparisons.transfer_answer(none) == comparisons.transfer_answer(undefined)
