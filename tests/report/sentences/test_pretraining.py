"""The summary of a pretraining run: its held-out loss and whether it still falls."""

import math

import pytest

from probekit.report.sentences.pretraining import evaluations, pretraining_answer
from probekit.training.log import LogRow


def row(step, loss=math.nan):
    return LogRow(step, 1000 * step, 0.001, 5.0, 1.0, 9.0, loss, loss / 4, 9.0, 7.0)


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ((4.0, 3.5), "and still falls: by 0.50 from step 80 to step 100."),
        ((3.5, 3.8), "and rises: by 0.30 from step 80 to step 100."),
        ((3.5, 3.495), "and no longer changes: less than 0.01 from step 80 to step 100."),
    ],
)
def test_the_trend_compares_with_a_tenth_of_the_steps_before(losses, words):
    log = [row(80, losses[0]), row(95, 9.0), row(100, losses[1])]
    answer = pretraining_answer(log, 200)
    assert answer.startswith("After 100 of 200 steps (100,000 tokens) the held-out loss is ")
    assert f"is {losses[1]:.2f} nats per token {words}" in answer


def test_the_evaluation_on_all_held_out_text_has_no_trend():
    log = [row(80, 4.0), row(100, 3.5), row(110, 7.0)]
    answer = pretraining_answer(log, 110)
    assert answer == (
        "After 110 steps (110,000 tokens) the held-out loss is 7.00 nats per token and still "
        "falls: by 0.50 from step 80 to step 100."
    )


def test_one_evaluation_has_no_trend():
    assert pretraining_answer([row(1, 6.0)], 5).endswith("is 6.00 nats per token.")
    assert pretraining_answer([row(1, 6.0), row(3)], 5).endswith("6.00 nats per token at step 1.")


def test_a_run_without_evaluation():
    assert "has not been measured yet" in pretraining_answer([row(1), row(2)], 5)
    assert evaluations([row(1), row(2, 3.0)]) == [row(2, 3.0)]
