import numpy as np
from sklearn.feature_selection import f_classif
from sklearn.model_selection import cross_val_score

from probekit.probes.kinds.k_sparse import KSparseProbe, best_features
from probekit.probes.kinds.logistic import LinearProbe
from tests.probes.kinds import planted


def neurons(n_samples=600, seed=0):
    """Rows of 50 features; the class shows in 31 most, then in 7 and in 20."""
    generator = np.random.default_rng(seed)
    y = generator.integers(2, size=n_samples)
    X = generator.normal(size=(n_samples, 50))
    X[:, [31, 7, 20]] += np.outer(y, [3.0, 1.5, 0.8])
    return X, y


def test_the_planted_features_are_found_best_first_and_all_others_are_zero():
    X, y = neurons()
    probe = KSparseProbe(k=3).fit(X, y)
    assert probe.features_.tolist() == [31, 7, 20]
    assert np.flatnonzero(probe.coef_[0]).tolist() == [7, 20, 31]


def test_it_is_the_linear_probe_on_those_features():
    X, y = neurons()
    sparse = KSparseProbe(k=2, C=0.1).fit(X, y)
    dense = LinearProbe(C=0.1).fit(X[:, [31, 7]], y)
    np.testing.assert_allclose(sparse.decision_function(X), dense.decision_function(X[:, [31, 7]]))


def test_features_are_ranked_as_by_f():
    X, y = planted.three_classes(n_features=40)
    scores, _ = f_classif(X, y)
    assert best_features(X, y, k=40).tolist() == np.argsort(-scores).tolist()


def test_ties_go_to_the_lower_number_and_constants_come_last():
    generator = np.random.default_rng(0)
    y = np.arange(1000) % 2
    one = generator.normal(size=1000) + y
    copies = np.outer(one, [1, 1, -7, 0.3, 1e5, 1 / 3, -1e-4]) + 0.1
    X = np.column_stack([np.full(1000, 3.1), copies, np.zeros(1000), y])
    assert best_features(X, y, k=10).tolist() == [9, *range(1, 8), 0, 8]


def test_the_features_of_a_fold_are_ranked_without_its_held_out_rows():
    # In noise the best of 5,000 features on all rows predict even the rows held out; those that
    # are ranked inside the folds do not.
    X = np.random.default_rng(0).normal(size=(40, 5000))
    y = np.arange(40) % 2
    leaky = cross_val_score(LinearProbe(C=1.0), X[:, best_features(X, y, 8)], y, cv=2)
    wrong = []

    class Recording(KSparseProbe):
        def path(self, values, data):
            fits = super().path(values, data)
            held = ~np.isin(X[:, 0], data.X[:, 0])
            guesses = [fit.class_scores(X[held], 2).argmax(axis=1) for fit in fits if held.any()]
            wrong.extend(np.mean(guess != y[held]) for guess in guesses)
            return fits

    Recording(k=8, C=(1e-4, 1.0), folds=2).fit(X, y)
    assert leaky.mean() > 0.8
    assert len(wrong) == 4
    assert np.mean(wrong) > 0.3
