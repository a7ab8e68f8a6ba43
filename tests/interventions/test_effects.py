"""Recovery is a ratio of sums, and intervals and p-values keep their size with skewed effects."""

import numpy as np
import pytest

from probekit.interventions.effects import (
    bootstrap_p_values,
    holds_zero,
    interval_of,
    patch_p_values,
    ratio_of_sums,
    resamples_of,
    skewed_interval,
)
from probekit.probes.score.differences import paired_differences
from probekit.probes.score.exchange import PValues
from probekit.probes.score.metrics import mean_of_rows


def test_recovery_is_the_ratio_of_sums_not_the_mean_of_ratios():
    numerators, denominators = np.array([1.0, 0.0, 3.0] * 4), np.array([1.0, 0.001, 5.0] * 4)
    found = ratio_of_sums(numerators, denominators, resamples_of(np.arange(12)))
    assert found.value == pytest.approx(4 / 6.001)
    # A single group has no limits.
    found = ratio_of_sums(np.array([1.0, 2.0]), np.array([2.0, 4.0]), resamples_of(np.zeros(2)))
    assert found.value == 0.5
    assert np.isnan([found.low, found.high]).all()


@pytest.mark.parametrize(
    "denominators", [np.random.default_rng(0).normal(size=30), np.zeros(30)], ids=["noise", "equal"]
)
def test_no_ratio_where_the_interval_of_the_denominator_holds_zero(denominators):
    resamples = resamples_of(np.arange(30))
    assert holds_zero(interval_of(mean_of_rows(denominators, resamples), resamples))
    found = ratio_of_sums(np.ones(30), denominators, resamples)
    assert np.isnan([found.value, found.low, found.high]).all()


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


def both_tests(effects):
    """P-values of effects (n_tests, n_groups), by random signs alone and with the bootstrap."""
    resamples = resamples_of(np.arange(effects.shape[1]))
    means = [mean_of_rows(one, resamples) for one in effects]
    signs = paired_differences([(one, np.zeros_like(one)) for one in means], resamples)
    deviations = (effects - effects.mean(axis=1, keepdims=True)) / effects.shape[1]
    alone = PValues(*np.array([(one.p, one.p_adjusted) for one in signs]).T)
    return alone, patch_p_values(signs, deviations)


def test_left_exponential_effects_are_rejected_in_about_5_percent():
    # Single p-values do not depend on the other tests, so that one call tests many data sets.
    signs, both = both_tests(1 - np.random.default_rng(1).exponential(size=(600, 16)))
    assert (signs.single <= 0.05).mean() > 0.08
    assert (both.single <= 0.05).mean() < 0.07


def test_the_best_of_several_skewed_sites_is_rejected_in_about_5_percent():
    generator, found = np.random.default_rng(0), []
    for _ in range(40):
        both = both_tests(1 - generator.exponential(size=(20, 12)))
        found.append([one.maximum.min() <= 0.05 for one in both])
    signs, both = np.mean(found, axis=0)
    assert signs > 0.15
    assert both < 0.07


def test_the_power_is_close_to_that_of_random_signs():
    signs, both = both_tests(0.8 + np.random.default_rng(1).normal(size=(200, 16)))
    powers = [(one.single <= 0.05).mean() for one in (signs, both)]
    assert powers[0] - 0.1 < powers[1] <= powers[0]
    assert powers[1] > 0.7


def test_equal_effects_of_all_groups_keep_the_p_value_of_random_signs():
    for effects in (np.full((1, 12), -1.0), np.full((1, 12), 0.1) + 2e-17 * np.arange(12)):
        signs, both = both_tests(effects)
        expected = pytest.approx(np.maximum(signs.single, 1e-4))
        assert both.single == expected
        assert both.maximum == expected
    _, nothing = both_tests(np.zeros((1, 12)))
    assert nothing.single == nothing.maximum == 1


def test_draws_without_spread_give_no_nan():
    """36 % of the draws have equal effects only."""
    effects = np.full((2, 20), -1.0)
    effects[0, 0], effects[1] = 0.0, 0.0
    effects[1, :2] = 3.0
    _, found = both_tests(effects)
    assert found.single[0] < 0.001  # 19 of 20 answers are changed
    assert found.single[1] > 0.3  # two groups of 20
    assert 0 < found.maximum[0] < 0.01


def test_a_site_of_few_large_groups_does_not_govern_the_others():
    generator = np.random.default_rng(0)
    effects = np.concatenate([1 + generator.normal(size=(8, 30)), np.zeros((2, 30))])
    effects[8, :3], effects[9, :7] = 10.0, [50, -30, 1, 1, 1, 1, 1]
    _, both = both_tests(effects)
    assert (both.maximum[:8] < 0.025).all()
    assert (both.maximum[8:] > 0.2).all()


def test_a_mean_in_the_direction_of_the_long_tail_is_stronger_evidence():
    """Without the long tail in a sample, its mean is too low and its spread too small."""
    deviations = np.random.default_rng(0).exponential(size=20)
    deviations = (deviations - deviations.mean()) / 20
    with_tail, against = bootstrap_p_values(
        np.array([0.5, -0.5]), np.stack([deviations] * 2)
    ).single
    assert 3 * with_tail < against < 0.5


def test_p_values_do_not_depend_on_the_unit():
    effects = np.random.default_rng(0).exponential(size=(3, 14)) - 0.4
    for factor in (1e-6, -1e3):
        _, both = both_tests(factor * effects)
        np.testing.assert_allclose(both.single, both_tests(effects)[1].single)
        np.testing.assert_allclose(both.maximum, both_tests(effects)[1].maximum)


def test_the_adjusted_p_value_is_never_smaller():
    effects = np.random.default_rng(0).normal(0.3, 1, size=(10, 16))
    values = effects.mean(axis=1)
    found = bootstrap_p_values(values, (effects - values[:, None]) / 16)
    assert (found.maximum >= found.single).all()
    assert (found.single >= 1e-4).all()


def test_fewer_than_6_groups_have_no_p_value():
    assert np.isnan(both_tests(np.ones((1, 5)))[1].single).all()
    assert np.isfinite(both_tests(np.ones((1, 6)))[1].single).all()
