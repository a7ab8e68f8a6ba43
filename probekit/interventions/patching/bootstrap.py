"""P-values of patches: the larger one of random signs and of a bootstrap of whole groups.

Random signs assume symmetric contributions of the groups; the bootstrap does not. Its statistic is
Hall's transformation of the t statistic, which removes the first-order effect of skewness,

    t + a t^2 / 3 + a^2 t^3 / 27 + a / 6

with t = sum(x) / sqrt(sum(r^2)) and a = sum(r^3) / sum(r^2)^1.5 for contributions x of the groups
and their deviations r from the mean. Sizes and power are simulated by
`python -m benchmarks.patch_tests`.

Source: Hall (1992), On the removal of skewness by transformation; Westfall and Young (1993),
Resampling-based multiple testing (bootstrap of the maximum over tests).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probekit.amounts import LEVEL
from probekit.probes.score.differences import Difference
from probekit.probes.score.exchange import ROUNDING, PValues, p_values
from probekit.probes.solve.design import Floats

DRAWS = 9999
_BLOCK = 1000  # draws at a time
_HEAVY = 0.75  # quantile over tests below which their scales are raised to it


def patch_p_values(tests: Sequence[Difference], deviations: Floats) -> PValues:
    """Return the larger p-values (n_tests,) of tests by random signs and of the bootstrap.

    Args:
        tests: the tests by random signs (n_tests,); those without a p-value keep none.
        deviations: the deviations (n_tests, n_units) of their units; see `bootstrap_p_values`.
    """
    signs = np.array([(one.p, one.p_adjusted) for one in tests]).T
    tested = np.isfinite(signs[0])
    if tested.any():
        values = np.array([one.value for one in tests])[tested]
        found = bootstrap_p_values(values, deviations[tested])
        signs[:, tested] = np.maximum(signs[:, tested], [found.single, found.maximum])
    return PValues(*signs)


def bootstrap_p_values(values: Floats, deviations: Floats) -> PValues:
    """Return two-sided p-values (n_tests,) of means that are 0 under the null hypothesis.

    Each draw resamples whole units, the same for all tests. A draw in which all units of a test
    agree has no standard deviation of its own, and gets the observed one.

    For the maximum over tests, each statistic is divided by its own 95 % quantile, so that a test
    with a few large units does not govern the p-values of all others. The quantile is at least the
    upper quartile over tests: a small one may be due to a long tail that was not sampled.

    Args:
        values: the observed means (n_tests,).
        deviations: the sum of each unit's rows minus the mean, divided by the number of all rows,
            (n_tests, n_units); 0 for units without rows.

    >>> deviations = np.random.default_rng(0).normal(size=(2, 30)) / 30
    >>> deviations -= deviations.mean(axis=1, keepdims=True)
    >>> bootstrap_p_values(np.array([0.0, 1.0]), deviations).single.round(2).tolist()
    [0.99, 0.0]
    """
    n = deviations.shape[1]
    powers = [deviations**k for k in (1, 2, 3)]
    squares, cubes = powers[1].sum(axis=1), powers[2].sum(axis=1)
    generator, blocks = np.random.default_rng(0), []
    for at in range(0, DRAWS, _BLOCK):
        size = min(_BLOCK, DRAWS - at)
        drawn = generator.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)
        first, second, third = (counts @ power.T for power in powers)
        mean = first / n
        own_squares = second - n * mean**2
        own_cubes = third - 3 * mean * second + 2 * n * mean**3
        agree = own_squares <= ROUNDING * squares
        own_squares = np.where(agree, squares, own_squares)
        blocks.append(np.abs(_transformed(first, own_squares, np.where(agree, 0.0, own_cubes))))
    observed, null = np.abs(_transformed(values, squares, cubes)), np.concatenate(blocks).T
    single = p_values(observed, null).single
    scale = np.quantile(null, 1 - LEVEL, axis=1)
    scale = np.maximum(scale, np.quantile(scale, _HEAVY))
    scale[scale == 0] = 1.0
    maximum = p_values(observed / scale, null / scale[:, None]).maximum
    return PValues(single, np.maximum(single, maximum))


def _transformed(totals: Floats, squares: Floats, cubes: Floats) -> Floats:
    """Return Hall's transformed t from sums; infinite if there is no spread but a total."""
    root = np.sqrt(squares)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(totals == 0, 0.0, totals / root)
        a = np.where(squares > 0, cubes / (squares * root), 0.0)
        found: Floats = t * (1 + a * t * (1 / 3 + a * t / 27)) + a / 6
    return np.where(np.isinf(t), t, found)
