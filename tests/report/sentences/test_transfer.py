"""The summary of a transfer: whether the probe of one data set works on another."""

import math
from dataclasses import replace

import pandas as pd
import pytest

from probekit.report.sentences.comparisons import transfer_answer
from probekit.results.comparison import AT_CHANCE, COSINES, SCORES, Transfer

GOOD = {"value": 0.9, "ci_low": 0.8, "ci_high": 0.95, "difference": -0.02,
        "difference_low": -0.1, "difference_high": 0.05}  # fmt: skip
WORSE = GOOD | {"difference": -0.1, "difference_low": -0.15, "difference_high": -0.05}
CHANCE = WORSE | {"value": 0.52, "ci_low": 0.4, "ci_high": 0.6}
BELOW = WORSE | {"value": 0.1, "ci_low": 0.05, "ci_high": 0.2}


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


def test_both_directions_work():
    assert transfer_answer(made(GOOD, WORSE)) == (
        "Yes: the probe of x works on y (accuracy 0.90 [0.80, 0.95], chance 0.50, own probe of y "
        "0.92); the probe of y works less well on x (accuracy 0.90 [0.80, 0.95], chance 0.50, own "
        "probe of x 1.00)."
    )


@pytest.mark.parametrize(
    ("cells", "lead"),
    [((GOOD, BELOW), "In one direction only:"), ((CHANCE, BELOW), "No:"), ((GOOD, GOOD), "Yes:")],
)
def test_the_answer_begins_with_the_conclusion(cells, lead):
    assert transfer_answer(made(*cells)).startswith(lead)


def test_verdicts():
    found = made(GOOD, WORSE, CHANCE, BELOW, GOOD, GOOD, names=("x", "y", "z")).verdicts
    assert found["verdict"].tolist()[:4] == [
        "works", "works less well", "is not significantly different from chance",
        "is below chance",
    ]  # fmt: skip
    assert found["train"].tolist() == ["x", "x", "y", "y", "z", "z"]


def test_verdicts_hold_for_all_pairs_at_once():
    barely = {**GOOD, "value": 0.6, "ci_low": 0.51, "ci_high": 0.69}
    assert made(barely, barely).verdicts.iloc[0]["verdict"] == AT_CHANCE
    assert made({**barely, "ci_low": 0.53}, barely).verdicts.iloc[0]["verdict"] != AT_CHANCE


def test_a_score_without_an_interval_has_no_verdict():
    nan = float("nan")
    answer = transfer_answer(made({**GOOD, "ci_low": nan, "ci_high": nan}, GOOD))
    assert "has too few test groups for a verdict on y (accuracy 0.90, chance 0.50" in answer


def test_a_loss_is_better_if_lower():
    loss = {"value": 0.1, "ci_low": 0.05, "ci_high": 0.2, "difference": 0.02,
            "difference_low": 0.01, "difference_high": 0.03}  # fmt: skip
    found = made(loss, CHANCE, metric="brier").verdicts
    assert found["verdict"].tolist() == [
        "works less well", "is not significantly different from chance",
    ]  # fmt: skip


def test_many_data_sets_are_counted():
    answer = transfer_answer(made(GOOD, WORSE, CHANCE, BELOW, GOOD, GOOD, names=("x", "y", "z")))
    assert answer.startswith("4 of 6 transfers are above chance; at best, the probe of ")
    assert "at worst, the probe of y is below chance on z (accuracy 0.10" in answer


UNDEFINED = dict.fromkeys(GOOD, math.nan)


def test_without_defined_scores_there_is_no_verdict():
    found = made(GOOD, GOOD)
    none = replace(found, scores=found.scores[found.scores["train"] == found.scores["test"]])
    nothing = "No score of a probe on another data set is defined."
    assert transfer_answer(none) == transfer_answer(made(UNDEFINED, UNDEFINED)) == nothing


def test_an_undefined_score_is_neither_above_nor_at_chance():
    assert transfer_answer(made(GOOD, UNDEFINED)).startswith("In one direction only: ")
    assert transfer_answer(made(GOOD, UNDEFINED)).endswith(
        "; the score of the probe of y on x is undefined."
    )
    answer = transfer_answer(made(UNDEFINED, WORSE, CHANCE, BELOW, GOOD, GOOD, names="xyz"))
    assert answer.startswith("3 of 6 transfers are above chance; at best, the probe of ")
    assert "at worst, the probe of y is below chance on z" in answer
