import numpy as np
import pytest
from scipy.optimize import check_grad

from probekit.probes.kinds.attention_objective import TokensOfTexts, _Objective, fit_attention
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
        fit_attention(TokensOfTexts(X, texts), y[::12], C, max_iter=500, seed=0)
        for C in (10.0, 0.01)
    )
    assert np.linalg.norm(strong.query) < np.linalg.norm(weak.query)
    assert np.linalg.norm(strong.coef) < np.linalg.norm(weak.coef)
