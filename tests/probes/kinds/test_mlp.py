import numpy as np
import pytest
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from probekit.probes.kinds.class_means import LdaProbe, MassMeanProbe, NearestMeanProbe
from probekit.probes.kinds.logistic import LinearProbe
from probekit.probes.kinds.mlp import LEARNING_RATE, MlpProbe
from probekit.probes.kinds.ridge import RidgeProbe
from probekit.probes.kinds.svm import SvmProbe
from tests.probes.kinds import planted


def test_it_reads_what_is_not_linear():
    X, y = planted.xor(1500)
    probe = MlpProbe(alpha=0.1).fit(X[:1000], y[:1000])
    assert probe.score(X[1000:], y[1000:]) > 0.95


@pytest.mark.parametrize(
    "linear",
    [LinearProbe(), LdaProbe(), MassMeanProbe(), NearestMeanProbe(), RidgeProbe(), SvmProbe()],
    ids=str,
)
def test_linear_kinds_do_not(linear):
    X, y = planted.xor(3000)
    assert abs(linear.fit(X[:1000], y[:1000]).score(X[1000:], y[1000:]) - 0.5) < 0.06


@pytest.mark.parametrize("n_classes", [2, 3])
def test_its_layers_answer_on_raw_rows_as_scikit_learns_network_on_scaled_ones(n_classes):
    X, y = planted.three_classes()
    X, y = (X, y) if n_classes == 3 else (X[y != "c"], y[y != "c"])
    y = np.unique(y, return_inverse=True)[1]
    network = MLPClassifier(
        (8,), alpha=0.1, max_iter=30, random_state=3, learning_rate_init=LEARNING_RATE
    )
    rows = StandardScaler().fit_transform(X).astype(np.float32)
    with pytest.warns(match="Maximum iterations"):
        network.fit(rows, y)
    probe = MlpProbe(hidden=8, alpha=0.1, max_iter=30, random_state=3).fit(X, y)
    assert np.mean(probe.predict(X) == network.predict(rows)) > 0.99
    proba = network.predict_proba(rows)
    scores = probe.decision_function(X)
    odds = scores if n_classes == 2 else scores[:, 1] - scores[:, 0]
    np.testing.assert_allclose(odds, np.log(proba[:, 1] / proba[:, 0]), rtol=1e-3, atol=1e-3)
