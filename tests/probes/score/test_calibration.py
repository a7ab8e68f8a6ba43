"""Brier score and ECE compared with loops over resampled rows, and reliability bins."""

import numpy as np
import pytest
from sklearn.metrics import brier_score_loss

from probekit.errors import DataError
from probekit.probes.score.calibration import (
    BINS,
    brier,
    ece,
    reliability_bins,
)
from probekit.probes.score.metrics import BLOCK, ClassPredictions, Resamples

PLAIN = Resamples.draw(np.arange(400), 0, 0)


def forecasts(n_classes, n_rows=150, seed=0, sharpness=1.0):
    """Probabilities, and labels drawn from them: calibrated where the sharpness is 1."""
    generator = np.random.default_rng(seed)
    p = generator.dirichlet(np.ones(n_classes), size=n_rows)
    truth = np.array([generator.choice(n_classes, p=row) for row in p])
    p = p**sharpness / (p**sharpness).sum(axis=1, keepdims=True)
    return ClassPredictions(truth, p.argmax(axis=1), n_classes, np.log(p), True)


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
    return error


@pytest.mark.parametrize("metric", [brier, ece])
@pytest.mark.parametrize("n_classes", [2, 5])
def test_every_draw_equals_a_plain_loop_over_groups(metric, n_classes):
    given = forecasts(n_classes)
    groups = np.random.default_rng(1).integers(15, size=150)
    resamples = Resamples.draw(groups, draws=BLOCK + 20, seed=0)
    expected = []
    for counts in resamples.counts.T.astype(int):
        drawn = np.repeat(np.unique(groups), counts)
        rows = np.concatenate([np.flatnonzero(groups == group) for group in drawn])
        expected.append(by_hand(metric, given, rows))
    values = metric(given, resamples)
    np.testing.assert_allclose(values, expected, rtol=1e-10, atol=1e-12)


def test_a_probability_of_nothing_and_a_class_never_seen_are_scored():
    scores = np.log(np.array([[1.0, 1e-300, 1e-300], [1.0, 1e-300, 1e-300]]))
    scores[:, 2] = -np.inf
    given = ClassPredictions(np.array([0, 2]), np.zeros(2, int), 3, scores, True)
    resamples = Resamples.draw(np.arange(2), 0, 0)
    assert brier(given, resamples)[0] == pytest.approx(1.0)  # 0 and 1 + 1
    assert ece(given, resamples)[0] == pytest.approx(0.5)


def test_overconfident_and_underconfident_predictions_are_detected():
    fair, sharp, flat = (
        ece(forecasts(3, n_rows=4000, sharpness=s), Resamples.draw(np.arange(4000), 0, 0))[0]
        for s in (1.0, 3.0, 0.3)
    )
    assert fair < 0.03
    assert min(sharp, flat) > 0.1


@pytest.mark.parametrize("metric", [brier, ece, reliability_bins])
def test_scores_that_only_rank_are_refused(metric):
    truth = np.array([0, 1])
    resamples = Resamples.draw(np.arange(2), 0, 0)
    with pytest.raises(DataError, match="other scores"):
        metric(ClassPredictions(truth, truth, 2, np.eye(2)), resamples)
    with pytest.raises(DataError, match="no scores"):
        metric(ClassPredictions(truth, truth, 2), resamples)


def test_a_confidence_on_an_edge_belongs_to_the_bin_below():
    for at in range(1, BINS + 1):
        scores = np.log([[at / BINS, max(1 - at / BINS, 1e-300)]])
        given = ClassPredictions(np.array([0]), np.array([0]), 2, scores, True)
        (found,) = reliability_bins(given, Resamples.draw(np.arange(1), 5, 0))
        assert (found.low, found.high) == ((at - 1) / BINS, at / BINS)


def test_the_bins_hold_all_rows_and_give_the_error_again():
    given = forecasts(3, n_rows=400, sharpness=2.0)
    bins = reliability_bins(given, Resamples.draw(np.arange(400), 200, 0))
    assert sum(part.n_rows for part in bins) == 400
    error = sum(part.n_rows * abs(part.accuracy - part.confidence) for part in bins) / 400
    assert error == pytest.approx(ece(given, PLAIN)[0], abs=1e-12)
    assert all(part.low < part.confidence <= part.high for part in bins)
    assert all(part.ci_low <= part.accuracy <= part.ci_high for part in bins)
