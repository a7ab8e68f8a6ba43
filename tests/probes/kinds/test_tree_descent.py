import numpy as np
import pytest
from scipy.optimize import approx_fprime

from probekit.probes.kinds.structural.descent import (
    SentenceTargets,
    depth_loss,
    distance_loss,
    fit_projection,
    squared_distances,
)


@pytest.mark.parametrize(("loss", "shape"), [(distance_loss, (6, 6)), (depth_loss, (6,))])
def test_gradients_are_those_of_the_loss(loss, shape):
    generator = np.random.default_rng(0)
    tokens, gold = generator.normal(size=(6, 3)), generator.uniform(0, 5, size=shape)
    if shape == (6, 6):
        gold = gold + gold.T
        np.fill_diagonal(gold, 0)
    expected = approx_fprime(tokens.ravel(), lambda x: loss(x.reshape(6, 3), gold)[0], 1e-7)
    np.testing.assert_allclose(loss(tokens, gold)[1].ravel(), expected, atol=1e-5)


def test_squared_distances_are_those_between_the_tokens():
    tokens = np.random.default_rng(0).normal(size=(5, 3))
    expected = np.sum((tokens[:, None] - tokens) ** 2, axis=2)
    np.testing.assert_allclose(squared_distances(tokens), expected, atol=1e-12)


def sentences(n, seed=0, n_tokens=6):
    """Tokens whose first two features are the space in which gold distances are measured."""
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(n, n_tokens, 8)).astype(np.float32)
    return [SentenceTargets(own, squared_distances(own[:, :2])) for own in rows]


def test_the_projection_of_the_gold_distances_is_recovered():
    found = fit_projection(sentences(200), distance_loss, rank=2, max_iter=100, seed=0)
    metric = found.weight @ found.weight.T
    np.testing.assert_allclose(metric, np.diag([1, 1, 0, 0, 0, 0, 0, 0]), atol=0.05)
    assert found.converged
    assert found.n_iter < 100


def test_too_few_epochs_are_reported_as_not_converged():
    found = fit_projection(sentences(200), distance_loss, rank=2, max_iter=2, seed=0)
    assert (found.converged, found.n_iter) == (False, 2)


def test_held_out_sentences_say_when_to_stop(monkeypatch):
    # Noise can be memorised if there are more weights than distances.
    generator = np.random.default_rng(0)
    noise = [
        SentenceTargets(rows.astype(np.float32), squared_distances(generator.normal(size=(5, 2))))
        for rows in generator.normal(size=(40, 5, 300))
    ]
    inside = [noise[place] for place in np.random.default_rng(0).permutation(40)[4:]]

    def loss(weight):
        return np.mean([distance_loss(own.rows @ weight, own.gold)[0] for own in inside])

    found = fit_projection(noise, distance_loss, rank=32, max_iter=300, seed=0)
    monkeypatch.setattr("probekit.probes.kinds.structural.descent.HELD_OUT", 1000)
    by_heart = fit_projection(inside, distance_loss, rank=32, max_iter=300, seed=0)
    assert found.n_iter < by_heart.n_iter
    assert loss(by_heart.weight) < 0.7 * loss(found.weight)


def test_the_seed_decides_all():
    one, same, other = (
        fit_projection(sentences(50), distance_loss, 2, max_iter=3, seed=seed).weight
        for seed in (0, 0, 1)
    )
    assert np.array_equal(one, same)
    assert not np.allclose(one, other)
