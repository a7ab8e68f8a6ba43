import numpy as np
import pytest
from scipy.optimize import check_grad

from probekit.probes.kinds import attention_pooled
from probekit.probes.kinds.attention_pooled import AttentionPooledProbe, TokensOfTexts, _Objective
from probekit.probes.kinds.logistic import LinearProbe
from tests.probes.kinds import planted


@pytest.mark.parametrize("codes", [[0, 1, 0, 1], [0, 1, 2, 1]])
def test_the_gradient_is_that_of_the_objective(codes):
    generator = np.random.default_rng(0)
    tokens, text = generator.normal(size=(12, 3)), np.repeat(np.arange(4), [1, 5, 2, 4])
    objective = _Objective(TokensOfTexts(tokens, text), np.array(codes), C=0.5)
    point = generator.normal(size=len(objective.start(generator)))
    error = check_grad(lambda x: objective(x)[0], lambda x: objective(x)[1], point)
    assert error < 1e-6


def test_selected_texts_are_renumbered():
    texts = TokensOfTexts(np.arange(6.0)[:, None], np.array([0, 0, 1, 2, 2, 2]))
    part = texts.take(np.array([False, True, True]))
    assert part.tokens.ravel().tolist() == [2, 3, 4, 5]
    assert part.text.tolist() == [0, 1, 1, 1]


def test_weights_are_a_softmax_within_each_text():
    texts = TokensOfTexts(np.zeros((5, 1)), np.array([0, 0, 1, 1, 1]))
    weights = texts.pool(np.array([1e4, 1e4 - 1, -1e4, -1e4, -1e4]))
    np.testing.assert_allclose(weights[:2], [1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))])
    np.testing.assert_allclose(weights[2:], [1 / 3] * 3)


def test_a_stronger_penalty_makes_query_and_weights_smaller():
    X, y, texts, _ = planted.marked_texts(100)
    weak, strong = (
        attention_pooled.fit_attention(TokensOfTexts(X, texts), y[::12], C, max_iter=500, seed=0)
        for C in (10.0, 0.01)
    )
    assert np.linalg.norm(strong.query) < np.linalg.norm(weak.query)
    assert np.linalg.norm(strong.layers[0].weight) < np.linalg.norm(weak.layers[0].weight)


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 2))])
def test_a_token_at_a_random_position_is_found_where_the_mean_fails(seed):
    X, y, texts, marks = planted.marked_texts(600, seed=seed)
    known = texts < 400
    probe = AttentionPooledProbe().fit(X[known], y[known], texts[known])
    right = probe.predict(X[~known], texts[~known]) == y[~known]
    means = X.reshape(600, 12, -1).mean(axis=1)
    of_means = LinearProbe().fit(means[:400], y[::12][:400]).score(means[400:], y[::12][400:])
    assert right.mean() > 0.97
    assert of_means < 0.7
    attention = probe.attention(X, texts)
    np.testing.assert_allclose(np.bincount(texts, attention), 1)
    assert attention[marks].mean() > 0.85


def test_three_classes_are_separated_too():
    X, y, texts, marks = planted.marked_texts(600)
    y = np.repeat(np.random.default_rng(1).integers(3, size=600), 12)
    X[:, 1:4] = np.random.default_rng(2).normal(size=(len(X), 3))
    X[marks, 1 + y[marks]] += 5
    known = texts < 400
    probe = AttentionPooledProbe(C=1.0).fit(X[known], y[known], texts[known])
    assert np.mean(probe.predict(X[~known], texts[~known]) == y[~known]) > 0.9
    assert probe.decision_function(X, texts).shape == (len(X), 3)


def test_all_tokens_of_a_text_get_one_prediction_in_any_order():
    X, y, texts, _ = planted.marked_texts(50)
    probe = AttentionPooledProbe(C=1.0).fit(X, y, texts)
    scores = probe.decision_function(X, texts)
    assert np.array_equal(scores, np.repeat(scores[::12], 12))
    mixed = np.random.default_rng(0).permutation(len(X))
    np.testing.assert_allclose(probe.decision_function(X[mixed], texts[mixed]), scores[mixed])
    np.testing.assert_allclose(
        probe.attention(X[mixed], texts[mixed]), probe.attention(X, texts)[mixed]
    )
    again = AttentionPooledProbe(C=1.0).fit(X[mixed], y[mixed], texts[mixed])
    np.testing.assert_allclose(again.query_, probe.query_, atol=1e-3)


def test_the_scale_of_features_changes_nothing():
    X, y, texts, _ = planted.marked_texts(100)
    scaled = X * np.logspace(-2, 2, X.shape[1]) + 7
    one, other = (AttentionPooledProbe(C=1.0).fit(rows, y, texts) for rows in (X, scaled))
    np.testing.assert_allclose(one.attention(X, texts), other.attention(scaled, texts), atol=1e-3)
