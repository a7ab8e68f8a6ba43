import numpy as np
import pytest
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probekit.probes.kinds.nearest_mean import NearestMeanProbe
from tests.probes.kinds import planted


@pytest.mark.parametrize("classes", ["ab", "abc"])
def test_answers_equal_those_of_scikit_learns_pipeline(classes):
    X, y = planted.three_classes()
    X, y = X[np.isin(y, list(classes))], y[np.isin(y, list(classes))]
    expected = make_pipeline(StandardScaler(), NearestCentroid()).fit(X, y).predict(X)
    assert np.array_equal(NearestMeanProbe().fit(X, y).predict(X), expected)
