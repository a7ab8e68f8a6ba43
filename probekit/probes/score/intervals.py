"""Confidence intervals from the jackknife over groups.

An interval is for the score of these fitted probes on new groups; it does not include the variation
between fits on other training rows. Its width is estimated by leaving out one group at a time. Its
degrees of freedom are the effective number of groups minus 1, which is small if a few groups
contain most of the rows.

    range of the metric         interval
    both ends finite            Korn and Graubard (1998): Clopper-Pearson at the effective sample
                                size. It also holds at the ends, such as an accuracy of 1, where
                                the rows of a group count as two; other scores have no closer
                                limits, so that limits increase with the score
    the same, mean of classes   their limits for each class, from its own groups, added in
                                quadrature (balanced accuracy; AUROC if a class is rare)
    one end finite              jackknife t on the logarithm of the distance from that end
    no end finite               jackknife t

Predictions of several outer folds depend on each other, because their fits share training rows.
Their standard errors are widened by `Resamples.widening`.

Coverage is simulated by `python -m benchmarks.claims`.

Source: Korn and Graubard (1998), Confidence intervals for proportions with small expected number of
positive counts estimated from survey data; Efron and Tibshirani (1993), An introduction to the
bootstrap, chapter 11 (jackknife); Kish (1965), Survey sampling (effective sample size).
"""

from dataclasses import dataclass

import numpy as np
import scipy

from probekit.amounts import FEWEST_UNITS, LEVEL
from probekit.lazy_rows import Floats
from probekit.probes.score.contributions import ClassParts, class_spread, has_rare_class
from probekit.probes.score.metric_table import UNBOUNDED, Range
from probekit.probes.score.metrics import Resamples

FEWEST_SOURCES = 3  # for an interval over sources
ROWS_ALIKE = 2.0  # rows that a group counts for if all groups agree; simulated in benchmarks.claims


@dataclass(frozen=True)
class Interval:
    """A value with the limits of its confidence interval; they are NaN if they are undefined."""

    value: float
    low: float
    high: float


def jackknife_interval(
    values: Floats,
    resamples: Resamples,
    limits: Range = UNBOUNDED,
    level: float = LEVEL,
    rows_alike: float | None = None,
) -> Interval:
    """Return the value of a metric with its confidence interval, of 95 % unless `level` differs.

    The limits are NaN with fewer than two units, or if the metric is undefined when some unit is
    left out; the AUROC, for example, if all positive rows are in one group. If the range has an
    infinite end, they are also NaN if leaving out a unit never changes the value and there are
    fewer than 6 units. They equal the value instead if it is 0 or, on the logarithmic scale, if its
    distance from the end is 1.

    Args:
        values: the metric over all groups, then with each unit left out, shape (1 + n_units,).
        resamples: the resamples that the values were computed for.
        limits: the range of the metric.
        level: the rate at which the interval may miss the true value.
        rows_alike: the number of rows that a group counts for if all groups agree, at most all of
            them; no limit is closer to an end of the range. None for one, and all limits.

    >>> resamples = Resamples.leave_one_out(np.arange(4))
    >>> found = jackknife_interval(np.array([0.5, 0.33, 0.67, 0.33, 0.67]), resamples, (0, 1))
    >>> round(found.low, 2), round(found.high, 2)
    (0.04, 0.96)
    """
    value = float(values[0])
    if resamples.n_units < 2 or not np.isfinite(values).all():
        return Interval(value, np.nan, np.nan)
    bottom, top = limits
    if np.isfinite(limits).all():
        share, width = (value - bottom) / (top - bottom), top - bottom
        variance = jackknife_variance(values) * resamples.widening**2 / width**2
        size = resamples.n_effective, len(resamples.group_of_row), resamples.widening
        low, high = _korn_graubard(share, variance, *size, level, rows_alike)
        return Interval(value, bottom + width * low, bottom + width * high)
    for end, sign in ((bottom, 1), (top, -1)):
        distances = sign * (values - end)
        if np.isfinite(end) and (distances > 0).all():
            found = _t(np.log(distances), resamples, level)  # of the logarithm of the distance
            low, high = sorted(end + sign * float(np.exp(log)) for log in (found.low, found.high))
            return Interval(value, low, high)
    # There are no bounds, or a value is at the end of the range, where there is no logarithm. A NaN
    # limit stays NaN, because `max` and `min` keep their first argument then.
    found = _t(values, resamples, level)
    return Interval(value, max(found.low, bottom), min(found.high, top))


def score_interval(
    values: Floats,
    resamples: Resamples,
    limits: Range,
    parts: ClassParts | None,
    level: float = LEVEL,
    rows_alike: float | None = ROWS_ALIKE,
) -> Interval:
    """Return the value of a metric with its confidence interval, of 95 % unless `level` differs.

    If the metric has parts by class, the limits of each part are those of a share, at the effective
    sample size of its class. Their distances from the part are added in quadrature, and scaled for
    parts in the same groups; without an estimate of that scale they are simply added. The limits
    are NaN if the rows of a class are in a single group.

    If all groups agree, nothing shows how alike the rows of a group are. A group then counts as
    `rows_alike` rows, also for metrics of ranks: groups of another sort may be absent.

    Scores without parts, and scores whose parts cancel in each group, have the interval of the
    jackknife. So do metrics of ranks without a rare class, because its coverage is correct there
    and it is shorter.

    Args:
        values: the metric over all groups, then with each unit left out, shape (1 + n_units,).
        resamples: the resamples that the values were computed for.
        limits: the range of the metric.
        parts: the parts of the score by class; None for metrics without.
        level: the rate at which the interval may miss the true value.
        rows_alike: see `jackknife_interval`.

    Source: Zou and Donner (2008), Construction of confidence limits about effect measures.
    """
    if parts is None or not (parts.are_shares or has_rare_class(parts, resamples)):
        return jackknife_interval(values, resamples, limits, level, rows_alike)
    value, spread = float(values[0]), class_spread(parts, resamples, values)
    if spread.scale < 1e-9:  # parts cancel in each group: a constant guess within minimal pairs
        return jackknife_interval(values, resamples, limits, level, rows_alike)
    if np.isnan(spread.variances).any():
        return Interval(value, np.nan, np.nan)
    distances = np.empty((len(parts.weights), 2))
    for part, weight in enumerate(parts.weights):
        # The variance is that of the weighted part.
        share, variance = float(parts.shares[part]), float(spread.variances[part]) / weight**2
        n_units, n_rows = float(spread.n_effective[part]), int(spread.n_rows[part])
        size = n_units, n_rows, resamples.widening
        ends = _korn_graubard(share, variance, *size, level, rows_alike)
        distances[part] = weight * np.abs(np.array(ends) - share)
    below, above = np.sqrt(spread.scale * np.square(distances).sum(axis=0))
    if spread.is_shared and not spread.variances.any():  # no estimate of how parts vary together
        below, above = distances.sum(axis=0)
    # All metrics with parts are shares, so the limits are between 0 and 1.
    return Interval(value, max(0.0, value - below), min(1.0, value + above))


def mean_interval(values: Floats, n_rows: int, limits: Range) -> Interval:
    """Return the mean score of several sources with its interval over the sources.

    It is the jackknife interval with sources as units, whatever their sizes: for a metric with two
    ends that of Korn and Graubard. The limits are NaN for fewer than 3 sources. In simulations it
    contains the expected score on a new source in 89 % of draws or more if sources differ by
    degrees, but in 47 to 77 % if one source in ten fails, because many draws then have none.

    Args:
        values: the score of each source, shape (n_sources,).
        n_rows: the number of rows of all sources.
        limits: the range of the metric.

    >>> found = mean_interval(np.array([0.5, 0.7, 0.9]), 120, (0, 1))
    >>> round(found.low, 2), round(found.high, 2)
    (0.13, 0.99)
    """
    n, mean = len(values), float(np.mean(values))
    if n < FEWEST_SOURCES:
        return Interval(mean, np.nan, np.nan)
    resamples = Resamples.leave_one_out(np.repeat(np.arange(n), max(n_rows // n, 1)))
    return jackknife_interval(np.append(mean, (n * mean - values) / (n - 1)), resamples, limits)


def jackknife_variance(values: Floats) -> float:
    """Return the jackknife variance of the value of a metric.

    `values` (1 + n_units,) are the metric over all groups, then with each unit left out.

    >>> round(jackknife_variance(np.array([2.0, 2.5, 2.0, 1.5])), 4)  # mean of 1, 2 and 3
    0.3333
    """
    n_units = len(values) - 1
    # This equals (n_units - 1) / n_units * sum((values - mean)^2).
    return float((n_units - 1) * values[1:].var())


def degrees_of_freedom(resamples: Resamples) -> float:
    """Return the degrees of freedom of a jackknife variance: the effective number of units minus 1.

    >>> degrees_of_freedom(Resamples.leave_one_out(np.array(["a", "a", "b", "b", "c", "c"])))
    2.0
    """
    return resamples.n_effective - 1


def t_quantile(df: float, level: float = LEVEL) -> float:
    """Return the value that the |t| of Student's distribution exceeds at the rate `level`."""
    return float(scipy.stats.t.isf(level / 2, df))


def _t(values: Floats, resamples: Resamples, level: float) -> Interval:
    """Return the jackknife t interval of values (1 + n_units,) without bounds."""
    value, n_units = float(values[0]), len(values) - 1
    error = resamples.widening * np.sqrt(jackknife_variance(values))
    # A few groups that agree do not show that all do.
    if error == 0 and value != 0 and n_units < FEWEST_UNITS:
        return Interval(value, np.nan, np.nan)
    # Without an error there may be no degrees of freedom for a quantile.
    margin = error * t_quantile(degrees_of_freedom(resamples), level) if error else error
    return Interval(value, value - margin, value + margin)


def _korn_graubard(
    share: float,
    variance: float,
    n_units: float,
    n_rows: int,
    widening: float,
    level: float,
    rows_alike: float | None,
) -> tuple[float, float]:
    """Return the limits of the confidence interval of a share between 0 and 1.

    They are those of Clopper and Pearson at the effective sample size. If all groups have the same
    share, this size is the effective number of groups times `rows_alike`, divided by the squared
    widening.

    Args:
        share: the share.
        variance: its variance over groups.
        n_units: the effective number of groups.
        n_rows: the number of rows, the largest possible sample size.
        widening: the factor that the variance contains; see `Resamples`.
        level: the rate at which the interval may miss the true share.
        rows_alike: see `jackknife_interval`.
    """
    n_agreeing = min(n_rows, n_units * (rows_alike or 1)) / widening**2
    # All groups have the same share, up to rounding. At 0 or 1, only weights of folds differ.
    if min(variance * n_rows, share, 1 - share) < 1e-12:
        n_effective = n_agreeing
    else:
        # Fewer degrees of freedom: the t quantile of the units is wider than that of the rows.
        t_ratio = t_quantile(n_rows - 1, level) / t_quantile(n_units - 1, level)
        n_effective = min(n_rows, share * (1 - share) / variance * t_ratio**2)
    hits, misses = n_effective * share, n_effective * (1 - share)
    # A beta distribution needs positive parameters; a share of 0 or 1 has 0 hits or misses.
    low = 0.0 if hits < 1e-9 else float(scipy.stats.beta.ppf(level / 2, hits, misses + 1))
    high = 1.0 if misses < 1e-9 else float(scipy.stats.beta.isf(level / 2, hits + 1, misses))
    # One wrong row more never makes the limits closer to the end than those of a perfect score.
    nearest = (level / 2) ** (1 / n_agreeing) if rows_alike else 1.0
    return min(low, nearest), max(high, 1 - nearest)
