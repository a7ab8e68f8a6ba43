"""How much one probe beats another: differences of a metric, with interval and p-value.

On the same rows both sides share their resamples, so that what is hard for both cancels; that is
how layers, seeds and runs over one test set are compared. Different rows are resampled apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from probekit.amounts import LEVEL
from probekit.errors import DataError, UnknownNameError, nearest
from probekit.probes.score.metrics import Resamples, percentile_interval
from probekit.probes.score.permutation import holm
from probekit.probes.solve.design import Floats

# The least p-value is then half of the level over the number of comparisons.
DRAWS_A_COMPARISON = round(4 / LEVEL)
# Counts of groups in draws that are held at a time.
MOST_COUNTS = 50_000_000

A = TypeVar("A")
Metric = Callable[[A, Resamples], Floats]


@dataclass(frozen=True)
class Difference:
    """The scores `a` and `b`, and `value`, which is a - b, with its 95 % interval.

    `p` is two-sided, of the hypothesis that there is no difference; `holm_p` is `p` adjusted for
    the comparisons made together. All are NaN where the difference is not defined.
    """

    a: float
    b: float
    value: float
    ci_low: float
    ci_high: float
    p: float
    holm_p: float


def paired_difference(
    metric: Metric[A], answers_a: A, answers_b: A, resamples: Resamples
) -> Difference:
    """Return the difference of two answers on the same rows.

    >>> from probekit.probes.score.metrics import ClassPredictions, accuracy
    >>> truth = np.tile([0, 1], 50)
    >>> good, bad = ClassPredictions(truth, truth, 2), ClassPredictions(truth, 0 * truth, 2)
    >>> found = paired_difference(accuracy, good, bad, Resamples.draw(np.arange(100), 999, 0))
    >>> found.value, found.p
    (0.5, 0.002)

    Source: Efron and Tibshirani (1993), An introduction to the bootstrap, chapters 13 and 15.
    """
    return _difference(metric(answers_a, resamples), metric(answers_b, resamples))


def unpaired_difference(
    metric: Metric[A],
    answers_a: A,
    resamples_a: Resamples,
    answers_b: A,
    resamples_b: Resamples,
    seed: int = 0,
) -> Difference:
    """Return the difference of answers on different rows, whose draws are independent.

    The draws of b are put in another order: resamples of one seed would go up and down together.

    Raises:
        DataError: The two have different numbers of draws.

    >>> from probekit.probes.score.metrics import ClassPredictions, accuracy
    >>> truth = np.tile([0, 1], 50)
    >>> good, bad = ClassPredictions(truth, truth, 2), ClassPredictions(truth, 0 * truth, 2)
    >>> resamples = Resamples.draw(np.arange(100), 999, 0)
    >>> unpaired_difference(accuracy, good, resamples, bad, resamples).value
    0.5
    """
    a, b = metric(answers_a, resamples_a), metric(answers_b, resamples_b)
    if len(a) != len(b):
        raise DataError(
            f"One side has {len(a) - 1} draws and the other {len(b) - 1}. Draw as many of each."
        )
    order = np.random.default_rng(seed).permutation(len(b) - 1)
    return _difference(a, np.concatenate([b[:1], b[1:][order]]))


def all_differences(
    metric: Metric[A], answers: Mapping[str, A], reference: str, resamples: Resamples
) -> dict[str, Difference]:
    """Return for each name but the reference its difference to it, adjusted for their number.

    Raises:
        UnknownNameError: There are no answers of the reference.

    >>> from probekit.probes.score.metrics import ClassPredictions, accuracy
    >>> truth = np.tile([0, 1], 50)
    >>> answers = {f"layer {n}": ClassPredictions(truth, n * truth, 3) for n in range(3)}
    >>> resamples = Resamples.draw(np.arange(100), 999, 0)
    >>> found = all_differences(accuracy, answers, "layer 0", resamples)
    >>> {name: (one.value, one.p, one.holm_p) for name, one in found.items()}
    {'layer 1': (0.5, 0.002, 0.004), 'layer 2': (0.0, 1.0, 1.0)}
    """
    if reference not in answers:
        raise UnknownNameError(
            f"There are no answers of {reference!r}. {nearest(reference, answers)}"
        )
    base = metric(answers[reference], resamples)
    found = {
        name: _difference(metric(others, resamples), base)
        for name, others in answers.items()
        if name != reference
    }
    return adjusted(found)


def enough_draws(n_comparisons: int, asked: int, n_groups: int) -> int:
    """Return how many draws let a difference hold among so many: at least those asked for.

    No more are drawn than the memory holds.

    >>> enough_draws(5, 1000, n_groups=3), enough_draws(100, 1000, n_groups=3)
    (1000, 8000)
    """
    return max(asked, min(DRAWS_A_COMPARISON * n_comparisons, MOST_COUNTS // n_groups))


def adjusted(differences: Mapping[str, Difference]) -> dict[str, Difference]:
    """Return the differences with p-values adjusted for all of them; those without p stay so.

    >>> found = {name: Difference(1, 0, 1, 0, 2, p, p) for name, p in [("a", 0.01), ("b", 0.5)]}
    >>> [one.holm_p for one in adjusted(found).values()]
    [0.02, 0.5]
    """
    tested = [name for name, one in differences.items() if not np.isnan(one.p)]
    values = holm(np.array([differences[name].p for name in tested]))
    return {
        **differences,
        **{
            name: replace(differences[name], holm_p=float(p))
            for name, p in zip(tested, values, strict=True)
        },
    }


def _difference(a: Floats, b: Floats) -> Difference:
    interval, p = percentile_interval(a - b), _two_sided(a - b)
    return Difference(
        a=float(a[0]),
        b=float(b[0]),
        value=interval.value,
        ci_low=interval.low,
        ci_high=interval.high,
        p=p,
        holm_p=p,
    )


def _two_sided(differences: Floats) -> float:
    """Return twice the share of draws on the rarer side of 0, the value itself counted as one more.

    Draws of exactly 0 count on both sides, so that equal answers have a p-value of 1.
    """
    draws = differences[1:][~np.isnan(differences[1:])]
    if np.isnan(differences[0]) or not len(draws):
        return float("nan")
    rarer = min((draws <= 0).sum(), (draws >= 0).sum())
    return float(min(1.0, 2 * (1 + rarer) / (1 + len(draws))))
