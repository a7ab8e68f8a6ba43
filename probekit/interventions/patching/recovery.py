"""Means and ratios of sums over texts, with intervals from a jackknife over groups.

    recovery = sum(patched - base) / sum(source - base)

The ratio of sums is used, not the mean of ratios, because the denominator of a single text may be
close to 0.

Source: Cochran (1977), Sampling techniques, section 6 (ratio of means).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probekit.probes.score.contributions import ClassParts
from probekit.probes.score.intervals import (
    Interval,
    degrees_of_freedom,
    jackknife_variance,
    score_interval,
    t_quantile,
)
from probekit.probes.score.metric_table import UNBOUNDED, Range
from probekit.probes.score.metrics import Resamples, mean_of_rows
from probekit.probes.solve.design import Floats

_UNDEFINED = Interval(np.nan, np.nan, np.nan)


def resamples_of(groups: NDArray[np.generic], widening: float = 1.0) -> Resamples:
    """Return the jackknife resamples of rows with these groups (n_rows,).

    `widening` is a factor on standard errors; see `Resamples`.

    A single group has no resamples, so that its intervals are NaN.

    >>> resamples_of(np.array(["a", "a"])).counts.shape
    (1, 1)
    """
    if len(np.unique(groups)) < 2:
        return Resamples(np.zeros(len(groups), dtype=np.int64), np.ones((1, 1), dtype=np.float32))
    return Resamples.leave_one_out(groups, widening=widening)


def mean_interval(values: Floats, resamples: Resamples) -> Interval:
    """Return the mean of values (n_rows,) with its 95 % interval.

    >>> mean_interval(np.array([1.0, 3.0]), resamples_of(np.array([0, 0]))).value
    2.0
    """
    return interval_of(mean_of_rows(values, resamples), resamples)


def interval_of(
    values: Floats,
    resamples: Resamples,
    limits: Range = UNBOUNDED,
    parts: ClassParts | None = None,
) -> Interval:
    """Return a statistic of all groups with its interval, or with NaN limits for a single group.

    `values` (1 + n_units,) are the statistic of all groups, then without each unit. For `limits`
    and `parts` see `score_interval`.
    """
    if len(values) < 2:
        return Interval(float(values[0]), np.nan, np.nan)
    return score_interval(values, resamples, limits, parts)


def skewed_interval(values: Floats, resamples: Resamples) -> Interval:
    """Return a statistic with its 95 % interval, which allows for skewed contributions of groups.

    It reaches from the lower to the upper limit of two intervals: that of `interval_of`, which
    assumes symmetric contributions, and that of Hall's transformed t statistic. The limits are NaN
    where `interval_of` has none.

    `values` (1 + n_units,) are the statistic of all groups, then without each unit.

    >>> resamples = Resamples.leave_one_out(np.arange(8))
    >>> skewed = mean_of_rows(np.array([0, 0, 0, 0, 0, 0, 1.0, 5.0]), resamples)
    >>> found = skewed_interval(skewed, resamples)
    >>> round(found.low, 2), round(found.high, 2)
    (-0.72, 5.61)

    Source: Hall (1992), On the removal of skewness by transformation.
    """
    found = interval_of(values, resamples)
    if np.isnan(found.low) or found.low == found.high:
        return found
    deviations = (1 - resamples.weights) * (values[0] - values[1:])
    deviations -= deviations.mean()
    a = float((deviations**3).sum() / np.square(deviations).sum() ** 1.5)
    if abs(a) < 1e-6:  # the limits tend to those of the t statistic
        return found
    error = resamples.widening * np.sqrt(jackknife_variance(values))
    quantile = t_quantile(degrees_of_freedom(resamples))
    low, high = (
        found.value - error * 3 / a * (np.cbrt(1 + a * (q - a / 6)) - 1)
        for q in (quantile, -quantile)
    )
    return Interval(found.value, float(min(low, found.low)), float(max(high, found.high)))


def holds_zero(interval: Interval) -> bool:
    """Return whether 0 is in an interval; one without limits contains every value but 0 itself.

    >>> holds_zero(Interval(1.0, -0.5, 2.5)), holds_zero(Interval(1.0, 0.5, 1.5))
    (True, False)
    """
    if np.isnan(interval.low):
        return not interval.value
    return interval.low <= 0 <= interval.high


def ratio_of_sums(numerators: Floats, denominators: Floats, resamples: Resamples) -> Interval:
    """Return sum(numerators) / sum(denominators) with its 95 % interval.

    All are NaN if 0 is in the interval of the denominator.

    >>> groups = np.repeat(np.arange(8), 2)
    >>> whole = np.tile([1.0, 3.0], 8)
    >>> half = ratio_of_sums(whole / 2, whole, resamples_of(groups))
    >>> half.value, float(half.low), float(half.high)
    (0.5, 0.5, 0.5)
    """
    return ratio_of_means(
        mean_of_rows(numerators, resamples), mean_of_rows(denominators, resamples), resamples
    )


def ratio_of_means(numerator: Floats, denominator: Floats, resamples: Resamples) -> Interval:
    """Return the ratio of two statistics (1 + n_units,) with its 95 % interval.

    All are NaN if 0 is in the interval of the denominator.
    """
    if holds_zero(interval_of(denominator, resamples)) or not denominator.all():
        return _UNDEFINED
    return skewed_interval(numerator / denominator, resamples)
