"""Predictive words and lengths are found, others are not; test rows are not used for fitting."""

import numpy as np
import pytest

from probekit.errors import DataError
from probekit.probes.controls import text_models
from probekit.probes.controls.baselines import (
    TEXT_BASELINES,
    mean_numbers,
    text_lengths,
    word_mean_numbers,
)
from probekit.probes.controls.text_models import C_GRID, PENALTIES
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.score.metrics import NumberPredictions, Resamples, r2
from probekit.probes.settings import ProbeSettings

bag_of_words, n_grams, neighbouring_words, length = TEXT_BASELINES.values()
TRAIN, TEST = slice(0, 300), slice(300, 400)
FOLDS = np.arange(300) // 2 % 5


def texts_of(codes, seed=0):
    """Texts of common words, with one word that goes with the code."""
    generator = np.random.default_rng(seed)
    common, telling = list("abcdefgh"), ["Red", "green", "blue"]
    return np.array([" ".join([*generator.choice(common, size=6), telling[c]]) for c in codes])


def codes_of(n_classes=3, seed=1):
    return np.random.default_rng(seed).integers(n_classes, size=400)


def test_words_that_predict_the_label_are_found():
    codes = codes_of()
    texts = texts_of(codes)
    baseline = bag_of_words.guess(texts[TRAIN], codes[TRAIN], FOLDS, texts[TEST], 4)
    assert np.mean(baseline.guess == codes[TEST]) == 1.0
    assert baseline.converged
    assert baseline.C in C_GRID
    assert np.isneginf(baseline.log_probabilities[:, 3]).all()
    np.testing.assert_allclose(np.exp(baseline.log_probabilities).sum(axis=1), 1)
    assert np.array_equal(baseline.log_probabilities.argmax(axis=1), baseline.guess)


def ordered_texts(codes, seed=0):
    """Texts in which only the order of two words depends on the code."""
    generator = np.random.default_rng(seed)
    pairs = ["not but", "but not"]
    return np.array([" ".join([pairs[c], *generator.choice(list("abcd"), size=4)]) for c in codes])


def test_word_order_is_found_by_n_grams_and_not_by_a_bag_of_words():
    codes = codes_of(2)
    texts = ordered_texts(codes)
    given = texts[TRAIN], codes[TRAIN], FOLDS, texts[TEST], 2
    of_order, of_words = n_grams.guess(*given), bag_of_words.guess(*given)
    assert np.mean(of_order.guess == codes[TEST]) == 1.0
    assert np.mean(of_words.guess == codes[TEST]) == pytest.approx(0.5, abs=0.15)
    y = np.array([3.0, -4.0])[codes]
    guess = n_grams.numbers(texts[TRAIN], y[TRAIN], FOLDS, texts[TEST]).guess
    assert np.corrcoef(guess, y[TEST])[0, 1] > 0.99


@pytest.mark.parametrize("place", [0, 1, 2])
def test_neighbouring_words_that_predict_the_label_are_found_at_their_own_place(place):
    generator = np.random.default_rng(2)
    words = generator.choice(["to", "a", "the"], size=(400, 3)).astype(object)
    codes = (words[:, place] == "to").astype(int)
    given = words[TRAIN], codes[TRAIN], FOLDS
    assert np.array_equal(neighbouring_words.guess(*given, words[TEST], 2).guess, codes[TEST])
    moved = np.roll(words, 1, axis=1)
    assert np.mean(neighbouring_words.guess(*given, moved[TEST], 2).guess == codes[TEST]) < 0.8
    new = np.array([["unseen"] * 3], dtype=object)
    assert neighbouring_words.guess(*given, new, 2).guess.tolist() == [0]
    y = np.array([3.0, -4.0])[codes]
    numbers = neighbouring_words.numbers(words[TRAIN], y[TRAIN], FOLDS, words[TEST])
    assert np.corrcoef(numbers.guess, y[TEST])[0, 1] > 0.99
    assert numbers.alpha in PENALTIES


def test_words_do_not_tell_labels_drawn_at_random():
    baseline = bag_of_words.guess(
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
    seen = bag_of_words.guess(
        texts[TRAIN], codes[TRAIN], FOLDS, np.array(["RED!", "zebra", "green"]), 3
    )
    assert seen.guess.tolist()[::2] == [0, 1]
    unknown = bag_of_words.guess(
        texts[TRAIN], codes[TRAIN], FOLDS, np.array(["zebra", "yak", ""]), 3
    )
    assert len(np.unique(unknown.log_probabilities[:, 0])) == 1
    # Predictions do not depend on the other texts.
    assert np.array_equal(seen.log_probabilities[1], unknown.log_probabilities[0])


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 2, 1]])
def test_lengths_that_predict_the_label_are_found_also_in_the_middle(order):
    lengths = np.random.default_rng(0).integers(1, 91, size=(400, 1)).astype(float)
    codes = np.array(order)[((lengths[:, 0] - 1) // 30).astype(int)]
    baseline = length.guess(lengths[TRAIN], codes[TRAIN], FOLDS, lengths[TEST], 3)
    assert np.mean(baseline.guess == codes[TEST]) > 0.9


def test_lengths_that_do_not_differ_tell_the_majority():
    codes = np.array([0] * 100 + [1] * 300)[np.random.default_rng(0).permutation(400)]
    baseline = length.guess(np.ones((300, 2)), codes[TRAIN], FOLDS, np.full((3, 2), 7.0), 2)
    assert baseline.guess.tolist() == [1, 1, 1]


def test_the_strength_is_chosen_on_rows_of_other_groups():
    # Each group has a word and a label of its own; those of other groups teach nothing.
    labels = (np.arange(100) % 3 == 0).astype(int)
    codes = np.repeat(labels, 3)
    texts = np.repeat([f"w{group} x y" for group in range(100)], 3)
    by_group = bag_of_words.guess(texts, codes, np.arange(300) // 3 % 5, np.array(["x"]), 2)
    by_row = bag_of_words.guess(texts, codes, np.arange(300) % 3, np.array(["x"]), 2)
    assert C_GRID[0] == by_group.C
    assert by_row.C >= 1


def test_an_unconverged_fit_is_recorded_without_a_warning(monkeypatch):
    monkeypatch.setattr(text_models, "MAX_ITER", 1)
    codes = codes_of()
    texts = texts_of(codes)
    baseline = bag_of_words.guess(texts[TRAIN], codes[TRAIN], FOLDS, texts[TEST], 3)
    assert not baseline.converged


def test_a_label_of_a_single_fold_is_no_obstacle():
    codes = np.zeros(300, int)
    codes[FOLDS == 2] = 1
    texts = texts_of(codes)
    green, red = bag_of_words.guess(
        texts, codes, FOLDS, np.array(["green", "red"]), 2
    ).log_probabilities
    assert green[1] > red[1]
    with pytest.raises(DataError, match="only one label"):
        bag_of_words.guess(texts, np.zeros(300, int), FOLDS, np.array(["red"]), 2)


def test_numbers_are_predicted_by_words_and_by_lengths():
    codes = codes_of()
    y = np.array([3.0, 10.0, -4.0])[codes]
    texts = texts_of(codes)
    resamples = Resamples.whole(100)
    guess = bag_of_words.numbers(texts[TRAIN], y[TRAIN], FOLDS, texts[TEST]).guess
    assert r2(NumberPredictions(y[TEST], guess), resamples)[0] > 0.99
    lengths = np.random.default_rng(0).uniform(1, 90, size=(400, 1))
    bent = np.abs(lengths[:, 0] - 45)
    guess = length.numbers(lengths[TRAIN], bent[TRAIN], FOLDS, lengths[TEST]).guess
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


@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_the_bag_of_words_reads_words_as_well_as_a_probe_on_word_indicators(class_weight):
    """Baselines use the metric and the class weights of the probes."""
    generator = np.random.default_rng(0)
    is_rare = generator.random(1000) < 0.08
    words = generator.random((1000, 12)) < 0.2
    words[:, 0] = generator.random(1000) < np.where(is_rare, 0.8, 0.1)
    names = np.array([f"w{n}" for n in range(12)])
    texts = np.array([" ".join(names[row]) for row in words], dtype=object)
    row = np.arange(1000).astype(str)
    y = np.where(is_rare, "rare", "usual")
    data = ProbeData(y, row, row, np.arange(600), np.arange(600, 1000), texts=texts)
    settings = ProbeSettings(
        metric="balanced_accuracy",
        class_weight=class_weight,
        control_draws=0,
        description=False,
        baselines=("bag_of_words", "word_identity"),
    )
    prober = Prober(data, settings)
    (probe,) = values(prober.site(words.astype(np.float32)))
    bag_of_words, unseen = sorted(values(prober.baselines()), reverse=True)
    assert bag_of_words > probe - 0.03
    assert unseen == 0.5
    assert (bag_of_words > 0.75) == (class_weight == "balanced")


def values(result):
    name = "balanced_accuracy"
    return [one.value for one in result.measurements if (one.metric, one.split) == (name, "test")]
