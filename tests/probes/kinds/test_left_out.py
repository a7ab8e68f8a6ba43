"""Scores without the own group equal those of explicit refits, and thresholds from them hold."""

import numpy as np
import pytest
from scipy.special import expit

from probekit import lazy_rows
from probekit.lazy_rows import LazyRows
from probekit.probes.data import ProbeData
from probekit.probes.fitters import tuned_together
from probekit.probes.kinds.left_out import logistic_left_out, ridge_left_out
from probekit.probes.kinds.ridge import ridge_path
from probekit.probes.score.metrics import fixed_thresholds, thresholds, with_alarms
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.layers import apply_layers
from probekit.probes.split import SplitProber
from probekit.probes.training_rows import Scaling, TrainingRows, balanced_weights

# Rows, features, rows of a group: more rows than features and fewer, single rows, and groups of
# fewer and of more rows than features.
SHAPES = [(60, 7, 1), (60, 7, 4), (60, 7, 20), (40, 90, 1), (40, 90, 5)]


def sample(n_rows, n_features, group_size):
    generator = np.random.default_rng(n_features)
    X = generator.normal(size=(n_rows, n_features)) * generator.uniform(0.5, 3, n_features) + 5
    is_second = X[:, 0] - 5 + generator.normal(size=n_rows) > 0
    groups = generator.permutation(np.arange(n_rows) // group_size).astype(str)
    return X, is_second, groups, np.where(is_second, 1.3, 0.8)


def refitted(fit, Z, groups):
    """Scores of each row by the fit (weights and bias in the last place) on the other groups."""
    rows = np.column_stack([Z, np.ones(len(Z))])
    of_groups = {name: fit(rows, groups != name) for name in np.unique(groups)}
    return np.stack([row @ of_groups[name] for row, name in zip(rows, groups, strict=True)])


def penalties(rows, strength):
    return np.diag(np.append(np.full(rows.shape[1] - 1, strength), 0.0))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("alpha", [0.1, 100.0])
def test_ridge_is_exact(shape, alpha):
    X, is_second, groups, weights = sample(*shape)
    targets = np.column_stack([np.where(is_second, 1.0, -1.0), X[:, 1] ** 2])
    is_typical = np.arange(len(X)) % 3 > 0

    def fit(rows, inside):
        A, w = rows[inside], weights[inside, None]
        return np.linalg.solve(A.T @ (w * A) + penalties(A, alpha), A.T @ (w * targets[inside]))

    (layer,) = ridge_path(X, targets, np.array([alpha]), is_typical, weights)
    data = TrainingRows(X, is_second * 1, groups, is_typical)
    scores = ridge_left_out(data, targets, layer, alpha, weights)
    expected = refitted(fit, Scaling.standard(X[is_typical]).apply(X), groups)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-8)
    assert np.abs(scores - apply_layers((layer,), X)).max() > 0.01


def newton(A, is_second, weights, C):
    point = np.zeros(A.shape[1])
    for _ in range(40):
        p = expit(A @ point)
        hessian = A.T @ ((weights * p * (1 - p))[:, None] * A) + penalties(A, 1 / C)
        gradient = A.T @ (weights * (p - is_second)) + penalties(A, 1 / C) @ point
        point = point - np.linalg.solve(hessian, gradient)
    return point


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("C", "tolerance"), [(0.01, 0.03), (0.1, 0.06), (1.0, 0.2)])
def test_logistic_is_close_and_much_closer_than_scores_of_fitted_rows(shape, C, tolerance):
    X, is_second, groups, weights = sample(*shape)
    scaling = Scaling.standard(X)
    Z = scaling.apply(X)

    def fit(rows, inside):
        return newton(rows[inside], is_second[inside], weights[inside], C)

    point = fit(np.column_stack([Z, np.ones(len(Z))]), np.ones(len(Z), dtype=bool))
    layer = scaling.fold(point[None, :-1], point[-1:])
    data = TrainingRows(X, is_second * 1, groups)
    scores = logistic_left_out(data, layer, C, weights)[:, 0]
    expected = refitted(fit, Z, groups)
    error, own_error = scores - expected, apply_layers((layer,), X)[:, 0] - expected
    # The largest tolerance is for groups of a third of all rows.
    assert np.abs(error).max() < tolerance * expected.std()
    assert np.std(error) < 0.15 * np.std(own_error)


def test_saturated_probabilities_have_a_hessian():
    X, is_second, groups, _ = sample(60, 7, 4)
    layer = Scaling.standard(X).fold(np.full((1, 7), 1e6), np.zeros(1))
    data = TrainingRows(X, is_second * 1, groups)
    assert np.isfinite(logistic_left_out(data, layer, C=1e6)).all()


@pytest.mark.parametrize("group_size", [1, 4, 20])
def test_a_feature_of_one_group_is_left_out_of_float32_rows(group_size):
    """Its Hessian without the group is the penalty alone, which float32 products would lose."""
    X, is_second, groups, _ = sample(400, 7, group_size)
    X[:, -1] = np.where(groups == "0", 1 + np.arange(400) / 400, 0)
    X, alpha = X.astype(np.float32), 1e-2
    targets = np.where(is_second, 1.0, -1.0)[:, None]

    def fit(rows, inside):
        A = rows[inside]
        return np.linalg.solve(A.T @ A + penalties(A, alpha), A.T @ targets[inside])

    (layer,) = ridge_path(X, targets, np.array([alpha]))
    scores = ridge_left_out(TrainingRows(X, is_second * 1, groups), targets, layer, alpha)
    expected = refitted(fit, Scaling.standard(X).apply(X), groups)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-7)


def test_groups_larger_than_a_block_are_left_out(monkeypatch):
    X, is_second, groups, weights = sample(60, 7, 4)
    layer = Scaling.standard(X).fold(np.full((1, 7), 0.1), np.zeros(1))
    data = TrainingRows(X, is_second * 1, groups)
    expected = logistic_left_out(data, layer, 1.0, weights)
    monkeypatch.setattr(lazy_rows, "BLOCK_ROWS", 4)
    np.testing.assert_allclose(logistic_left_out(data, layer, 1.0, weights), expected, rtol=1e-12)


def monitor(kind="logistic", seed=0, **settings):
    """Test and validation predictions of a probe of wide data in groups of one label.

    There are 400 negatives for training, and 2,000 new ones.
    """
    generator = np.random.default_rng(seed)
    y = np.repeat(["usual", "event", "other", "usual", "event"], [400, 100, 100, 2000, 5])
    groups = np.arange(len(y)) // 5
    shared = generator.normal(size=(groups[-1] + 1, 200))[groups]
    X = np.sqrt(0.3) * shared + np.sqrt(0.7) * generator.normal(size=shared.shape)
    X[:, 0] += 2 * (y != "usual")
    if kind == "logistic":  # of two classes
        y[y == "other"] = "event"
    rows, names = np.arange(len(y)), groups.astype(str)
    data = ProbeData(y, names, names, rows[:600], rows[600:], positive="event")
    probing = {"C": (1.0,), "folds": 2, "control_draws": 0, "description": False}
    spec = ProbeSpec(kind=kind)
    prober = SplitProber(data, ProbeSettings(kinds=(spec,), **(probing | settings)))
    labels, whole = prober.labels(random=False), LazyRows.of(X)
    (tuned,) = tuned_together(spec, whole, [(prober.fitted, labels)], [lambda *_: None])
    test, validation, *_ = prober.read(spec, whole, False, tuned)
    return test, validation, X[:600], y[:600], groups[:600]


def test_the_threshold_of_the_final_fit_holds_its_rate_where_that_of_the_folds_does_not():
    by_folds, rates = [], []
    for seed in range(12):
        test, validation, *_ = monitor(seed=seed)
        own = test.predictions[0]
        folds = with_alarms(own, fixed_thresholds(validation.predictions[0]))
        for found, one in ((by_folds, folds), (rates, own)):
            found.append(one.alarms[one.truth != one.positive, 1].mean())
    assert np.mean(by_folds) > 0.08
    assert np.mean(rates) == pytest.approx(0.05, abs=0.015)  # three standard errors


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_class_weights_and_classes_are_those_of_the_fit(kind):
    test, _, X, y, groups = monitor(kind, class_weight="balanced")
    labels, codes = np.unique(y, return_inverse=True)
    data, weights, (layer,) = TrainingRows(X, codes, groups), balanced_weights(y), test.fit.layers
    if kind == "ridge":
        targets = np.where(y[:, None] == labels, 1.0, -1.0)
        scores = ridge_left_out(data, targets, layer, test.facts.C, weights)[:, 0]
    else:
        prior = np.log(np.mean(y == "event") / np.mean(y == "usual"))
        scores = prior - logistic_left_out(data, layer, 1.0, weights)[:, 0]
    predictions = test.predictions[0]
    expected = with_alarms(predictions, thresholds(scores[y != "event"]))
    np.testing.assert_array_equal(predictions.alarms, expected.alarms)


@pytest.mark.parametrize("kind", ["lda", "mass_mean"])
def test_other_kinds_use_the_folds(kind):
    test, validation, *_ = monitor(kind)
    predictions = test.predictions[0]
    expected = with_alarms(predictions, fixed_thresholds(validation.predictions[0]))
    np.testing.assert_array_equal(predictions.alarms, expected.alarms)
