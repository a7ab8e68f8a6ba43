"""Scores of texts and their lengths."""

import numpy as np
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from probekit.chosen.aggregation.measure import SIMILAR, equal_lengths, length_correlation

LABELS = np.arange(400) % 2


def test_length_alone_has_an_auroc_of_one_half_at_equal_length():
    generator = np.random.default_rng(0)
    lengths = generator.integers(10, 40, 400) + 12 * LABELS
    scores = lengths / 10 + generator.normal(size=400)
    chosen = equal_lengths(lengths, LABELS == 1)
    assert roc_auc_score(LABELS, scores) > 0.7
    assert abs(roc_auc_score(LABELS[chosen], scores[chosen]) - 0.5) < 0.07
    assert np.sum(chosen & (LABELS == 1)) == np.sum(chosen & (LABELS == 0)) > 60
    assert length_correlation(scores, lengths, LABELS, np.arange(400)).low > 0.3


def test_texts_that_are_left_out_have_no_partner():
    generator = np.random.default_rng(0)
    lengths, is_positive = generator.integers(5, 200, 300), generator.random(300) < 0.3
    chosen = equal_lengths(lengths, is_positive)
    both = [np.sort(lengths[chosen & side]) for side in (is_positive, ~is_positive)]
    assert (np.abs(np.log(both[0] / both[1])) <= np.log(1 + SIMILAR)).all()
    bins = [np.floor(np.log(lengths[side]) / np.log(1.1)) for side in (~chosen & is_positive,)]
    others = np.floor(np.log(lengths[~chosen & ~is_positive]) / np.log(1.1))
    assert not np.isin(bins[0], others).any()


def test_labels_of_different_length_alone_are_no_correlation():
    generator = np.random.default_rng(1)
    lengths = 10 + 20 * LABELS + generator.integers(5, size=400)
    scores = 3 * LABELS + generator.normal(size=400)
    assert abs(length_correlation(scores, lengths, LABELS, np.arange(400) // 2).value) < 0.15
    assert spearmanr(scores, lengths).statistic > 0.5


def test_a_correlation_within_one_label_is_that_of_scipy():
    generator = np.random.default_rng(0)
    lengths = generator.integers(5, 30, 60)
    scores = lengths + 8 * generator.normal(size=60)
    found = length_correlation(scores, lengths, np.zeros(60, dtype=int), np.arange(60))
    assert abs(found.value - spearmanr(scores, lengths).statistic) < 1e-12
    assert np.isnan(length_correlation(np.zeros(60), lengths, LABELS[:60], np.arange(60)).value)
