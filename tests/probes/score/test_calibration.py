"""Brier score and ECE compared with loops over rows, their intervals, and reliability bins."""

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.metrics import brier_score_loss

from probekit.probes.score import calibration
from probekit.probes.score.calibration import BINS, brier, ece, reliability_bins
from probekit.probes.score.metrics import ClassPredictions, Resamples


def forecasts(n_classes, n_rows=150, seed=0, sharpness=1.0):
    """Probabilities, and labels drawn from them: calibrated where the sharpness is 1."""
    generator = np.random.default_rng(seed)
    p = generator.dirichlet(np.ones(n_classes), size=n_rows)
    truth = np.array([generator.choice(n_classes, p=row) for row in p])
    p = p**sharpness / (p**sharpness).sum(axis=1, keepdims=True)
    return ClassPredictions(truth, p.argmax(axis=1), n_classes, np.log(p), True)


def deviation(n, p):
    """The mean absolute deviation of a binomial count from n p, from its definition."""
    counts = np.arange(n + 1)
    return float(np.sum(np.abs(counts - n * p) * binom.pmf(counts, n, p)))


def by_hand(metric, given, rows):
    p, truth = np.exp(given.scores[rows]), given.truth[rows]
    if metric is brier:
        return brier_score_loss(truth, p, labels=range(given.n_classes), scale_by_half=False)
    confidence, right = p.max(axis=1), truth == given.guess[rows]
    error = 0.0
    for low in range(BINS):
        inside = (confidence > low / BINS) & (confidence <= (low + 1) / BINS)
        if inside.any():
            error += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
            error -= deviation(int(inside.sum()), float(confidence[inside].mean())) / len(rows)
    return error


@pytest.mark.parametrize("metric", [brier, ece])
@pytest.mark.parametrize("n_classes", [2, 5])
def test_each_resample_equals_a_plain_loop_over_the_rows_of_the_other_groups(metric, n_classes):
    given = forecasts(n_classes)
    groups = np.random.default_rng(1).integers(15, size=150)
    kept = [np.arange(150), *(np.flatnonzero(groups != left_out) for left_out in range(15))]
    expected = [by_hand(metric, given, rows) for rows in kept]
    values = metric(given, Resamples.leave_one_out(groups))
    np.testing.assert_allclose(values, expected, rtol=1e-10, atol=1e-12)


def test_a_probability_of_nothing_and_a_class_never_seen_are_scored():
    scores = np.tile([0.0, np.log(1e-300), -np.inf], (2, 1))
    given = ClassPredictions(np.array([0, 2]), np.zeros(2, int), 3, scores, True)
    assert brier(given, Resamples.whole(2))[0] == pytest.approx(1.0)  # 0 and 1 + 1
    # A certain forecast has no bias.
    assert ece(given, Resamples.whole(2))[0] == pytest.approx(0.5)


def test_overconfident_and_underconfident_predictions_are_detected():
    given = [forecasts(3, n_rows=4000, sharpness=one) for one in (1.0, 3.0, 0.3)]
    fair, sharp, flat = (ece(one, Resamples.whole(4000))[0] for one in given)
    assert abs(fair) < 0.02
    assert min(sharp, flat) > 0.1


def test_calibrated_predictions_have_an_error_of_0_on_average():
    """Without the correction the mean would be 0.11: rows in a bin differ by chance."""
    errors = []
    for seed in range(400):
        generator = np.random.default_rng(seed)
        p = generator.uniform(0.5, 1, size=80)
        guess = generator.integers(2, size=80)
        truth = np.where(generator.random(80) < p, guess, 1 - guess)
        both = np.where(np.eye(2)[guess] > 0, p[:, None], 1 - p[:, None])
        given = ClassPredictions(truth, guess, 2, np.log(both), True)
        errors.append(ece(given, Resamples.whole(80))[0])
    standard_error = np.std(errors) / np.sqrt(len(errors))
    assert standard_error < 0.003
    assert abs(np.mean(errors)) < 3 * standard_error
    assert min(errors) < 0 < max(errors)  # they are not clipped


@pytest.mark.parametrize("metric", ["brier", "ece", "reliability_bins"])
@pytest.mark.parametrize("scores", [None, np.eye(2)], ids=["no scores", "ranks"])
def test_scores_that_only_rank_are_refused(metric, scores, refused):
    given = ClassPredictions(np.array([0, 1]), np.array([0, 1]), 2, scores)
    refused(getattr(calibration, metric), given, Resamples.whole(2))


def test_a_confidence_on_an_edge_belongs_to_the_bin_below():
    for at in range(1, BINS + 1):
        scores = np.log([[at / BINS, max(1 - at / BINS, 1e-300)]])
        given = ClassPredictions(np.array([0]), np.array([0]), 2, scores, True)
        (found,) = reliability_bins(given, Resamples.leave_one_out(np.arange(1)))
        assert (found.low, found.high) == ((at - 1) / BINS, at / BINS)


def test_a_bin_with_rows_of_one_group_has_no_interval():
    scores = np.log([[0.9, 0.1]] * 3 + [[0.6, 0.4]] * 2)
    given = ClassPredictions(np.array([0, 0, 1, 0, 1]), np.zeros(5, int), 2, scores, True)
    low, high = reliability_bins(given, Resamples.leave_one_out(np.array([0, 1, 2, 0, 0])))
    assert low.accuracy == 0.5
    assert np.isnan([low.ci_low, low.ci_high]).all()
    assert high.accuracy == pytest.approx(2 / 3)
    assert high.ci_low < high.accuracy < high.ci_high


def test_the_bins_hold_all_rows_and_give_the_error_again():
    given = forecasts(3, n_rows=400, sharpness=2.0)
    bins = reliability_bins(given, Resamples.leave_one_out(np.arange(400)))
    assert sum(part.n_rows for part in bins) == 400
    error = 0.0
    for part in bins:
        error += part.n_rows * abs(part.accuracy - part.confidence)
        error -= deviation(part.n_rows, part.confidence)
        assert part.low < part.confidence <= part.high
        is_single = np.isnan([part.ci_low, part.ci_high]).all()
        assert is_single == (part.n_rows == 1)
        assert is_single or part.ci_low <= part.accuracy <= part.ci_high
    assert error / 400 == pytest.approx(ece(given, Resamples.whole(400))[0], abs=1e-12)
