"""Recovery is a ratio of sums, and its interval covers the true ratio."""

import numpy as np
import pytest

from probekit.interventions.effects import (
    holds_zero,
    interval_of,
    mean_interval,
    ratio_of_sums,
    resamples_of,
    skewed_interval,
)
from probekit.probes.score.metrics import mean_of_rows


def test_recovery_is_the_ratio_of_sums_not_the_mean_of_ratios():
    numerators, denominators = np.array([1.0, 0.0, 3.0] * 4), np.array([1.0, 0.001, 5.0] * 4)
    found = ratio_of_sums(numerators, denominators, resamples_of(np.arange(12)))
    assert found.value == pytest.approx(4 / 6.001)


def test_no_ratio_where_the_interval_of_the_denominator_holds_zero():
    generator = np.random.default_rng(0)
    denominators = generator.normal(size=30)
    assert holds_zero(mean_interval(denominators, resamples_of(np.arange(30))))
    found = ratio_of_sums(np.ones(30), denominators, resamples_of(np.arange(30)))
    assert np.isnan([found.value, found.low, found.high]).all()


def test_a_single_group_has_a_value_without_limits():
    found = ratio_of_sums(np.array([1.0, 2.0]), np.array([2.0, 4.0]), resamples_of(np.zeros(2)))
    assert found.value == 0.5
    assert np.isnan([found.low, found.high]).all()


def test_equal_texts_have_no_recovery():
    found = ratio_of_sums(np.zeros(8), np.zeros(8), resamples_of(np.arange(8)))
    assert np.isnan(found.value)
    assert holds_zero(interval_of(np.zeros(9), resamples_of(np.arange(8))))


def test_the_interval_covers_the_ratio():
    """Coverage near 95 % with correlated rows within groups."""
    generator, covered, draws = np.random.default_rng(1), 0, 600
    groups = np.repeat(np.arange(20), 4)
    resamples = resamples_of(groups)
    for _ in range(draws):
        shared = generator.normal(size=20)[groups]
        denominators = 4 + shared + generator.normal(size=80)
        numerators = 0.3 * denominators + 0.5 * (
            generator.normal(size=20)[groups] + generator.normal(size=80)
        )
        found = ratio_of_sums(numerators, denominators, resamples)
        covered += found.low <= 0.3 <= found.high
    assert 0.925 <= covered / draws <= 0.98


def test_the_interval_of_skewed_effects_covers_the_mean():
    """The t interval alone covers 0.87 to 0.91."""
    generator, resamples = np.random.default_rng(0), resamples_of(np.arange(12))
    values = [mean_of_rows(1 - generator.exponential(size=12), resamples) for _ in range(1500)]
    covered = [
        np.mean([found.low <= 0 <= found.high for found in (f(one, resamples) for one in values)])
        for f in (interval_of, skewed_interval)
    ]
    assert covered[0] < 0.915
    assert 0.93 <= covered[1] <= 0.97


def test_the_interval_of_symmetric_effects_is_that_of_t():
    values, resamples = np.array([-1.0, 1.0, -2.0, 2.0, 0.0, 0.0]) + 5, resamples_of(np.arange(6))
    found = [f(mean_of_rows(values, resamples), resamples) for f in (interval_of, skewed_interval)]
    assert found[1].low == pytest.approx(found[0].low)
    assert found[1].high == pytest.approx(found[0].high)


def test_the_interval_mirrors_with_the_effects():
    values, resamples = np.array([0.0, 0, 0, 0, 1, 2, 7]), resamples_of(np.arange(7))
    right, left = (
        skewed_interval(mean_of_rows(sign * values, resamples), resamples) for sign in (1, -1)
    )
    assert (right.low, right.high) == pytest.approx((-left.high, -left.low))
    # The long tail may reach further than was sampled.
    assert right.high - right.value > 1.5 * (right.value - right.low)
