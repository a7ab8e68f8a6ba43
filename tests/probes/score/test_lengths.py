"""Scores of texts and their lengths."""

import numpy as np
import pytest

from probekit.probes.score.lengths import length_association, matched_auroc

GENERATOR = np.random.default_rng(0)


def test_the_matched_auroc_counts_pairs_of_similar_length():
    lengths, groups = GENERATOR.integers(10, 40, 80), np.arange(80) // 2
    is_positive = np.arange(80) % 2 == 1
    scores = GENERATOR.normal(size=80).round(1) + is_positive

    def share(kept):
        pairs = [
            (scores[i] > scores[j]) + 0.5 * (scores[i] == scores[j])
            for i in np.flatnonzero(is_positive & kept)
            for j in np.flatnonzero(~is_positive & kept)
            if abs(lengths[i] - lengths[j]) <= 0.1 * max(lengths[i], lengths[j])
        ]
        return np.mean(pairs), len(pairs)

    found, n_pairs = matched_auroc(scores, lengths, is_positive, groups)
    assert (found.value, n_pairs) == pytest.approx(share(np.full(80, True)))
    left_out = [share(groups != group)[0] for group in range(40)]
    error = np.sqrt(39 * np.var(left_out))
    assert found.high - found.low == pytest.approx(2 * 2.02 * error, rel=0.1)


def test_length_alone_has_no_matched_auroc_above_chance():
    is_positive = np.arange(200) % 2 == 1
    lengths = GENERATOR.integers(10, 40, 200) + 15 * is_positive
    scores = lengths / 10 + GENERATOR.normal(size=200)
    found, _ = matched_auroc(scores, lengths, is_positive, np.arange(200))
    assert found.low < 0.5 < found.high
    assert length_association(scores, lengths, is_positive * 1, np.arange(200)).p < 1e-6


def test_labels_of_different_length_alone_are_no_association():
    labels = np.arange(400) % 2
    lengths = 10 + 20 * labels + GENERATOR.integers(5, size=400)
    scores = 3 * labels + GENERATOR.normal(size=400)
    assert abs(length_association(scores, lengths, labels, np.arange(400)).rho) < 0.15


def test_too_few_texts_have_no_values():
    found, n_pairs = matched_auroc(np.arange(4.0), np.full(4, 7), np.arange(4) > 1, np.arange(4))
    assert np.isnan(found.value)
    assert n_pairs == 4
    assert np.isnan(length_association(np.arange(4.0), np.full(4, 7), np.zeros(4), np.arange(4)).p)
