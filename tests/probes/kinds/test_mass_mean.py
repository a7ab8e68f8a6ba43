import numpy as np
import pytest
from sklearn.neighbors import NearestCentroid

from probekit.probes.kinds.mass_mean import MassMeanProbe
from tests.probes.kinds import planted


@pytest.mark.parametrize("covariance", [False, True])
def test_the_planted_direction_is_estimated(covariance):
    X, y, theta = planted.direction(n_samples=5000)
    coef = MassMeanProbe(covariance).fit(X, y).coef_[0]
    assert coef @ theta / np.linalg.norm(coef) > 0.99


def test_the_coefficients_are_the_very_difference_and_the_score_is_zero_half_way():
    X, y, _ = planted.direction()
    X[:, 3] *= 100
    one, two = X[y == 0].mean(axis=0), X[y == 1].mean(axis=0)
    probe = MassMeanProbe().fit(X, y)
    np.testing.assert_allclose(probe.coef_, [two - one])
    scores = probe.decision_function([(one + two) / 2, two])
    np.testing.assert_allclose(scores, [0, np.sum((two - one) ** 2) / 2], atol=1e-6)


def test_the_covariance_corrects_for_shared_variance():
    # Along the first feature the classes differ little and spread little; along the second both.
    generator = np.random.default_rng(0)
    y = np.arange(4000) % 2
    X = generator.normal(size=(4000, 2)) * [1, 50] + np.outer(y, [3, 6])
    plain, tilted = MassMeanProbe().fit(X, y), MassMeanProbe(covariance=True).fit(X, y)
    assert plain.score(X, y) < 0.6
    assert tilted.score(X, y) > 0.9


def test_the_covariance_is_that_of_residuals_not_of_labels():
    # Two equal blobs far apart along a correlated direction: the total covariance would tilt
    # theta away, that within the classes leaves it.
    X, y, theta = planted.direction(n_samples=5000, gap=30.0)
    coef = MassMeanProbe(covariance=True).fit(X, y).coef_[0]
    within = X - np.stack([X[y == c].mean(axis=0) for c in (0, 1)])[y]
    exact = np.linalg.solve(np.cov(within.T), X[y == 1].mean(axis=0) - X[y == 0].mean(axis=0))
    assert np.linalg.norm(coef) == pytest.approx(np.linalg.norm(exact), rel=0.05)
    assert coef @ theta / np.linalg.norm(coef) > 0.99


def test_more_classes_take_the_nearest_mean_of_raw_rows():
    X, y = planted.three_classes()
    expected = NearestCentroid().fit(X, y).predict(X)
    assert np.array_equal(MassMeanProbe().fit(X, y).predict(X), expected)
