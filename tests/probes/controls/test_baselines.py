"""Predictive words and lengths are found, others are not; test rows are not used for fitting."""

import numpy as np
import pytest

from probekit.errors import DataError
from probekit.probes.controls import baselines
from probekit.probes.controls.baselines import C_GRID, PENALTIES, TEXT_BASELINES, text_model
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.score.metrics import NumberPredictions, Resamples, r2
from probekit.probes.settings import ProbeSettings

bag_of_words, n_grams, neighbouring_words, length = (one for _, one in TEXT_BASELINES.values())
TRAIN, TEST = slice(0, 300), slice(300, 400)
FOLDS = np.arange(300) // 2 % 5


def guess(features, *given):
    """The labels predicted by a baseline."""
    return text_model(features, *given)[0].argmax(axis=1)


def predicted(features, *given):
    """The numbers predicted by a baseline."""
    return text_model(features, *given, n_classes=None)[0]


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
    logs, C = text_model(bag_of_words, texts[TRAIN], codes[TRAIN], FOLDS, texts[TEST], 4)
    assert np.mean(logs.argmax(axis=1) == codes[TEST]) == 1.0
    assert C in C_GRID
    assert np.isneginf(logs[:, 3]).all()
    np.testing.assert_allclose(np.exp(logs).sum(axis=1), 1)


def ordered_texts(codes, seed=0):
    """Texts in which only the order of two words depends on the code."""
    generator = np.random.default_rng(seed)
    pairs = ["not but", "but not"]
    return np.array([" ".join([pairs[c], *generator.choice(list("abcd"), size=4)]) for c in codes])


def test_word_order_is_found_by_n_grams_and_not_by_a_bag_of_words():
    codes = codes_of(2)
    texts = ordered_texts(codes)
    given = texts[TRAIN], codes[TRAIN], FOLDS, texts[TEST], 2
    assert np.mean(guess(n_grams, *given) == codes[TEST]) == 1.0
    assert np.mean(guess(bag_of_words, *given) == codes[TEST]) == pytest.approx(0.5, abs=0.15)
    y = np.array([3.0, -4.0])[codes]
    numbers = predicted(n_grams, texts[TRAIN], y[TRAIN], FOLDS, texts[TEST])
    assert np.corrcoef(numbers, y[TEST])[0, 1] > 0.99


@pytest.mark.parametrize("place", [0, 1, 2])
def test_neighbouring_words_that_predict_the_label_are_found_at_their_own_place(place):
    generator = np.random.default_rng(2)
    words = generator.choice(["to", "a", "the"], size=(400, 3)).astype(object)
    codes = (words[:, place] == "to").astype(int)
    given = words[TRAIN], codes[TRAIN], FOLDS
    assert np.array_equal(guess(neighbouring_words, *given, words[TEST], 2), codes[TEST])
    moved = np.roll(words, 1, axis=1)
    assert np.mean(guess(neighbouring_words, *given, moved[TEST], 2) == codes[TEST]) < 0.8
    new = np.array([["unseen"] * 3], dtype=object)
    assert guess(neighbouring_words, *given, new, 2).tolist() == [0]
    y = np.array([3.0, -4.0])[codes]
    given = words[TRAIN], y[TRAIN], FOLDS, words[TEST]
    numbers, alpha = text_model(neighbouring_words, *given, n_classes=None)
    assert np.corrcoef(numbers, y[TEST])[0, 1] > 0.99
    assert alpha in PENALTIES


def test_words_do_not_tell_labels_drawn_at_random():
    texts, codes = texts_of(codes_of()), codes_of(2, seed=5)
    found = guess(bag_of_words, texts[TRAIN], codes[TRAIN], FOLDS, texts[TEST], 2)
    assert np.mean(found == codes[TEST]) == pytest.approx(0.5, abs=0.15)


def test_the_vocabulary_comes_from_the_training_texts_and_ignores_case():
    codes = codes_of()
    texts = texts_of(codes)
    seen, unknown = (
        text_model(bag_of_words, texts[TRAIN], codes[TRAIN], FOLDS, np.array(others), 3)[0]
        for others in (["RED!", "zebra", "green"], ["zebra", "yak", ""])
    )
    assert seen.argmax(axis=1).tolist()[::2] == [0, 1]
    assert len(np.unique(unknown[:, 0])) == 1
    assert np.array_equal(seen[1], unknown[0])  # predictions do not depend on the other texts


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 2, 1]])
def test_lengths_that_predict_the_label_are_found_also_in_the_middle(order):
    lengths = np.random.default_rng(0).integers(1, 91, size=(400, 1)).astype(float)
    codes = np.array(order)[((lengths[:, 0] - 1) // 30).astype(int)]
    found = guess(length, lengths[TRAIN], codes[TRAIN], FOLDS, lengths[TEST], 3)
    assert np.mean(found == codes[TEST]) > 0.9


def test_lengths_that_do_not_differ_tell_the_majority():
    codes = np.array([0] * 100 + [1] * 300)[np.random.default_rng(0).permutation(400)]
    found = guess(length, np.ones((300, 2)), codes[TRAIN], FOLDS, np.full((3, 2), 7.0), 2)
    assert found.tolist() == [1, 1, 1]


def test_the_strength_is_chosen_on_rows_of_other_groups():
    # Each group has a word and a label of its own; those of other groups teach nothing.
    labels = (np.arange(100) % 3 == 0).astype(int)
    codes = np.repeat(labels, 3)
    texts = np.repeat([f"w{group} x y" for group in range(100)], 3)
    by_group, by_row = (
        text_model(bag_of_words, texts, codes, folds, np.array(["x"]), 2)[1]
        for folds in (np.arange(300) // 3 % 5, np.arange(300) % 3)
    )
    assert by_group == C_GRID[0]
    assert by_row >= 1


def test_a_label_of_a_single_fold_is_no_obstacle():
    codes = np.zeros(300, int)
    codes[FOLDS == 2] = 1
    texts = texts_of(codes)
    (green, red), _ = text_model(bag_of_words, texts, codes, FOLDS, np.array(["green", "red"]), 2)
    assert green[1] > red[1]
    with pytest.raises(DataError, match="only one label"):
        text_model(bag_of_words, texts, np.zeros(300, int), FOLDS, np.array(["red"]), 2)


def test_numbers_are_predicted_by_words_and_by_lengths():
    codes = codes_of()
    y = np.array([3.0, 10.0, -4.0])[codes]
    texts = texts_of(codes)
    resamples = Resamples.whole(100)
    numbers = predicted(bag_of_words, texts[TRAIN], y[TRAIN], FOLDS, texts[TEST])
    assert r2(NumberPredictions(y[TEST], numbers), resamples)[0] > 0.99
    lengths = np.random.default_rng(0).uniform(1, 90, size=(400, 1))
    bent = np.abs(lengths[:, 0] - 45)
    numbers = predicted(length, lengths[TRAIN], bent[TRAIN], FOLDS, lengths[TEST])
    assert r2(NumberPredictions(bent[TEST], numbers), resamples)[0] > 0.9


def test_word_identity_knows_seen_words_and_falls_back_on_the_majority():
    words = np.array(["run", "run", "run", "cat", "cat", "sea", "sea"])
    codes = np.array([1, 1, 0, 2, 2, 1, 2])
    tested = np.array(["cat", "run", "zoo", "aardvark", "sea"])
    logs = baselines.word_identity_log_frequencies(words, codes, tested, 3)
    # "zoo" and "aardvark" are unseen; 1 and 2 are equally frequent, for "sea" and over all.
    assert logs.argmax(axis=1).tolist() == [2, 1, 1, 1, 1]


def test_word_identity_breaks_a_tie_by_the_overall_frequency():
    words = np.array(["sea", "sea", "cat", "cat"])
    logs = baselines.word_identity_log_frequencies(
        words, np.array([0, 2, 2, 2]), np.array(["sea"]), 3
    )
    assert logs.argmax(axis=1).tolist() == [2]


def test_lengths_are_counted_in_characters_and_words():
    row, texts = np.arange(4), np.array(["a bc", "d", "e", "f"], dtype=object)
    names = row.astype(str)
    data = ProbeData(np.array(list("xyxy")), names, names, row[:2], row[2:], texts=texts)
    assert TEXT_BASELINES["length"][0](data, np.arange(2)).tolist() == [[4, 2], [1, 1]]


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
    of_words, unseen = sorted(values(prober.baselines()), reverse=True)
    assert of_words > probe - 0.03
    assert unseen == 0.5
    assert (of_words > 0.75) == (class_weight == "balanced")


def values(result):
    name = "balanced_accuracy"
    return [one.value for one in result.measurements if (one.metric, one.split) == (name, "test")]
