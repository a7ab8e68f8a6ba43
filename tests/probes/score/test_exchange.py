"""Exchanges of whole groups: all arrangements, size under the null hypothesis, and power."""

from itertools import permutations, product

import numpy as np
import pytest
from scipy.stats import binomtest

from probekit.probes.score.association import (
    RowScores,
    of_accuracy,
    of_auprc,
    of_auroc,
    of_spearman,
    of_tpr_at_fpr_5,
)
from probekit.probes.score.detection import with_alarms
from probekit.probes.score.exchange import (
    FEWEST_ARRANGEMENTS,
    MOST_EXACT,
    WIDER_OVER_FOLDS,
    LabelExchange,
    sign_patterns,
)
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.permutation import p_values
from probekit.probes.score.regression import NumberPredictions

DATA_SETS = 500


def within(rejections, n, most=0.06):
    """Whether the rejection rate is at most `most`, plus three Monte Carlo standard errors."""
    return rejections / n <= most + 3 * np.sqrt(most * (1 - most) / n)


def exchange_of(rows, groups, folds=None, draws=199, seed=0):
    folds = np.zeros(len(groups), dtype=int) if folds is None else folds
    return LabelExchange.of(rows.labels, groups, folds, draws, seed)


def judged(guesses, truth, groups, seed=0, folds=None, draws=199):
    """p-values of the accuracy of predictions (n_sites, n_samples)."""
    rows = [of_accuracy(ClassPredictions(truth, guess, 2)) for guess in guesses]
    exchange = exchange_of(rows[0], groups, folds, draws, seed)
    null = np.stack([exchange.null(one) for one in rows])
    return p_values(null[:, 0], null[:, 1:])


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


def rows_by_themselves(generator):
    return *generator.integers(2, size=(2, 121)), np.arange(121)


def labels_of_groups(generator):
    """One label and one prediction per group, in groups of different sizes."""
    groups = np.repeat(np.arange(60), generator.integers(1, 9, size=60))
    truth, guess = generator.integers(2, size=(2, 60))[:, groups]
    return truth, guess, groups


def two_nouns(generator, n_groups=15):
    """Two nouns in each group, each with one label and one prediction for all of its rows."""
    groups = np.repeat(np.arange(n_groups), 20)
    truth = np.tile(np.repeat([0, 1], 10), n_groups)
    guess = np.repeat(generator.integers(2, size=2 * n_groups), 10)
    return truth, guess, groups


def skewed_nouns(generator):
    """As `two_nouns`, in 12 groups of 1:20 sizes, with 9 times as many rows of label 0."""
    sizes = np.round(np.geomspace(1, 20, 12)).astype(int)
    groups = np.repeat(np.arange(12), 10 * sizes)
    truth = (np.arange(len(groups)) % 10 == 0).astype(int)
    guess = generator.integers(2, size=(12, 2))[groups, truth]
    return truth, guess, groups


def half_and_half(generator):
    """Ten groups with two nouns, and ten with one."""
    truth, guess, groups = two_nouns(generator, 10)
    more, labels, guesses = np.repeat(np.arange(10), 10), *generator.integers(2, size=(2, 10))
    return (
        np.concatenate([truth, labels[more]]),
        np.concatenate([guess, guesses[more]]),
        np.concatenate([groups, 10 + more]),
    )


DESIGNS = [rows_by_themselves, labels_of_groups, two_nouns, skewed_nouns, half_and_half]


@pytest.mark.parametrize("draw", DESIGNS)
def test_a_true_null_is_rejected_at_most_at_the_level(draw):
    p = []
    for seed in range(DATA_SETS):
        truth, guess, groups = draw(np.random.default_rng(seed))
        p.append(judged([guess], truth, groups, seed).single[0])
    assert within(np.sum(np.array(p) <= 0.05), DATA_SETS)
    assert np.mean(np.array(p) <= 0.3) > 0.15  # the test does reject at a higher level


@pytest.mark.parametrize("draw", [labels_of_groups, two_nouns])
def test_exchanging_single_rows_would_reject_far_more(draw):
    rejected = 0
    for seed in range(200):
        truth, guess, _ = draw(np.random.default_rng(seed))
        rejected += judged([guess], truth, np.arange(len(truth)), seed, draws=99).single[0] <= 0.05
    assert rejected / 200 > 0.17


def sites_of(generator, n_sites, strength=0.0):
    """Correlated predictions of several sites; the first is slightly better than chance."""
    truth, shared = generator.integers(2, size=(2, 200))
    own = generator.integers(2, size=(n_sites, 200))
    guesses = np.where(generator.random((n_sites, 200)) < 0.5, shared, own)
    follows = generator.random(200) < strength
    guesses[0] = np.where(follows, truth, guesses[0])
    return truth, guesses


def test_the_best_of_many_null_sites_is_rejected_at_most_at_the_level():
    by_maximum = by_single = 0
    for seed in range(200):
        truth, guesses = sites_of(np.random.default_rng(seed), n_sites=8)
        p = judged(guesses, truth, np.arange(200) // 5, seed)
        by_maximum += p.maximum.min() <= 0.05
        by_single += p.single.min() <= 0.05
    assert within(by_maximum, 200)
    assert by_maximum / 200 > 0.01
    assert binomtest(by_single, 200, 0.05, alternative="greater").pvalue < 0.001


def test_a_planted_signal_is_found_at_its_site_only():
    found = others = 0
    for seed in range(40):
        truth, guesses = sites_of(np.random.default_rng(seed), n_sites=8, strength=0.4)
        p = judged(guesses, truth, np.arange(200), seed).maximum
        found += p[0] <= 0.05
        others += (p[1:] <= 0.05).any()
    assert found >= 36
    assert others <= 6


def p_against_the_best_constant(truth, guess, seed):
    """The test of earlier releases: signs of the differences from the best constant of the rows."""
    best = np.bincount(truth).argmax()
    leads = ((guess == truth).astype(float) - (truth == best)) / len(truth)
    null = np.concatenate([signs @ leads for signs in sign_patterns(len(truth), 199, seed)])
    return p_values(null[:1], null[None, 1:]).single[0]


def test_a_signal_is_found_that_a_comparison_with_the_best_constant_misses():
    """60 % of the rows have label 0; predictions are right for 64 % of them and of the others."""
    by_exchange = by_constant = 0
    for seed in range(100):
        generator = np.random.default_rng(seed)
        truth = (generator.random(150) < 0.4).astype(int)
        guess = np.where(generator.random(150) < 0.64, truth, 1 - truth)
        by_exchange += judged([guess], truth, np.arange(150), seed).single[0] <= 0.05
        by_constant += p_against_the_best_constant(truth, guess, seed) <= 0.05
    assert by_exchange >= 80
    assert by_constant <= 30


@pytest.mark.parametrize("metric", ["auroc", "spearman"])
def test_metrics_of_ranks_have_power_and_size_too(metric):
    rejected = dict.fromkeys((0.0, 0.9), 0)
    for strength in rejected:
        for seed in range(100):
            generator = np.random.default_rng(seed)
            groups, effect = np.arange(120) // 6, np.repeat(generator.normal(size=20), 6)
            truth = generator.normal(size=120)
            guess = strength * truth + effect + generator.normal(size=120)
            rows = of_spearman(NumberPredictions(truth, guess))
            if metric == "auroc":
                codes = (truth > 0).astype(int)
                scores = np.stack([0 * guess, guess], axis=1)
                rows = of_auroc(ClassPredictions(codes, codes, 2, scores))
            null = exchange_of(rows, groups, seed=seed).null(rows)
            rejected[strength] += p_values(null[:1], null[None, 1:]).single[0] <= 0.05
    assert within(rejected[0.0], 100)
    assert rejected[0.9] >= 90


def rare_rows(generator, strength, n_groups=60, size=5):
    """Predictions for groups of one label, with 1 in 6 positive and dependent scores."""
    groups = np.repeat(np.arange(n_groups), size)
    truth = np.repeat(generator.permutation(n_groups) < n_groups // 6, size).astype(int)
    margin = strength * truth + np.repeat(generator.normal(size=n_groups), size)
    margin = margin + generator.normal(size=len(margin))
    scores = np.column_stack([np.zeros_like(margin), margin])
    guess = ClassPredictions(truth, scores.argmax(axis=1), 2, scores, positive=1)
    return groups, with_alarms(guess, np.array([3.3, 2.3]))


@pytest.mark.parametrize("of_metric", [of_auprc, of_tpr_at_fpr_5])
def test_metrics_of_a_rare_class_have_power_and_size_too(of_metric):
    rejected = dict.fromkeys((0.0, 3.0), 0)
    for strength in rejected:
        for seed in range(100):
            groups, predictions = rare_rows(np.random.default_rng(seed), strength)
            rows = of_metric(predictions)
            null = exchange_of(rows, groups, seed=seed).null(rows)
            rejected[strength] += p_values(null[:1], null[None, 1:]).single[0] <= 0.05
    assert within(rejected[0.0], 100)
    assert rejected[3.0] >= 90


def refitted_over_folds(generator, n_groups=30, n_folds=3, n_features=200):
    """Predictions of class means that are refitted for each fold, on features without signal.

    Each group has a single label, and its rows resemble each other.
    """
    groups = np.repeat(np.arange(n_groups), 6)
    features = 3 * generator.normal(size=(n_groups, n_features))[groups]
    features += generator.normal(size=features.shape)
    truth, folds = groups % 2, generator.permutation(n_groups)[groups] % n_folds
    guess = np.empty(len(groups), dtype=int)
    for fold in range(n_folds):
        train, test = folds != fold, folds == fold
        mean, labels = features[train].mean(axis=0), truth[train] - truth[train].mean()
        guess[test] = (features[test] - mean) @ (labels @ (features[train] - mean)) > 0
    return truth, guess, groups, folds


def test_a_true_null_over_folds_is_rejected_at_most_at_the_level(monkeypatch):
    widened = plain = 0
    for seed in range(200):
        *drawn, folds = refitted_over_folds(np.random.default_rng(seed))
        guess = drawn.pop(1)
        widened += judged([guess], *drawn, seed, folds).single[0] <= 0.05
        with monkeypatch.context() as patch:
            patch.setattr("probekit.probes.score.exchange.WIDER_OVER_FOLDS", 1.0)
            plain += judged([guess], *drawn, seed, folds).single[0] <= 0.05
    assert within(widened, 200)
    assert plain / 200 > 0.08
