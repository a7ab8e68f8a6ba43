"""Differences between scores on different rows: of two runs, and over several data sets.

    of two runs          both intervals, their distances added in quadrature
    over data sets       signed ranks of the differences

As for paired differences, an interval excludes 0 exactly if its p-value is below 0.05.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from probekit.amounts import FEWEST_UNITS, LEVEL
from probekit.lazy_rows import Floats
from probekit.probes.score.contributions import ClassParts, class_spread
from probekit.probes.score.differences import Difference
from probekit.probes.score.exchange import holm
from probekit.probes.score.intervals import Interval, score_interval
from probekit.probes.score.metric_table import UNBOUNDED, Range
from probekit.probes.score.metrics import Resamples


@dataclass(frozen=True, eq=False)
class Side:
    """A score of one of two runs on different rows.

    Attributes:
        values: the metric over all groups, then with each unit left out, shape (1 + n_units,).
        resamples: the resamples that the values were computed for.
        parts: the parts of the score by class; None for metrics without.
    """

    values: Floats
    resamples: Resamples
    parts: ClassParts | None = None

    @property
    def fewest_groups(self) -> int:
        """The number of units; with parts by class, the number of groups of the rarest class."""
        if self.parts is None:
            return len(self.resamples.weights)
        return int(class_spread(self.parts, self.resamples).n_groups.min())


def unpaired_differences(
    pairs: Sequence[tuple[Side, Side]], limits: Range = UNBOUNDED
) -> list[Difference]:
    """Return the differences a - b of pairs of scores on different rows.

    The distances of the limits from a difference are those of both scores' intervals, added in
    quadrature; p is the alpha at which the interval, of confidence 1 - alpha, ends at 0. The
    p-values are adjusted by Holm's method, the adjusted limits agree with them. A p-value is NaN if
    one side, or a class, has fewer than 6 groups, or if the limits are NaN.

    Args:
        pairs: the two sides of each difference.
        limits: the range of the metric.

    >>> from probekit.probes.score.metrics import ClassPredictions, accuracy
    >>> truth, resamples = np.tile([0, 1], 50), Resamples.leave_one_out(np.arange(100))
    >>> good, bad = (
    ...     Side(accuracy(ClassPredictions(truth, guess, 2), resamples), resamples)
    ...     for guess in (truth, 0 * truth)
    ... )
    >>> (found,) = unpaired_differences([(good, bad)], (0.0, 1.0))
    >>> found.value, found.ci_low > 0, found.p < 0.001
    (0.5, True, True)

    Source: Zou and Donner (2008), Construction of confidence limits about effect measures.
    """
    found = []
    for a, b in pairs:
        low, high = _unpaired_limits(a, b, limits, LEVEL)
        is_known = min(a.fewest_groups, b.fewest_groups) >= FEWEST_UNITS and not np.isnan(low)
        p = _alpha_at_0(a, b, limits) if is_known else float("nan")
        score_a, score_b = float(a.values[0]), float(b.values[0])
        found.append(Difference(score_a, score_b, score_a - score_b, low, high, p, p_adjusted=p))
    tested = [number for number, one in enumerate(found) if not np.isnan(one.p)]
    all_adjusted = holm(np.array([found[number].p for number in tested])).tolist()
    for number, adjusted in zip(tested, all_adjusted, strict=True):
        one = found[number]
        # The adjusted p-value is below LEVEL exactly if p is below this alpha.
        low, high = _unpaired_limits(*pairs[number], limits, alpha=LEVEL * one.p / adjusted)
        found[number] = replace(one, p_adjusted=adjusted, adjusted_low=low, adjusted_high=high)
    return found


def signed_rank(differences: Floats) -> tuple[Interval, float]:
    """Return median and 95 % interval of differences (n_units,), and the two-sided p of median 0.

    The median is that of all means of two differences (Hodges-Lehmann). If the differences are
    independent and symmetric about their median, the number of positive means has the exact
    distribution of Wilcoxon's signed-rank statistic, whose p this is. Means of exactly 0, which
    equal or zero differences cause, count against significance. The interval excludes 0 exactly if
    p < 0.05. With fewer than 6 units, no p is below 0.05: p and limits are NaN.

    >>> interval, p = signed_rank(np.array([0.1, 0.02, 0.07, 0.04, 0.05, 0.3]))
    >>> interval.low, interval.high, p
    (0.02, 0.3, 0.03125)

    Source: Hollander, Wolfe and Chicken (2014), Nonparametric statistical methods, sections 3.1 to
    3.3; Randles and Wolfe (1979), Introduction to the theory of nonparametric statistics, section
    6.1: with ties the closed interval covers at least as often.
    """
    n, nan = len(differences), float("nan")
    rounded = np.round(differences, 12)  # without rounding errors of equal differences
    means = np.sort(((rounded[:, None] + rounded) / 2)[np.triu_indices(n)])
    median = float(np.median(means)) if n else nan
    if n < FEWEST_UNITS:
        return Interval(median, nan, nan), nan
    null = np.ones(1)  # the probability of each number of positive means
    for rank in range(1, n + 1):
        null = (np.pad(null, (0, rank)) + np.pad(null, (rank, 0))) / 2
    p = np.minimum(2 * np.cumsum(null), 1.0)
    at_level = int(np.searchsorted(p, LEVEL))
    low, high = float(means[at_level - 1]), float(means[-at_level])
    return Interval(median, low, high), float(p[min((means <= 0).sum(), (means >= 0).sum())])


def _unpaired_limits(a: Side, b: Side, limits: Range, alpha: float) -> tuple[float, float]:
    """Return the limits of the interval of a - b, which misses the truth at a rate of alpha."""
    # A perfect side counts with its groups: limits that no mistake can narrow would cost power.
    x, y = (score_interval(s.values, s.resamples, limits, s.parts, alpha, None) for s in (a, b))
    value = x.value - y.value
    below = np.hypot(x.value - x.low, y.high - y.value)
    above = np.hypot(x.high - x.value, y.value - y.low)
    return float(value - below), float(value + above)


def _alpha_at_0(a: Side, b: Side, limits: Range) -> float:
    """Return the p-value: the alpha whose interval, of confidence 1 - alpha, ends at 0.

    It is at least 1e-12, and 1 if even the narrowest interval, of alpha 0.999, contains 0.
    """
    sign = np.sign(a.values[0] - b.values[0])

    def end_nearest_0(log_alpha: float) -> float:
        """Return the lower end of the interval of |a - b|; negative if the interval contains 0."""
        low, high = _unpaired_limits(a, b, limits, float(np.exp(log_alpha)))
        return low if sign > 0 else -high

    smallest, largest = np.log([1e-12, 0.999])
    if sign == 0 or end_nearest_0(largest) <= 0:
        return 1.0
    if end_nearest_0(smallest) >= 0:
        return 1e-12
    return float(np.exp(scipy.optimize.brentq(end_nearest_0, smallest, largest, xtol=1e-6)))
