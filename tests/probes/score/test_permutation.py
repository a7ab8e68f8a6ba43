"""Permutations that respect groups, p-values over sites, and Holm's adjustment."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.errors import DataError
from probekit.probes.score.permutation import holm, p_values, permuted_labels


def test_labels_of_groups_are_permuted_between_groups_of_any_size():
    groups = np.repeat(["a", "b", "c", "d"], [1, 2, 3, 4])
    truth = np.repeat([0, 1, 1, 2], [1, 2, 3, 4])
    permuted = permuted_labels(truth, groups, 500, seed=0)
    for row in permuted:
        by_group = [set(row[groups == name]) for name in "abcd"]
        assert sorted(label for (label,) in by_group) == [0, 1, 1, 2]
    # Label 2 is assigned to each of the four groups equally often.
    share = [(permuted[:, groups == name] == 2).all(axis=1).mean() for name in "abcd"]
    np.testing.assert_allclose(share, 0.25, atol=0.07)


def test_labels_that_differ_within_a_group_stay_in_it():
    groups = np.repeat(["a", "b", "c", "d", "e"], [3, 4, 2, 2, 1])
    truth = np.array([0, 0, 1, 2, 2, 3, 3, 0, 0, 1, 1, 4])
    permuted = permuted_labels(truth, groups, 500, seed=0)
    for row in permuted:
        assert sorted(row[:3]) == [0, 0, 1]
        assert sorted(row[3:7]) == [2, 2, 3, 3]
        # Groups of one label exchange it, whatever their sizes.
        assert (row[7], row[9]) == (row[8], row[10])
        assert sorted([row[7], row[9], row[11]]) == [0, 1, 4]
    np.testing.assert_allclose((permuted[:, :3] == 1).mean(axis=0), 1 / 3, atol=0.07)
    assert 0.25 < (permuted[:, 7] == 1).mean() < 0.42


def test_one_mixed_group_does_not_keep_the_others_from_exchanging():
    groups = np.repeat(np.arange(21), np.arange(1, 22)).astype(str)  # distinct sizes
    truth = np.repeat(np.arange(21) % 2, np.arange(1, 22))
    truth[-1] = 1 - truth[-1]
    permuted = permuted_labels(truth, groups, 50, seed=0)
    assert 0.35 < (permuted == truth).mean() < 0.65


def test_rows_of_their_own_are_all_exchanged():
    truth = np.arange(5)
    permuted = permuted_labels(truth, truth, 1000, seed=0)
    for row in permuted:
        assert sorted(row) == list(range(5))
    for place in range(5):
        np.testing.assert_allclose(np.bincount(permuted[:, place]) / 1000, 0.2, atol=0.05)


def test_the_seed_decides_and_the_names_of_groups_do_not():
    truth = np.random.default_rng(0).integers(3, size=40)
    groups = np.arange(40) // 4
    first = permuted_labels(truth, groups, 20, seed=0)
    assert np.array_equal(first, permuted_labels(truth, groups.astype(str), 20, seed=0))
    assert not np.array_equal(first, permuted_labels(truth, groups, 20, seed=1))


def test_labels_that_cannot_be_exchanged_prove_nothing():
    truth, groups = np.zeros(10, int), np.arange(10) // 2
    permuted = permuted_labels(truth, groups, 19, seed=0)
    assert np.all(permuted == truth)


def test_p_values_count_the_observed_labels_and_what_ties_with_them():
    observed = np.array([0.1 + 0.2, 0.9])
    permuted = np.array([[0.3, 0.1, 0.2, 0.2], [0.4, 0.9, 0.5, 0.5]])
    p = p_values(observed, permuted)
    assert p.single.tolist() == [0.4, 0.4]
    assert p.maximum.tolist() == [1.0, 0.4]


def test_scores_without_a_place_are_refused():
    with pytest.raises(DataError, match="scores of 1 sites, but permuted scores of 2"):
        p_values(np.ones(1), np.ones((2, 5)))
    with pytest.raises(DataError, match="is NaN"):
        p_values(np.array([np.nan]), np.ones((1, 5)))


def test_holms_adjustment_of_a_worked_example():
    # Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1; the last is raised to the one before.
    p = np.array([0.01, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(holm(p), [0.03, 0.06, 0.06, 0.02])
    assert holm(np.array([])).tolist() == []
    with pytest.raises(DataError, match="between 0 and 1"):
        holm(np.array([0.5, np.nan]))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_lies_between_the_p_values_and_bonferroni_and_keeps_their_order(values):
    p = np.array(values)
    changed = holm(p)
    assert np.all(changed >= p)
    assert np.all(changed <= np.minimum(1, len(p) * p))
    assert np.all(np.diff(changed[np.argsort(p, kind="stable")]) >= 0)
