"""Errors that other probing tools make: each test fails where its pitfall is put back.

The numbers are those of the list of pitfalls that the design keeps.
"""

import numpy as np
import pytest

from probekit.data.checks import check_dataset
from probekit.data.examples import Dataset, Example
from probekit.data.readers import read_dataset
from probekit.data.splits import Split, grouped_split, without_repeated, without_shared_words
from probekit.errors import DataError
from probekit.probes.baselines import bag_of_words_guess, length_guess, text_lengths
from probekit.probes.controls import control_labels, majority_guess, word_identity_guess
from probekit.probes.data import ProbeData
from probekit.probes.differences import paired_difference, unpaired_difference
from probekit.probes.folds import group_folds, sample_groups
from probekit.probes.learning import subsets
from probekit.probes.metrics import METRICS, Answers, Resamples, accuracy, percentile_interval


def test_pitfall_19_no_group_is_on_two_sides_of_anything():
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(60), generator.integers(1, 8, size=60)).astype(str)
    labels = generator.choice(["x", "y"], size=len(groups))
    split = grouped_split(labels, groups, test=0.3, seed=0)
    sides = [np.isin(np.arange(len(groups)), split.test)]
    sides += [group_folds(labels, groups, 5, 0) == fold for fold in range(5)]
    sides += [sample_groups(groups, 100, 0), *subsets(groups, (50, 100), 0)]
    for side in sides:
        assert side.any()
        assert not set(groups[side]) & set(groups[~side])
    crossed = np.arange(len(groups))
    with pytest.raises(DataError, match="groups have rows in train and in test"):
        ProbeData(labels, groups, groups, crossed[::2], crossed[1::2])


def test_pitfall_20_what_stands_on_both_sides_is_told_and_left_out_if_asked():
    texts = [f"text {n}" for n in range(60)]
    texts[50] = texts[0]
    examples = [Example(t, "xy"[n % 2], str(n), str(n)) for n, t in enumerate(texts)]
    dataset, split = Dataset("tiny", tuple(examples)), Split(np.arange(40), np.arange(40, 60))
    found = {finding.code: finding.message for finding in check_dataset(dataset, split)}
    assert found["duplicates-across"].startswith("1 of 20 examples in test")
    assert sorted(set(split.test) - set(without_repeated(split, dataset).test)) == [50]


def test_pitfall_21_words_alone_tell_most_tags_until_they_are_kept_apart(shared):
    folder = shared / "datasets" / "ud_english_ewt"
    sides = [read_dataset(folder / f"{side}.conllu", format="conllu") for side in ("train", "test")]
    examples = [example for side in sides for example in side.examples]
    words = np.array([example.text[slice(*example.span)] for example in examples])
    labels = np.array([example.label for example in examples])
    _, codes = np.unique(labels, return_inverse=True)
    n_train = len(sides[0])
    given = Split(np.arange(n_train), np.arange(n_train, len(examples)))
    apart = without_shared_words(given, labels, words, test=0.25, seed=0)

    def right(split, guess):
        return np.mean(guess == codes[split.test])

    def by_word(split):
        train = words[split.train], codes[split.train]
        return right(split, word_identity_guess(*train, words[split.test]))

    majority = majority_guess(codes[given.train], len(given.test))
    assert right(given, majority) == pytest.approx(0.164, abs=0.0005)
    assert by_word(given) == pytest.approx(0.862, abs=0.0005)
    of_apart = majority_guess(codes[apart.train], len(apart.test))
    assert by_word(apart) == right(apart, of_apart)


def test_pitfall_22_control_labels_can_be_learnt_by_word_in_every_draw():
    generator = np.random.default_rng(0)
    words = np.array([f"w{n}" for n in generator.integers(50, size=2000)])
    train_labels = np.array(["a"] * 70 + ["b"] * 30)
    drawn = [control_labels(words, train_labels, seed=0, draw=draw) for draw in range(3)]
    for labels in drawn:
        _, codes = np.unique(labels, return_inverse=True)
        looked_up = word_identity_guess(words[:1000], codes[:1000], words[1000:])
        assert np.array_equal(looked_up, codes[1000:])
    assert not np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[1], drawn[2])
    many = control_labels(np.arange(4000).astype(str), train_labels, seed=0, draw=0)
    assert np.mean(many == "a") == pytest.approx(0.7, abs=0.03)


def test_pitfall_24_imbalance_does_not_pass_for_knowledge():
    truth = np.repeat([0, 1], [95, 5])
    resamples = Resamples.draw(np.arange(100), 0, 0)
    constant = Answers(truth, majority_guess(truth, 100), 2, np.zeros((100, 2)))
    scores = {name: metric(constant, resamples)[0] for name, metric in METRICS.items()}
    assert scores["accuracy"] == 0.95
    assert scores["balanced_accuracy"] == 0.5
    assert scores["macro_f1"] < 0.5
    assert scores["auroc"] == 0.5  # ties count one half, in whatever order the rows stand


def test_pitfall_25_intervals_are_those_of_groups_and_differences_are_paired():
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(80), 8)
    right = np.repeat(generator.random(80) < 0.7, 8)
    better = right | np.repeat(generator.random(80) < 0.1, 8)
    truth = np.ones(640, dtype=int)
    a, b = (Answers(truth, guess.astype(int), 2) for guess in (better, right))

    def width(low, high):
        return high - low

    by_group, by_row = (Resamples.draw(names, 1000, 0) for names in (groups, np.arange(640)))
    wide, narrow = (
        width(found.low, found.high)
        for found in (percentile_interval(accuracy(a, drawn)) for drawn in (by_group, by_row))
    )
    assert wide / narrow == pytest.approx(np.sqrt(8), rel=0.15)
    paired = paired_difference(accuracy, a, b, by_group)
    apart = unpaired_difference(accuracy, a, by_group, b, by_group)
    assert width(paired.ci_low, paired.ci_high) < 0.6 * width(apart.ci_low, apart.ci_high)


def test_pitfall_28_a_label_that_is_a_length_is_told_by_the_length_alone():
    generator = np.random.default_rng(0)
    codes = generator.integers(2, size=400)
    lengths = np.where(codes == 1, generator.integers(8, 15, 400), generator.integers(2, 8, 400))
    texts = [" ".join(generator.choice(list("abcdef"), size=length)) for length in lengths]
    train, test, folds = np.arange(300), np.arange(300, 400), np.arange(300) % 5
    features = text_lengths(texts)
    told = length_guess(features[train], codes[train], folds, features[test], 2)
    assert np.mean(told.guess == codes[test]) > 0.97
    # As a bag of words knows how many there are, it finds the same: a leak, not a meaning.
    counted = bag_of_words_guess(texts[:300], codes[train], folds, texts[300:], 2)
    assert np.mean(counted.guess == codes[test]) > 0.9
    examples = tuple(Example(t, "xy"[c], str(n), str(n)) for n, (t, c) in
                     enumerate(zip(texts, codes, strict=True)))  # fmt: skip
    found = {f.code: f.level for f in check_dataset(Dataset("t", examples), Split(train, test))}
    assert found["length"] == "warning"
