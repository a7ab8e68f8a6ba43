"""Differences of a metric between two probes, with confidence interval and p-value.

Predictions on the same rows are compared group by group (paired), so that common variation cancels;
this is used for layers, seeds and runs on one test set. See `probekit.probes.score.unpaired` for
predictions on different rows.

    usually             contributions of groups get random signs, and are resampled
    a class is rare     Welch's t by class, with Satterthwaite's degrees of freedom

A class is rare if it occurs in fewer than half of the groups. For a metric that weights classes
equally, its few groups then carry most of the variance, and random signs would reject too often.

Each interval contains the differences that its own test at 5 % does not reject: it excludes 0
exactly if p < 0.05, and the adjusted interval excludes 0 exactly if the adjusted p < 0.05. Sizes
and coverage are simulated by `python -m benchmarks.claims`.

Source: Efron and Tibshirani (1993), An introduction to the bootstrap, chapter 11 (jackknife);
Westfall and Young (1993), Resampling-based multiple testing, algorithm 2.8 (step-down maximum).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from probekit.amounts import FEWEST_UNITS, LEVEL
from probekit.lazy_rows import Floats
from probekit.probes.score.contributions import ClassParts, class_spread, has_rare_class
from probekit.probes.score.exchange import BLOCK, ROUNDING, sign_patterns
from probekit.probes.score.intervals import jackknife_interval
from probekit.probes.score.metric_table import Range
from probekit.probes.score.metrics import Resamples

DRAWS = 10_000  # number of random sign patterns, if there are too many to use all, and bootstraps
HEAVY = 0.75  # scales of tests below this quantile over all tests are raised to it


@dataclass(frozen=True)
class Difference:
    """Difference `value` = a - b of two scores, with its 95 % confidence interval.

    `p` is two-sided, for the null hypothesis of no difference; `p_adjusted` and the limits
    `adjusted_low` and `adjusted_high` are adjusted for all comparisons that were made together. The
    limits exclude 0 exactly if `p_adjusted` is below 0.05, but are no simultaneous intervals.
    P-values and adjusted limits are NaN if there are too few groups for a verdict; all limits and
    p-values are NaN if the difference is undefined, overall or when some unit is left out, or if
    too few groups all have the same difference, other than 0.
    """

    a: float
    b: float
    value: float
    ci_low: float
    ci_high: float
    p: float
    p_adjusted: float
    adjusted_low: float = float("nan")
    adjusted_high: float = float("nan")

    def within(self, limits: Range) -> Difference:
        """Return this difference with its limits clipped to those of two scores in this range.

        >>> wide = Difference(0.9, 0.8, 0.1, -1.2, 1.4, 0.5, 0.5).within((0.0, 1.0))
        >>> wide.ci_low, wide.ci_high
        (-1.0, 1.0)
        """
        bottom, top = limits
        names = ("ci_low", "ci_high", "adjusted_low", "adjusted_high")
        ends = np.clip([getattr(self, name) for name in names], bottom - top, top - bottom)
        return replace(self, **dict(zip(names, ends.tolist(), strict=True)))


# Array (6, n_tests): its rows are the fields of a `Difference` that `_TESTED` names.
_Tests = Floats
_TESTED = ("p", "p_adjusted", "ci_low", "ci_high", "adjusted_low", "adjusted_high")


def paired_differences(
    pairs: Sequence[tuple[Floats, Floats]],
    resamples: Resamples,
    parts: Sequence[ClassParts | None] = (),
    *,
    is_skewed: bool = False,
) -> list[Difference]:
    """Return the differences a - b of pairs of metric values (1 + n_units,) on the same rows.

    A p-value is the larger one of two tests over units, with the same draws for all pairs, and an
    interval contains those of both. Random signs of the units' contributions assume that these are
    symmetric; up to 14 units, all patterns are used, with more, 10,000 random ones. A bootstrap of
    units with Hall's statistic allows for skewed contributions, such as those of a probe that fails
    in a few groups. The p-values of random signs are adjusted by the step-down maximum of the
    standardised differences; with `is_skewed`, so are those of the bootstrap.

    If a class is rare, the p-value comes from Welch's t by class instead, and its adjustment is
    Bonferroni's. If all groups have the same difference, other than 0, its limits are those of a
    share without exceptions. With fewer than 6 units there are only unadjusted intervals.

    Args:
        pairs: the values of a and of b.
        resamples: the resamples that they were computed for.
        parts: the differences of their parts by class; empty, or None, for metrics without.
        is_skewed: whether the contributions of units are very skewed.

    >>> from probekit.probes.score.metrics import ClassPredictions, accuracy
    >>> truth, resamples = np.tile([0, 1], 5), Resamples.leave_one_out(np.arange(10))
    >>> good, bad = (
    ...     accuracy(ClassPredictions(truth, guess, 2), resamples) for guess in (truth, 1 - truth)
    ... )
    >>> [(one.value, round(one.p, 4)) for one in paired_differences([(good, bad)], resamples)]
    [(1.0, 0.002)]

    Source: Hall (1992), On the removal of skewness by transformation; Welch (1947), The
    generalization of Student's problem when several different population
    variances are involved; Satterthwaite (1946), An approximate distribution of estimates of
    variance components.
    """
    if not pairs:
        return []
    tests: _Tests = np.full((len(_TESTED), len(pairs)), np.nan)
    values = np.array([a - b for a, b in pairs])
    # The parts of the differences for which a class is rare, by the number of the pair.
    rare = {
        number: part
        for number, part in enumerate(parts)
        if part is not None and np.isfinite(values[number, 0]) and has_rare_class(part, resamples)
    }
    if rare:
        tests[:, list(rare)] = _class_tests(values[list(rare)], [*rare.values()], resamples)
    others = np.array([number not in rare for number in range(len(pairs))], dtype=bool)
    if len(resamples.weights) < FEWEST_UNITS:  # too few for p-values: only the interval
        intervals = [jackknife_interval(one, resamples) for one in values[others]]
        # Rows 2 and 3 are `ci_low` and `ci_high`.
        tests[2:4, others] = np.array([(one.low, one.high) for one in intervals]).T
    else:
        weights = resamples.weights
        whole, without = values[:, :1], values[:, 1:]
        # The contribution (n_tests, n_units) of each unit to the value over all groups; it equals
        # whole - (1 - weights) * without. It is exact for a mean over rows, and a first-order
        # approximation for other metrics.
        contributions = whole * weights + (1 - weights) * (whole - without)
        others &= ~np.isnan(contributions).any(axis=1)
        if others.any():
            own = contributions[others]
            signs = sign_tests(own, resamples)
            is_skewed |= any(part is not None and not part.is_linear for part in parts)
            bootstrap = bootstrap_tests(own, resamples, is_skewed)
            # The larger p-values and upper limits, and the smaller lower limits.
            flip = np.array([-1 if name.endswith("_low") else 1 for name in _TESTED])[:, None]
            tests[:, others] = flip * np.maximum(flip * signs, flip * bootstrap)
            for number in map(int, np.flatnonzero(others & (np.ptp(values, axis=1) < ROUNDING))):
                part = parts[number] if parts else None
                # The rarest class of the difference has the fewest groups that could differ.
                n = int(class_spread(part, resamples).n_groups.min()) if part else len(weights)
                tests[:, number] = _agreeing_test(values[number, 0], n, tests[:, number])
    tested = [dict(zip(_TESTED, column, strict=True)) for column in tests.T.tolist()]
    scores = [(float(a[0]), float(b[0]), float(a[0] - b[0])) for a, b in pairs]
    return [Difference(*score, **test) for score, test in zip(scores, tested, strict=True)]


def sign_tests(contributions: Floats, resamples: Resamples) -> _Tests:
    """Return the tests of contributions (n_tests, n_units) by random signs of the units.

    To test a hypothetical difference, each unit's share of it is subtracted from the contribution
    of the unit. A pattern of signs is then at least as extreme as the observed signs for all
    hypothetical differences between two ends. The interval ends where fewer than 5 %
    of the patterns are as extreme, the adjusted one where only those patterns are that exceed the
    critical value of the step-down maximum. Over outer folds, the interval is widened around the
    difference, and p is that of the difference divided by the same factor.
    """
    weights, widening = resamples.weights, resamples.widening
    value = contributions.sum(axis=1)
    shrunk = contributions - weights * (value * (1 - 1 / widening))[:, None]
    spread = np.sqrt(np.square(shrunk).sum(axis=1, keepdims=True))
    standardised = np.divide(shrunk, spread, out=np.zeros_like(shrunk), where=spread > 0)
    drawn, ends = [], []
    for signs in sign_patterns(len(weights), DRAWS, seed=0):
        drawn.append(np.abs(signs @ standardised.T))
        # A pattern is at least as extreme as the observed signs between the two differences d that
        # solve sums - shares d = value - d and sums - shares d = -(value - d).
        sums, shares = signs @ contributions.T, (signs @ weights)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            two = np.stack([(value - sums) / (1 - shares), (value + sums) / (1 + shares)])
        # If all units have the same sign, the pattern is as extreme for every difference.
        same = (np.abs(np.abs(shares) - 1) < ROUNDING)[:, 0]
        two = np.stack([two.min(axis=0), two.max(axis=0)])
        two[:, same] = [[[-np.inf]], [[np.inf]]]
        ends.append(two)
    absolute = np.concatenate(drawn)  # of each pattern, (n_patterns, n_tests)
    p, critical = _step_down(absolute)
    # The number of sorted patterns before each limit.
    before = np.full((2, len(value)), _at_level(absolute))
    before[1] = np.minimum(before[1], (absolute > critical[1] + ROUNDING).sum(axis=0))
    low, high = np.sort(np.concatenate(ends, axis=1) * [[[1]], [[-1]]], axis=1)
    tests = np.arange(len(value))
    limits = np.stack([low[before, tests], -high[before, tests]], axis=1).reshape(4, -1)
    widened = value + widening * (limits - value)
    widened[np.abs(widened) < ROUNDING * spread[:, 0]] = 0.0  # only rounding errors
    return np.concatenate([p, widened])


def bootstrap_tests(contributions: Floats, resamples: Resamples, is_skewed: bool) -> _Tests:
    """Return the tests of contributions (n_tests, n_units) by a bootstrap of whole units.

    The statistic is Hall's transformation of t; see `_hall`. Each draw resamples whole units, the
    same for all tests. A draw of units that agree has no standard deviation of its own, and gets
    the observed one. Over outer folds, see `sign_tests`.

    Without `is_skewed` nothing is adjusted. With it, the adjusted values are those of a step-down
    maximum, in which each statistic is divided by its own 95 % quantile, so that a test with a few
    large units does not govern all others. The quantile is at least the upper quartile over tests:
    a small one may be due to a long tail that was not sampled.
    """
    value, widening = contributions.sum(axis=1), resamples.widening
    deviations = contributions - resamples.weights * value[:, None]
    n, generator = deviations.shape[1], np.random.default_rng(0)
    powers = [deviations**k for k in (1, 2, 3)]
    _, squares, cubes = (power.sum(axis=1) for power in powers)
    statistics = [_hall(value / widening, squares, cubes)[None]]
    for start in range(0, DRAWS, BLOCK):
        size = min(BLOCK, DRAWS - start)
        # How often each draw contains each unit; draw d is counted in the bins from d * n on.
        drawn = generator.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)
        first, second, third = (counts @ power.T for power in powers)
        mean = first / n
        # Sums of (x - mean)^2 and (x - mean)^3 over the drawn units; the sum of x is n mean.
        central_squares = second - n * mean**2
        central_cubes = third - 3 * mean * second + 2 * n * mean**3
        agree = central_squares <= ROUNDING * squares
        moments = np.where(agree, [squares + 0 * mean, 0 * mean], [central_squares, central_cubes])
        statistics.append(_hall(first, *moments))
    absolute = np.abs(np.concatenate(statistics))
    scale = np.quantile(absolute[1:], 1 - LEVEL, axis=0)
    scale = np.maximum(scale, np.quantile(scale, HEAVY))
    scale[scale == 0] = 1.0  # nearly all draws of these tests are 0; avoids 0 / 0
    p, critical = (one[[0, int(is_skewed)]] for one in _step_down(absolute / scale))
    root = np.sqrt(squares)
    skewness = np.divide(cubes, squares * root, out=np.zeros_like(root), where=root > 0)
    a, limits = np.where(np.abs(skewness) < 1e-6, 1e-6, skewness), []  # so little changes no limit
    for sign in (1, -1):  # the limits are the differences whose statistic is critical
        t = 3 / a * (np.cbrt(1 + a * (sign * scale * critical - a / 6)) - 1)  # inverse of `_hall`
        limits.append(value - widening * root * t)
    return np.concatenate([p, np.stack(limits, axis=1).reshape(4, -1)])


def _hall(totals: Floats, squares: Floats, cubes: Floats) -> Floats:
    """Return Hall's transformed t from sums; infinite if there is no spread but a total.

    It removes the first-order effect of skewness: t + a t^2 / 3 + a^2 t^3 / 27 + a / 6 with t =
    sum(x) / sqrt(sum(r^2)) and a = sum(r^3) / sum(r^2)^1.5, for contributions x of the units and
    their deviations r.

    Source: Hall (1992), On the removal of skewness by transformation.
    """
    root = np.sqrt(squares)
    with np.errstate(divide="ignore", invalid="ignore"):
        t, a = totals / root, cubes / root**3
        found: Floats = t * (1 + a * t * (1 / 3 + a * t / 27)) + a / 6
    return np.where(squares > 0, found, np.where(totals == 0, 0.0, np.inf))


def _at_level(statistics: Floats) -> int:
    """Return how many of the statistics (n_draws, n_tests) of a test are fewer than 5 %."""
    return int(np.ceil(LEVEL * len(statistics) - ROUNDING)) - 1


def _step_down(statistics: Floats) -> tuple[Floats, Floats]:
    """Return p-values (2, n_tests), single and of the step-down maximum, and critical values.

    The critical values (2, n_tests) are those that a significant statistic exceeds.

    Args:
        statistics: the absolute statistic (n_draws, n_tests) of each draw, the observed one first.
    """
    order = np.argsort(-statistics[0], kind="stable")  # the largest first
    ordered, p, critical = statistics[:, order], *np.empty((2, 2, len(order)))
    # The step-down maximum is over this test and all with smaller observed statistics.
    largest = np.maximum.accumulate(ordered[:, ::-1], axis=1)[:, ::-1]
    least, at_level = ordered[0] - ROUNDING, _at_level(statistics)
    stepped = np.maximum.accumulate((largest >= least).mean(axis=0))
    p[:, order] = (ordered >= least).mean(axis=0), stepped
    ends = [-np.partition(-one, at_level, axis=0)[at_level] for one in (ordered, largest)]
    # The procedure stops at the first test that is not rejected: all after it have its value.
    first_accepted = int(np.argmax(np.append(stepped, 1.0) >= LEVEL))
    critical[:, order] = ends[0], ends[1][np.minimum(np.arange(len(order)), first_accepted)]
    return p, critical


def _agreeing_test(value: float, n: int, test: Floats) -> Floats:
    """Return the test of a difference that is the same in all of its n groups.

    Groups that agree do not show that all do: of n groups without an exception, a share of 1 -
    (level / 2)^(1 / n) may be exceptions. The limits are the differences if these have the opposite
    one; they exclude 0 exactly if n equal signs are significant, those with the adjusted level
    exactly if the adjusted p is. A difference of 0 has no other limits.

    Args:
        value: the difference.
        n: the number of groups.
        test: the test by signs and bootstrap; its p-values are raised to that of n equal signs.

    Source: Clopper and Pearson (1934), The use of confidence or fiducial limits.
    """
    p, adjusted = np.maximum(test[:2], 2 * 0.5**n)
    least = p if adjusted < LEVEL else 2 * 0.5**n  # so that the adjusted limits agree with their p
    share = 1 - (LEVEL / 2 * np.array([1, least / adjusted])) ** (1 / n)
    limits = value + 2 * abs(value) * np.outer(share, [-1, 1])
    return np.array([p, adjusted, *limits.ravel()])


def _class_tests(values: Floats, parts: Sequence[ClassParts], resamples: Resamples) -> _Tests:
    """Return the tests of differences (n_tests, 1 + n_units) by Welch's t over groups of a class.

    All are NaN if a class is in a single group.

    If all n groups of a class have the same difference, its variance would be estimated as 0. It is
    replaced by the variance whose t has the two-sided p-value of random signs, 2 * 0.5^n.

    Source: Satterthwaite (1946), An approximate distribution of estimates of variance components,
    for the degrees of freedom: sum(variances)^2 / sum(variances^2 / df).
    """
    of_tests = []  # the variances (n_parts,) of each difference
    for part, own in zip(parts, values, strict=True):
        # All differences are of the same rows, so that they share the groups of each class.
        spread = class_spread(part, resamples, own)
        n_groups, df_of_class = spread.n_groups, spread.n_effective - 1
        of_test = spread.variances * spread.scale
        sums = np.array([part.rows[part.truth == code].sum() for code in part.classes])
        agree = (of_test < ROUNDING**2) & (np.abs(sums) > ROUNDING)
        df = np.maximum(df_of_class[agree], 1)  # the quantile is huge or undefined below 1
        of_test[agree] = np.square(sums[agree] / scipy.stats.t.isf(0.5 ** n_groups[agree], df))
        of_tests.append(of_test)
    value, variances = values[:, 0], np.stack(of_tests)
    if np.isnan(variances).any():
        return np.full((len(_TESTED), len(parts)), np.nan)
    square_of_sum = np.square(variances.sum(axis=-1))
    sum_of_squares = (np.square(variances) / df_of_class).sum(axis=-1)
    df = np.full_like(square_of_sum, df_of_class.sum())  # without variances, it is undefined
    np.divide(square_of_sum, sum_of_squares, out=df, where=sum_of_squares > 0)
    error = np.sqrt(variances.sum(axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * scipy.stats.t.sf(np.abs(value) / error, df)
    p = np.where(error > 0, p, (value == 0).astype(np.float64))
    adjusted = np.minimum(1.0, len(parts) * p)
    limits = [
        value + sign * error * scipy.stats.t.ppf(1 - alpha / 2, df)
        for alpha in (LEVEL, LEVEL / len(parts))
        for sign in (-1, 1)
    ]
    if n_groups.min() < FEWEST_UNITS:  # too few for p-values: only the unadjusted interval
        unknown = np.full(len(parts), np.nan)
        return np.stack([unknown, unknown, *limits[:2], unknown, unknown])
    return np.stack([p, adjusted, *limits])
