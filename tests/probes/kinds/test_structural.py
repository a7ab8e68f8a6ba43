import numpy as np
import pytest

from probekit.errors import DataError
from probekit.probes.kinds.structural.probes import DepthProbe, DistanceProbe
from tests.probes.kinds import planted


@pytest.fixture(scope="module")
def forest():
    X, heads, sentences = planted.trees(300, n_features=40, rank=20)
    return X * np.logspace(-1, 1, 40) + 5, heads, sentences


@pytest.mark.parametrize("kind", [DistanceProbe, DepthProbe])
class TestBoth:
    def test_a_planted_geometry_is_recovered_in_unseen_sentences(self, kind, forest):
        X, heads, sentences = forest
        known = sentences < 200
        probe = kind(rank=20).fit(X[known], heads[known], sentences[known])
        held = X[~known], heads[~known], sentences[~known]
        assert probe.converged_ is True
        assert probe.spearman(*held) > 0.95
        assert probe.score_sentences(*held).hit_rate()[0] > 0.97

    def test_noise_has_none(self, kind, forest):
        _, heads, sentences = forest
        X = np.random.default_rng(5).normal(size=(len(heads), 40))
        known = sentences < 200
        probe = kind(rank=20).fit(X[known], heads[known], sentences[known])
        held = X[~known], heads[~known], sentences[~known]
        assert abs(probe.spearman(*held)) < 0.4  # the zero distance to itself helps
        assert probe.score_sentences(*held).hit_rate()[0] < 0.3

    def test_the_map_is_for_raw_rows(self, kind, forest):
        X, heads, sentences = forest
        probe = kind(rank=4, max_iter=3).fit(X, heads, sentences)
        expected = X @ probe.coef_.T + probe.intercept_
        np.testing.assert_allclose(probe.transform(X), expected)
        assert probe.coef_.shape == (4, 40)

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


def test_one_number_a_call_is_that_of_all_sentences(forest):
    distance = DistanceProbe(rank=4, max_iter=3).fit(*forest)
    assert distance.uuas(*forest) == distance.score_sentences(*forest).hit_rate()[0]
    depth = DepthProbe(rank=4, max_iter=3).fit(*forest)
    assert depth.root_accuracy(*forest) == depth.score_sentences(*forest).hit_rate()[0]
