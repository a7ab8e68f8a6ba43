"""Exchanges of whole groups in simulations: size under the null hypothesis, and power."""

import numpy as np
import pytest
from scipy.stats import binomtest

from probekit.probes.score.contributions import of_auprc, of_auroc, of_spearman, of_tpr_at_fpr_5
from probekit.probes.score.exchange import p_values
from probekit.probes.score.metrics import ClassPredictions, NumberPredictions, with_alarms
from tests.probes.score.exchanges import exchange_of, judged

# Simulated data sets: few at each change, many at night.
DATA_SETS = [150, pytest.param(500, marks=pytest.mark.nightly)]


def within(rejections, n, most=0.06):
    """Whether the rejection rate is at most `most`, plus three Monte Carlo standard errors."""
    return rejections / n <= most + 3 * np.sqrt(most * (1 - most) / n)


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


@pytest.mark.parametrize("n", DATA_SETS)
@pytest.mark.parametrize("draw", DESIGNS)
def test_a_true_null_is_rejected_at_most_at_the_level(draw, n):
    p = []
    for seed in range(n):
        truth, guess, groups = draw(np.random.default_rng(seed))
        p.append(judged([guess], truth, groups, seed).single[0])
    assert within(np.sum(np.array(p) <= 0.05), n)
    assert np.mean(np.array(p) <= 0.3) > 0.15  # the test does reject at a higher level


@pytest.mark.nightly
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


def test_a_signal_is_found_that_hardly_beats_the_best_constant():
    """60 % of the rows have label 0; predictions are right for 64 % of them and of the others."""
    by_exchange = 0
    for seed in range(100):
        generator = np.random.default_rng(seed)
        truth = (generator.random(150) < 0.4).astype(int)
        guess = np.where(generator.random(150) < 0.64, truth, 1 - truth)
        by_exchange += judged([guess], truth, np.arange(150), seed).single[0] <= 0.05
    assert by_exchange >= 80


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
            t = exchange_of(rows, groups, seed=seed).null([rows]).t
            rejected[strength] += p_values(t[:, 0], t[:, 1:]).single[0] <= 0.05
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
            t = exchange_of(rows, groups, seed=seed).null([rows]).t
            rejected[strength] += p_values(t[:, 0], t[:, 1:]).single[0] <= 0.05
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


@pytest.mark.nightly
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
