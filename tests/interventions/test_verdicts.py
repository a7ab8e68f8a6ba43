"""The rule of verdicts and their statistics; intervals and p-values hold with skewed effects."""

from dataclasses import replace

import numpy as np
import pytest

from probekit.interventions import verdicts
from probekit.interventions.verdicts import ratio_of_sums, resamples_of, skewed_interval
from probekit.probes.score.differences import bootstrap_tests, paired_differences, sign_tests
from probekit.probes.score.exchange import PValues
from probekit.probes.score.intervals import jackknife_interval
from probekit.probes.score.metrics import mean_of_rows


def evidence(effect=1.0, low=0.5, high=1.5, p=0.01, whole=2.0, reason=""):
    return verdicts.CausalVerdict(effect, low, high, p, whole, False, "logits", 1e-6, reason)


NAN = float("nan")


@pytest.mark.parametrize(
    "given",
    [
        {"p": 0.049},
        {"p": 0.05},
        {"low": -0.1},
        {"effect": -1.0, "low": -1.5, "high": -0.5},
        {"effect": 0.0, "low": -0.09, "high": 0.1, "p": 0.4},
        {"effect": 0.0, "low": -0.09, "high": 0.11, "p": 0.4},
        {"effect": 5e-7, "low": 4e-7, "high": 6e-7, "whole": 0.0},
        {"effect": 5e-7, "low": 4e-7, "high": 2e-6, "whole": 0.0},
        {"effect": NAN},
        {"low": NAN, "high": NAN},
        {"p": NAN},
        {"p": NAN, "reason": "too few groups for a test"},
    ],
    ids=str,
)
def test_the_rule_and_the_reason_of_undecided_verdicts(given, snapshot):
    (found,) = verdicts.verdicts({"steers": evidence(**given)})
    assert f"{found.answer}: {verdicts.why_undecided(found)}" == snapshot


@pytest.mark.parametrize(("whole", "answer"), [(0.04, "undecided"), (0.06, "yes")])
def test_an_effect_that_the_whole_vector_lacks_is_an_artefact(whole, answer):
    # A part of the direction that does not depend on the label moves the answers.
    one = replace(evidence(whole=whole), exceeds_whole=True)
    (found,) = verdicts.verdicts({"steers": one})
    assert found.answer == answer
    assert ("artefact" in verdicts.why_undecided(found)) == (answer == "undecided")


@pytest.mark.parametrize(
    ("p", "adjusted"),
    [
        ([0.01, 0.02, 0.04], [0.03, 0.04, 0.04]),
        ([0.03, NAN, 0.02], [0.04, NAN, 0.04]),  # questions without a test do not count
        ([0.04, NAN], [0.04, NAN]),
        ([NAN], [NAN]),
    ],
)
def test_p_values_are_adjusted_for_the_questions_that_have_a_test(p, adjusted):
    questions = ("detects", "steers", "silences")
    found = verdicts.verdicts(dict(zip(questions, [evidence(p=one) for one in p], strict=False)))
    assert [one.p_holm for one in found] == pytest.approx(adjusted, nan_ok=True)
    assert [one.answer for one in found] == ["undecided" if np.isnan(one) else "yes" for one in p]


def test_the_observed_direction_counts_as_a_draw_and_undefined_effects_as_large():
    assert verdicts.two_sided_p(3.0, np.array([1.0, -2.0, 2.9])) == 0.25
    assert verdicts.two_sided_p(1.0, np.full(99, -1.0)) == 1.0
    assert np.isnan(verdicts.two_sided_p(NAN, np.zeros(999)))
    assert verdicts.two_sided_p(1.0, np.full(999, NAN)) == 1.0


def test_slopes_are_least_squares_and_more_than_the_whole_vector_is_flagged():
    changes, by = np.random.default_rng(0).normal(size=(5, 3)), (-2, 1, 4)
    points = np.column_stack([np.zeros(5), changes])  # dose 0 changes nothing
    np.testing.assert_allclose(verdicts.slopes(changes, by), np.polyfit((0, *by), points.T, 1)[0])
    resamples = resamples_of(np.arange(30))
    whole = mean_of_rows(np.random.default_rng(0).normal(2, 0.1, 30), resamples)
    for share in (0.5, 1):
        found = verdicts.direction_effect(
            whole, np.zeros(9), share * whole, resamples, "logits", 1.0
        )
        assert found.exceeds_whole == (share < 1)


def test_detection_is_the_auroc_of_the_projection_in_each_fold():
    codes, rows = np.arange(60) % 2, np.arange(60)
    projections = codes + np.random.default_rng(0).normal(size=60)
    found = verdicts.detection(projections, codes, rows, 0 * rows, draws=999, seed=0)
    pairs = projections[codes == 1][:, None] > projections[codes == 0]
    assert found.effect == pytest.approx(pairs.mean() - 0.5)
    assert found.p < 0.01
    none = verdicts.detection(projections, codes, codes, 0 * rows, draws=99, seed=0)
    assert np.isnan(none.p)
    assert "too few groups" in none.reason
    folds = rows // 30  # projections of different folds have different scales
    perfect = verdicts.detection(codes + 100.0 * folds, codes, rows, folds, draws=99, seed=0)
    assert perfect.effect == perfect.high == 0.5
    assert 0 < perfect.low < 0.5


def test_silence_is_the_share_of_the_gap_that_erasure_removes_and_needs_a_gap():
    codes, noise = np.tile([0, 1], 20), np.random.default_rng(0).normal(size=40)
    resamples = resamples_of(np.repeat(np.arange(20), 2))
    base = np.where(codes == 1, 3.0, -1.0) + noise * 0.1
    found = verdicts.silence(base, 0.25 * base, np.array([0.1]), 0 * base, codes, resamples)
    assert (found.effect, found.whole, found.p) == (pytest.approx(0.75), pytest.approx(1.0), 0.5)
    assert not found.exceeds_whole
    found = verdicts.silence(noise, noise, np.zeros(1), noise, codes, resamples_of(np.arange(40)))
    assert np.isnan(found.effect)
    assert "does not differ" in found.reason


@pytest.mark.parametrize(
    ("numerators", "denominators", "groups", "value"),
    [
        ([1.0, 0.0, 3.0] * 4, [1.0, 0.001, 5.0] * 4, range(12), 4 / 6.001),
        ([1.0, 2.0], [2.0, 4.0], [0, 0], 0.5),  # a single group has no limits
        ([1.0] * 30, np.random.default_rng(0).normal(size=30), range(30), NAN),
        ([1.0] * 30, [0.0] * 30, range(30), NAN),
    ],
    ids=["not the mean of ratios", "one group", "noise", "zeros"],
)
def test_recovery_is_the_ratio_of_sums_unless_0_is_in_the_interval_of_the_denominator(
    numerators, denominators, groups, value
):
    resamples = resamples_of(np.array(groups))
    found = ratio_of_sums(np.array(numerators), np.array(denominators), resamples)
    assert found.value == pytest.approx(value, nan_ok=True)
    of_denominator = jackknife_interval(mean_of_rows(np.array(denominators), resamples), resamples)
    assert verdicts.holds_zero(of_denominator) == np.isnan(value)
    assert np.isnan(found.low) == (np.isnan(value) or len(set(groups)) == 1)


def test_the_interval_covers_the_ratio():
    """Coverage near 95 % with correlated rows within groups."""
    generator, covered, draws = np.random.default_rng(1), 0, 600
    groups = np.repeat(np.arange(20), 4)
    resamples = resamples_of(groups)
    for _ in range(draws):
        shared, noise = generator.normal(size=(2, 20))[:, groups] + generator.normal(size=(2, 80))
        denominators = 4 + shared
        found = ratio_of_sums(0.3 * denominators + 0.5 * noise, denominators, resamples)
        covered += found.low <= 0.3 <= found.high
    assert 0.925 <= covered / draws <= 0.98


def test_the_interval_of_skewed_effects_covers_the_mean():
    """The t interval alone covers 0.87 to 0.91."""
    generator, resamples = np.random.default_rng(0), resamples_of(np.arange(12))
    values = [mean_of_rows(1 - generator.exponential(size=12), resamples) for _ in range(1500)]
    covered = [
        np.mean([found.low <= 0 <= found.high for found in (f(one, resamples) for one in values)])
        for f in (jackknife_interval, skewed_interval)
    ]
    assert covered[0] < 0.915
    assert 0.93 <= covered[1] <= 0.97


@pytest.mark.parametrize("sign", [1, -1])
def test_the_interval_reaches_further_towards_a_long_tail_and_is_that_of_t_without(sign):
    tail, symmetric = np.array([0.0, 0, 0, 0, 1, 2, 7]), np.array([-1.0, 1, -2, 2, 0, 0, 0])
    resamples = resamples_of(np.arange(7))
    found = skewed_interval(mean_of_rows(sign * tail, resamples), resamples)
    above, below = found.high - found.value, found.value - found.low
    assert (above / below) ** sign > 1.5
    mean = mean_of_rows(sign * symmetric + 5, resamples)
    plain, skewed = (found(mean, resamples) for found in (jackknife_interval, skewed_interval))
    assert (skewed.low, skewed.high) == pytest.approx((plain.low, plain.high))


def both_tests(samples):
    """P-values of effects (n_tests, n_groups), by random signs alone and with the bootstrap."""
    resamples = resamples_of(np.arange(samples.shape[1]))
    means = [mean_of_rows(one, resamples) for one in samples]
    both = paired_differences([(one, 0 * one) for one in means], resamples, is_skewed=True)
    alone = PValues(*sign_tests(samples / samples.shape[1], resamples)[:2])
    return alone, PValues(*np.array([(one.p, one.p_adjusted) for one in both]).T)


def test_single_skewed_effects_are_rejected_in_about_5_percent_with_the_power_of_random_signs():
    # Single p-values do not depend on the other tests, so that one call tests many data sets.
    signs, both = both_tests(1 - np.random.default_rng(1).exponential(size=(600, 16)))
    assert (signs.single <= 0.05).mean() > 0.08
    assert (both.single <= 0.05).mean() < 0.07
    signs, both = both_tests(0.8 + np.random.default_rng(1).normal(size=(200, 16)))
    powers = [(one.single <= 0.05).mean() for one in (signs, both)]
    assert powers[0] - 0.1 < powers[1] <= powers[0]
    assert powers[1] > 0.7


def test_the_best_of_several_skewed_sites_is_rejected_in_about_5_percent():
    generator, found = np.random.default_rng(0), []
    for _ in range(40):
        both = both_tests(1 - generator.exponential(size=(20, 12)))
        found.append([one.maximum.min() <= 0.05 for one in both])
    signs, both = np.mean(found, axis=0)
    assert signs > 0.15
    assert both < 0.07


def test_equal_effects_of_all_groups_keep_the_p_value_of_random_signs():
    for samples in (np.full((1, 12), -1.0), np.full((1, 12), 0.1) + 2e-17 * np.arange(12)):
        signs, both = both_tests(samples)
        expected = pytest.approx(np.maximum(signs.single, 1e-4))
        assert (both.single, both.maximum) == (expected, expected)
    _, nothing = both_tests(np.zeros((1, 12)))
    assert nothing.single == nothing.maximum == 1


def test_draws_without_spread_give_no_nan():
    """36 % of the draws have equal effects only."""
    samples = np.full((2, 20), -1.0)
    samples[0, 0], samples[1] = 0.0, 0.0
    samples[1, :2] = 3.0
    _, found = both_tests(samples)
    assert found.single[0] < 0.001  # 19 of 20 answers are changed
    assert found.single[1] > 0.3  # two groups of 20
    assert 0 < found.maximum[0] < 0.01


def test_a_site_of_few_large_groups_does_not_govern_the_others():
    samples = np.concatenate([1 + np.random.default_rng(0).normal(size=(8, 30)), np.zeros((2, 30))])
    samples[8, :3], samples[9, :7] = 10.0, [50, -30, 1, 1, 1, 1, 1]
    _, both = both_tests(samples)
    assert (both.maximum[:8] < 0.025).all()
    assert (both.maximum[8:] > 0.2).all()


def test_a_mean_in_the_direction_of_the_long_tail_is_stronger_evidence():
    """Without the long tail in a sample, its mean is too low and its spread too small."""
    deviations = np.random.default_rng(0).exponential(size=20)
    deviations = (deviations - deviations.mean()) / 20
    samples = np.stack([deviations + 0.5 / 20, deviations - 0.5 / 20])
    with_tail, against = bootstrap_tests(samples, resamples_of(np.arange(20)), True)[0]
    assert 3 * with_tail < against < 0.5


def test_p_values_do_not_depend_on_the_unit():
    samples = np.random.default_rng(0).exponential(size=(3, 14)) - 0.4
    _, expected = both_tests(samples)
    for factor in (1e-6, -1e3):
        _, found = both_tests(factor * samples)
        np.testing.assert_allclose(found.single, expected.single)
        np.testing.assert_allclose(found.maximum, expected.maximum)
