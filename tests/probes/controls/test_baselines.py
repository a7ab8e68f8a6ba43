"""Predictive words and lengths are found, others are not; test rows are not used for fitting."""

from dataclasses import replace

import numpy as np
import pytest

from probekit.errors import DataError
from probekit.probes import controls as baselines
from probekit.probes.controls import PENALTIES, TEXT_BASELINES, TEXT_C, word_counts
from probekit.probes.data import ProbeData
from probekit.probes.prober import Prober
from probekit.probes.score.metrics import NumberPredictions, Resamples, r2
from probekit.probes.settings import ProbeSettings
from tests.stored import each_row

bag_of_words, n_grams, neighbouring_words, length, output = TEXT_BASELINES
LONGEST = {bag_of_words: 1, n_grams: 2}  # of the baselines that count words in texts
TRAIN, TEST = slice(0, 300), slice(300, 400)
FOLDS = np.arange(300) // 2 % 5


def text_model(baseline, train, labels, folds, tested, n_classes):
    """The outputs for the tested inputs, and the penalty; texts are given as texts."""
    inputs = np.concatenate([train, tested])
    if baseline in LONGEST:
        inputs = word_counts(inputs, LONGEST[baseline])
    own, others = inputs[: len(train)], inputs[len(train) :]
    features = TEXT_BASELINES[baseline][1]
    return baselines.text_model(features, own, labels, folds, others, n_classes)[:2]


def predicted(features, X, labels, tested=None, n_classes=None):
    """Predictions of the test rows by a baseline: classes if there is a number of them."""
    tested = X[TEST] if tested is None else tested
    found, _ = text_model(features, X[TRAIN], labels[TRAIN], FOLDS, tested, n_classes)
    return found if n_classes is None else found.argmax(axis=1)


def share_right(features, X, codes, n_classes=2):
    return np.mean(predicted(features, X, codes, n_classes=n_classes) == codes[TEST])


def texts_of(codes, seed=0):
    """Texts of common words, with one word that goes with the code."""
    generator = np.random.default_rng(seed)
    common, telling = list("abcdefgh"), ["Red", "green", "blue"]
    return np.array([" ".join([*generator.choice(common, size=6), telling[c]]) for c in codes])


def codes_of(n_classes=3, seed=1):
    return np.random.default_rng(seed).integers(n_classes, size=400)


NUMBERS = np.array([3.0, -4.0, 10.0])  # of the codes


def test_words_that_predict_the_label_are_found_and_those_of_random_labels_are_not():
    codes = codes_of()
    texts = texts_of(codes)
    logs, C = text_model(bag_of_words, texts[TRAIN], codes[TRAIN], FOLDS, texts[TEST], 4)
    assert np.mean(logs.argmax(axis=1) == codes[TEST]) == 1.0
    assert C in TEXT_C
    assert np.isneginf(logs[:, 3]).all()
    np.testing.assert_allclose(np.exp(logs).sum(axis=1), 1)
    assert r2_of(predicted(bag_of_words, texts, NUMBERS[codes]), NUMBERS[codes]) > 0.99
    assert share_right(bag_of_words, texts, codes_of(2, seed=5)) == pytest.approx(0.5, abs=0.15)


def r2_of(numbers, labels):
    return r2(NumberPredictions(labels[TEST], numbers), Resamples.whole(100))[0]


def test_word_order_is_found_by_n_grams_and_not_by_a_bag_of_words():
    """Only the order of two words depends on the code."""
    codes, generator = codes_of(2), np.random.default_rng(0)
    orders = np.array(["not but", "but not"])[codes]
    texts = np.array([" ".join([pair, *generator.choice(list("abcd"), 4)]) for pair in orders])
    assert share_right(n_grams, texts, codes) == 1.0
    assert share_right(bag_of_words, texts, codes) == pytest.approx(0.5, abs=0.15)
    assert r2_of(predicted(n_grams, texts, NUMBERS[codes]), NUMBERS[codes]) > 0.98


@pytest.mark.parametrize("place", [0, 1, 2])
def test_neighbouring_words_that_predict_the_label_are_found_at_their_own_place(place):
    words = np.random.default_rng(2).choice(["to", "a", "the"], size=(400, 3)).astype(object)
    codes = (words[:, place] == "to").astype(int)
    assert share_right(neighbouring_words, words, codes) == 1.0
    moved = np.roll(words, 1, axis=1)[TEST]
    assert np.mean(predicted(neighbouring_words, words, codes, moved, 2) == codes[TEST]) < 0.8
    new = np.array([["unseen"] * 3], dtype=object)
    assert predicted(neighbouring_words, words, codes, new, 2).tolist() == [0]
    given = words[TRAIN], NUMBERS[codes][TRAIN], FOLDS, words[TEST]
    numbers, alpha = text_model(neighbouring_words, *given, n_classes=None)
    assert r2_of(numbers, NUMBERS[codes]) > 0.98
    assert alpha in PENALTIES


def test_the_vocabulary_comes_from_the_training_texts_and_ignores_case():
    codes = codes_of()
    texts = texts_of(codes)
    given = bag_of_words, texts[TRAIN], codes[TRAIN], FOLDS
    others = np.array([["RED!", "zebra", "green"], ["zebra", "yak", ""]])
    seen, unknown = (text_model(*given, words, 3)[0] for words in others)
    assert seen.argmax(axis=1).tolist()[::2] == [0, 1]
    assert len(np.unique(unknown[:, 0])) == 1
    assert np.array_equal(seen[1], unknown[0])  # predictions do not depend on the other texts


@pytest.mark.parametrize("order", [[0, 1, 2], [1, 2, 1]])
def test_lengths_that_predict_the_label_are_found_also_in_the_middle(order):
    lengths = np.random.default_rng(0).integers(1, 91, size=(400, 1)).astype(float)
    codes = np.array(order)[((lengths[:, 0] - 1) // 30).astype(int)]
    assert share_right(length, lengths, codes, 3) > 0.9
    bent = np.abs(lengths[:, 0] - 45)
    assert r2_of(predicted(length, lengths, bent), bent) > 0.9


def test_lengths_that_do_not_differ_tell_the_majority():
    codes = np.array([0] * 100 + [1] * 300)[np.random.default_rng(0).permutation(400)]
    found = predicted(length, np.ones((400, 2)), codes, np.full((3, 2), 7.0), 2)
    assert found.tolist() == [1, 1, 1]


def test_the_strength_is_chosen_on_rows_of_other_groups():
    # Each group has a word and a label of its own; those of other groups teach nothing.
    codes = np.repeat((np.arange(100) % 3 == 0).astype(int), 3)
    texts = np.repeat([f"w{group} x y" for group in range(100)], 3)
    both = np.arange(300) // 3 % 5, np.arange(300) % 3
    tested = np.array(["x"]), 2
    by_group, by_row = (text_model(bag_of_words, texts, codes, one, *tested)[1] for one in both)
    assert by_group == TEXT_C[0]
    assert by_row >= 1


def test_a_label_of_a_single_fold_is_no_obstacle(refused):
    codes = (FOLDS == 2).astype(int)
    texts, tested = texts_of(codes), np.array(["green", "red"])
    (green, red), _ = text_model(bag_of_words, texts, codes, FOLDS, tested, 2)
    assert green[1] > red[1]
    refused(text_model, bag_of_words, texts, 0 * codes, FOLDS, tested, 2)


@each_row("words, codes, tested, expected")
def test_word_identity_knows_seen_words_and_uses_the_overall_frequency_else(
    words, codes, tested, expected
):
    given = (np.array(one) for one in (words, codes, tested))
    logs = baselines.word_identity_log_frequencies(*given, 3)
    assert logs.argmax(axis=1).tolist() == expected


def test_lengths_are_counted_in_characters_and_words():
    row, texts = np.arange(4), np.array(["a bc", "d", "e", "f"], dtype=object)
    names = row.astype(str)
    data = ProbeData(np.array(list("xyxy")), names, names, row[:2], row[2:], texts=texts)
    assert TEXT_BASELINES["length"][0](data, np.arange(2)).tolist() == [[4, 2], [1, 1]]


def test_large_groups_are_refused_by_name_only_for_baselines_of_the_text(monkeypatch):
    monkeypatch.setattr(baselines, "MOST_TEXTS", 30)
    row, group = np.arange(160), np.arange(160) // 40  # 80 training rows in 2 groups
    y, names = np.array(list("xy") * 80), np.array([f"speaker {n}" for n in range(4)], dtype=object)
    data = ProbeData(y, group, row.astype(str), row[:80], row[80:], group_names=names)
    texts = replace(data, texts=np.array([f"text {n}" for n in row], dtype=object))

    def measured(data, *given):
        settings = {"control_draws": 0, "description": False, "folds": 2}
        result = Prober(data, ProbeSettings(baselines=given, **settings)).baselines()
        return {one.target for one in result.measurements}

    assert measured(data, "majority", "bag_of_words") == {"majority"}
    assert measured(texts, "majority") == {"majority"}
    with pytest.raises(DataError, match=r"the group 'speaker [01]' alone has 40 rows"):
        measured(texts, "bag_of_words")


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
    given = {"control_draws": 0, "description": False, "metric": "balanced_accuracy"}
    names = ("bag_of_words", "word_identity")
    prober = Prober(data, ProbeSettings(class_weight=class_weight, baselines=names, **given))
    (probe,) = values(prober.site(words.astype(np.float32)))
    of_words, unseen = sorted(values(prober.baselines()), reverse=True)
    assert of_words > probe - 0.03
    assert unseen == 0.5
    assert (of_words > 0.75) == (class_weight == "balanced")


def values(result):
    name = "balanced_accuracy"
    return [one.value for one in result.measurements if (one.metric, one.split) == (name, "test")]
