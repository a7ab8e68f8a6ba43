"""Exchanges of whole groups: all arrangements, folds, and sites that share them."""

from itertools import permutations, product

import numpy as np
import pytest

from probekit.probes.score.association import RowScores
from probekit.probes.score.exchange import (
    FEWEST_ARRANGEMENTS,
    MOST_EXACT,
    WIDER_OVER_FOLDS,
    sign_patterns,
)
from probekit.probes.score.permutation import p_values
from tests.probes.score.exchanges import exchange_of, judged


def random_rows(labels, seed=0):
    """Random scores of rows with the given codes."""
    n_labels = labels.max() + 1
    scores = np.random.default_rng(seed).normal(size=(len(labels), n_labels))
    return RowScores(scores, np.eye(n_labels)[labels])


def total(rows, order):
    return float((rows.scores * rows.labels[order]).sum())


def centred(rows, members):
    """A group's score minus its mean over all permutations of the labels within the group."""
    scores = rows.scores[members]
    orders = permutations(rows.labels[members].tolist())
    return float((scores * rows.labels[members]).sum()) - np.mean(
        [(scores * np.array(labels)).sum() for labels in orders]
    )


@pytest.mark.parametrize("n_units", [1, 5, 11, MOST_EXACT])
def test_all_sign_patterns_are_enumerated_once_the_observed_first(n_units):
    patterns = np.concatenate(list(sign_patterns(n_units, draws=7, seed=0)))
    assert patterns.shape == (2**n_units, n_units)
    assert (patterns[0] == 1).all()
    assert len(np.unique(patterns, axis=0)) == 2**n_units
    assert set(np.unique(patterns)) == {-1, 1}


def test_random_sign_patterns_are_drawn_if_there_are_too_many():
    patterns = np.concatenate(list(sign_patterns(MOST_EXACT + 1, draws=2500, seed=0)))
    assert patterns.shape == (2501, MOST_EXACT + 1)
    assert (patterns[0] == 1).all()
    np.testing.assert_allclose((patterns[1:] == 1).mean(axis=0), 0.5, atol=0.05)
    again = np.concatenate(list(sign_patterns(MOST_EXACT + 1, draws=2500, seed=1)))
    assert not np.array_equal(patterns, again)


def test_groups_of_several_labels_equal_brute_force_over_their_signs():
    labels = np.array([0, 1, 2, 0, 0, 1, 1, 2, 0, 2, 1, 1, 0])
    groups = np.array(["a"] * 3 + ["b"] * 4 + ["c"] * 2 + ["d"] * 2 + ["e"] * 2)
    rows = random_rows(labels)
    parts = [centred(rows, groups == name) for name in "abcde"]
    exchange = exchange_of(rows, groups)
    null = exchange.null(rows)
    expected = [np.dot(signs, parts) for signs in product([1, -1], repeat=5)]
    np.testing.assert_allclose(np.sort(null), np.sort(expected), atol=1e-12)
    assert null[0] == pytest.approx(sum(parts))
    assert (exchange.n_arrangements, exchange.n_groups) == (32, 5)
    share = np.mean(np.array(expected) >= sum(parts) - 1e-12)
    assert p_values(null[:1], null[None, 1:]).single[0] == pytest.approx(share)


def test_groups_of_one_label_equal_brute_force_over_their_permutations():
    """Groups have different sizes, and every arrangement occurs about equally often."""
    of_group, groups = np.array([0, 0, 1, 1, 2]), np.repeat(np.arange(5), [1, 3, 2, 4, 2])
    rows = random_rows(of_group[groups])
    exchange = exchange_of(rows, groups, draws=3000)
    null = exchange.null(rows)
    scores = rows.scores - rows.scores.mean(axis=0)
    by_group = np.stack([scores[groups == n].sum(axis=0) for n in range(5)])
    sums = {
        order: sum(by_group[n, label] for n, label in enumerate(order))
        for order in set(permutations(of_group.tolist()))
    }
    assert exchange.n_arrangements == len(sums) == 30
    expected = np.sort(list(sums.values())) - np.mean(list(sums.values()))
    found, counts = np.unique(null[1:].round(9), return_counts=True)
    np.testing.assert_allclose(found, expected, atol=1e-8)
    np.testing.assert_allclose(counts / 3000, 1 / 30, atol=0.015)
    own = sums[tuple(of_group.tolist())] - np.mean(list(sums.values()))
    assert null[0] == pytest.approx(own)


def test_groups_of_both_sorts_are_exchanged_together():
    labels = np.array([0, 1, 1, 0, 0, 0, 1, 1, 0])
    groups = np.array([0, 0, 1, 1, 2, 2, 3, 4, 5])
    rows = random_rows(labels)
    exchange = exchange_of(rows, groups, draws=2000)
    parts = [centred(rows, groups == n) for n in (0, 1)]
    own = [0, 1, 1, 0]  # of groups 2 to 5
    scores = rows.scores - rows.scores.mean(axis=0)
    by_group = [scores[groups == n].sum(axis=0) for n in (2, 3, 4, 5)]
    sums = [
        sum(s[label] for s, label in zip(by_group, order, strict=True))
        for order in set(permutations(own))
    ]
    observed = sum(s[label] for s, label in zip(by_group, own, strict=True))
    expected = {
        round(np.dot(signs, parts) + one - np.mean(sums), 9)
        for signs in product([1, -1], repeat=2)
        for one in sums
    }
    null = exchange.null(rows)
    assert exchange.n_arrangements == len(expected) == 4 * 6
    assert set(null[1:].round(9)) == expected
    assert null[0] == pytest.approx(sum(parts) + observed - np.mean(sums))


def test_a_label_of_large_groups_is_not_taken_for_an_association():
    """The scores of one label are higher in all rows, as ranks of a rare class are."""
    groups = np.repeat(np.arange(8), [9, 9, 9, 9, 1, 1, 1, 1])
    labels = np.repeat([1, 0], 4)[groups]
    scores = np.zeros((len(groups), 2))
    scores[:, 1] = 5.0
    null = exchange_of(RowScores(scores, np.eye(2)[labels]), groups).null(
        RowScores(scores, np.eye(2)[labels])
    )
    np.testing.assert_allclose(null, 0, atol=1e-9)


def test_labels_of_groups_stay_in_their_fold():
    labels, groups, folds = np.array([0, 1, 0, 1, 1]), np.arange(5), np.array([0, 0, 1, 1, 1])
    rows = random_rows(labels)
    exchange = exchange_of(rows, groups, folds, draws=500)
    assert exchange.n_arrangements == 2 * 3
    orders = [[0, 1, 2, 3, 4], [1, 0, 2, 3, 4], [0, 1, 3, 2, 4]]
    orders += [[1, 0, 3, 2, 4], [0, 1, 4, 3, 2], [1, 0, 4, 3, 2]]
    sums = np.array([total(rows, order) for order in orders])
    expected = sums - sums.mean()
    null = exchange.null(rows)
    assert null[0] == pytest.approx(expected[0])  # the observed score is not widened
    found = np.unique(null[1:].round(9))
    np.testing.assert_allclose(found, np.sort(expected) * WIDER_OVER_FOLDS, atol=1e-8)


def test_folds_widen_the_null_of_signs():
    labels, groups = np.tile([0, 1], 20), np.arange(40) // 4
    rows = random_rows(labels)
    plain = exchange_of(rows, groups).null(rows)
    folds = exchange_of(rows, groups, groups % 5).null(rows)
    assert plain[0] == pytest.approx(folds[0])
    np.testing.assert_allclose(folds[1:], WIDER_OVER_FOLDS * plain[1:])
    assert np.sqrt(2) - 1e-12 <= WIDER_OVER_FOLDS


def test_all_sites_share_the_same_exchanges():
    mixed, constant = np.tile([0, 1], 30), np.repeat([0, 1], 30)
    for labels in (mixed, constant):
        rows = random_rows(labels)
        exchange = exchange_of(rows, np.arange(60) // 2)
        twice = RowScores(2 * rows.scores, rows.labels)
        np.testing.assert_allclose(exchange.null(twice), 2 * exchange.null(rows))


def test_names_of_groups_do_not_matter_and_the_seed_does():
    labels = np.random.default_rng(0).integers(3, size=60)
    rows, groups = random_rows(labels), np.arange(60) // 2
    first = exchange_of(rows, groups).null(rows)
    assert np.array_equal(first, exchange_of(rows, (groups + 100).astype(str)).null(rows))
    assert not np.array_equal(first, exchange_of(rows, groups, seed=1).null(rows))


@pytest.mark.parametrize(
    ("labels", "groups", "n"),
    [
        ([0, 1] * 4, [0, 0, 1, 1, 2, 2, 3, 3], 16),
        ([0, 1] * 5, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4], 32),
        ([0, 0, 1, 1, 1], range(5), 10),
        ([0, 0, 0, 1, 1, 1], range(6), 20),
        ([0, 0, 1, 1, 1, 0, 1], [*range(5), 5, 5], 20),
        ([0, 1, 2, 3], range(4), 24),
    ],
)
def test_fewer_than_20_arrangements_are_not_enough(labels, groups, n):
    exchange = exchange_of(random_rows(np.array(labels)), np.array(groups))
    assert exchange.n_arrangements == n
    assert exchange.is_enough == (n >= FEWEST_ARRANGEMENTS)


def test_very_many_arrangements_are_no_overflow():
    exchange = exchange_of(random_rows(np.tile([0, 1], 2000)), np.arange(4000))
    assert exchange.n_arrangements == np.inf
    assert exchange.is_enough


def test_the_name_lists_what_is_exchanged():
    rows = random_rows(np.array([0, 1, 0, 1]))
    names = [
        exchange_of(rows, np.array(groups), folds).name
        for groups, folds in (
            ([0, 1, 2, 3], None),
            ([0, 0, 1, 1], None),
            ([0, 0, 1, 2], None),
            ([0, 0, 1, 1], np.array([0, 0, 1, 1])),
        )
    ]
    assert names == [
        "labels permuted between groups",
        "random signs of whole groups",
        "labels permuted between groups, random signs of whole groups",
        "random signs of whole groups, widened 1.5 times for dependent folds",
    ]


def test_constant_predictions_have_a_p_of_1():
    truth, groups = np.random.default_rng(0).integers(2, size=60), np.arange(60) // 6
    assert judged([np.zeros(60, int)], truth, groups).single.tolist() == [1.0]
