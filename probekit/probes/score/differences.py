"""Differences of a metric between two probes, with confidence interval and p-value.

Predictions on the same rows are compared unit by unit (paired), so that common variation cancels;
this is used for layers, seeds and runs on one test set. Predictions on different rows are compared
by Welch's t test over groups (unpaired).

A unit is a group of test rows; see `Resamples`. Its contribution to a paired difference is computed
by leaving it out. Under the null hypothesis, the sign of the contribution is random. The false
positive rates of these tests and the coverage of the intervals are simulated by
`python -m benchmarks.claims`.

Source: Efron and Tibshirani (1993), An introduction to the bootstrap, chapter 11 (jackknife);
Westfall and Young (1993), Resampling-based multiple testing, algorithm 2.8 (step-down maximum).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from scipy.stats import t

from probekit.errors import UnknownNameError, nearest
from probekit.probes.score.exchange import sign_patterns
from probekit.probes.score.intervals import (
    FEWEST_UNITS,
    degrees_of_freedom,
    jackknife_interval,
    jackknife_variance,
    t_quantile,
)
from probekit.probes.score.metrics import Resamples
from probekit.probes.score.permutation import ROUNDING, holm
from probekit.probes.solve.design import Floats

DRAWS = 10_000  # number of random sign patterns, if there are too many to use all

A = TypeVar("A")


@dataclass(frozen=True)
class Difference:
    """Difference `value` = a - b of two scores, with its 95 % confidence interval.

    `p` is two-sided, for the null hypothesis of no difference; `p_adjusted` is adjusted for all
    comparisons that were made together. Both are NaN if there are too few groups for a verdict;
    all are NaN if the difference is undefined.
    """

    a: float
    b: float
    value: float
    ci_low: float
    ci_high: float
    p: float
    p_adjusted: float


def paired_differences(
    pairs: Sequence[tuple[Floats, Floats]], resamples: Resamples
) -> list[Difference]:
    """Return the differences a - b of pairs of metric values (1 + n_units,) on the same rows.

    The p-values come from flipping the signs of the units' contributions, with the same sign
    patterns for all pairs. Up to 14 units, all patterns are used; with more, 10,000 random ones.
    The p-values are adjusted by the step-down maximum of the standardised differences.

    >>> from probekit.probes.score.metrics import ClassPredictions, accuracy
    >>> truth, resamples = np.tile([0, 1], 5), Resamples.leave_one_out(np.arange(10))
    >>> good, bad = (
    ...     accuracy(ClassPredictions(truth, guess, 2), resamples) for guess in (truth, 1 - truth)
    ... )
    >>> [(one.value, round(one.p, 4)) for one in paired_differences([(good, bad)], resamples)]
    [(1.0, 0.002)]
    """
    if not pairs:
        return []
    contributions = np.stack([_contributions(a - b, resamples) for a, b in pairs])
    defined = ~np.isnan(contributions).any(axis=1)
    p = np.full((2, len(pairs)), np.nan)
    if defined.any() and len(resamples.weights) >= FEWEST_UNITS:
        p[:, defined] = _sign_tests(contributions[defined], resamples.widening)
    return [_difference(a, b, resamples, *p[:, n]) for n, (a, b) in enumerate(pairs)]


def unpaired_difference(
    a: Floats, resamples_a: Resamples, b: Floats, resamples_b: Resamples
) -> Difference:
    """Return the difference a - b of metric values (1 + n_units,) on different rows.

    The p-value is not adjusted. It is NaN if one side has fewer than 6 groups.

    >>> from probekit.probes.score.metrics import ClassPredictions, accuracy
    >>> truth, resamples = np.tile([0, 1], 50), Resamples.leave_one_out(np.arange(100))
    >>> values = [
    ...     accuracy(ClassPredictions(truth, guess, 2), resamples) for guess in (truth, 0 * truth)
    ... ]
    >>> unpaired_difference(values[0], resamples, values[1], resamples).value
    0.5

    Source: Welch (1947), The generalization of Student's problem when several different population
    variances are involved.
    """
    value = float(a[0] - b[0])
    variances = np.array([jackknife_variance(a), jackknife_variance(b)])
    variances *= np.square([resamples_a.widening, resamples_b.widening])
    if np.isnan(variances).any():
        return Difference(float(a[0]), float(b[0]), value, *[float("nan")] * 4)
    error = float(np.sqrt(variances.sum()))
    each = np.array([degrees_of_freedom(one) for one in (resamples_a, resamples_b)])
    df = error**4 / np.sum(variances**2 / each) if error else float(each.sum())
    margin = error * t_quantile(df) if error else 0.0
    p = float(2 * t.sf(abs(value) / error, df)) if error else float(value == 0)
    if min(len(resamples_a.weights), len(resamples_b.weights)) < FEWEST_UNITS:
        p = float("nan")
    return Difference(float(a[0]), float(b[0]), value, value - margin, value + margin, p, p)


def all_differences(
    metric: Callable[[A, Resamples], Floats],
    answers: Mapping[str, A],
    reference: str,
    resamples: Resamples,
) -> dict[str, Difference]:
    """Return the paired difference of each set of predictions from the reference, by name.

    `reference` is the name of one of the sets. The p-values are adjusted for all these comparisons.

    Raises:
        UnknownNameError: The reference is not among the predictions.

    >>> from probekit.probes.score.metrics import ClassPredictions, accuracy
    >>> truth = np.tile([0, 1], 50)
    >>> answers = {f"layer {n}": ClassPredictions(truth, n * truth, 3) for n in range(3)}
    >>> resamples = Resamples.leave_one_out(np.arange(100))
    >>> differences = all_differences(accuracy, answers, "layer 0", resamples)
    >>> [round(one.value, 6) for one in differences.values()]
    [0.5, 0.0]
    >>> differences["layer 1"].p_adjusted < 0.001, differences["layer 2"].p
    (True, 1.0)
    """
    if reference not in answers:
        raise UnknownNameError(
            f"There are no predictions of {reference!r}. {nearest(reference, answers)}"
        )
    base = metric(answers[reference], resamples)
    others = {name: one for name, one in answers.items() if name != reference}
    pairs = [(metric(one, resamples), base) for one in others.values()]
    return dict(zip(others, paired_differences(pairs, resamples), strict=True))


def adjusted(differences: Sequence[Difference]) -> list[Difference]:
    """Return unpaired differences with Holm-adjusted p-values; those without p are unchanged.

    >>> [one.p_adjusted for one in adjusted([Difference(1, 0, 1, 0, 2, p, p) for p in (0.01, 0.5)])]
    [0.02, 0.5]
    """
    tested = [n for n, one in enumerate(differences) if not np.isnan(one.p)]
    values = holm(np.array([differences[n].p for n in tested]))
    by_number = dict(zip(tested, values, strict=True))
    return [
        replace(one, p_adjusted=float(by_number.get(n, np.nan)))
        for n, one in enumerate(differences)
    ]


def _difference(
    a: Floats, b: Floats, resamples: Resamples, p: float, p_adjusted: float
) -> Difference:
    interval = jackknife_interval(a - b, resamples)
    return Difference(
        a=float(a[0]),
        b=float(b[0]),
        value=interval.value,
        ci_low=interval.low,
        ci_high=interval.high,
        p=float(p),
        p_adjusted=float(p_adjusted),
    )


def _contributions(values: Floats, resamples: Resamples) -> Floats:
    """Return the contribution (n_units,) of each unit to the value over all groups.

    `values` (1 + n_units,) is this value, then the values with each unit left out. Contributions
    are a first-order approximation. For a mean over rows they are exact: the sum over the unit's
    rows, divided by the number of all rows.
    """
    weights = resamples.weights
    contributions: Floats = values[0] * weights + (1 - weights) * (values[0] - values[1:])
    return contributions


def _sign_tests(contributions: Floats, widening: float) -> Floats:
    """Return p-values and adjusted p-values (2, n_tests) for contributions (n_tests, n_units).

    The null distribution is widened by a factor.
    """
    spread = np.sqrt(np.square(contributions).sum(axis=1, keepdims=True))
    units = np.divide(contributions, spread, out=np.zeros_like(contributions), where=spread > 0)
    observed = np.abs(units.sum(axis=1)) / widening
    order = np.argsort(-observed, kind="stable")
    single, maximum, n_patterns = np.zeros(len(units)), np.zeros(len(units)), 0
    for signs in sign_patterns(units.shape[1], DRAWS, seed=0):
        drawn = np.abs(units[order] @ signs.T)
        least = observed[order, None] - ROUNDING
        single += (drawn >= least).sum(axis=1)
        # The step-down maximum is over this test and all with smaller observed differences.
        largest = np.maximum.accumulate(drawn[::-1], axis=0)[::-1]
        maximum += (largest >= least).sum(axis=1)
        n_patterns += len(signs)
    p = np.empty((2, len(units)))
    p[:, order] = single / n_patterns, np.maximum.accumulate(maximum / n_patterns)
    return p
