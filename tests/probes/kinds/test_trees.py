import numpy as np
import pytest
from scipy.sparse.csgraph import shortest_path
from scipy.stats import spearmanr

from probekit.errors import DataError
from probekit.probes.kinds.trees import (
    SentenceScores,
    hit_rate,
    rank_correlations,
    read_trees,
    score_depths,
    score_distances,
    spanning_edges,
    tree_spearman,
)
from probekit.probes.score.metrics import Resamples


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
    ("heads", "message"),
    [
        ([0, 0], "has 0 roots"),
        ([-1, -1], "has 2 roots"),
        ([-1, 2, 1], "contain a cycle"),
        ([-1, 1], "contain a cycle"),
        ([-1, 2], "the position 2 is outside"),
        ([-1, -2], "the position -2 is outside"),
        ([-1, 0.5], "must be an integer, but y contains 0.5"),
        (["VERB", "NOUN"], "Label the rows by `HEAD`"),
        (np.array(["0", "NOUN"]), "a number, but one label is 'NOUN'"),
    ],
)
def test_heads_that_are_no_tree_are_refused(heads, message):
    with pytest.raises(DataError, match=message):
        read_trees(heads, np.array(["s7", "s7"] if len(heads) == 2 else ["s7"] * 3))


@pytest.mark.parametrize("seed", range(10))
def test_the_spanning_tree_of_the_gold_distances_is_the_tree(seed):
    (tree,) = read_trees(random_heads(12, seed), np.zeros(12))
    assert np.array_equal(spanning_edges(tree.distances * 1e-9), tree.edges)


def test_tokens_in_one_place_are_joined_too():
    assert spanning_edges(np.zeros((3, 3))).sum() == 4
    assert spanning_edges(np.zeros((1, 1))).tolist() == [[False]]


# A root with two children, the second with one of its own; and a chain.
HEADS = [-1, 0, 0, 2, 0, -1, 0, 1, 2, 3, 4]
SENTENCES = np.array(["a"] * 5 + ["b"] * 6)


def scores(lengths, correlations):
    ones = np.ones(len(lengths), dtype=int)
    return SentenceScores(ones, np.array(lengths), ones, ones, np.array(correlations), "uuas")


def value(metric, found):
    return metric(found, Resamples.whole(len(found.lengths)))[0]


def test_gold_distances_and_depths_score_all():
    trees = read_trees(HEADS, SENTENCES)
    distances = score_distances(trees, [tree.distances.astype(float) for tree in trees])
    depths = score_depths(trees, [tree.depths.astype(float) for tree in trees])
    for found in (distances, depths):
        assert value(hit_rate, found) == 1
        assert value(tree_spearman, found) == pytest.approx(1)
    assert distances.trials.tolist() == [4, 5]
    assert depths.trials.tolist() == [1, 1]


def test_edges_count_equally_in_any_sentence_and_direction():
    trees = read_trees(HEADS, SENTENCES)
    # Tokens on a line in their order: the chain is right, of the other tree 0-1 and 2-3 are.
    line = [np.subtract.outer(np.arange(n), np.arange(n)) ** 2.0 for n in (5, 6)]
    found = score_distances(trees, line)
    assert found.hits.tolist() == [2, 5]
    assert value(hit_rate, found) == pytest.approx(7 / 9)


def test_the_root_guessed_is_the_token_of_least_depth():
    trees = read_trees(HEADS, SENTENCES)
    found = score_depths(trees, [np.array([0.0, 1, 2, 3, 4]), np.array([1.0, 0, 2, 3, 4, 5])])
    assert found.hits.tolist() == [1, 0]


def test_spearman_of_distances_is_the_mean_over_tokens():
    trees = read_trees(HEADS, SENTENCES)[:1]
    guess = np.random.default_rng(0).uniform(size=(5, 5))
    expected = [spearmanr(*rows).statistic for rows in zip(guess, trees[0].distances, strict=True)]
    assert score_distances(trees, [guess]).correlations == pytest.approx([np.mean(expected)])


def test_rank_correlations_with_ties_are_those_of_scipy():
    generator = np.random.default_rng(0)
    first, second = generator.integers(4, size=(2, 20, 9))
    expected = [spearmanr(a, b).statistic for a, b in zip(first, second, strict=True)]
    np.testing.assert_allclose(rank_correlations(first, second), expected, atol=1e-12)


def test_each_length_counts_once_and_those_outside_5_to_50_do_not():
    found = scores([5, 5, 5, 9, 4, 51, 50], [0.1, 0.2, 0.3, 0.8, 1.0, 1.0, 0.5])
    assert value(tree_spearman, found) == pytest.approx((0.2 + 0.8 + 0.5) / 3)
    assert np.isnan(value(tree_spearman, scores([4, 51], [1.0, 1.0])))


def test_sentences_are_resampled_as_resamples_counts_them():
    trees = read_trees(HEADS, SENTENCES)
    line = [np.subtract.outer(np.arange(n), np.arange(n)) ** 2.0 for n in (5, 6)]
    found = score_distances(trees, line)
    resamples = Resamples.leave_one_out(np.unique(SENTENCES))
    rates, correlations = (metric(found, resamples) for metric in (hit_rate, tree_spearman))
    for counts, rate, correlation in zip(resamples.counts.T, rates, correlations, strict=True):
        drawn = np.repeat([0, 1], counts.astype(int))
        assert rate == pytest.approx(found.hits[drawn].sum() / found.trials[drawn].sum())
        assert correlation == pytest.approx(found.correlations[np.unique(drawn)].mean())
