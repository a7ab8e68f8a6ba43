import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probekit.errors import ConfigError, DataError
from probekit.probes.kinds.logistic import LinearProbe
from tests.probes.kinds.planted import direction


def planted(n_samples):
    """Rows of two overlapping classes."""
    X, y, _ = direction(n_samples, n_features=30, gap=4.0)
    return X.astype(np.float32), np.where(y == 1, "pos", "neg")


@pytest.mark.parametrize("n_classes", [2, 4])
def test_answers_equal_those_of_scikit_learns_pipeline(n_classes):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(300, 5)) * [1, 10, 100, 1, 1] + 50
    y = np.array(list("abcd"))[(generator.integers(n_classes, size=300))]
    X[:, 0] += y == "a"
    reference = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, tol=1e-9, max_iter=5000))
    reference.fit(X, y)
    probe = LinearProbe(C=0.1).fit(X, y)
    np.testing.assert_allclose(probe.predict_proba(X), reference.predict_proba(X), atol=1e-5)
    np.testing.assert_allclose(
        probe.decision_function(X), reference.decision_function(X), atol=1e-4
    )
    assert np.array_equal(probe.predict(X), reference.predict(X))
    assert 0 < probe.gradient_norm_ < 1e-4


def test_folds_that_say_nothing_of_the_penalty_are_refused_as_by_all_kinds():
    X, y = np.arange(8.0)[:, None], np.arange(8) % 2
    with pytest.raises(DataError, match="the fitted rows have only one class"):
        LinearProbe(folds=2).fit(X, y, y)
    assert LinearProbe(C=0.1, folds=2).fit(X, y, y).C_ == 0.1  # needs no folds


@pytest.mark.parametrize("C", [0.1, (0.01, 1.0)])
def test_each_column_of_a_table_is_a_probe_of_its_own(C):
    X, y = planted(300)
    other = X[:, 0] > 3
    table = np.column_stack([y == "pos", other, np.ones(300), np.zeros(300)]).astype(int)
    probe = LinearProbe(C=C).fit(X, table)
    answers = probe.predict(X)
    assert np.array_equal(answers[:, 2:], table[:, 2:])
    for column, C_ in zip((0, 1), probe.C_, strict=False):
        alone = LinearProbe(C=C_).fit(X, table[:, column])
        assert np.mean(answers[:, column] == alone.predict(X)) > 0.99
    assert np.isneginf(probe.predict_log_proba(X)[:, 3]).all()


def test_each_column_of_a_table_is_balanced_by_itself():
    X, y = planted(300)
    rare = X[:, 0] > 4.5
    table = np.column_stack([y == "pos", rare, np.ones(300)]).astype(int)
    probe = LinearProbe(C=0.1, class_weight="balanced").fit(X, table)
    for column in (0, 1):
        alone = LinearProbe(C=0.1, class_weight="balanced").fit(X, table[:, column])
        np.testing.assert_allclose(probe.coef_[column], alone.coef_[0], atol=1e-4)
    usual = LinearProbe(C=0.1).fit(X, table)
    assert probe.predict(X)[:, 1].mean() > 1.5 * usual.predict(X)[:, 1].mean()


def test_a_class_weighs_as_many_rows_as_it_is_given():
    X, y = planted(300)
    X = X.astype(np.float64)
    weighed = LinearProbe(C=0.1, class_weight={"pos": 3, "neg": 1}).fit(X, y)
    repeated = np.repeat(np.arange(300), np.where(y == "pos", 3, 1))
    expected = LinearProbe(C=0.1).fit(X[repeated], y[repeated])
    np.testing.assert_allclose(weighed.coef_, expected.coef_, rtol=1e-6)


def test_rows_that_count_nothing_are_refused():
    X, y = planted(20)
    with pytest.raises(ValueError, match="non-zero"):
        LinearProbe(C=1.0).fit(X, y, sample_weight=np.zeros(20))


@pytest.mark.parametrize("weight", [0, -1, np.nan, np.inf])
def test_a_class_that_counts_nothing_is_refused(weight):
    X, y = planted(20)
    with pytest.raises(ConfigError, match="class_weight of 'pos' must be positive and finite"):
        LinearProbe(C=1.0, class_weight={"pos": weight, "neg": 1}).fit(X, y)


@pytest.mark.parametrize("how", [{"C": 1e-46}, {"C": 1.0, "weight": 1e-44}])
def test_a_penalty_beyond_float32_leaves_the_shares_of_the_classes(how):
    X, y = planted(60)
    y[:10] = "neg"
    counts = np.full(60, how.get("weight", 1.0))
    with pytest.warns(UserWarning, match="the penalty is too strong"):
        probe = LinearProbe(C=how["C"]).fit(X, y, sample_weight=counts)
    np.testing.assert_allclose(probe.coef_, 0, atol=1e-20)
    np.testing.assert_allclose(probe.predict_proba(X)[:, 1], np.mean(y == "pos"), rtol=1e-3)
    assert probe.converged_
