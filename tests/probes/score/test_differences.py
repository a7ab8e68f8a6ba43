"""Intervals and p-values of differences, on the same rows and on different ones."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import ttest_ind, ttest_rel, wilcoxon

from probekit.amounts import FEWEST_UNITS, LEVEL
from probekit.probes.score import metrics
from probekit.probes.score.contributions import difference_of_parts, parts_of_tpr_at_fpr_1
from probekit.probes.score.differences import DRAWS, bootstrap_tests, paired_differences, sign_tests
from probekit.probes.score.exchange import holm
from probekit.probes.score.intervals import jackknife_interval
from probekit.probes.score.metrics import NumberPredictions, Resamples, accuracy, mean_of_rows, r2
from probekit.probes.score.unpaired import Side, signed_rank, unpaired_differences


def probes_of(generator, n_groups, rates, each=4):
    """Predictions of probes with the given accuracies, which are wrong on the same groups."""
    n_rows = n_groups * each
    ease = np.repeat(generator.uniform(-0.15, 0.15, size=n_groups), each)
    draw = generator.random(n_rows)  # the same for both, so that they mostly err together
    return [of_correct(draw < rate + ease) for rate in rates]


def of_correct(correct):
    correct = np.asarray(correct, dtype=int)
    return metrics.ClassPredictions(np.ones_like(correct), correct, 2)


def paired(metric, a, b, resamples):
    """The difference of two sets of predictions on the same rows."""
    (found,) = paired_differences([(metric(a, resamples), metric(b, resamples))], resamples)
    return found


def unpaired(a, b, *resamples):
    sides = (Side(accuracy(one, own), own) for one, own in zip((a, b), resamples, strict=True))
    (found,) = unpaired_differences([tuple(sides)], (0.0, 1.0))
    return found


def within(rejections, n, most=0.06):
    """Whether the rejection rate is at most `most`, plus three Monte Carlo standard errors."""
    return rejections / n <= most + 3 * np.sqrt(most * (1 - most) / n)


def test_the_paired_interval_has_its_nominal_coverage():
    covered = rejected = 0
    for seed in range(100):
        generator, resamples = np.random.default_rng(seed), Resamples.leave_one_out(ROWS_OF_80)
        found = paired(accuracy, *probes_of(generator, 80, (0.75, 0.70)), resamples)
        covered += found.ci_low <= 0.05 <= found.ci_high
        rejected += found.p < 0.05
    assert 0.88 <= covered / 100 <= 0.99
    assert rejected / 100 > 0.8


ROWS_OF_80 = np.arange(320) // 4


@pytest.mark.parametrize("n_groups", [6, 12, 50])
def test_groups_that_agree_do_not_show_that_all_do(n_groups):
    resamples = Resamples.leave_one_out(np.arange(4 * n_groups) // 4)
    right, wrong = (of_correct(np.full(4 * n_groups, one)) for one in (True, False))
    half = of_correct(np.arange(4 * n_groups) % 2)
    for a, b in ((right, wrong), (right, half), (wrong, half)):
        found = paired(accuracy, a, b, resamples)
        # If this share of groups has the opposite difference, n of n agree at a rate of 2.5 %.
        share = 1 - 0.025 ** (1 / n_groups)
        opposite = found.value * (1 - 2 * share)
        assert min(abs(found.ci_low), abs(found.ci_high)) == pytest.approx(abs(opposite))
        assert found.ci_low < found.value < found.ci_high
        assert (found.ci_low > 0 or found.ci_high < 0) == (found.p < LEVEL)


@pytest.mark.parametrize("n_groups", [8, 20, 30])
def test_adjusted_limits_of_groups_that_agree_exclude_0_exactly_if_their_p_is_significant(n_groups):
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(n_groups), [60] + [2] * (n_groups - 1))  # one large group
    resamples = Resamples.leave_one_out(groups)
    right, wrong = (accuracy(of_correct(np.full(len(groups), one)), resamples) for one in (1, 0))
    noisy = [
        accuracy(of_correct((generator.random(n_groups) < 0.5)[groups]), resamples)
        for _ in range(7)
    ]
    pairs = [(right, wrong), *[(noisy[0], one) for one in noisy[1:]]]
    found = paired_differences(pairs, resamples)[0]
    assert (found.adjusted_low > 0) == (found.p_adjusted < LEVEL)


def test_of_a_class_that_alone_differs_only_its_groups_count():
    groups = np.arange(48) // 4
    resamples, truth = Resamples.leave_one_out(groups), (groups < 6).astype(int)
    probes = [
        metrics.ClassPredictions(truth, truth, 2, alarms=alarm[:, None].repeat(2, 1), positive=1)
        for alarm in (truth.astype(float), np.zeros(48))
    ]
    scored = [metrics.tpr_at_fpr_1(one, resamples) for one in probes]
    part = difference_of_parts(*map(parts_of_tpr_at_fpr_1, probes))
    (found,) = paired_differences([tuple(scored)], resamples, [part])
    assert (found.value, found.p) == (1.0, 2 * 0.5**6)
    assert found.ci_low == pytest.approx(2 * 0.025 ** (1 / 6) - 1)


def sizes_of(n_groups):
    """Groups whose sizes range from 1 to 20."""
    return np.repeat(np.arange(n_groups), np.round(np.geomspace(1, 20, n_groups)).astype(int))


@pytest.mark.parametrize("n_groups", [6, 8, 12])
def test_equal_probes_of_few_groups_rarely_differ_significantly(n_groups):
    """Groups have 1:20 sizes, and their rows share which of the two probes is better."""
    groups, rejected = sizes_of(n_groups), 0
    resamples = Resamples.leave_one_out(groups)
    for seed in range(300):
        generator = np.random.default_rng(seed)
        rates = generator.beta(3, 1, size=(2, n_groups))[:, groups]
        both = (of_correct(generator.random(len(groups)) < rate) for rate in rates)
        rejected += paired(accuracy, *both, resamples).p < 0.05
    assert within(rejected, 300)
    if n_groups > 6:  # with 6 groups only the largest of 64 sums of either sign is below 0.05
        assert rejected > 0


def test_no_verdict_below_six_groups():
    for n_groups in (3, FEWEST_UNITS - 1, FEWEST_UNITS):
        groups = np.repeat(np.arange(n_groups), 20)
        resamples = Resamples.leave_one_out(groups)
        right = of_correct(np.ones(len(groups)))
        wrong = of_correct(np.random.default_rng(0).random(len(groups)) < 0.2)
        same = paired(accuracy, right, wrong, resamples)
        for found in (same, unpaired(right, wrong, resamples, resamples)):
            is_few = n_groups < FEWEST_UNITS
            assert np.isnan([found.p, found.p_adjusted]).tolist() == [is_few, is_few]
            assert found.ci_low < found.value < found.ci_high
        if n_groups == FEWEST_UNITS:
            assert same.p == 2 / 64


@pytest.mark.parametrize("seed", [3, 4])
def test_p_values_are_shares_of_sign_patterns_and_their_adjustment_the_step_down_maximum(seed):
    """Brute force over all signs of three differences, in groups of different sizes.

    With seed 4 the share of larger maxima falls from the first step to the second.
    """
    generator = np.random.default_rng(seed)
    groups = sizes_of(7)
    resamples = Resamples.leave_one_out(groups)
    correct = generator.random((4, len(groups))) < [[0.5], [0.75], [0.65], [0.5]]
    values = [accuracy(of_correct(one), resamples) for one in correct]
    found = paired_differences([(one, values[0]) for one in values[1:]], resamples)
    assert any(one.p_adjusted > one.p for one in found)
    leads = [np.bincount(groups, weights=one.astype(int) - correct[0]) for one in correct[1:]]
    contributions = np.array(leads) / len(groups)
    scaled = contributions / np.sqrt(np.square(contributions).sum(axis=1, keepdims=True))
    drawn = np.abs(scaled @ np.array(list(product([1, -1], repeat=7))).T)
    observed = np.abs(scaled.sum(axis=1))
    single = [(row >= one - 1e-12).mean() for row, one in zip(drawn, observed, strict=True)]
    expected, least = np.empty(3), 0.0
    for step, n in enumerate(np.argsort(-observed)):
        remaining = np.argsort(-observed)[step:]
        least = max(least, (drawn[remaining].max(axis=0) >= observed[n] - 1e-12).mean())
        expected[n] = least
    assert [one.value for one in found] == pytest.approx(contributions.sum(axis=1))
    signs, bootstrap = (test(contributions, resamples)[:2] for test in (sign_tests, _bootstrap))
    np.testing.assert_allclose(signs, [single, expected])
    both = np.maximum(signs, bootstrap)
    np.testing.assert_allclose([(one.p, one.p_adjusted) for one in found], both.T)


def _bootstrap(contributions, resamples):
    return bootstrap_tests(contributions, resamples, is_skewed=False)


@pytest.mark.parametrize("widening", [1.0, metrics.WIDER_OVER_FOLDS])
@pytest.mark.parametrize("is_skewed", [True, False])
def test_the_bootstrap_interval_ends_where_hall_s_statistic_is_critical(is_skewed, widening):
    """A difference at a limit has a p-value of the level, and so do all adjusted ones."""
    generator = np.random.default_rng(0)
    own = (generator.exponential(size=(3, 30)) - [[0.6], [0.8], [1.0]]) / 30
    resamples = Resamples.leave_one_out(np.arange(30), widening=widening)
    found = bootstrap_tests(own, resamples, is_skewed)
    for low, high, p in (found[[2, 3, 0]], found[[4, 5, 1]]):
        np.testing.assert_array_equal((low > 0) | (high < 0), p < LEVEL)
    for end in (found[2], found[3]):
        p = bootstrap_tests(own - end[:, None] / 30, resamples, is_skewed)[0]
        assert p == pytest.approx(LEVEL, abs=0.002)


def test_a_giant_group_has_finite_adjusted_limits_if_the_adjusted_p_is_small():
    groups = np.repeat(np.arange(12), [300] + [10] * 11)
    resamples, found = Resamples.leave_one_out(groups), []
    for seed in range(30):
        hits = np.random.default_rng(seed).random((4, len(groups))) < [[0.9], [0.7], [0.7], [0.7]]
        first, *others = (accuracy(of_correct(one), resamples) for one in hits)
        found += paired_differences([(first, one) for one in others], resamples)
    significant = [one for one in found if one.p_adjusted < LEVEL]
    assert len(significant) > 10
    assert all(np.isfinite([one.adjusted_low, one.adjusted_high]).all() for one in significant)
    for one in found:
        assert (one.adjusted_low > 0 or one.adjusted_high < 0) == (one.p_adjusted < LEVEL)


def test_a_group_in_which_a_rival_fails_shows_that_signs_are_not_symmetric():
    """It is a little worse in 39 of 40 groups, and much better in one: others may be like that."""
    leads = 0.1 + 0.08 * np.random.default_rng(0).normal(size=40)
    leads[0] = -0.85
    resamples = Resamples.leave_one_out(np.arange(40))
    (signs,) = sign_tests(leads[None] / 40, resamples).T
    values = mean_of_rows(leads, resamples), np.zeros(41)
    (found,) = paired_differences([values], resamples)
    assert signs[0] < 0.003 < 0.3 < found.p < 0.6
    assert found.ci_low < -0.1 < 0 < signs[2]
    assert found.ci_high == pytest.approx(0.126, abs=0.002)


def test_the_best_of_many_equal_probes_is_rarely_significant():
    by_single = by_maximum = 0
    resamples = Resamples.leave_one_out(np.arange(120) // 10)
    for seed in range(150):
        generator = np.random.default_rng(seed)
        rates = generator.beta(3, 1, size=(7, 12))[:, np.arange(120) // 10]
        correct = generator.random((7, 120)) < rates
        values = [accuracy(of_correct(one), resamples) for one in correct]
        found = paired_differences([(one, values[0]) for one in values[1:]], resamples)
        by_single += min(one.p for one in found) < 0.05
        by_maximum += min(one.p_adjusted for one in found) < 0.05
    assert within(by_maximum, 150)
    assert by_single / 150 > 0.15


def test_a_paired_difference_of_rows_is_close_to_the_paired_t_interval():
    a, b = np.random.default_rng(0).random((2, 50)) < [[0.8], [0.6]]
    found = paired(accuracy, of_correct(a), of_correct(b), Resamples.leave_one_out(np.arange(50)))
    expected = ttest_rel(a.astype(float), b.astype(float))
    interval = expected.confidence_interval(0.95)
    limits = (interval.low, interval.high)
    assert (found.ci_low, found.ci_high) == pytest.approx(limits, abs=0.02)
    assert found.p == pytest.approx(expected.pvalue, abs=0.02)


@pytest.mark.parametrize(("n_a", "n_b"), [(40, 90), (30, 30)])
def test_different_rows_are_compared_much_as_by_welchs_test_of_group_means(n_a, n_b):
    generator = np.random.default_rng(0)
    right = [generator.random(n * 10) < rate for n, rate in ((n_a, 0.8), (n_b, 0.6))]
    resamples = [Resamples.leave_one_out(np.arange(n * 10) // 10) for n in (n_a, n_b)]
    found = unpaired(*map(of_correct, right), *resamples)
    means = [one.reshape(-1, 10).mean(axis=1) for one in right]
    expected = ttest_ind(*means, equal_var=False)
    interval = expected.confidence_interval(0.95)
    assert found.p == found.p_adjusted
    assert np.log(found.p) == pytest.approx(np.log(expected.pvalue), rel=0.25)
    assert (found.ci_low, found.ci_high) == pytest.approx((interval.low, interval.high), abs=0.015)


def test_unpaired_groups_of_different_sizes_count_as_fewer():
    generator = np.random.default_rng(0)
    a, b = (0.7 + 0.01 * generator.normal(size=21), 0.6 + 0.01 * generator.normal(size=21))
    equal = Resamples.leave_one_out(np.arange(400) // 20)
    skewed = Resamples.leave_one_out(np.maximum(np.arange(400) - 380, 0))  # one with 95 %
    plain, few = unpaired_differences([(Side(a, one), Side(b, equal)) for one in (equal, skewed)])
    assert few.ci_high - few.ci_low > 2 * (plain.ci_high - plain.ci_low)
    assert few.p > plain.p


@pytest.mark.parametrize("n_sets", [100, pytest.param(300, marks=pytest.mark.nightly)])
def test_unpaired_equal_probes_rarely_differ_significantly(n_sets):
    rejected, sizes = 0, (8, 20)
    resamples = [Resamples.leave_one_out(np.arange(n * 10) // 10) for n in sizes]
    for seed in range(n_sets):
        generator = np.random.default_rng(seed)
        drawn = [(generator.random(n * 10), generator.beta(6, 3, size=n)) for n in sizes]
        sides = [of_correct(draw < np.repeat(rates, 10)) for draw, rates in drawn]
        rejected += unpaired(*sides, *resamples).p < 0.05
    assert within(rejected, n_sets)
    assert rejected / n_sets > 0.01


def test_a_difference_turns_its_sign_with_its_sides():
    a, b = probes_of(np.random.default_rng(0), 30, (0.8, 0.7))
    resamples = Resamples.leave_one_out(np.arange(120) // 4)
    for metric in (metrics.balanced_accuracy, metrics.macro_f1, accuracy):
        there, back = (paired(metric, *pair, resamples) for pair in ((a, b), (b, a)))
        assert (there.a, there.b, there.value) == (back.b, back.a, -back.value)
        assert (there.ci_low, there.ci_high) == pytest.approx((-back.ci_high, -back.ci_low))
        assert there.p == back.p


def test_a_p_value_is_never_0_and_identical_predictions_have_one_of_1():
    resamples = Resamples.leave_one_out(np.arange(50))
    right, wrong = of_correct(np.ones(50)), of_correct(np.zeros(50))
    assert 1 / (1 + DRAWS) <= paired(accuracy, right, wrong, resamples).p < 0.001
    same = paired(accuracy, right, right, resamples)
    assert (same.value, same.ci_low, same.ci_high, same.p, same.p_adjusted) == (0, 0, 0, 1, 1)
    one, other = (accuracy(given, resamples) for given in (right, wrong))
    better, same = paired_differences([(one, other), (other, other)], resamples)
    assert better.p_adjusted < 0.01
    assert (same.value, same.p, same.p_adjusted) == (0, 1, 1)
    assert paired_differences([], resamples) == []
    apart = unpaired(right, right, resamples, resamples)  # perfect on other rows
    assert (apart.value, apart.p, apart.p_adjusted) == (0, 1, 1)
    assert -0.1 < apart.ci_low < 0 < apart.ci_high < 0.1


def test_every_layer_is_compared_with_the_reference_under_the_same_signs():
    probes = probes_of(np.random.default_rng(0), 60, (0.7, 0.8, 0.69))
    resamples = Resamples.leave_one_out(np.arange(240) // 4)
    reference, *others = (accuracy(one, resamples) for one in probes)
    found = paired_differences([(one, reference) for one in others], resamples)
    for one, probe in zip(found, probes[1:], strict=True):
        alone = paired(accuracy, probe, probes[0], resamples)
        expected = (alone.value, alone.ci_low, alone.p)
        assert (one.value, one.ci_low, one.p) == pytest.approx(expected, abs=1e-12)
        assert one.p_adjusted >= one.p
    assert found[0].p_adjusted <= holm(np.array([one.p for one in found]))[0]


def test_numbers_are_compared_too_and_what_is_undefined_is_left_out():
    truth = np.arange(40.0)
    near, far = NumberPredictions(truth, truth + 1), NumberPredictions(truth, truth[::-1])
    resamples = Resamples.leave_one_out(np.arange(40))
    assert paired(r2, near, far, resamples).p < 0.001
    none = NumberPredictions(np.ones(40), truth)
    pairs = [(r2(a, resamples), r2(b, resamples)) for a, b in ((none, none), (near, far))]
    undefined, defined = paired_differences(pairs, resamples)
    assert np.isnan([undefined.value, undefined.ci_low, undefined.p, undefined.p_adjusted]).all()
    assert defined.p == defined.p_adjusted == paired(r2, near, far, resamples).p
    (apart,) = unpaired_differences([(Side(pairs[0][0], resamples),) * 2])
    assert np.isnan([apart.value, apart.ci_low, apart.p]).all()


def test_unpaired_differences_are_adjusted_by_holms_method():
    generator = np.random.default_rng(0)
    resamples = [Resamples.leave_one_out(np.arange(n)) for n in (5, 40, 40)]
    drawn = [(generator.random(len(one.group_of_row)), one) for one in resamples * 2]
    sides = [Side(mean_of_rows(rows, one), one) for rows, one in drawn]
    none, *found = unpaired_differences(list(zip(sides[:3], sides[3:], strict=True)))
    assert np.isnan([none.p, none.p_adjusted]).all()  # five groups
    assert [one.p_adjusted for one in found] == holm(np.array([one.p for one in found])).tolist()


def test_adjusted_limits_of_unpaired_differences_exclude_0_exactly_if_p_is_below_the_level():
    generator, holds = np.random.default_rng(0), []
    for gain in np.linspace(0, 1, 20):
        shares = generator.random((2, 5, 40)) * 0.6
        shares[0, :3] += 0.4 * gain
        resamples = Resamples.leave_one_out(np.arange(40))
        values = [[mean_of_rows(one, resamples) for one in side] for side in shares]
        sides = [[Side(one, resamples) for one in pair] for pair in zip(*values, strict=True)]
        found = unpaired_differences(list(map(tuple, sides)), (0.0, 1.0))
        for one in found:
            assert (one.adjusted_low > 0 or one.adjusted_high < 0) == (one.p_adjusted < LEVEL)
            assert one.adjusted_low <= one.ci_low < one.ci_high <= one.adjusted_high
            holds.append(one.p_adjusted < LEVEL)
    assert 0.1 < np.mean(holds) < 0.9


def test_predictions_of_outer_folds_have_wider_intervals_and_larger_p():
    generator, groups = np.random.default_rng(0), np.arange(90) // 3
    a, b = (of_correct(generator.random(90) < rate) for rate in (0.8, 0.6))
    once, wider = (Resamples.leave_one_out(groups, widening=one) for one in (1.0, 1.5))
    narrow, wide = (paired(accuracy, a, b, one) for one in (once, wider))
    assert wide.value == narrow.value
    assert wide.ci_high - wide.value == pytest.approx(1.5 * (narrow.ci_high - narrow.value))
    assert narrow.p < 0.002 < 0.01 < wide.p
    apart = [unpaired(a, b, one, once) for one in (once, wider)]
    assert apart[0].p < apart[1].p
    score, same = (jackknife_interval(accuracy(a, one), one, (0, 1)) for one in (wider, once))
    assert score.low < same.low < same.high < score.high


@pytest.mark.parametrize("n", [6, 7, 15, 40])
def test_signed_ranks_have_the_exact_p_and_the_interval_of_all_shifts_that_are_not_rejected(n):
    differences = np.random.default_rng(n).normal(0.2, 1, n)
    interval, p = signed_rank(differences)
    assert p == pytest.approx(wilcoxon(differences, method="exact").pvalue)
    assert signed_rank(-differences)[1] == p
    for end, inside in ((interval.low, 1e-6), (interval.high, -1e-6)):
        assert wilcoxon(differences - end - inside, method="exact").pvalue >= LEVEL
        assert wilcoxon(differences - end + inside, method="exact").pvalue < LEVEL


def test_ties_and_zeros_of_signed_ranks_count_against_significance():
    differences = np.array([0.1, 0.1, 0.3 - 0.2, 0.2, 0.2, 0.3, 0.4])
    assert signed_rank(differences)[1] == 2 / 2**7
    # A zero has the lowest rank, and equal ones of opposite signs the higher rank of both.
    assert signed_rank(np.append(differences, 0.0))[1] == 4 / 2**8
    # The one negative of three equal ones has the highest of their ranks, 3.
    assert signed_rank(np.append(differences[1:], -0.1))[1] == 2 * 5 / 2**7
    assert signed_rank(np.zeros(8))[1] == 1


@pytest.mark.parametrize("n", [0, 1, FEWEST_UNITS - 1])
def test_too_few_units_have_no_signed_rank_test(n):
    interval, p = signed_rank(np.full(n, 0.5))
    assert np.isnan([interval.low, interval.high, p]).all()
    assert interval.value == 0.5 or n == 0


def test_the_interval_of_signed_ranks_excludes_0_exactly_if_p_is_significant():
    generator, found = np.random.default_rng(0), []
    for _ in range(400):
        rounded = np.round(generator.normal(0.3, 1, 9), 0)
        interval, p = signed_rank(rounded)
        assert (interval.low > 0 or interval.high < 0) == (p < LEVEL)
        found.append(p < LEVEL)
    assert 0 < np.mean(found) < 0.5
