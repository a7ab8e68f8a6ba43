import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from probekit.probes.kinds.svm import SvmProbe
from tests.probes.kinds import planted


@pytest.mark.parametrize("classes", ["ab", "abc"])
def test_scores_on_raw_rows_equal_those_of_scikit_learns_pipeline(classes):
    X, y = planted.three_classes()
    X, y = X[np.isin(y, list(classes))], y[np.isin(y, list(classes))]
    reference = make_pipeline(
        StandardScaler(), LinearSVC(C=0.1, intercept_scaling=100, tol=1e-8, max_iter=100_000)
    ).fit(X, y)
    probe = SvmProbe(C=0.1).fit(X, y)
    np.testing.assert_allclose(
        probe.decision_function(X), reference.decision_function(X), atol=1e-3
    )
    assert np.array_equal(probe.predict(X), reference.predict(X))
