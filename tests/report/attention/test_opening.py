import numpy as np
import pytest

from probekit.report.attention.packing import scores_beyond_distance


def softmax(scores):
    scores = np.where(np.tri(scores.shape[-1], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def at_distance(n, distance):
    """A pattern with all weight on the token at a distance, or on the first token."""
    pattern = np.zeros((n, n), np.float32)
    for query in range(n):
        pattern[query, max(query - distance, 0)] = 1
    return pattern


def slowly(pattern):
    """The score of one head, query by query."""
    n = len(pattern)
    found = []
    for query in range(2, n):
        excess = [0.0]
        for key in range(1, query + 1):
            pairs = [(q, q - query + key) for q in range(n) if q != query and q - query + key >= 1]
            mean = np.mean([pattern[pair] for pair in pairs]) if pairs else 0
            excess.append(pattern[query, key] - mean)
        found.append(max(excess))
    return np.mean(found)


@pytest.mark.parametrize("n", [3, 5, 17])
def test_it_is_the_mean_over_queries_of_the_largest_excess(make_patterns, n):
    patterns = make_patterns(n)
    before = patterns.copy()
    expected = [[slowly(head) for head in layer] for layer in patterns]
    np.testing.assert_allclose(scores_beyond_distance(patterns), expected, atol=1e-6)
    np.testing.assert_array_equal(patterns, before)


def test_heads_without_content_score_below_a_head_that_selects_tokens():
    n = 40
    generator = np.random.default_rng(0)
    query, key = np.indices((n, n))
    heads = {
        "self": at_distance(n, 0),
        "previous": at_distance(n, 1),
        "three before": at_distance(n, 3),
        "first": at_distance(n, n),
        "uniform": softmax(np.zeros((n, n))),
        "decaying": softmax(-0.3 * (query - key)),
        "first and previous": (at_distance(n, n) + at_distance(n, 1)) / 2,
    }
    content = softmax(6 * generator.normal(size=(n, n)))
    *others, selecting = scores_beyond_distance(np.stack([*heads.values(), content])[None])[0]
    assert selecting > 0.5
    assert max(others) < 0.1, dict(zip(heads, others, strict=True))


@pytest.mark.parametrize("n", [1, 2])
def test_a_text_without_a_choice_has_no_score(make_patterns, n):
    assert np.isnan(scores_beyond_distance(make_patterns(n))).all()
