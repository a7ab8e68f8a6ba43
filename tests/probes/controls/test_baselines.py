"""Predictive words and lengths are found, others are not; test rows are not used for fitting."""

import numpy as np
import pytest

from probekit.errors import DataError
from probekit.probes.controls import baselines
from probekit.probes.controls.baselines import (
    C_GRID,
    bag_of_words_guess,
    bag_of_words_numbers,
    length_guess,
    length_numbers,
    mean_numbers,
    text_lengths,
    word_mean_numbers,
)
from probekit.probes.score.metrics import Resamples
from probekit.probes.score.regression import NumberPredictions, r2

TRAIN, TEST = slice(0, 300), slice(300, 400)
FOLDS = np.arange(300) // 2 % 5


def texts_of(codes, seed=0):
    """Texts of common words, with one word that goes with the code."""
    generator = np.random.default_rng(seed)
    common, telling = list("abcdefgh"), ["Red", "green", "blue"]
    return [" ".join([*generator.choice(common, size=6), telling[code]]) for code in codes]


def codes_of(n_classes=3, seed=1):
    return np.random.default_rng(seed).integers(n_classes, size=400)


def test_words_that_predict_the_label_are_found():
    codes = codes_of()
    texts = texts_of(codes)
    baseline = bag_of_words_guess(texts[TRAIN], codes[TRAIN], FOLDS, texts[TEST], 4)
    assert np.mean(baseline.guess == codes[TEST]) == 1.0
    assert baseline.converged
    assert baseline.C in C_GRID
    assert np.isneginf(baseline.log_probabilities[:, 3]).all()
    np.testing.assert_allclose(np.exp(baseline.log_probabilities).sum(axis=1), 1)
    assert np.array_equal(baseline.log_probabilities.argmax(axis=1), baseline.guess)


def test_words_do_not_tell_labels_drawn_at_random():
    baseline = bag_of_words_guess(
        texts_of(codes_of())[TRAIN],
        codes_of(2, seed=5)[TRAIN],
        FOLDS,
        texts_of(codes_of())[TEST],
        2,
    )
    assert np.mean(baseline.guess == codes_of(2, seed=5)[TEST]) == pytest.approx(0.5, abs=0.15)


def test_the_vocabulary_comes_from_the_training_texts_and_ignores_case():
    codes = codes_of()
    texts = texts_of(codes)
    seen = bag_of_words_guess(texts[TRAIN], codes[TRAIN], FOLDS, ["RED!", "zebra", "green"], 3)
    assert seen.guess.tolist()[::2] == [0, 1]
    unknown = bag_of_words_guess(texts[TRAIN], codes[TRAIN], FOLDS, ["zebra", "yak", ""], 3)
    assert len(np.unique(unknown.log_probabilities[:, 0])) == 1
    # Predictions do not depend on the other texts.
    assert np.array_equal(seen.log_probabilities[1], unknown.log_probabilities[0])


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 2, 1]])
def test_lengths_that_predict_the_label_are_found_also_in_the_middle(order):
    lengths = np.random.default_rng(0).integers(1, 91, size=(400, 1)).astype(float)
    codes = np.array(order)[((lengths[:, 0] - 1) // 30).astype(int)]
    baseline = length_guess(lengths[TRAIN], codes[TRAIN], FOLDS, lengths[TEST], 3)
    assert np.mean(baseline.guess == codes[TEST]) > 0.9


def test_lengths_that_do_not_differ_tell_the_majority():
    codes = np.array([0] * 100 + [1] * 300)[np.random.default_rng(0).permutation(400)]
    baseline = length_guess(np.ones((300, 2)), codes[TRAIN], FOLDS, np.full((3, 2), 7.0), 2)
    assert baseline.guess.tolist() == [1, 1, 1]


def test_the_strength_is_chosen_on_rows_of_other_groups():
    # Each group has a word and a label of its own; those of other groups teach nothing.
    labels = (np.arange(100) % 3 == 0).astype(int)
    codes = np.repeat(labels, 3)
    texts = [f"w{group} x y" for group in range(100) for _ in range(3)]
    by_group = bag_of_words_guess(texts, codes, np.arange(300) // 3 % 5, ["x"], 2)
    by_row = bag_of_words_guess(texts, codes, np.arange(300) % 3, ["x"], 2)
    assert (C_GRID[0], C_GRID[-1]) == (by_group.C, by_row.C)


def test_an_unconverged_fit_is_recorded_without_a_warning(monkeypatch):
    monkeypatch.setattr(baselines, "MAX_ITER", 1)
    codes = codes_of()
    texts = texts_of(codes)
    baseline = bag_of_words_guess(texts[TRAIN], codes[TRAIN], FOLDS, texts[TEST], 3)
    assert not baseline.converged


def test_a_label_of_a_single_fold_is_no_obstacle():
    codes = np.zeros(300, int)
    codes[FOLDS == 2] = 1
    texts = texts_of(codes)
    green, red = bag_of_words_guess(texts, codes, FOLDS, ["green", "red"], 2).log_probabilities
    assert green[1] > red[1]
    with pytest.raises(DataError, match="only one label"):
        bag_of_words_guess(texts, np.zeros(300, int), FOLDS, ["red"], 2)


def test_numbers_are_predicted_by_words_and_by_lengths():
    codes = codes_of()
    y = np.array([3.0, 10.0, -4.0])[codes]
    texts = texts_of(codes)
    resamples = Resamples.whole(100)
    guess = bag_of_words_numbers(texts[TRAIN], y[TRAIN], FOLDS, texts[TEST])
    assert r2(NumberPredictions(y[TEST], guess), resamples)[0] > 0.99
    lengths = np.random.default_rng(0).uniform(1, 90, size=(400, 1))
    bent = np.abs(lengths[:, 0] - 45)
    guess = length_numbers(lengths[TRAIN], bent[TRAIN], FOLDS, lengths[TEST])
    assert r2(NumberPredictions(bent[TEST], guess), resamples)[0] > 0.9


def test_numbers_of_words_and_means_come_from_training_rows():
    y = np.array([1.0, 3.0, 8.0])
    assert mean_numbers(y, 2).tolist() == [4, 4]
    words = np.array(["b", "b", "d"])
    guess = word_mean_numbers(words, y, np.array(["a", "b", "c", "d", "e"]))
    assert guess.tolist() == [4, 2, 4, 8, 4]


def test_lengths_are_counted_in_characters_words_and_tokens():
    assert text_lengths(["a bc", "d"]).tolist() == [[4, 2], [1, 1]]
    assert text_lengths(["a bc", "d"], np.array([5, 6])).tolist() == [[4, 2, 5], [1, 1, 6]]
