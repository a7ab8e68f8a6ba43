import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf

from probekit.probes.kinds.class_means import within_covariance


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
