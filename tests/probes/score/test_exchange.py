"""Exchanges of labels: the statistic, all arrangements, folds, and sites that share them."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.errors import DataError
from probekit.probes.score.contributions import RowScores
from probekit.probes.score.exchange import (
    FEWEST_ARRANGEMENTS,
    MOST_EXACT,
    holm,
    p_values,
    permuted_labels,
    sign_patterns,
)
from probekit.probes.score.metrics import WIDER_OVER_FOLDS
from tests.probes.score.exchanges import exchange_of, judged


def random_rows(labels, seed=0):
    """Random scores of rows with the given codes."""
    n_labels = labels.max() + 1
    scores = np.random.default_rng(seed).normal(size=(len(labels), n_labels))
    return RowScores(scores, np.eye(n_labels)[labels])


def random_numbers(labels, seed=0):
    """Random scores of rows whose labels are numbers."""
    return RowScores(np.random.default_rng(seed).normal(size=(len(labels), 1)), labels[:, None])


def statistic(rows, groups, codes, folds=None):
    """t of class labels, group by group: row contributions and Welch's t over group means."""
    folds = np.zeros(len(groups), int) if folds is None else folds
    members = [np.flatnonzero(groups == name) for name in np.unique(groups)]
    own = {number: np.unique(codes[rows_]) for number, rows_ in enumerate(members)}
    lead = variance = 0.0
    whole = [number for number, labels in own.items() if len(labels) == 1]
    labels = np.array([own[number][0] for number in whole], dtype=int)
    whole = [n for n, label in zip(whole, labels, strict=True) if (labels == label).sum() > 1]
    labels = np.array([own[number][0] for number in whole], dtype=int)
    for number, rows_ in enumerate(members):
        if len(own[number]) > 1:
            scores = rows.scores[rows_]
            expected = np.mean([scores[:, label].mean() for label in codes[rows_]]) * len(rows_)
            one = scores[np.arange(len(rows_)), codes[rows_]].sum() - expected
            lead, variance = lead + one, variance + one**2
    if whole:
        means = np.array([rows.scores[members[number]].mean(axis=0) for number in whole])
        of_fold = np.array([folds[members[number][0]] for number in whole])
        for fold in np.unique(of_fold):
            means[of_fold == fold] -= means[of_fold == fold].mean(axis=0)
        shares = np.bincount(labels, minlength=rows.scores.shape[1]) / len(labels)
        size = np.mean([len(members[number]) for number in whole])
        net = size * np.array([m[k] - shares @ m for m, k in zip(means, labels, strict=True)])
        for label in np.unique(labels):
            of_label = net[labels == label]
            lead += of_label.sum()
            variance += len(of_label) * of_label.var(ddof=1)
    return lead / np.sqrt(variance)


def arranged(codes, groups, folds=None):
    """All arrangements of labels: rows within mixed groups, single labels of whole groups."""
    folds = np.zeros(len(groups), int) if folds is None else folds
    names = np.unique(groups)
    is_mixed = {name: len(np.unique(codes[groups == name])) > 1 for name in names}
    found = [codes]
    for name in names:
        if is_mixed[name]:
            rows = groups == name
            orders = set(permutations(codes[rows].tolist()))
            found = [
                np.where(rows, _put(one, rows, order), one) for one in found for order in orders
            ]
    for fold in np.unique(folds):
        own = [n for n in names if not is_mixed[n] and folds[groups == n][0] == fold]
        labels = [codes[groups == name][0] for name in own]
        new = []
        for one in found:
            for order in set(permutations(labels)):
                changed = one.copy()
                for name, label in zip(own, order, strict=True):
                    changed[groups == name] = label
                new.append(changed)
        found = new
    return found


def _put(codes, rows, order):
    changed = codes.copy()
    changed[rows] = order
    return changed


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


DESIGNS = {
    "rows of groups": ([0, 1, 2, 0, 0, 1, 1, 2, 0], [0, 0, 0, 1, 1, 1, 2, 2, 2], None),
    "whole groups": (
        [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2],
        np.repeat(range(6), [1, 3, 2, 4, 2, 1]),
        None,
    ),
    "both": ([0, 1, 1, 0, 0, 0, 1, 1, 0], [0, 0, 1, 1, 2, 2, 3, 4, 5], None),
    "folds": ([0, 1, 0, 1, 1, 0], [0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 1, 0]),
}


@pytest.mark.parametrize("design", DESIGNS)
def test_the_statistic_equals_brute_force_over_all_arrangements(design):
    codes, groups, folds = DESIGNS[design]
    codes, groups = np.array(codes), np.array(groups)
    folds = None if folds is None else np.array(folds)
    rows = random_rows(codes)
    t = exchange_of(rows, groups, folds, draws=3000).null([rows]).t[0]
    assert t[0] == pytest.approx(statistic(rows, groups, codes, folds))
    factor = 1 if folds is None else WIDER_OVER_FOLDS
    every = factor * np.array(
        [statistic(rows, groups, one, folds) for one in arranged(codes, groups, folds)]
    )
    np.testing.assert_allclose(np.unique(t[1:].round(6)), np.unique(every.round(6)), atol=2e-6)
    # All arrangements are equally frequent.
    assert np.mean(t[1:] > np.median(every)) == pytest.approx(
        np.mean(every > np.median(every)), abs=0.05
    )


def test_numbers_are_exchanged_like_classes_of_their_own():
    """Of two classes, a number for each class gives the same contributions of mixed groups."""
    codes, groups = np.tile([0, 1, 1], 12), np.arange(36) // 6
    classes = random_rows(codes)
    numbers = RowScores(
        (classes.scores[:, 1] - classes.scores[:, 0])[:, None], codes[:, None] * 1.0
    )
    one, other = (exchange_of(rows, groups).null([rows]) for rows in (classes, numbers))
    assert one.t[0, 0] == pytest.approx(other.t[0, 0])
    own = random_numbers(np.arange(20.0))
    t = exchange_of(own, np.arange(20)).null([own]).t[0]
    x, y = own.scores[:, 0] - own.scores.mean(), own.labels[:, 0] - own.labels.mean()
    products = x * y
    assert t[0] == pytest.approx(products.sum() / np.sqrt(20 * products.var(ddof=1)))


def test_groups_count_equally_whatever_their_size():
    """Rows are added to a group with the same score: nothing changes but the unit."""
    codes = np.repeat([0, 1], 10)
    rows = random_rows(codes)
    more = np.concatenate([np.arange(20), np.repeat(0, 30)])
    large = RowScores(rows.scores[more], rows.labels[more])
    one = exchange_of(rows, np.arange(20)).null([rows]).t
    other = exchange_of(large, np.arange(20)[more]).null([large]).t
    np.testing.assert_allclose(one, other)


def test_a_label_that_one_group_has_is_left_out():
    codes = np.array([0, 0, 0, 1, 1, 1, 2])
    rows = random_rows(codes)
    kept = RowScores(rows.scores[:6], rows.labels[:6])
    exchange = exchange_of(rows, np.arange(7))
    np.testing.assert_allclose(
        exchange.null([rows]).t, exchange_of(kept, np.arange(6)).null([kept]).t
    )
    assert exchange.n_arrangements == 20


def test_a_label_of_large_groups_is_not_taken_for_an_association():
    """The scores of one label are higher in all rows, as ranks of a rare class are."""
    groups = np.repeat(np.arange(8), [9, 9, 9, 9, 1, 1, 1, 1])
    labels = np.repeat([1, 0], 4)[groups]
    scores = np.zeros((len(groups), 2))
    scores[:, 1] = 5.0
    rows = RowScores(scores, np.eye(2)[labels])
    assert not exchange_of(rows, groups).null([rows]).t.any()


def test_folds_widen_the_null():
    labels, groups = np.tile([0, 1], 20), np.arange(40) // 4
    rows = random_rows(labels)
    plain = exchange_of(rows, groups).null([rows]).t[0]
    folds = exchange_of(rows, groups, groups % 5).null([rows]).t[0]
    assert plain[0] == pytest.approx(folds[0])
    np.testing.assert_allclose(folds[1:], WIDER_OVER_FOLDS * plain[1:])
    assert pytest.approx(np.sqrt(2)) == WIDER_OVER_FOLDS


def test_scores_over_rows_are_those_of_exchanged_labels_whatever_the_sizes_of_groups():
    groups = np.repeat(np.arange(50), [60] * 10 + [3] * 40)
    of_group = np.tile([0, 1], 25)
    rows = random_rows(of_group[groups])
    null = exchange_of(rows, groups, draws=2000).null([rows])
    generator = np.random.default_rng(1)
    at = np.arange(len(groups))
    scores = [rows.scores[at, generator.permutation(of_group)[groups]].sum() for _ in range(2000)]
    assert null.scores[0, 0] == pytest.approx(rows.scores[at, of_group[groups]].sum())
    ends = [0.025, 0.5, 0.975]
    expected = np.quantile(scores, ends)
    np.testing.assert_allclose(
        np.quantile(null.scores[0, 1:], ends), expected, atol=0.1 * np.ptp(expected)
    )


def test_all_sites_share_the_same_exchanges():
    mixed, constant = np.tile([0, 1], 30), np.repeat([0, 1], 30)
    for labels in (mixed, constant):
        rows = random_rows(labels)
        exchange = exchange_of(rows, np.arange(60) // 2)
        twice = RowScores(2 * rows.scores, rows.labels)
        null = exchange.null([rows, twice])
        np.testing.assert_allclose(null.t[0], null.t[1])
        np.testing.assert_allclose(2 * null.scores[0], null.scores[1])


def test_names_of_groups_do_not_matter_and_the_seed_does():
    labels = np.random.default_rng(0).integers(3, size=60)
    rows, groups = random_rows(labels), np.arange(60) // 2
    first = exchange_of(rows, groups).null([rows]).t
    assert np.array_equal(first, exchange_of(rows, (groups + 100).astype(str)).null([rows]).t)
    assert not np.array_equal(first, exchange_of(rows, groups, seed=1).null([rows]).t)


@pytest.mark.parametrize(
    ("labels", "groups", "n"),
    [
        ([0, 1] * 4, [0, 0, 1, 1, 2, 2, 3, 3], 16),
        ([0, 1] * 5, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4], 32),
        ([0, 0, 1, 1, 1], range(5), 10),
        ([0, 0, 0, 1, 1, 1], range(6), 20),
        ([0, 0, 1, 1, 1, 0, 1], [*range(5), 5, 5], 20),
        ([0, 0, 1, 1, 2, 2], range(6), 90),
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
    rows = random_rows(np.array([0, 1, 0, 1, 0, 1]))
    names = [
        exchange_of(rows, np.array(groups), folds).name
        for groups, folds in (
            ([0, 1, 2, 3, 4, 5], None),
            ([0, 0, 1, 1, 2, 2], None),
            ([0, 0, 1, 2, 3, 4], None),
            ([0, 0, 1, 1, 2, 2], np.array([0, 0, 1, 1, 1, 1])),
        )
    ]
    assert names == [
        "labels exchanged between groups",
        "labels exchanged within groups",
        "labels exchanged between groups, labels exchanged within groups",
        "labels exchanged within groups, widened 1.41 times for dependent folds",
    ]


def test_constant_predictions_have_a_p_of_1():
    truth, groups = np.random.default_rng(0).integers(2, size=60), np.arange(60) // 6
    assert judged([np.zeros(60, int)], truth, groups).single.tolist() == [1.0]


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
