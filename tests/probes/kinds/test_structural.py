import numpy as np
import pytest
from scipy.optimize import approx_fprime

from probekit.errors import DataError
from probekit.probes.kinds.structural import (
    DepthProbe,
    DistanceProbe,
    depth_loss,
    distance_loss,
    fit_projection,
    squared_distances,
)
from tests.probes.kinds import planted


@pytest.mark.parametrize(("loss", "shape"), [(distance_loss, (6, 6)), (depth_loss, (6,))])
def test_gradients_are_those_of_the_loss(loss, shape):
    generator = np.random.default_rng(0)
    tokens, gold = generator.normal(size=(6, 3)), generator.uniform(0, 5, size=shape)
    if shape == (6, 6):
        gold = gold + gold.T
        np.fill_diagonal(gold, 0)
    expected = approx_fprime(tokens.ravel(), lambda x: loss(x.reshape(6, 3), gold)[0], 1e-7)
    np.testing.assert_allclose(loss(tokens, gold)[1].ravel(), expected, atol=1e-5)


def sentences(n, seed=0, n_tokens=6):
    """Tokens whose first two features are the space in which gold distances are measured."""
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(n, n_tokens, 8)).astype(np.float32)
    return [(own, squared_distances(own[:, :2])) for own in rows]


def test_the_projection_of_the_gold_distances_is_recovered():
    weight, n_iter, converged = fit_projection(sentences(200), distance_loss, 2, 100, seed=0)
    metric = weight @ weight.T
    np.testing.assert_allclose(metric, np.diag([1, 1, 0, 0, 0, 0, 0, 0]), atol=0.05)
    assert converged
    assert n_iter < 100


def test_too_few_epochs_are_reported_as_not_converged():
    _, n_iter, converged = fit_projection(sentences(200), distance_loss, 2, max_iter=2, seed=0)
    assert (converged, n_iter) == (False, 2)


def test_held_out_sentences_say_when_to_stop(monkeypatch):
    # Noise can be memorised if there are more weights than distances.
    generator = np.random.default_rng(0)
    noise = [
        (rows.astype(np.float32), squared_distances(generator.normal(size=(5, 2))))
        for rows in generator.normal(size=(40, 5, 300))
    ]
    inside = [noise[place] for place in np.random.default_rng(0).permutation(40)[4:]]

    def loss(weight):
        return np.mean([distance_loss(rows @ weight, gold)[0] for rows, gold in inside])

    found, n_iter, _ = fit_projection(noise, distance_loss, rank=32, max_iter=300, seed=0)
    monkeypatch.setattr("probekit.probes.kinds.structural.HELD_OUT", 1000)
    by_heart, most, _ = fit_projection(inside, distance_loss, rank=32, max_iter=300, seed=0)
    assert n_iter < most
    assert loss(by_heart) < 0.7 * loss(found)


@pytest.fixture(scope="module")
def forest():
    X, heads, sentences = planted.trees(300, n_features=40, rank=20)
    return X * np.logspace(-1, 1, 40) + 5, heads, sentences


def hits(probe, held):
    """UUAS or root accuracy."""
    return probe.uuas(*held) if isinstance(probe, DistanceProbe) else probe.root_accuracy(*held)


@pytest.mark.parametrize("kind", [DistanceProbe, DepthProbe])
class TestBoth:
    def test_a_planted_geometry_is_recovered_in_unseen_sentences(self, kind, forest):
        X, heads, sentences = forest
        known = sentences < 200
        probe = kind(rank=20).fit(X[known], heads[known], sentences[known])
        held = X[~known], heads[~known], sentences[~known]
        assert probe.converged_ is True
        assert probe.spearman(*held) > 0.95
        assert hits(probe, held) > 0.97

    def test_noise_has_none(self, kind, forest):
        _, heads, sentences = forest
        X = np.random.default_rng(5).normal(size=(len(heads), 40))
        known = sentences < 200
        probe = kind(rank=20).fit(X[known], heads[known], sentences[known])
        held = X[~known], heads[~known], sentences[~known]
        assert abs(probe.spearman(*held)) < 0.4  # the zero distance to itself helps
        assert hits(probe, held) < 0.3

    def test_constant_and_huge_features_do_no_harm(self, kind, forest):
        X, heads, sentences = forest
        X = np.column_stack([X, np.full(len(X), 3e4), 1e4 * X[:, 0]])
        probe = kind(rank=20).fit(X, heads, sentences)
        assert probe.spearman(X, heads, sentences) > 0.9

    def test_sentences_may_be_mixed_while_their_tokens_keep_their_order(self, kind, forest):
        X, heads, sentences = forest
        first = sentences < 12
        X, heads, sentences = X[first], heads[first], sentences[first]
        place = np.concatenate([np.arange(n) for n in np.bincount(sentences)])
        mixed = np.lexsort((sentences, place))
        one = kind(rank=2, max_iter=2).fit(X, heads, sentences)
        other = kind(rank=2, max_iter=2).fit(X[mixed], heads[mixed], sentences[mixed])
        np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-3, atol=1e-6)

    def test_the_map_is_for_raw_rows_and_the_seed_decides(self, kind, forest):
        X, heads, sentences = forest
        made = (kind(rank=4, max_iter=3, random_state=seed) for seed in (0, 1))
        one, other = (probe.fit(X, heads, sentences) for probe in made)
        np.testing.assert_allclose(one.transform(X), X @ one.coef_.T + one.intercept_)
        assert one.coef_.shape == (4, 40)
        assert not np.allclose(one.coef_, other.coef_)

    def test_without_groups_all_rows_are_one_sentence(self, kind):
        X = np.arange(8.0)[:, None]
        probe = kind(rank=1).fit(X, np.arange(8) - 1)
        assert probe.score_sentences(X, np.arange(8) - 1).lengths.tolist() == [8]
        with pytest.raises(DataError, match=r"sentence '0' do not form a tree: it has 2 roots"):
            kind(rank=1).fit(X, [-1, 0, 1, 2, -1, 0, 1, 2])


def test_distances_and_depths_of_a_sentence_are_those_of_its_projected_tokens(forest):
    X, heads, sentences = forest
    tokens = X[sentences == 3]
    distance = DistanceProbe(rank=4, max_iter=3).fit(X, heads, sentences)
    points = distance.transform(tokens)
    expected = np.sum((points[:, None] - points) ** 2, axis=2)
    np.testing.assert_allclose(distance.distances(tokens), expected, atol=1e-9)
    depth = DepthProbe(rank=4, max_iter=3).fit(X, heads, sentences)
    np.testing.assert_allclose(depth.predict(tokens), np.sum(depth.transform(tokens) ** 2, axis=1))
