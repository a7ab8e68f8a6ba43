"""Summary of a pretraining run in sentences: held-out loss, its trend, steps and tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

from probekit.training.log import LogRow

SMALLEST_CHANGE = 0.01  # nats per token; a smaller change of the held-out loss is not a trend
COMPARED_SHARE = 0.9  # the trend is the change over the last tenth of the steps


def pretraining_answer(log: Sequence[LogRow], n_steps: int) -> str:
    """Return the latest held-out loss, and whether it still falls, as a sentence.

    Args:
        log: rows of the log, at least one.
        n_steps: number of steps of the recipe.

    >>> rows = [LogRow(n, 64 * n, 0.1, 3.0, 1.0, 9.0, 5 - n / 10, 2.0, 9.0, 8.0) for n in (7, 8, 9)]
    >>> pretraining_answer(rows, 20)
    'After 9 of 20 steps (576 tokens) the held-out loss is 4.10 nats per token and still falls: by \
0.10 from step 8 to step 9.'
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
    return f"After {seen} the held-out loss is {loss:.2f} nats per token{at}{_trend(log, n_steps)}."


def evaluations(log: Sequence[LogRow]) -> list[LogRow]:
    """Return the rows at which the held-out loss was measured."""
    return [row for row in log if not math.isnan(row.held_out_loss)]


def _trend(log: Sequence[LogRow], n_steps: int) -> str:
    """Return the change of the held-out loss over about the last tenth of the steps, as a phrase.

    The evaluation after the last step of the recipe is left out: it uses all held-out text, and
    the others only some rows of it.
    """
    comparable = [row for row in evaluations(log) if row.step < n_steps]
    if not comparable:
        return ""
    last = comparable[-1]
    earlier = [row for row in comparable if row.step <= COMPARED_SHARE * last.step]
    if not earlier:
        return ""
    first = earlier[-1]
    change = last.held_out_loss - first.held_out_loss
    steps = f"from step {first.step:,} to step {last.step:,}"
    if abs(change) < SMALLEST_CHANGE:
        return f" and no longer changes: less than {SMALLEST_CHANGE:g} {steps}"
    verb = "still falls" if change < 0 else "rises"
    return f" and {verb}: by {abs(change):.2f} {steps}"
