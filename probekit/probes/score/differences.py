"""Differences of a metric between two probes, with confidence interval and p-value.

Predictions on the same rows are compared with shared resamples (paired), so that common variation
cancels; this is used for layers, seeds and runs on one test set. Predictions on different rows are
resampled independently (unpaired).
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

# Makes the smallest possible p-value half of the level divided by the number of comparisons.
DRAWS_A_COMPARISON = round(4 / LEVEL)
# Maximum number of entries (groups x draws) of the resampling counts.
MOST_COUNTS = 50_000_000

A = TypeVar("A")
Metric = Callable[[A, Resamples], Floats]


@dataclass(frozen=True)
class Difference:
    """Difference `value` = a - b of two scores, with its 95 % confidence interval.

    `p` is two-sided, for the null hypothesis of no difference; `holm_p` is `p` with Holm's
    adjustment for multiple comparisons. All are NaN if the difference is undefined.
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
    """Return the difference of the metric for two sets of predictions on the same rows.

    >>> from probekit.probes.score.metrics import ClassPredictions, accuracy
    >>> truth = np.tile([0, 1], 50)
    >>> good, bad = ClassPredictions(truth, truth, 2), ClassPredictions(truth, 0 * truth, 2)
    >>> difference = paired_difference(accuracy, good, bad, Resamples.draw(np.arange(100), 999, 0))
    >>> difference.value, difference.p
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
    """Return the difference of the metric for predictions on different rows.

    The draws of b are shuffled, because resamples with the same seed would be correlated.

    Raises:
        DataError: The numbers of draws differ.

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
            f"One side has {len(a) - 1} draws and the other {len(b) - 1}. Use the same number of "
            "draws for both."
        )
    order = np.random.default_rng(seed).permutation(len(b) - 1)
    return _difference(a, np.concatenate([b[:1], b[1:][order]]))


def all_differences(
    metric: Metric[A], answers: Mapping[str, A], reference: str, resamples: Resamples
) -> dict[str, Difference]:
    """Return the difference of each set of predictions from the reference, with Holm's adjustment.

    Raises:
        UnknownNameError: The reference is not among the predictions.

    >>> from probekit.probes.score.metrics import ClassPredictions, accuracy
    >>> truth = np.tile([0, 1], 50)
    >>> answers = {f"layer {n}": ClassPredictions(truth, n * truth, 3) for n in range(3)}
    >>> resamples = Resamples.draw(np.arange(100), 999, 0)
    >>> differences = all_differences(accuracy, answers, "layer 0", resamples)
    >>> {name: (one.value, one.p, one.holm_p) for name, one in differences.items()}
    {'layer 1': (0.5, 0.002, 0.004), 'layer 2': (0.0, 1.0, 1.0)}
    """
    if reference not in answers:
        raise UnknownNameError(
            f"There are no predictions of {reference!r}. {nearest(reference, answers)}"
        )
    base = metric(answers[reference], resamples)
    differences = {
        name: _difference(metric(others, resamples), base)
        for name, others in answers.items()
        if name != reference
    }
    return adjusted(differences)


def enough_draws(n_comparisons: int, requested: int, n_groups: int) -> int:
    """Return the number of draws needed for significance after adjustment; at least `requested`.

    The additional draws are limited by the memory for their counts.

    >>> enough_draws(5, 1000, n_groups=3), enough_draws(100, 1000, n_groups=3)
    (1000, 8000)
    """
    return max(requested, min(DRAWS_A_COMPARISON * n_comparisons, MOST_COUNTS // n_groups))


def adjusted(differences: Mapping[str, Difference]) -> dict[str, Difference]:
    """Return the differences with Holm-adjusted p-values; those whose p is NaN are unchanged.

    >>> ps = [("a", 0.01), ("b", 0.5)]
    >>> differences = {name: Difference(1, 0, 1, 0, 2, p, p) for name, p in ps}
    >>> [one.holm_p for one in adjusted(differences).values()]
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
    """Return the two-sided bootstrap p-value: twice the fraction of draws on the rarer side of 0.

    The observed value counts as one additional draw. Draws of exactly 0 count on both sides, so
    that identical predictions have a p-value of 1.
    """
    draws = differences[1:][~np.isnan(differences[1:])]
    if np.isnan(differences[0]) or not len(draws):
        return float("nan")
    rarer = min((draws <= 0).sum(), (draws >= 0).sum())
    return float(min(1.0, 2 * (1 + rarer) / (1 + len(draws))))
