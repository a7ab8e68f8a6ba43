"""Jackknife intervals contain their value, hold at the ends, and have their nominal coverage."""

from pkgutil import resolve_name

import numpy as np
import pytest
from scipy.stats import binomtest, t

from probekit.probes.score import intervals, metrics
from probekit.probes.score.intervals import Interval, jackknife_interval, score_interval
from probekit.probes.score.metric_table import METRICS, UNBOUNDED, metric_functions
from probekit.probes.score.metrics import ClassPredictions, NumberPredictions, Resamples, r2
from probekit.probes.score.scored import parts_of, with_interval


def of_correct(correct, groups):
    """The interval of the accuracy of rows that are correct or not."""
    correct = np.asarray(correct, dtype=int)
    resamples = Resamples.leave_one_out(np.asarray(groups))
    values = metrics.accuracy(ClassPredictions(np.ones_like(correct), correct, 2), resamples)
    return jackknife_interval(values, resamples, METRICS["accuracy"].range)


def width(interval):
    return interval.high - interval.low


def predictions(family, generator, n_groups):
    truth = generator.normal(size=5 * n_groups)
    if family == "number":
        return NumberPredictions(truth, truth + generator.normal(size=len(truth)))
    logs = np.log(generator.dirichlet(np.ones(3), size=len(truth)))
    guess, drawn = logs.argmax(axis=1), generator.integers(3, size=len(logs))
    codes = np.where(generator.random(len(logs)) < 0.5, guess, drawn)
    return ClassPredictions(codes, guess, 3, logs, True)


OFFERS = {"class": frozenset({"scores", "probabilities"}), "number": frozenset()}


@pytest.mark.parametrize(
    ("family", "name"),
    [(family, name) for family in OFFERS for name in metric_functions(family, OFFERS[family])],
)
def test_each_metric_is_inside_its_interval_and_its_range(family, name):
    metric, (lowest, highest) = metric_functions(family, OFFERS[family])[name], METRICS[name].range
    for seed, n_groups in enumerate((4, 6, 9, 20, 50)):
        given = predictions(family, np.random.default_rng(seed), n_groups)
        resamples = Resamples.leave_one_out(np.arange(5 * n_groups) // 5)
        found = jackknife_interval(metric(given, resamples), resamples, (lowest, highest))
        if name == "r2" and metrics.has_heavy_tails(given.truth):
            continue
        if METRICS[name].interval:
            found = Interval(found.value, *resolve_name(METRICS[name].interval)(given, resamples))
        assert lowest <= found.low < found.value < found.high <= highest


@pytest.mark.parametrize("correct", [1, 0])
def test_an_accuracy_of_1_or_0_has_an_interval_as_wide_as_its_groups_allow(correct):
    found = of_correct(np.full(400, correct), np.arange(400) // 50)
    assert found.value == correct
    # Clopper-Pearson for 8 of 8: the 400 rows of 8 groups do not count as 400.
    limits = binomtest(8 * correct, 8).proportion_ci(0.95, method="exact")
    assert (found.low, found.high) == pytest.approx((limits.low, limits.high))
    assert width(found) > 0.3


@pytest.mark.parametrize("n_rows", [190, 199])
def test_an_auroc_of_1_has_the_same_interval_in_one_fold_and_in_several(n_rows):
    rows = np.arange(n_rows)
    truth, resamples = rows % 2, Resamples.leave_one_out(rows)
    scores = np.column_stack([np.zeros(n_rows), 2.0 * truth - 1])

    def interval(folds):
        given = ClassPredictions.of_scores(truth, scores, True, folds, positive=1)
        values = metric_functions("class", OFFERS["class"])["auroc"](given, resamples)
        return score_interval(values, resamples, (0, 1), parts_of("auroc", [given]))

    assert interval(rows // 2 % 7).low == pytest.approx(interval(None).low, abs=1e-9)
    assert interval(None).low > 0.94


def test_groups_of_one_row_give_nearly_the_exact_binomial_interval():
    for n_rows, n_correct in ((40, 31), (200, 100), (100, 97)):
        found = of_correct(np.arange(n_rows) < n_correct, np.arange(n_rows))
        exact = binomtest(n_correct, n_rows).proportion_ci(0.95, method="exact")
        # The jackknife variance divides by n - 1, so that the effective sample size is n - 1.
        assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=0.005)
        assert found.low <= exact.low
        assert found.high >= exact.high


def test_one_large_group_widens_the_interval():
    generator = np.random.default_rng(0)
    correct, equal = generator.random(400) < 0.8, np.arange(400) // 20
    skewed = np.where(np.arange(400) < 360, 0, np.arange(400))  # 41 groups, one with 90 %
    assert intervals.degrees_of_freedom(Resamples.leave_one_out(equal)) == pytest.approx(19)
    assert intervals.degrees_of_freedom(Resamples.leave_one_out(skewed)) < 0.3
    assert width(of_correct(correct, skewed)) > 2 * width(of_correct(correct, equal))
    # The same on the scale without ends, where only the t quantile differs.
    values = np.append(0.5, 0.5 + 0.01 * generator.normal(size=20))
    groups = np.minimum(np.arange(400) // 5, 19)
    both = map(Resamples.leave_one_out, (equal, groups))
    plain, few = (jackknife_interval(values, one) for one in both)
    assert width(few) > 2 * width(plain)


def test_the_variance_of_a_mean_is_the_usual_one():
    values = np.random.default_rng(0).normal(size=30)
    means = metrics.mean_of_rows(values, Resamples.leave_one_out(np.arange(30)))
    found = intervals.jackknife_variance(means)
    assert found == pytest.approx(values.var(ddof=1) / 30)


def test_without_ends_the_interval_is_that_of_students_t():
    values, resamples = np.random.default_rng(0).normal(size=9), Resamples.leave_one_out(range(9))
    found = jackknife_interval(metrics.mean_of_rows(values, resamples), resamples, UNBOUNDED)
    low, high = t.interval(0.95, 8, values.mean(), values.std(ddof=1) / 3)
    assert (found.low, found.high) == pytest.approx((low, high))


def test_one_end_bounds_the_interval_on_that_side_only():
    """R2 of a fit with large errors: a symmetric interval would pass 1."""
    generator = np.random.default_rng(3)
    truth = generator.normal(size=40)
    guess = truth + np.repeat(generator.exponential(0.4, size=8), 5)
    resamples = Resamples.leave_one_out(np.arange(40) // 5)
    values = r2(NumberPredictions(truth, guess), resamples)
    limits = (-np.inf, 1.0), UNBOUNDED
    found, symmetric = (jackknife_interval(values, resamples, one) for one in limits)
    assert symmetric.high > 1
    assert symmetric.low < found.value < found.high < 1
    assert found.value - found.low > found.high - found.value
    mirrored = jackknife_interval(-values, resamples, (-1.0, np.inf))
    assert (mirrored.low, mirrored.high) == pytest.approx((-found.high, -found.low))


def correlated(generator, rate, correlation, sizes):
    """Whether rows are correct, by groups whose rates follow a beta distribution."""
    spread = (1 - correlation) / correlation
    rates = generator.beta(rate * spread, (1 - rate) * spread, size=len(sizes))
    groups = np.repeat(np.arange(len(sizes)), sizes)
    return generator.random(len(groups)) < rates[groups], groups


EQUAL, SKEWED = np.full(12, 20), np.round(np.geomspace(5, 100, 12)).astype(int)


@pytest.mark.parametrize("sizes", [EQUAL, SKEWED], ids=["equal groups", "1:20"])
def test_the_interval_has_its_nominal_coverage(sizes):
    covered = 0
    for seed in range(400):
        found = of_correct(*correlated(np.random.default_rng(seed), 0.8, 0.1, sizes))
        covered += found.low <= 0.8 <= found.high
    assert 0.92 <= covered / 400 <= 0.99  # the Monte Carlo error is 0.011


def test_r2_with_errors_in_one_group_has_an_interval():
    truth, group = np.arange(40.0), np.arange(40) // 5
    guess = np.where(group == 3, truth + 9, truth)
    resamples = Resamples.leave_one_out(group)
    values = r2(NumberPredictions(truth, guess), resamples)
    found = jackknife_interval(values, resamples, METRICS["r2"].range)
    assert found.low < found.value < found.high <= 1


@pytest.mark.parametrize("widening", [1.0, metrics.WIDER_OVER_FOLDS])
@pytest.mark.parametrize(("n_groups", "size"), [(30, 10), (12, 2), (8, 1)])
def test_a_perfect_score_has_no_lower_limits_than_a_score_with_mistakes(n_groups, size, widening):
    """The mistakes are in one group, or in several."""
    groups = np.repeat(np.arange(n_groups), size)
    resamples = Resamples.leave_one_out(groups, widening=widening)
    for order in (np.arange(len(groups)), np.argsort(np.arange(len(groups)) % size)):
        lows, highs = [], []
        for n_wrong in range(min(4, size * n_groups // 4), -1, -1):
            hits = np.ones(len(groups), int)
            hits[order[:n_wrong]] = 0
            for given, found in ((hits, lows), (1 - hits, highs)):
                one = ClassPredictions(np.ones_like(given), given, 2)
                limits = with_interval("accuracy", [one], resamples)
                found.append(limits.low if found is lows else limits.high)
        assert max(lows) == pytest.approx(lows[-1])
        assert min(highs) == pytest.approx(highs[-1])
        assert lows[-1] == pytest.approx(0.025 ** (widening**2 / min(2, size) / n_groups))


@pytest.mark.parametrize("metric", ["auroc", "auprc"])
def test_perfect_ranks_have_the_limits_of_perfect_hits(metric):
    truth, groups = np.tile([0, 1], 150), np.repeat(np.arange(10), 30)
    scores = np.column_stack([-truth, truth + 0.0])
    one, resamples = ClassPredictions(truth, truth, 2, scores), Resamples.leave_one_out(groups)
    found = with_interval(metric, [one], resamples)
    assert found == with_interval("accuracy", [one], resamples)
    assert found.low == pytest.approx(0.025 ** (1 / 20))


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6])
def test_intervals_of_nearly_perfect_scores_cover(correlation):
    generator, covered = np.random.default_rng(0), []
    groups = np.repeat(np.arange(30), 20)
    resamples = Resamples.leave_one_out(groups)
    for _ in range(200):
        rates = np.full(30, 0.97)
        if correlation:
            total = (1 - correlation) / correlation
            rates = generator.beta(0.97 * total, 0.03 * total, 30)
        hits = (generator.random(600) < rates[groups]).astype(int)
        one = ClassPredictions(np.ones_like(hits), hits, 2)
        found = with_interval("accuracy", [one], resamples)
        covered.append(found.low <= 0.97 <= found.high)
    assert np.mean(covered) > 0.93
