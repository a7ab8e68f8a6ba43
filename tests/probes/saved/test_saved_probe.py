"""Saved probes give the scores of the estimator on raw rows, and check where they are used."""

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from probekit.errors import ConfigError, DataError
from probekit.probes.kinds.logistic import LinearProbe
from probekit.probes.saved.saved_probe import SavedProbe
from probekit.probes.solve.design import shared


def raw_rows(seed, n_samples=80, n_features=7):
    """Rows whose features have very different means and standard deviations."""
    generator = np.random.default_rng(seed)
    scales = 10.0 ** np.arange(-3, n_features - 3)
    return generator.normal(size=(n_samples, n_features)) * scales + 50 * scales


def labels(X, n_classes):
    """Labels determined by the first features."""
    rank = X[:, 2].argsort().argsort()
    return np.array(list("abcd"))[rank * n_classes // len(X)]


@pytest.mark.parametrize("n_classes", [2, 3, 4])
def test_scores_of_raw_rows_are_those_of_the_estimator(make_facts, n_classes):
    X = raw_rows(0)
    probe = LinearProbe(C=1.0).fit(X, labels(X, n_classes))
    saved = SavedProbe(((probe.coef_, probe.intercept_),), tuple(probe.classes_), make_facts())
    new = raw_rows(1)
    np.testing.assert_allclose(saved.scores(new), probe.decision_function(new), atol=1e-9)
    np.testing.assert_array_equal(saved.predict(new), probe.predict(new))
    logs = probe.predict_log_proba(new)
    np.testing.assert_allclose(saved.log_probabilities(new), logs, atol=1e-9)
    assert len(set(saved.predict(X))) == n_classes


def test_the_bias_of_raw_rows_is_less_the_scaled_mean(make_facts):
    """PITFALL 18: b' = b - sum(w mean / std); without it the scores are off by far."""
    X = raw_rows(0)
    scaler = StandardScaler().fit(X)
    w, b = np.random.default_rng(2).normal(size=(1, 7)), np.array([0.3])
    raw = w / scaler.scale_, b - (w * scaler.mean_ / scaler.scale_).sum(axis=1)
    scaled_scores = (scaler.transform(X) @ w.T + b)[:, 0]
    saved = SavedProbe((raw,), ("no", "yes"), make_facts())
    np.testing.assert_allclose(saved.scores(X), scaled_scores, atol=1e-9)
    design = shared(X, [np.ones(len(X))], typical=np.ones(len(X), dtype=bool))
    for ours, theirs in zip(design.fold(0, w, b), raw, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    unfolded = SavedProbe(((raw[0], b),), ("no", "yes"), make_facts())
    assert np.abs(unfolded.scores(X) - scaled_scores).min() > 1


@pytest.mark.parametrize("n_classes", [2, 3])
def test_two_layers_are_a_network_with_relu_between(make_facts, n_classes):
    X = StandardScaler().fit_transform(raw_rows(0))
    network = MLPClassifier(5, max_iter=2000, random_state=0).fit(X, labels(X, n_classes))
    layers = tuple((w.T, b) for w, b in zip(network.coefs_, network.intercepts_, strict=True))
    saved = SavedProbe(layers, tuple(network.classes_), make_facts(kind="mlp"))
    np.testing.assert_allclose(
        np.exp(saved.log_probabilities(X)), network.predict_proba(X), atol=1e-9
    )
    np.testing.assert_array_equal(saved.predict(X), network.predict(X))
    with pytest.raises(ConfigError, match="mlp probe has 2 layers"):
        _ = saved.directions


def test_without_classes_the_score_is_the_answer(make_facts):
    saved = SavedProbe(((np.array([[2.0, 0.0]]), np.array([1.0])),), (), make_facts(kind="ridge"))
    assert saved.predict([[3.0, 9.0]]).tolist() == [7.0]
    assert saved.direction_names == ("value",)
    with pytest.raises(ConfigError, match="no probabilities"):
        saved.log_probabilities([[3.0, 9.0]])


def test_scores_that_are_no_logits_give_no_probabilities(make_probe, make_facts):
    saved = make_probe(facts=make_facts(kind="linear_svm", scores_are_logits=False))
    with pytest.raises(ConfigError, match="linear_svm probe are not logits"):
        saved.log_probabilities(np.zeros((1, 7)))


def test_log_probabilities_are_sound_far_from_zero(make_probe):
    saved = make_probe(n_classes=3)
    logs = saved.log_probabilities(1e6 * np.ones((2, 7)))
    assert np.isfinite(logs).all()
    np.testing.assert_allclose(logs, log_softmax(logs, axis=1))


def test_directions_are_the_weights_and_of_length_one_if_wished(make_probe):
    saved = make_probe(n_classes=3)
    assert saved.directions.shape == (3, 7)
    assert saved.directions.dtype == np.float64
    np.testing.assert_allclose(np.linalg.norm(saved.unit_directions, axis=1), 1)
    np.testing.assert_allclose(
        saved.unit_directions * np.linalg.norm(saved.directions, axis=1)[:, None], saved.directions
    )
    assert saved.direction_names == saved.classes
    assert make_probe(n_classes=2).direction_names == ("b",)


def test_a_direction_of_zeros_has_no_length(make_facts):
    saved = SavedProbe(((np.zeros((1, 3)), np.zeros(1)),), ("a", "b"), make_facts())
    with pytest.raises(DataError, match="no direction"):
        _ = saved.unit_directions


def test_a_saved_probe_is_immutable(make_probe):
    saved = make_probe()
    with pytest.raises(ValueError, match="read-only"):
        saved.layers[0][0][0, 0] = 1


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (
            np.zeros((2, 6)),
            r"shape \(2, 6\), but this probe of blocks.* needs shape \(n_samples, 7\)",
        ),
        (np.zeros(7), "shape"),
        (np.where(np.eye(7) == 1, np.nan, 0.0)[2:], "5 of 5 rows contain NaN or infinity, first"),
        ([[0, 0, 0, np.inf, 0, 0, 0]], "1 of 1 rows"),
    ],
)
def test_rows_that_are_none_of_the_site_are_refused(make_probe, X, message):
    with pytest.raises(DataError, match=message):
        make_probe().scores(X)


W, B = np.ones((1, 4)), np.zeros(1)


@pytest.mark.parametrize(
    ("layers", "classes", "message"),
    [
        ((), ("a", "b"), "do not form a probe"),
        (((W[0], B),), ("a", "b"), "do not form a probe"),
        (((W, np.zeros(2)),), ("a", "b"), "do not form a probe"),
        (((W[:, :0], B),), ("a", "b"), "do not form a probe"),
        (((W, B), (W, B)), ("a", "b"), "equal to n_out of the previous layer"),
        (((W * np.nan, B),), ("a", "b"), "NaN"),
        (((W, B + np.inf),), ("a", "b"), "NaN or infinity"),
        (((W, B),), ("a",), "1 scores do not match 1 classes"),
        (((W, B),), ("a", "b", "c"), "1 scores do not match 3 classes"),
        (((np.ones((2, 4)), np.zeros(2)),), ("a", "b"), "2 scores do not match 2 classes"),
        (((np.ones((2, 4)), np.zeros(2)),), (), "2 scores do not match 0 classes"),
        (((W, B),), ("a", "a"), "must be distinct strings"),
        (((W, B),), (0, 1), "must be distinct strings"),
    ],
)
def test_what_is_no_probe_is_refused(make_facts, layers, classes, message):
    with pytest.raises(DataError, match=message):
        SavedProbe(layers, classes, make_facts())


def test_what_fits_is_let_through_and_what_differs_is_listed(make_probe, make_facts):
    saved = make_probe()
    facts = saved.facts
    saved.check_fits(site=facts.site, width=7, weights=facts.weights, tokenizer=facts.tokenizer)
    saved.check_fits()
    with pytest.raises(ConfigError) as caught:
        saved.check_fits(site="blocks.2.hook_resid_post", width=768, weights="other")
    message = str(caught.value)
    assert (
        "site: blocks.1.hook_resid_post for the probe, blocks.2.hook_resid_post for the rows"
        in message
    )
    assert "width: 7 for the probe, 768 for the rows" in message
    assert "weights: ww for the probe, other for the rows" in message
    assert "tokenizer" not in message
    saved.check_fits(n_heads=12, layer_norm_epsilon=1e-5)  # not in probes of older releases
    newer = make_probe(facts=make_facts(n_heads=4, layer_norm_epsilon=1e-5))
    newer.check_fits(n_heads=4, layer_norm_epsilon=1e-5)
    with pytest.raises(ConfigError, match="n_heads: 4 for the probe, 12 for the rows"):
        newer.check_fits(n_heads=12)
