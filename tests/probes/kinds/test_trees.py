"""Trees of sentences, scores of geometries compared with them, and structural probes."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.sparse.csgraph import shortest_path
from scipy.stats import spearmanr

from probekit.probes.kinds import structural, trees
from probekit.probes.kinds.structural import DepthProbe, depth_loss, distance_loss, fit_projection
from probekit.probes.kinds.trees import hit_rate, read_trees, score_distances, spanning_edges
from probekit.probes.score.metrics import Resamples
from tests.probes.kinds import planted


def random_heads(length, seed):
    generator = np.random.default_rng(seed)
    order, heads = generator.permutation(length), np.full(length, -1)
    for step in range(1, length):
        heads[order[step]] = order[generator.integers(step)]
    return heads


@pytest.mark.parametrize("seed", range(20))
def test_distances_and_depths_are_those_of_the_graph(seed):
    heads = random_heads(1 + seed, seed)
    (tree,) = read_trees(heads, np.zeros(len(heads)))
    graph = np.zeros((len(heads), len(heads)))
    for token, head in enumerate(heads):
        if head >= 0:
            graph[token, head] = graph[head, token] = 1
    expected = shortest_path(graph, unweighted=True)
    assert np.array_equal(tree.distances, expected)
    assert np.array_equal(tree.depths, expected[np.flatnonzero(heads == -1)[0]])
    assert np.array_equal(tree.edges, graph == 1)


def test_sentences_are_sorted_and_their_rows_keep_their_order():
    first, second = read_trees(["1", "-1", "-1", "0"], np.array(["b", "a", "b", "a"])[::-1])
    assert (first.sentence, first.rows.tolist(), first.heads.tolist()) == ("a", [0, 2], [1, -1])
    assert (second.sentence, second.rows.tolist(), second.heads.tolist()) == ("b", [1, 3], [-1, 0])


@pytest.mark.parametrize(
    "heads",
    [
        *([0, 0], [-1, -1], [-1, 2, 1], [-1, 1], [-1, 2], [-1, -2], [-1, 0.5]),
        ["VERB", "NOUN"],
        np.array(["0", "NOUN"]),
    ],
    ids=str,
)
def test_heads_that_are_no_tree_are_refused(heads, refused):
    refused(read_trees, heads, np.array(["s7"] * len(heads)))


@pytest.mark.parametrize("seed", range(10))
def test_the_spanning_tree_of_the_gold_distances_is_the_tree(seed):
    (tree,) = read_trees(random_heads(12, seed), np.zeros(12))
    assert np.array_equal(spanning_edges(tree.distances * 1e-9), tree.edges)


def test_tokens_in_one_place_are_joined_too():
    assert spanning_edges(np.zeros((3, 3))).sum() == 4
    assert spanning_edges(np.zeros((1, 1))).tolist() == [[False]]


# A root with two children, the second with one of its own; and a chain.
SENTENCES = np.array(["a"] * 5 + ["b"] * 6)
TREES = read_trees([-1, 0, 0, 2, 0, -1, 0, 1, 2, 3, 4], SENTENCES)
# Tokens on a line in their order: the chain is right, of the other tree 0-1 and 2-3 are.
LINES = [np.subtract.outer(np.arange(n), np.arange(n)) ** 2.0 for n in (5, 6)]


def value(metric, found):
    return metric(found, Resamples.whole(len(found.lengths)))[0]


def test_gold_distances_and_depths_score_all():
    distances = score_distances(TREES, [tree.distances.astype(float) for tree in TREES])
    depths = trees.score_depths(TREES, [tree.depths.astype(float) for tree in TREES])
    for found, trials in ((distances, [4, 5]), (depths, [1, 1])):
        assert value(hit_rate, found) == 1
        assert value(trees.tree_spearman, found) == pytest.approx(1)
        assert found.trials.tolist() == trials


def test_edges_count_equally_in_any_sentence_and_direction():
    found = score_distances(TREES, LINES)
    assert found.hits.tolist() == [2, 5]
    assert value(hit_rate, found) == pytest.approx(7 / 9)


def test_the_root_guessed_is_the_token_of_least_depth():
    found = trees.score_depths(TREES, [np.array([0.0, 1, 2, 3, 4]), np.array([1.0, 0, 2, 3, 4, 5])])
    assert found.hits.tolist() == [1, 0]


def test_spearman_of_distances_is_the_mean_over_tokens():
    guess = np.random.default_rng(0).uniform(size=(5, 5))
    expected = [spearmanr(*rows).statistic for rows in zip(guess, TREES[0].distances, strict=True)]
    assert score_distances(TREES[:1], [guess]).correlations == pytest.approx([np.mean(expected)])


def test_rank_correlations_with_ties_are_those_of_scipy():
    generator = np.random.default_rng(0)
    first, second = generator.integers(4, size=(2, 20, 9))
    expected = [spearmanr(a, b).statistic for a, b in zip(first, second, strict=True)]
    np.testing.assert_allclose(trees.rank_correlations(first, second), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("lengths", "correlations", "expected"),
    [
        ([5, 5, 5, 9, 4, 51, 50], [0.1, 0.2, 0.3, 0.8, 1.0, 1.0, 0.5], (0.2 + 0.8 + 0.5) / 3),
        ([4, 51], [1.0, 1.0], np.nan),
    ],
)
def test_each_length_counts_once_and_those_outside_5_to_50_do_not(lengths, correlations, expected):
    ones = np.ones(len(lengths), dtype=int)
    found = trees.SentenceScores(np.array(lengths), ones, ones, np.array(correlations), "uuas")
    assert value(trees.tree_spearman, found) == pytest.approx(expected, nan_ok=True)


def test_sentences_are_resampled_as_resamples_counts_them():
    found = score_distances(TREES, LINES)
    resamples = Resamples.leave_one_out(np.unique(SENTENCES))
    rates, correlations = (metric(found, resamples) for metric in (hit_rate, trees.tree_spearman))
    for drawn, rate, correlation in zip(([0, 1], [1], [0]), rates, correlations, strict=True):
        assert rate == pytest.approx(found.hits[drawn].sum() / found.trials[drawn].sum())
        assert correlation == pytest.approx(found.correlations[np.unique(drawn)].mean())


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
    return [(own, structural.squared_distances(own[:, :2])) for own in rows]


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
    tokens = generator.normal(size=(40, 5, 300)).astype(np.float32)
    gold = (structural.squared_distances(generator.normal(size=(5, 2))) for _ in tokens)
    noise = list(zip(tokens, gold, strict=True))
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


BOTH = pytest.mark.parametrize("kind", [structural.DistanceProbe, DepthProbe])


@BOTH
@pytest.mark.parametrize("is_noise", [False, True])
def test_a_planted_geometry_is_recovered_in_unseen_sentences_and_noise_has_none(
    kind, is_noise, forest
):
    X, heads, sentences = forest
    X = np.random.default_rng(5).normal(size=X.shape) if is_noise else X
    known = sentences < 200
    probe = kind(rank=20).fit(X[known], heads[known], sentences[known])
    held = X[~known], heads[~known], sentences[~known]
    hits = (probe.root_accuracy if kind is DepthProbe else probe.uuas)(*held)
    if is_noise:
        assert abs(probe.spearman(*held)) < 0.4  # the zero distance to itself helps
        assert hits < 0.3
    else:
        assert probe.converged_ is True
        assert probe.spearman(*held) > 0.95
        assert hits > 0.97


@BOTH
def test_constant_and_huge_features_do_no_harm(kind, forest):
    X, heads, sentences = forest
    X = np.column_stack([X, np.full(len(X), 3e4), 1e4 * X[:, 0]])
    probe = kind(rank=20).fit(X, heads, sentences)
    assert probe.spearman(X, heads, sentences) > 0.9


@BOTH
def test_sentences_may_be_mixed_while_their_tokens_keep_their_order(kind, forest):
    X, heads, sentences = (part[forest[2] < 12] for part in forest)
    place = np.concatenate([np.arange(n) for n in np.bincount(sentences)])
    mixed = np.lexsort((sentences, place))
    one = kind(rank=2, max_iter=2).fit(X, heads, sentences)
    other = kind(rank=2, max_iter=2).fit(X[mixed], heads[mixed], sentences[mixed])
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-3, atol=1e-6)


@BOTH
def test_the_map_is_for_raw_rows_and_the_seed_decides(kind, forest):
    X = forest[0]
    one, other = (kind(rank=4, max_iter=3, random_state=seed).fit(*forest) for seed in (0, 1))
    np.testing.assert_allclose(one.transform(X), X @ one.coef_.T + one.intercept_)
    assert one.coef_.shape == (4, 40)
    assert not np.allclose(one.coef_, other.coef_)
    points = one.transform(X[forest[2] == 3])
    if kind is DepthProbe:
        found, expected = one.predict(X[forest[2] == 3]), np.sum(points**2, axis=1)
    else:
        found = one.distances(X[forest[2] == 3])
        expected = np.sum((points[:, None] - points) ** 2, axis=2)
    np.testing.assert_allclose(found, expected, atol=1e-9)


@BOTH
def test_without_groups_all_rows_are_one_sentence(kind):
    X, chain = np.arange(8.0)[:, None], np.arange(8) - 1
    probe = kind(rank=1).fit(X, chain)
    assert probe.score_sentences(X, chain).lengths.tolist() == [8]
