import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf

from probekit.errors import ConfigError
from probekit.probes.kinds.class_means import (
    LdaProbe,
    MassMeanProbe,
    within_covariance,
)
from tests.probes.kinds import planted


def test_the_shrinkage_is_that_of_ledoit_and_wolf_on_residuals():
    generator = np.random.default_rng(0)
    means, codes = 9 * generator.normal(size=(2, 4)), np.arange(30) % 2
    residuals = generator.normal(size=(30, 4))
    expected, _ = ledoit_wolf(residuals, assume_centered=True)
    np.testing.assert_allclose(
        within_covariance(residuals + means[codes], means, codes), expected, atol=1e-12
    )


@pytest.mark.parametrize("residuals", [[[1.0, 2.0], [-1.0, -2.0]], [[0.0, 0.0], [0.0, 0.0]]])
def test_residuals_on_a_line_or_a_point_leave_an_inverse(residuals):
    covariance = within_covariance(np.array(residuals), np.zeros((1, 2)), np.array([0, 0]))
    assert np.linalg.cond(covariance) < 1e8


def test_shrinking_by_itself_helps_where_rows_are_few():
    X, y, _ = planted.direction(n_samples=1060, n_features=50)
    auto, none = LdaProbe().fit(X[:60], y[:60]), LdaProbe(0.0).fit(X[:60], y[:60])
    assert auto.score(X[60:], y[60:]) > none.score(X[60:], y[60:]) + 0.1


@pytest.mark.parametrize("shrinkage", [-0.1, 1.1, np.nan, "some"])
def test_a_shrinkage_that_is_no_share_is_refused(shrinkage):
    with pytest.raises(ConfigError, match='must be "auto" or a number from 0 to 1'):
        LdaProbe(shrinkage).fit(np.eye(2), [0, 1])


def test_the_coefficients_are_the_very_difference_and_the_score_is_zero_half_way():
    X, y, _ = planted.direction()
    X[:, 3] *= 100
    one, two = X[y == 0].mean(axis=0), X[y == 1].mean(axis=0)
    probe = MassMeanProbe().fit(X, y)
    np.testing.assert_allclose(probe.coef_, [two - one])
    scores = probe.decision_function([(one + two) / 2, two])
    np.testing.assert_allclose(scores, [0, np.sum((two - one) ** 2) / 2], atol=1e-6)


def test_the_covariance_is_that_of_residuals_not_of_labels():
    # Two equal blobs far apart along a correlated direction: the total covariance would tilt
    # theta away, that within the classes leaves it.
    X, y, theta = planted.direction(n_samples=5000, gap=30.0)
    coef = MassMeanProbe(covariance=True).fit(X, y).coef_[0]
    within = X - np.stack([X[y == c].mean(axis=0) for c in (0, 1)])[y]
    exact = np.linalg.solve(np.cov(within.T), X[y == 1].mean(axis=0) - X[y == 0].mean(axis=0))
    assert np.linalg.norm(coef) == pytest.approx(np.linalg.norm(exact), rel=0.05)
    assert coef @ theta / np.linalg.norm(coef) > 0.99
