import numpy as np
import pytest
from scipy.sparse.csgraph import shortest_path

from probekit.errors import DataError
from probekit.probes.kinds.structural.trees import read_trees, spanning_edges


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
