import numpy as np
import pytest
from scipy.stats import spearmanr

from probekit.probes.kinds.structural.scores import (
    SentenceScores,
    rank_correlations,
    score_depths,
    score_distances,
)
from probekit.probes.kinds.structural.trees import read_trees
from probekit.probes.score.metrics import Resamples

# A root with two children, the second with one of its own; and a chain.
HEADS = [-1, 0, 0, 2, 0, -1, 0, 1, 2, 3, 4]
SENTENCES = np.array(["a"] * 5 + ["b"] * 6)


def scores(lengths, correlations):
    ones = np.ones(len(lengths), dtype=int)
    return SentenceScores(ones, np.array(lengths), ones, ones, np.array(correlations))


def test_gold_distances_and_depths_score_all():
    trees = read_trees(HEADS, SENTENCES)
    distances = score_distances(trees, [tree.distances.astype(float) for tree in trees])
    depths = score_depths(trees, [tree.depths.astype(float) for tree in trees])
    for found in (distances, depths):
        assert found.hit_rate()[0] == 1
        assert found.spearman()[0] == pytest.approx(1)
    assert distances.trials.tolist() == [4, 5]
    assert depths.trials.tolist() == [1, 1]


def test_edges_count_equally_in_any_sentence_and_direction():
    trees = read_trees(HEADS, SENTENCES)
    # Tokens on a line in their order: the chain is right, of the other tree 0-1 and 2-3 are.
    line = [np.subtract.outer(np.arange(n), np.arange(n)) ** 2.0 for n in (5, 6)]
    found = score_distances(trees, line)
    assert found.hits.tolist() == [2, 5]
    assert found.hit_rate()[0] == pytest.approx(7 / 9)


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
    assert found.spearman()[0] == pytest.approx((0.2 + 0.8 + 0.5) / 3)
    assert np.isnan(scores([4, 51], [1.0, 1.0]).spearman()[0])


def test_sentences_are_resampled_as_resamples_counts_them():
    trees = read_trees(HEADS, SENTENCES)
    line = [np.subtract.outer(np.arange(n), np.arange(n)) ** 2.0 for n in (5, 6)]
    found = score_distances(trees, line)
    resamples = Resamples.leave_one_out(SENTENCES)
    rates, correlations = found.hit_rate(resamples.counts), found.spearman(resamples.counts)
    for counts, rate, correlation in zip(resamples.counts.T, rates, correlations, strict=True):
        drawn = np.repeat([0, 1], counts.astype(int))
        assert rate == pytest.approx(found.hits[drawn].sum() / found.trials[drawn].sum())
        assert correlation == pytest.approx(found.correlations[np.unique(drawn)].mean())
