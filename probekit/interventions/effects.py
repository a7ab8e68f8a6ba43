"""Effects of patches over all pairs: means, recovery, intervals and p-values.

    recovery = sum(patched - base) / sum(source - base)

The ratio of sums is used, not the mean of ratios, because the denominator of a single text may be
close to 0. Intervals are those of a jackknife over groups.

The p-value of a patch is the larger one of random signs and of a bootstrap of whole groups; see
`probekit.probes.score.differences`. Sizes and power are simulated by
`python -m benchmarks.patch_tests`.

Source: Cochran (1977), Sampling techniques, section 6 (ratio of means).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probekit.interventions.measures import AnswerMeasure
from probekit.lazy_rows import Floats
from probekit.model.sites.catalogue import layer_of
from probekit.model.sites.sites import SiteSelection
from probekit.probes.score.differences import paired_differences
from probekit.probes.score.intervals import (
    Interval,
    degrees_of_freedom,
    jackknife_interval,
    jackknife_variance,
    t_quantile,
)
from probekit.probes.score.metrics import Resamples, mean_of_rows


def resamples_of(groups: NDArray[np.generic], widening: float = 1.0) -> Resamples:
    """Return the jackknife resamples of rows with these groups (n_rows,).

    `widening` is a factor on standard errors; see `Resamples`.

    A single group has no resamples, so that its intervals are NaN.

    >>> resamples_of(np.array(["a", "a"])).n_units
    0
    """
    if len(np.unique(groups)) < 2:
        return Resamples(np.zeros(len(groups), dtype=np.int64), np.zeros(1, dtype=np.int64), 0)
    return Resamples.leave_one_out(groups, widening=widening)


def skewed_interval(values: Floats, resamples: Resamples) -> Interval:
    """Return a statistic with its 95 % interval, which allows for skewed contributions of groups.

    It reaches from the lower to the upper limit of two intervals: that of the jackknife, which
    assumes symmetric contributions, and that of Hall's transformed t statistic. The limits are NaN
    where the jackknife has none.

    `values` (1 + n_units,) are the statistic of all groups, then without each unit.

    >>> resamples = Resamples.leave_one_out(np.arange(8))
    >>> skewed = mean_of_rows(np.array([0, 0, 0, 0, 0, 0, 1.0, 5.0]), resamples)
    >>> found = skewed_interval(skewed, resamples)
    >>> round(found.low, 2), round(found.high, 2)
    (-0.72, 5.61)

    Source: Hall (1992), On the removal of skewness by transformation.
    """
    symmetric = jackknife_interval(values, resamples)
    value = symmetric.value
    if np.isnan(symmetric.low) or symmetric.low == symmetric.high:
        return symmetric
    # For a unit with share w of the rows and mean m, a mean without it differs by
    # values[0] - values[1:] = w (m - mean) / (1 - w), so that these are w (m - mean).
    deviations = (1 - resamples.weights) * (values[0] - values[1:])
    deviations -= deviations.mean()
    a = float((deviations**3).sum() / np.square(deviations).sum() ** 1.5)
    if abs(a) < 1e-6:  # division by it is inexact, and the limits tend to those of t
        return symmetric
    error = resamples.widening * np.sqrt(jackknife_variance(values))
    quantile = t_quantile(degrees_of_freedom(resamples))
    # The transformed t equals q if (1 + a t / 3)^3 = 1 + a (q - a / 6), which is solved for t.
    low, high = (
        value - error * 3 / a * (np.cbrt(1 + a * (q - a / 6)) - 1) for q in (quantile, -quantile)
    )
    return Interval(value, float(min(low, symmetric.low)), float(max(high, symmetric.high)))


def holds_zero(interval: Interval) -> bool:
    """Return whether 0 is in an interval; without limits, whether its value is 0.

    >>> holds_zero(Interval(1.0, -0.5, 2.5)), holds_zero(Interval(1.0, 0.5, 1.5))
    (True, False)
    """
    if np.isnan(interval.low):
        return interval.value == 0
    return interval.low <= 0 <= interval.high


def ratio_of_sums(numerators: Floats, denominators: Floats, resamples: Resamples) -> Interval:
    """Return sum(numerators) / sum(denominators) with its 95 % interval.

    All are NaN if 0 is in the interval of the denominator, or the denominator of a resample is 0.

    >>> groups = np.repeat(np.arange(8), 2)
    >>> whole = np.tile([1.0, 3.0], 8)
    >>> half = ratio_of_sums(whole / 2, whole, resamples_of(groups))
    >>> half.value, float(half.low), float(half.high)
    (0.5, 0.5, 0.5)
    """
    numerator, denominator = (mean_of_rows(sums, resamples) for sums in (numerators, denominators))
    if holds_zero(jackknife_interval(denominator, resamples)) or not denominator.all():
        return Interval(np.nan, np.nan, np.nan)
    return skewed_interval(numerator / denominator, resamples)


@dataclass(frozen=True)
class PatchEffect:
    """Effect of patching one site, head or neuron, over all pairs that have the position.

    Attributes:
        site: the site, with its head or neuron.
        layer: block of the site; None outside the blocks.
        head: head of the site; None for the whole site or a neuron.
        position: index of the position, counted from the left without padding; `all`; or `chosen`
            for a position of each text.
        base: mean measure of the clean texts.
        source: mean measure of the counterfactuals, for the answers of the clean texts.
        patched: mean measure of the clean texts with the patch.
        effect: `patched` minus `base`, with the limits of its interval `effect_low` and
            `effect_high`.
        recovery: share of the difference between source and base, a ratio of sums, with its limits
            `low` and `high`; NaN if 0 is in the interval of the difference.
        interchange: share of the pairs that prefer the wrong answer after the patch; NaN unless
            the measure is a logit difference or a probability, with a wrong answer.
        p: p-value of no mean effect over all pairs (0 for those without the position): the larger
            of those from random signs and from a bootstrap of whole groups; NaN below 6 groups.
        p_best: the same, adjusted for all sites, heads and positions of the call.
        n: number of pairs that have this position.
        groups: number of groups of these pairs.
        measure: name of the measure.
    """

    site: str
    layer: int | None
    head: int | None
    position: int | str
    base: float
    source: float
    patched: float
    effect: float
    effect_low: float
    effect_high: float
    recovery: float
    low: float
    high: float
    interchange: float
    p: float
    p_best: float
    n: int
    groups: int
    measure: str


@dataclass(frozen=True)
class Patch:
    """A site, head or neuron, and the position that is patched.

    Attributes:
        selection: the site, head or neuron.
        position: index counted from the left without padding, `all`, or `chosen`.
    """

    selection: SiteSelection
    position: int | str


@dataclass(frozen=True, eq=False)
class PatchedValues:
    """Measures of all pairs, before statistics.

    Attributes:
        base: measure of the clean texts, (n_pairs,).
        source: measure of the counterfactuals, (n_pairs,).
        patched: measure of each patch, (n_pairs,), NaN for pairs without its position.
    """

    base: Floats
    source: Floats
    patched: dict[Patch, Floats]


def effects_of(
    values: PatchedValues, measure: AnswerMeasure, groups: NDArray[np.generic]
) -> list[PatchEffect]:
    """Return the rows of `patch` from the measures of all pairs; `groups` (n_pairs,)."""
    resamples = resamples_of(groups)
    p_values = [(np.nan, np.nan)] * len(values.patched)
    if resamples.n_groups > 1:
        # A pair without the position has no effect there.
        changes = (np.nan_to_num(patched - values.base) for patched in values.patched.values())
        zeros = np.zeros(1 + resamples.n_units)  # the effects are compared with 0
        pairs = [(mean_of_rows(change, resamples), zeros) for change in changes]
        tests = paired_differences(pairs, resamples, is_skewed=True)
        p_values = [(test.p, test.p_adjusted) for test in tests]
    rows = []
    of_patches = zip(values.patched.items(), p_values, strict=True)
    for (patch, of_pairs), (patch_p, patch_p_best) in of_patches:
        known = ~np.isnan(of_pairs)
        patched, base, source = of_pairs[known], values.base[known], values.source[known]
        of_known = resamples_of(groups[known])
        effect = mean_of_rows(patched - base, of_known)
        interval = skewed_interval(effect, of_known)
        recovery = ratio_of_sums(patched - base, source - base, of_known)
        row = PatchEffect(
            site=patch.selection.text,
            layer=layer_of(patch.selection.site),
            head=patch.selection.head,
            position=patch.position,
            base=float(base.mean()),
            source=float(source.mean()),
            patched=float(patched.mean()),
            effect=float(effect[0]),
            effect_low=interval.low,
            effect_high=interval.high,
            recovery=recovery.value,
            low=recovery.low,
            high=recovery.high,
            interchange=float((patched < 0).mean()) if measure.is_signed else float("nan"),
            p=patch_p,
            p_best=patch_p_best,
            n=len(patched),
            groups=of_known.n_groups,
            measure=measure.name,
        )
        rows.append(row)
    return rows
