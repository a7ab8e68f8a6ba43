"""Permutations that respect groups, uniform p-values under the null, and power."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from probekit.errors import DataError
from probekit.probes.score.permutation import (
    exchanged_leads,
    group_leads,
    holm,
    p_values,
    permuted_labels,
)

DATA_SETS = 600


def not_above(rejections, n, level=0.05):
    """Whether the number of rejections is plausible for a test of this level."""
    return binomtest(rejections, n, level, alternative="greater").pvalue > 0.001


def judged(guesses, truth, groups, seed):
    """p-values of the predictions (n_sites, n_samples) compared with always predicting class 0."""
    plain = (truth == 0).astype(float)
    leads = np.stack([group_leads((one == truth).astype(float), plain, groups) for one in guesses])
    return p_values(leads.sum(axis=1), exchanged_leads(leads, 99, seed))


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
        assert tuple(row[7:11]) in {(0, 0, 1, 1), (1, 1, 0, 0)}  # groups of equal size
        assert row[11] == 4  # nobody to exchange with
    np.testing.assert_allclose((permuted[:, :3] == 1).mean(axis=0), 1 / 3, atol=0.07)
    assert 0.4 < (permuted[:, 7] == 1).mean() < 0.6


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


def test_leads_add_up_to_that_of_the_mean_score():
    generator = np.random.default_rng(0)
    scores, plain = generator.random((2, 50))
    leads = group_leads(scores, plain, generator.integers(7, size=50))
    assert leads.shape == (7,)
    assert leads.sum() == pytest.approx(scores.mean() - plain.mean())


def test_an_exchange_turns_the_leads_of_whole_groups_at_all_sites():
    leads = np.array([[1.0, 10.0, 100.0], [2.0, 20.0, 200.0]])
    exchanged = exchanged_leads(leads, draws=400, seed=0)
    assert set(exchanged[0]) == {
        s * 1 + t * 10 + u * 100 for s in (-1, 1) for t in (-1, 1) for u in (-1, 1)
    }
    np.testing.assert_array_equal(exchanged[1], 2 * exchanged[0])


def rows_by_themselves(generator):
    return *generator.integers(2, size=(2, 301)), np.arange(301)


def rows_alike_in_groups(generator):
    """One label and one prediction per group, in groups of different sizes."""
    groups = np.repeat(np.arange(60), generator.integers(1, 9, size=60))
    truth, guess = generator.integers(2, size=(2, 60))[:, groups]
    return truth, guess, groups


def pairs_of_words(generator):
    """Both forms of a noun in each group, each with one prediction for all of its thirty rows."""
    groups = np.repeat(np.arange(30), 60)
    truth = np.tile(np.repeat([0, 1], 30), 30)
    guess = np.repeat(generator.integers(2, size=60), 30)
    return truth, guess, groups


@pytest.mark.parametrize("draw", [rows_by_themselves, rows_alike_in_groups, pairs_of_words])
def test_p_values_are_uniform_under_the_null(draw):
    p = []
    for seed in range(DATA_SETS):
        truth, guess, groups = draw(np.random.default_rng(seed))
        p.append(judged(guess[None], truth, groups, seed).single[0])
    assert not_above(int(np.sum(np.array(p) <= 0.05)), DATA_SETS)
    # Accuracies tie, so that p-values are somewhat too large, never too small.
    for level in (0.05, 0.2, 0.5, 0.8):
        share = np.mean(np.array(p) <= level)
        assert level - 0.09 < share < level + 0.05, level


@pytest.mark.parametrize("draw", [rows_alike_in_groups, pairs_of_words])
def test_exchanging_correlated_rows_would_reject_too_often(draw):
    small = 0
    for seed in range(200):
        truth, guess, _ = draw(np.random.default_rng(seed))
        small += judged(guess[None], truth, np.arange(len(truth)), seed).single[0] <= 0.05
    assert not not_above(small, 200)


def sites_of(generator, n_sites, strength=0.0):
    """Correlated predictions of several sites; the first is slightly better than chance."""
    truth, shared = generator.integers(2, size=(2, 200))
    own = generator.integers(2, size=(n_sites, 200))
    guesses = np.where(generator.random((n_sites, 200)) < 0.5, shared, own)
    follows = generator.random(200) < strength
    guesses[0] = np.where(follows, truth, guesses[0])
    return truth, guesses


def test_the_best_of_many_null_layers_is_rejected_at_most_at_the_level():
    by_maximum = by_single = 0
    for seed in range(DATA_SETS):
        truth, guesses = sites_of(np.random.default_rng(seed), n_sites=8)
        p = judged(guesses, truth, np.arange(200), seed)
        by_maximum += p.maximum.min() <= 0.05
        by_single += p.single.min() <= 0.05
    assert not_above(by_maximum, DATA_SETS)
    assert by_maximum / DATA_SETS > 0.015  # it is not merely deaf
    assert not not_above(by_single, DATA_SETS)  # the best layer by its own p-value is too lucky


def test_a_planted_signal_is_found_at_its_site_only():
    found = others = 0
    for seed in range(100):
        truth, guesses = sites_of(np.random.default_rng(seed), n_sites=8, strength=0.4)
        p = judged(guesses, truth, np.arange(200), seed).maximum
        found += p[0] <= 0.05
        others += (p[1:] <= 0.05).any()
    assert found >= 90
    assert others <= 12


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
