"""The summary of a pretraining run: its held-out loss, and an earlier one."""

import math

from probekit.report.sentences.pretraining import evaluations, pretraining_answer
from probekit.training.log import LogRow


def row(step, loss=math.nan):
    return LogRow(step, 1000 * step, 0.001, 5.0, 1.0, 9.0, loss, loss / 4, 9.0, 7.0)


def test_an_earlier_loss_is_that_of_at_most_nine_tenths_of_the_steps():
    log = [row(80, 4.0), row(95, 9.0), row(100, 3.5)]
    assert pretraining_answer(log, 200) == (
        "After 100 of 200 steps (100,000 tokens) the held-out loss is 3.50 nats per token; it was "
        "4.00 at step 80."
    )


def test_the_evaluation_on_all_held_out_text_is_compared_with_none():
    log = [row(80, 4.0), row(100, 3.5), row(110, 7.0)]
    assert pretraining_answer(log, 110).endswith("the held-out loss is 7.00 nats per token.")


def test_one_evaluation_is_compared_with_none():
    assert pretraining_answer([row(1, 6.0)], 5).endswith("is 6.00 nats per token.")
    assert pretraining_answer([row(1, 6.0), row(3)], 5).endswith("6.00 nats per token at step 1.")


def test_a_run_without_evaluation():
    assert "has not been measured yet" in pretraining_answer([row(1), row(2)], 5)
    assert evaluations([row(1), row(2, 3.0)]) == [row(2, 3.0)]
