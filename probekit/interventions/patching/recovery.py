"""Means and ratios of sums over texts, with group jackknife intervals.

    recovery = sum(patched - base) / sum(source - base)

The ratio of sums is used, not the mean of ratios, because the denominator of a single text may be
close to 0.

Source: Cochran (1977), Sampling techniques, section 6 (ratio of means); the interval is that of
`probekit.probes.score.intervals`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probekit.probes.score.intervals import Interval, jackknife_interval
from probekit.probes.score.metrics import Resamples, mean_of_rows
from probekit.probes.solve.design import Floats

_UNDEFINED = Interval(np.nan, np.nan, np.nan)


def resamples_of(groups: NDArray[np.generic]) -> Resamples:
    """Return the jackknife resamples of rows with these groups (n_rows,).

    A single group has no resamples, so that its intervals are NaN.

    >>> resamples_of(np.array(["a", "a"])).counts.shape
    (1, 1)
    """
    if len(np.unique(groups)) < 2:
        return Resamples(np.zeros(len(groups), dtype=np.int64), np.ones((1, 1), dtype=np.float32))
    return Resamples.leave_one_out(groups)


def mean_interval(values: Floats, resamples: Resamples) -> Interval:
    """Return the mean of values (n_rows,) with its 95 % interval.

    >>> mean_interval(np.array([1.0, 3.0]), resamples_of(np.array([0, 0]))).value
    2.0
    """
    return interval_of(mean_of_rows(values, resamples), resamples)


def interval_of(values: Floats, resamples: Resamples) -> Interval:
    """Return a statistic of all groups with its interval, or with NaN limits for a single group.

    `values` (1 + n_units,) are the statistic of all groups, then without each unit.
    """
    if len(values) < 2:
        return Interval(float(values[0]), np.nan, np.nan)
    return jackknife_interval(values, resamples)


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
    return interval_of(numerator / denominator, resamples)
