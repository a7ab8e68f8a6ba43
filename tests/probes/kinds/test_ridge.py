import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probekit.errors import DataError
from probekit.probes.data import group_folds
from probekit.probes.kinds.ridge import RidgeProbe, RidgeRegressionProbe, ridge_path
from tests.probes.kinds import planted

ALPHAS = [1e-3, 1.0, 50.0, 1e4]


def regression(n_samples, n_features, seed=0):
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n_samples, n_features)) * np.logspace(-1, 1, n_features) + 5
    return X, X @ generator.normal(size=n_features) + generator.normal(size=n_samples)


@pytest.mark.parametrize("n_samples", [20, 300])  # fewer and more rows than features
def test_one_decomposition_gives_scikit_learns_answer_at_every_alpha(n_samples):
    X, y = regression(n_samples, 40)
    targets = np.column_stack([y, -(y**2)])
    for alpha, layer in zip(ALPHAS, ridge_path(X, targets, np.array(ALPHAS)), strict=True):
        reference = make_pipeline(StandardScaler(), Ridge(alpha)).fit(X, targets)
        guesses = X @ layer.weight.T + layer.bias
        np.testing.assert_allclose(guesses, reference.predict(X), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_regression_equals_scikit_learns(alpha):
    X, y = regression(100, 10)
    reference = make_pipeline(StandardScaler(), Ridge(alpha)).fit(X, y)
    np.testing.assert_allclose(
        RidgeRegressionProbe(alpha).fit(X, y).predict(X), reference.predict(X), rtol=1e-8
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_alpha_chosen_is_that_of_a_plain_search_over_the_same_folds(seed):
    X, y = regression(60, 30, seed)
    y += 20 * np.random.default_rng(seed).normal(size=60)
    fold_of_row = group_folds(np.zeros(60), np.arange(60), 5, seed=0)
    splits = [
        (np.flatnonzero(fold_of_row != f), np.flatnonzero(fold_of_row == f)) for f in range(5)
    ]
    search = GridSearchCV(
        make_pipeline(StandardScaler(), Ridge()),
        {"ridge__alpha": ALPHAS},
        cv=splits,
        scoring="neg_mean_squared_error",
    ).fit(X, y)
    assert RidgeRegressionProbe(ALPHAS).fit(X, y).alpha_ == search.best_params_["ridge__alpha"]


def test_of_equals_the_strongest_penalty_is_taken():
    X, y, _ = planted.direction(n_samples=100, gap=50.0)
    assert RidgeProbe((1e-2, 1.0, 10.0)).fit(X, y).alpha_ == 10.0


def test_a_class_in_one_group_leaves_the_fold_out_that_lacks_it():
    X, y, _ = planted.direction(n_samples=60)
    y[:] = np.arange(60) < 6
    groups = np.maximum(np.arange(60) // 6, 0)
    assert RidgeProbe().fit(X, y, groups).converged_
    with pytest.raises(DataError, match="the fitted rows have only one class"):
        RidgeProbe(folds=2).fit(X, y, y)


def test_targets_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="could not convert"):
        RidgeRegressionProbe(1.0).fit(np.eye(3), ["a", "b", "c"])
    with pytest.raises(DataError, match="have several types"):
        RidgeRegressionProbe(1.0).fit(np.eye(3), [1, "2", 3.0])
