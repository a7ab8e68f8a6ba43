import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probekit.errors import ConfigError
from probekit.probes.kinds.lda import LdaProbe
from tests.probes.kinds import planted


@pytest.mark.parametrize("shrinkage", [0.0, 0.1, 1.0])
def test_log_posteriors_equal_those_of_scikit_learns_pipeline(shrinkage):
    X, y = planted.three_classes()
    reference = make_pipeline(
        StandardScaler(), LinearDiscriminantAnalysis("lsqr", shrinkage=shrinkage)
    ).fit(X, y)
    scores = LdaProbe(shrinkage).fit(X, y).decision_function(X)
    np.testing.assert_allclose(
        log_softmax(scores, axis=1), reference.predict_log_proba(X), rtol=1e-4, atol=1e-8
    )


def test_two_classes_score_the_log_odds():
    X, y, _ = planted.direction(n_samples=300)
    y[:200] = 0
    reference = make_pipeline(
        StandardScaler(), LinearDiscriminantAnalysis("lsqr", shrinkage=0.2)
    ).fit(X, y)
    scores = LdaProbe(0.2).fit(X, y).decision_function(X)
    np.testing.assert_allclose(scores, reference.decision_function(X), atol=1e-8)


def test_shrinking_by_itself_helps_where_rows_are_few():
    X, y, _ = planted.direction(n_samples=1060, n_features=50)
    auto, none = LdaProbe().fit(X[:60], y[:60]), LdaProbe(0.0).fit(X[:60], y[:60])
    assert auto.score(X[60:], y[60:]) > none.score(X[60:], y[60:]) + 0.1


def test_the_planted_direction_is_estimated():
    X, y, theta = planted.direction(n_samples=5000)
    coef = LdaProbe().fit(X, y).coef_[0]
    assert coef @ theta / np.linalg.norm(coef) > 0.99


@pytest.mark.parametrize("shrinkage", [-0.1, 1.1, np.nan, "some"])
def test_a_shrinkage_that_is_no_share_is_refused(shrinkage):
    with pytest.raises(ConfigError, match='must be "auto" or a number from 0 to 1'):
        LdaProbe(shrinkage).fit(np.eye(2), [0, 1])
