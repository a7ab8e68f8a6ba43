"""Intervals and differences where a class is in few groups, or where groups are unlike."""

import numpy as np
import pytest

from probekit.amounts import LEVEL
from probekit.probes.score.contributions import class_spread, difference_of_parts
from probekit.probes.score.differences import paired_differences
from probekit.probes.score.intervals import jackknife_interval, score_interval
from probekit.probes.score.metrics import ClassPredictions, Resamples
from probekit.probes.score.scored import metrics_of, parts_of
from probekit.probes.score.unpaired import Side, unpaired_differences

UNIT = (0.0, 1.0)


def drawn(generator, n_groups, n_positive, size=8, correlation=0.3, level=1.0, probes=1):
    """Predictions of probes with equal true scores; the first groups are the positive ones."""
    groups = np.repeat(np.arange(n_groups), size)
    truth = (groups < n_positive).astype(int)
    found = []
    for _ in range(probes):
        score = np.sqrt(correlation) * generator.normal(size=n_groups)[groups]
        score += np.sqrt(1 - correlation) * generator.normal(size=len(groups))
        score += level * (truth - 0.5)
        scores = np.column_stack([-score, score])
        found.append(ClassPredictions(truth, scores.argmax(axis=1), 2, scores))
    return found, Resamples.leave_one_out(groups)


def side(metric, predictions, resamples):
    values = metrics_of(predictions)[metric](predictions, resamples)
    return Side(values, resamples, parts_of(metric, [predictions]))


def interval(metric, predictions, resamples):
    one = side(metric, predictions, resamples)
    return score_interval(one.values, resamples, UNIT, one.parts)


def differences(metric, probes, resamples):
    """The tests of the first of several probes against each other one."""
    first, *others = (side(metric, one, resamples) for one in probes)
    parts = [difference_of_parts(first.parts, other.parts) for other in others]
    return paired_differences([(first.values, one.values) for one in others], resamples, parts)


def agrees(one):
    """Whether the limits of a difference exclude 0 exactly if their p-value is below the level."""
    return (one.ci_low > 0 or one.ci_high < 0) == (one.p < LEVEL) and (
        one.adjusted_low > 0 or one.adjusted_high < 0
    ) == (one.p_adjusted < LEVEL)


@pytest.mark.parametrize("metric", ["balanced_accuracy", "auroc"])
def test_the_interval_of_a_score_with_a_rare_class_has_its_coverage(metric):
    many, _ = drawn(np.random.default_rng(1), 4000, 2000, correlation=0.6)
    true = metrics_of(many[0])[metric](many[0], Resamples.whole(len(many[0].truth)))[0]
    generator, covered = np.random.default_rng(0), []
    for _ in range(150):
        (one,), resamples = drawn(generator, 60, 8, correlation=0.6)
        found = interval(metric, one, resamples)
        covered.append(found.low <= true <= found.high)
    assert np.mean(covered) > 0.88


@pytest.mark.parametrize(
    ("metric", "n_sets"),
    [
        ("balanced_accuracy", 80),
        ("auroc", 40),
        pytest.param("auroc", 80, marks=pytest.mark.nightly),
    ],
)
def test_differences_with_a_rare_class_have_their_size_and_agree_with_their_intervals(
    metric, n_sets
):
    generator, single, several = np.random.default_rng(2), [], []
    for _ in range(n_sets):
        probes, resamples = drawn(generator, 120, 6, probes=8)
        tests = differences(metric, probes, resamples)
        single.append(np.mean([one.p < LEVEL for one in tests]))
        several.append(min(one.p_adjusted for one in tests) < LEVEL)
        assert all(map(agrees, tests))
    assert np.mean(single) < 0.085
    assert np.mean(several) < 0.12


@pytest.mark.parametrize("n_positive", [20, 6])  # random signs, and Welch's t by class
def test_intervals_exclude_0_exactly_if_their_p_value_is_below_the_level(n_positive):
    generator, rejected = np.random.default_rng(3), []
    for gain in np.linspace(0, 1.5, 60):
        probes, resamples = drawn(generator, 40, n_positive, probes=3)
        better, _ = drawn(generator, 40, n_positive, level=1.0 + gain)
        for one in differences("balanced_accuracy", [*better, *probes], resamples):
            assert agrees(one)
            rejected.append(one.p < LEVEL)
    assert 0.1 < np.mean(rejected) < 0.9


def test_the_limits_of_a_class_are_those_of_its_own_groups():
    """The other class is always right, so that only the rare one lowers the score."""
    generator = np.random.default_rng(5)
    groups, truth = np.repeat(np.arange(60), 5), np.repeat([1, 0], [40, 260])
    missed = np.repeat(generator.random(60) < 0.4, 5) ^ (generator.random(300) < 0.1)
    guess = np.where(missed, 0, truth)
    one = ClassPredictions(truth, guess, 2)
    found = interval("balanced_accuracy", one, Resamples.leave_one_out(groups))
    alone, own = ClassPredictions(truth[:40], guess[:40], 2), Resamples.leave_one_out(groups[:40])
    recall = jackknife_interval(metrics_of(alone)["accuracy"](alone, own), own, UNIT)
    assert found.high - found.value == pytest.approx((recall.high - recall.value) / 2)


def test_the_same_guess_for_both_texts_of_a_pair_has_an_interval_of_its_groups():
    """One of the two is right in each group, so that the parts of the classes cancel."""
    truth, groups = np.tile([0, 1], 30), np.repeat(np.arange(30), 2)
    one = ClassPredictions(truth, np.repeat(np.arange(30) % 3 == 0, 2).astype(int), 2)
    found = interval("balanced_accuracy", one, Resamples.leave_one_out(groups))
    assert found.value == 0.5
    assert 0.25 < found.low < 0.4
    assert 0.6 < found.high < 0.75


@pytest.mark.parametrize("n_positive", [6, 8])
def test_groups_that_all_agree_have_the_p_value_of_their_signs(n_positive):
    """A perfect probe against one that misses the rare class in every group."""
    truth = np.repeat([1, 0], [5 * n_positive, 5 * 40])
    groups = np.arange(len(truth)) // 5
    probes = [ClassPredictions(truth, guess, 2) for guess in (truth, *[0 * truth] * 3)]
    for one in differences("balanced_accuracy", probes, Resamples.leave_one_out(groups)):
        assert one.p == pytest.approx(0.5 ** (n_positive - 1))
        assert one.p_adjusted == pytest.approx(3 * one.p)
        assert 0 < one.ci_low < 0.5 < one.ci_high < 1
        assert (one.adjusted_low > 0) == (one.p_adjusted < LEVEL)


def test_one_more_wrong_row_of_another_class_changes_little():
    """The rare class still decides, although the variance is not 0 any more."""
    truth, resamples = np.repeat([1, 0], [6, 54]), Resamples.leave_one_out(np.arange(60))
    other = 0 * truth
    other[30] = 1
    probes = [ClassPredictions(truth, guess, 2) for guess in (truth, 0 * truth, other)]
    same, more = differences("balanced_accuracy", probes, resamples)
    assert more.p == pytest.approx(same.p, rel=0.1)


def test_a_perfect_score_of_classes_in_the_same_groups_has_the_limits_of_accuracy():
    truth, groups = np.tile(np.arange(5), 16), np.repeat(np.arange(8), 10)
    one, resamples = ClassPredictions(truth, truth, 5), Resamples.leave_one_out(groups)
    found = [interval(metric, one, resamples).low for metric in ("balanced_accuracy", "accuracy")]
    assert found[0] == pytest.approx(found[1])


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy"])
def test_a_perfect_run_of_few_groups_is_not_certain(metric):
    """Runs on different rows, equally good: the smaller one is often perfect."""
    generator, rejected = np.random.default_rng(0), []
    for _ in range(100):
        sides = []
        for n in (8, 200):
            truth = np.tile([0, 1], n)
            guess = np.where(generator.random(2 * n) < 0.95, truth, 1 - truth)
            resamples = Resamples.leave_one_out(np.arange(2 * n) // 2)
            sides.append(side(metric, ClassPredictions(truth, guess, 2), resamples))
        (found,) = unpaired_differences([tuple(sides)], UNIT)
        assert agrees(found)
        rejected.append(found.p < LEVEL)
    assert np.mean(rejected) < 0.1


@pytest.mark.parametrize("n_positive", [1, 2, 5])
def test_a_class_in_few_groups_has_no_verdict_and_in_one_group_no_interval(n_positive):
    probes, resamples = drawn(np.random.default_rng(4), 40, n_positive, probes=2)
    (one,) = differences("balanced_accuracy", probes, resamples)
    assert np.isnan([one.p, one.p_adjusted]).all()
    found = interval("balanced_accuracy", probes[0], resamples)
    assert np.isnan([found.low, one.ci_low]).tolist() == [n_positive == 1] * 2


def test_runs_on_other_rows_have_no_verdict_on_a_class_in_few_groups():
    for n_positive in (5, 6):
        probes, resamples = drawn(np.random.default_rng(4), 40, n_positive, probes=2)
        sides = tuple(side("auroc", one, resamples) for one in probes)
        (found,) = unpaired_differences([sides], UNIT)
        assert np.isnan(found.p) == (n_positive < 6)
        assert np.isfinite(found.ci_low)


@pytest.mark.parametrize(("sizes", "factor"), [((4, 4, 4, 4), 1.0), ((30, 2, 2, 2), 3.3)])
def test_the_variance_of_a_class_is_that_of_leaving_out_each_of_its_groups(sizes, factor):
    """A giant group pulls the mean towards itself, and its own residual towards 0."""
    n = len(sizes)
    groups = np.repeat(np.arange(n + 40), [*sizes, *[5] * 40])
    truth = (groups < n).astype(int)
    hit = np.random.default_rng(1).random(len(groups)) < np.where(groups < n - 1, 0.8, 0.3)
    guess = np.where(truth & ~hit, 0, truth)  # the other class is always right
    one, resamples = ClassPredictions(truth, guess, 2), Resamples.leave_one_out(groups)
    found = class_spread(parts_of("balanced_accuracy", [one]), resamples).variances[1] * 4
    own, hits = groups[truth == 1], (guess == truth)[truth == 1]
    without = np.array([hits[own != group].mean() for group in range(n)])
    residuals = np.array([(hits[own == group] - hits.mean()).sum() for group in range(n)])
    assert found == pytest.approx((n - 1) / n * np.square(without - hits.mean()).sum())
    naive = n / (n - 1) * np.square(residuals / len(own)).sum()
    assert found / naive > factor - 1e-9
