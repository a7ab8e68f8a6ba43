"""Exchanges of labels: all arrangements, folds, shared draws, and size and power in simulations."""

from dataclasses import replace
from functools import partial
from itertools import permutations

import numpy as np
import pytest
from scipy.stats import binomtest

from probekit.amounts import LEVEL
from probekit.probes.score import contributions, exchange, metrics
from probekit.probes.score.contributions import RowScores, of_accuracy, of_auprc, of_auroc
from probekit.probes.score.exchange import MOST_EXACT, holm, p_values, permuted_labels
from probekit.probes.score.metrics import ClassPredictions, NumberPredictions
from tests.stored import each_line


def exchange_of(rows, groups, folds=None, draws=199, seed=0):
    folds = np.zeros(len(groups), dtype=int) if folds is None else folds
    return exchange.LabelExchange(rows.labels, groups, folds, draws, seed)


def random_rows(labels, seed=0):
    """Random scores of rows with the given codes."""
    n_labels = labels.max() + 1
    scores = np.random.default_rng(seed).normal(size=(len(labels), n_labels))
    return RowScores(scores, np.eye(n_labels)[labels])


def statistic(rows, groups, codes, folds):
    """t of class labels, group by group: row contributions and Welch's t over group means."""
    members = [np.flatnonzero(groups == name) for name in np.unique(groups)]
    whole = [own for own in members if len(set(codes[own])) == 1]
    labels = np.array([codes[own[0]] for own in whole], dtype=int)
    whole = [own for own in whole if (labels == codes[own[0]]).sum() > 1]
    labels = np.array([codes[own[0]] for own in whole], dtype=int)
    lead = variance = 0.0
    for own in members:
        if len(set(codes[own])) > 1:
            scores = rows.scores[own]
            expected = np.mean([scores[:, label].mean() for label in codes[own]]) * len(own)
            one = scores[np.arange(len(own)), codes[own]].sum() - expected
            lead, variance = lead + one, variance + one**2
    if whole:
        means = np.array([rows.scores[own].mean(axis=0) for own in whole])
        of_fold = np.array([folds[own[0]] for own in whole])
        for fold in np.unique(of_fold):
            means[of_fold == fold] -= means[of_fold == fold].mean(axis=0)
        shares = np.bincount(labels, minlength=rows.scores.shape[1]) / len(labels)
        size = np.mean([len(own) for own in whole])
        net = size * np.array([m[k] - shares @ m for m, k in zip(means, labels, strict=True)])
        for label in np.unique(labels):
            of_label = net[labels == label]
            lead += of_label.sum()
            variance += len(of_label) * of_label.var(ddof=1)
    return lead / np.sqrt(variance)


def arranged(codes, groups, folds):
    """All arrangements of labels: rows within mixed groups, single labels of whole groups."""
    exchanging = {fold: [] for fold in folds}  # each a list of units: rows with one label
    for name in np.unique(groups):
        own = np.flatnonzero(groups == name)
        if len(set(codes[own])) > 1:
            exchanging["group", name] = own[:, None]
        else:
            exchanging[folds[own[0]]].append(own)
    found = [codes]
    for units in exchanging.values():
        orders = set(permutations([codes[unit[0]] for unit in units]))
        found = [relabelled(one, units, order) for one in found for order in orders]
    return found


def relabelled(codes, units, labels):
    codes = codes.copy()
    for unit, label in zip(units, labels, strict=True):
        codes[unit] = label
    return codes


@pytest.mark.parametrize("n_units", [1, 5, 11, MOST_EXACT])
def test_all_sign_patterns_are_enumerated_once_the_observed_first(n_units):
    patterns = np.concatenate(list(exchange.sign_patterns(n_units, draws=7, seed=0)))
    assert patterns.shape == (2**n_units, n_units)
    assert (patterns[0] == 1).all()
    assert len(np.unique(patterns, axis=0)) == 2**n_units
    assert set(np.unique(patterns)) == {-1, 1}


def test_random_sign_patterns_are_drawn_if_there_are_too_many():
    patterns = np.concatenate(list(exchange.sign_patterns(MOST_EXACT + 1, draws=2500, seed=0)))
    assert patterns.shape == (2501, MOST_EXACT + 1)
    assert (patterns[0] == 1).all()
    np.testing.assert_allclose((patterns[1:] == 1).mean(axis=0), 0.5, atol=0.05)
    again = np.concatenate(list(exchange.sign_patterns(MOST_EXACT + 1, draws=2500, seed=1)))
    assert not np.array_equal(patterns, again)


WHOLE = [0] * 4 + [1] * 6 + [2] * 3


@pytest.mark.parametrize(
    ("codes", "groups", "folds"),
    [
        ([0, 1, 2, 0, 0, 1, 1, 2, 0], [0, 0, 0, 1, 1, 1, 2, 2, 2], None),
        (WHOLE, np.repeat(range(6), [1, 3, 2, 4, 2, 1]), None),
        ([0, 1, 1, 0, 0, 0, 1, 1, 0], [0, 0, 1, 1, 2, 2, 3, 4, 5], None),
        ([0, 1, 0, 1, 1, 0], [0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 1, 0]),
    ],
    ids=["rows of groups", "whole groups", "both", "folds"],
)
def test_the_statistic_equals_brute_force_over_all_arrangements(codes, groups, folds):
    codes, groups, factor = np.array(codes), np.array(groups), np.sqrt(2 if folds else 1)
    folds = np.zeros(len(codes), int) if folds is None else np.array(folds)
    rows = random_rows(codes)
    t = exchange_of(rows, groups, folds, draws=3000).null([rows]).t[0]
    assert t[0] == pytest.approx(statistic(rows, groups, codes, folds))
    every = [statistic(rows, groups, one, folds) for one in arranged(codes, groups, folds)]
    every = factor * np.array(every)
    np.testing.assert_allclose(np.unique(t[1:].round(6)), np.unique(every.round(6)), atol=2e-6)
    # All arrangements are equally frequent.
    share = np.mean(every > np.median(every))
    assert np.mean(t[1:] > np.median(every)) == pytest.approx(share, abs=0.05)


def test_numbers_are_exchanged_like_classes_of_their_own():
    """Of two classes, a number for each class gives the same contributions of mixed groups."""
    codes, groups = np.tile([0, 1, 1], 12), np.arange(36) // 6
    classes = random_rows(codes)
    numbers = RowScores(np.diff(classes.scores), codes[:, None] * 1.0)
    one, other = (exchange_of(rows, groups).null([rows]) for rows in (classes, numbers))
    assert one.t[0, 0] == pytest.approx(other.t[0, 0])
    scores = np.random.default_rng(0).normal(size=(20, 1))
    own = RowScores(scores, np.arange(20.0)[:, None])
    t = exchange_of(own, np.arange(20)).null([own]).t[0]
    x, y = own.scores[:, 0] - own.scores.mean(), own.labels[:, 0] - own.labels.mean()
    products = x * y
    assert t[0] == pytest.approx(products.sum() / np.sqrt(20 * products.var(ddof=1)))


def test_a_label_that_one_group_has_is_left_out():
    codes = np.array([0, 0, 0, 1, 1, 1, 2])
    rows = random_rows(codes)
    kept = RowScores(rows.scores[:6], rows.labels[:6])
    made = exchange_of(rows, np.arange(7))
    expected = exchange_of(kept, np.arange(6)).null([kept]).t
    np.testing.assert_allclose(made.null([rows]).t, expected)
    assert made.n_arrangements == 20


def test_a_label_of_large_groups_is_not_taken_for_an_association():
    """The scores of one label are higher in all rows, as ranks of a rare class are."""
    groups = np.repeat(np.arange(8), [9, 9, 9, 9, 1, 1, 1, 1])
    labels = np.repeat([1, 0], 4)[groups]
    scores = np.zeros((len(groups), 2))
    scores[:, 1] = 5.0
    rows = RowScores(scores, np.eye(2)[labels])
    assert not exchange_of(rows, groups).null([rows]).t.any()


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
    found = np.quantile(null.scores[0, 1:], ends)
    np.testing.assert_allclose(found, expected, atol=0.1 * np.ptp(expected))


def test_all_sites_share_the_same_exchanges():
    mixed, constant = np.tile([0, 1], 30), np.repeat([0, 1], 30)
    for labels in (mixed, constant):
        rows = random_rows(labels)
        made = exchange_of(rows, np.arange(60) // 2)
        twice = RowScores(2 * rows.scores, rows.labels)
        null = made.null([rows, twice])
        np.testing.assert_allclose(null.t[0], null.t[1])
        np.testing.assert_allclose(2 * null.scores[0], null.scores[1])


LABELS, OF_ROWS = np.random.default_rng(0).integers(3, size=60), random_rows(np.arange(60) % 3)


@pytest.mark.parametrize(
    "draw",
    [
        lambda groups, seed: exchange_of(OF_ROWS, groups, seed=seed).null([OF_ROWS]).t,
        lambda groups, seed: permuted_labels(LABELS, groups, 20, seed),
    ],
    ids=["statistics", "labels"],
)
def test_names_of_groups_do_not_matter_and_the_seed_does(draw):
    groups = np.arange(60) // 2
    assert np.array_equal(draw(groups, 0), draw((groups + 100).astype(str), 0))
    assert not np.array_equal(draw(groups, 0), draw(groups, 1))


@pytest.mark.parametrize(
    ("labels", "groups", "n"),
    [
        ([0, 1] * 4, [0, 0, 1, 1, 2, 2, 3, 3], 16),
        ([0, 1] * 5, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4], 32),
        ([0, 0, 1, 1, 1], range(5), 10),
        ([0, 0, 0, 1, 1, 1], range(6), 20),
        ([0, 0, 1, 1, 1, 0, 1], [*range(5), 5, 5], 20),
        ([0, 0, 1, 1, 2, 2], range(6), 90),
        ([0, 1] * 2000, range(4000), np.inf),
    ],
)
def test_fewer_than_20_arrangements_are_not_enough(labels, groups, n):
    made = exchange_of(random_rows(np.array(labels)), np.array(groups))
    assert made.n_arrangements == n
    assert made.is_enough == (n >= exchange.FEWEST_ARRANGEMENTS)


def test_the_name_lists_what_is_exchanged(snapshot):
    rows = random_rows(np.array([0, 1, 0, 1, 0, 1]))
    for groups in ([0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 2, 2], [0, 0, 1, 2, 3, 4]):
        assert exchange_of(rows, np.array(groups)).name == snapshot
    folds = np.array([0, 0, 1, 1, 1, 1])
    assert exchange_of(rows, np.array([0, 0, 1, 1, 2, 2]), folds).name == snapshot


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


def test_p_values_count_the_observed_labels_and_what_ties_with_them():
    observed = np.array([0.1 + 0.2, 0.9])
    permuted = np.array([[0.3, 0.1, 0.2, 0.2], [0.4, 0.9, 0.5, 0.5]])
    p = p_values(observed, permuted)
    assert p.single.tolist() == [0.4, 0.4]
    assert p.maximum.tolist() == [1.0, 0.4]


@each_line("call")
def test_scores_without_a_place_are_refused(call, refused):
    refused(eval, call, globals())


def test_holms_adjustment_of_a_worked_example():
    # Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1; the last is raised to the one before.
    p = np.array([0.01, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(holm(p), [0.03, 0.06, 0.06, 0.02])
    assert holm(np.array([])).tolist() == []


# Simulated data sets: few at each change, many at night.
DATA_SETS = [150, pytest.param(500, marks=pytest.mark.nightly)]


def within(rejected, most=0.06):
    """Whether the rejection rate is at most `most`, plus three Monte Carlo standard errors."""
    return np.mean(rejected) <= most + 3 * np.sqrt(most * (1 - most) / len(rejected))


def simulated(draw, n, draws=199):
    """p-values, single and adjusted (2, n, n_sites), of rows that `draw` makes of a generator."""
    found = []
    for seed in range(n):
        rows, groups, *folds = draw(np.random.default_rng(seed))
        t = exchange_of(rows[0], groups, *folds, draws=draws, seed=seed).null(rows).t
        p = p_values(t[:, 0], t[:, 1:])
        found.append((p.single, p.maximum))
    return np.array(found).swapaxes(0, 1)


def of_guesses(truth, *guesses):
    return [of_accuracy(ClassPredictions(truth, guess, 2)) for guess in guesses]


def constant_guesses(generator):
    truth = generator.integers(2, size=60)
    return of_guesses(truth, 0 * truth), np.arange(60) // 6


def test_constant_predictions_have_a_p_of_1():
    assert (simulated(constant_guesses, 2) == 1).all()


def rows_by_themselves(generator):
    return of_guesses(*generator.integers(2, size=(2, 121))), np.arange(121)


def labels_of_groups(generator):
    """One label and one prediction per group, in groups of different sizes."""
    groups = np.repeat(np.arange(60), generator.integers(1, 9, size=60))
    return of_guesses(*generator.integers(2, size=(2, 60))[:, groups]), groups


def two_nouns(generator):
    """Two nouns in each group, each with one label and one prediction for all of its rows."""
    truth = np.tile(np.repeat([0, 1], 10), 15)
    guess = np.repeat(generator.integers(2, size=30), 10)
    return of_guesses(truth, guess), np.arange(300) // 20


def skewed_nouns(generator):
    """As `two_nouns`, in 12 groups of 1:20 sizes, with 9 times as many rows of label 0."""
    sizes = np.round(np.geomspace(1, 20, 12)).astype(int)
    groups = np.repeat(np.arange(12), 10 * sizes)
    truth = (np.arange(len(groups)) % 10 == 0).astype(int)
    return of_guesses(truth, generator.integers(2, size=(12, 2))[groups, truth]), groups


def half_and_half(generator):
    """Ten groups with two nouns, and ten with one."""
    guess, labels = np.repeat(generator.integers(2, size=30), 10), generator.integers(2, size=10)
    truth = np.append(np.tile(np.repeat([0, 1], 10), 10), np.repeat(labels, 10))
    return of_guesses(truth, guess), np.repeat(np.arange(20), [20] * 10 + [10] * 10)


DESIGNS = [rows_by_themselves, labels_of_groups, two_nouns, skewed_nouns, half_and_half]


@pytest.mark.parametrize("n", DATA_SETS)
@pytest.mark.parametrize("draw", DESIGNS)
def test_a_true_null_is_rejected_at_most_at_the_level(draw, n):
    p, _ = simulated(draw, n)
    assert within(p <= 0.05)
    assert np.mean(p <= 0.3) > 0.15  # the test does reject at a higher level


def eight_sites(generator, strength=0.0, size=5):
    """Correlated predictions of several sites; the first is better than chance, by `strength`."""
    truth, shared = generator.integers(2, size=(2, 200))
    own = generator.integers(2, size=(8, 200))
    guesses = np.where(generator.random((8, 200)) < 0.5, shared, own)
    guesses[0] = np.where(generator.random(200) < strength, truth, guesses[0])
    return of_guesses(truth, *guesses), np.arange(200) // size


def test_the_best_of_many_null_sites_is_rejected_at_most_at_the_level():
    by_single, by_maximum = (p.min(axis=1) <= 0.05 for p in simulated(eight_sites, 200))
    assert within(by_maximum)
    assert np.mean(by_maximum) > 0.01
    assert binomtest(by_single.sum(), 200, 0.05, alternative="greater").pvalue < 0.001


def test_a_planted_signal_is_found_at_its_site_only():
    _, p = simulated(partial(eight_sites, strength=0.4, size=1), 40)
    assert (p[:, 0] <= 0.05).sum() >= 36
    assert (p[:, 1:] <= 0.05).any(axis=1).sum() <= 6


def hardly_better(generator):
    """60 % of the rows have label 0; predictions are right for 64 % of them and of the others."""
    truth = (generator.random(150) < 0.4).astype(int)
    guess = np.where(generator.random(150) < 0.64, truth, 1 - truth)
    return of_guesses(truth, guess), np.arange(150)


def test_a_signal_is_found_that_hardly_beats_the_best_constant():
    p, _ = simulated(hardly_better, 100)
    assert (p <= 0.05).sum() >= 80


def ranked(generator, strength, metric):
    """Rows in 20 groups with effects of their own, and numbers or classes to predict."""
    effect, truth = np.repeat(generator.normal(size=20), 6), generator.normal(size=120)
    guess = strength * truth + effect + generator.normal(size=120)
    if metric == "spearman":
        return [contributions.of_spearman(NumberPredictions(truth, guess))], np.arange(120) // 6
    codes, scores = (truth > 0).astype(int), np.stack([0 * guess, guess], axis=1)
    return [of_auroc(ClassPredictions(codes, codes, 2, scores))], np.arange(120) // 6


def rare(generator, strength, metric):
    """60 groups of five rows with one label, 1 in 6 positive, and dependent scores."""
    groups = np.arange(300) // 5
    truth = (generator.permutation(60) < 10)[groups].astype(int)
    margin = strength * truth + generator.normal(size=60)[groups] + generator.normal(size=300)
    scores = np.column_stack([np.zeros_like(margin), margin])
    guess = ClassPredictions(truth, scores.argmax(axis=1), 2, scores, positive=1)
    return [metric(metrics.with_alarms(guess, np.array([3.3, 2.3])))], groups


@pytest.mark.parametrize(
    ("draw", "metric", "strength"),
    [
        (ranked, "auroc", 0.9),
        (ranked, "spearman", 0.9),
        (rare, of_auprc, 3.0),
        (rare, contributions.of_tpr_at_fpr_5, 3.0),
    ],
)
def test_metrics_of_ranks_and_of_a_rare_class_have_power_and_size_too(draw, metric, strength):
    draws = (partial(draw, strength=effect) for effect in (0.0, strength))
    p_of_null, p = (simulated(partial(one, metric=metric), 100)[0] for one in draws)
    assert within(p_of_null <= 0.05)
    assert (p <= 0.05).sum() >= 90


def refitted_over_folds(generator):
    """Predictions of class means that are refitted for each fold, on features without signal.

    Each group has a single label, and its rows resemble each other.
    """
    groups = np.arange(180) // 6
    features = 3 * generator.normal(size=(30, 200))[groups] + generator.normal(size=(180, 200))
    truth, folds = groups % 2, generator.permutation(30)[groups] % 3
    guess = np.empty(len(groups), dtype=int)
    for fold in range(3):
        train, test = folds != fold, folds == fold
        mean, labels = features[train].mean(axis=0), truth[train] - truth[train].mean()
        guess[test] = (features[test] - mean) @ (labels @ (features[train] - mean)) > 0
    return of_guesses(truth, guess), groups, folds


@pytest.mark.nightly
def test_a_true_null_over_folds_is_rejected_at_most_at_the_level(monkeypatch):
    widened, _ = simulated(refitted_over_folds, 200)
    monkeypatch.setattr("probekit.probes.score.exchange.WIDER_OVER_FOLDS", 1.0)
    plain, _ = simulated(refitted_over_folds, 200)
    assert within(widened <= 0.05)
    assert np.mean(plain <= 0.05) > 0.08


def agreeing(n_groups, clusters=10, size=6):
    """One cluster of each group has label 1; all guesses are 1, except in another cluster."""
    cluster = np.repeat(np.arange(clusters * n_groups), size)
    truth, guess = (cluster % clusters == 0).astype(int), (cluster % clusters != 1).astype(int)
    return ClassPredictions(truth, guess, 2), cluster // clusters


def p_of(function, predictions, groups):
    scores = function(predictions)
    return exchange_of(scores, groups).null([scores]).p.single[0]


@pytest.mark.parametrize(
    "function", [of_accuracy, contributions.of_balanced_accuracy, contributions.of_macro_f1]
)
def test_mixed_groups_that_all_agree_have_the_p_of_their_agreement(function):
    # Of 60 rows, 6 have label 1 and 54 the guess 1: at least 0 and at most 6 hits of label 1, and
    # 5.4 by chance. The share of .9 that all 6 are hits is that of each group.
    predictions, groups = agreeing(12)
    assert p_of(function, predictions, groups) == pytest.approx(0.9**12)
    # A group below its expectation ends the agreement.
    guess = np.where(groups == 0, 1 - predictions.truth, predictions.guess)
    assert p_of(function, replace(predictions, guess=guess), groups) != pytest.approx(0.9**12)


@pytest.mark.parametrize("n_labels", [2, 3])
def test_small_groups_that_are_all_right_have_the_p_of_guesses_elsewhere(n_labels):
    small = 8 * (n_labels - 1)
    groups = np.repeat(np.arange(60 + small), [30] * 60 + [2] * small)
    truth = np.where(groups < 60, 0, 1 + groups % (n_labels - 1))
    guess = np.where(np.arange(len(groups)) % 10, n_labels - 1, 0)  # .9 in large groups
    guess[groups >= 60] = np.where(truth[groups >= 60] == n_labels - 1, n_labels - 1, 0)
    elsewhere = 0.9 if n_labels == 2 else 0.9 * 60 / 68  # groups of label 1 are never guessed so
    found = p_of(of_accuracy, ClassPredictions(truth, guess, n_labels), groups)
    assert found >= elsewhere**8 - 1e-9


def test_groups_of_both_sorts_are_as_significant_as_their_product():
    """Three mixed groups that agree do not hide what 40 groups of one label show."""
    predictions, groups = agreeing(3)
    whole = np.repeat(np.arange(3, 43), 10)
    truth = np.concatenate([predictions.truth, whole % 2])
    guess = np.concatenate([predictions.guess, np.where(np.arange(400) % 9, whole % 2, 0)])
    both = ClassPredictions(truth, guess, 2)
    assert p_of(of_accuracy, predictions, groups) >= 0.9**3
    assert p_of(of_accuracy, both, np.concatenate([groups, whole])) < LEVEL


def test_the_p_of_auprc_is_at_least_that_of_auroc():
    generator = np.random.default_rng(0)
    scores = np.column_stack([np.zeros(240), generator.normal(size=240)])
    one = ClassPredictions(generator.integers(2, size=240), np.zeros(240, int), 2, scores)
    groups, one = np.arange(240) // 10, replace(one, positive=1)
    least = p_of(of_auroc, one, groups)
    assert p_of(of_auprc, one, groups) >= least
    alone = replace(of_auprc(one), stricter=None)
    assert p_of(lambda _: alone, one, groups) < least  # otherwise this test shows nothing
