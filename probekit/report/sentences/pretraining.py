"""Summary of a pretraining run in sentences: held-out loss, steps and tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

from probekit.training.log import LogRow

COMPARED_SHARE = 0.9  # of the steps, before which an earlier loss is named


def pretraining_answer(log: Sequence[LogRow], n_steps: int) -> str:
    """Return the latest held-out loss and an earlier one, as a sentence.

    Args:
        log: rows of the log, at least one.
        n_steps: number of steps of the recipe.

    >>> rows = [LogRow(n, 64 * n, 0.1, 3.0, 1.0, 9.0, 5 - n / 10, 2.0, 9.0, 8.0) for n in (7, 8, 9)]
    >>> pretraining_answer(rows, 20)
    'After 9 of 20 steps (576 tokens) the held-out loss is 4.10 nats per token; it was 4.20 at \
step 8.'
    """
    last = log[-1]
    steps = (
        f"{last.step:,} steps" if last.step >= n_steps else f"{last.step:,} of {n_steps:,} steps"
    )
    seen = f"{steps} ({last.tokens:,} tokens)"
    measured = evaluations(log)
    if not measured:
        return f"After {seen} the held-out loss has not been measured yet."
    loss = measured[-1].held_out_loss
    at = "" if measured[-1].step == last.step else f" at step {measured[-1].step:,}"
    now = f"After {seen} the held-out loss is {loss:.2f} nats per token{at}"
    return f"{now}{_earlier(measured, n_steps)}."


def evaluations(log: Sequence[LogRow]) -> list[LogRow]:
    """Return the rows at which the held-out loss was measured."""
    return [row for row in log if not math.isnan(row.held_out_loss)]


def _earlier(measured: Sequence[LogRow], n_steps: int) -> str:
    """Return the loss at an evaluation at most 90 % of the steps before, as a phrase.

    The evaluation after the last step of the recipe is compared with none: it uses all held-out
    text, and the others only some rows of it.
    """
    last = measured[-1].step
    earlier = [row for row in measured if row.step <= COMPARED_SHARE * last]
    if last >= n_steps or not earlier:
        return ""
    return f"; it was {earlier[-1].held_out_loss:.2f} at step {earlier[-1].step:,}"
