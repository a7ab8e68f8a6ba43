import numpy as np

from probekit.probes.controls.control_labels import (
    control_labels,
    majority_guess,
    word_identity_guess,
)

WORDS = np.array([f"word{i}" for i in range(4000)])
TRAIN = np.array(["noun"] * 60 + ["verb"] * 30 + ["adj"] * 10)


def test_labels_are_per_type_and_depend_on_no_other_row():
    words = np.random.default_rng(0).choice(WORDS[:50], size=300)
    labels = control_labels(words, TRAIN, seed=0, draw=0)
    for word in set(words):
        assert len(set(labels[words == word])) == 1
    order = np.random.default_rng(1).permutation(300)[:100]
    assert np.array_equal(control_labels(words[order], TRAIN, seed=0, draw=0), labels[order])


def test_labels_follow_the_training_distribution():
    labels = control_labels(WORDS, TRAIN, seed=0, draw=0)
    for label, share in [("noun", 0.6), ("verb", 0.3), ("adj", 0.1)]:
        assert abs(np.mean(labels == label) - share) < 0.03


def test_seed_and_draw_each_change_the_labels_and_nothing_else_does():
    first = control_labels(WORDS, TRAIN, seed=0, draw=0)
    assert np.array_equal(control_labels(WORDS, TRAIN[::-1], seed=0, draw=0), first)
    chance = np.square([0.6, 0.3, 0.1]).sum()
    for other in (
        control_labels(WORDS, TRAIN, seed=1, draw=0),
        control_labels(WORDS, TRAIN, seed=0, draw=1),
    ):
        assert abs(np.mean(first == other) - chance) < 0.03


def test_labels_stay_the_same_between_releases():
    words = np.array(["the", "bank", "river", "of", "Zürich"])
    labels = control_labels(words, TRAIN, seed=0, draw=0)
    assert labels.tolist() == ["adj", "verb", "noun", "noun", "verb"]


def test_majority_is_the_most_frequent_training_label():
    assert majority_guess(np.array([0, 2, 2, 1]), 3).tolist() == [2, 2, 2]


def test_word_identity_knows_seen_words_and_falls_back_on_the_majority():
    words = np.array(["run", "run", "run", "cat", "cat", "sea", "sea"])
    codes = np.array([1, 1, 0, 2, 2, 1, 2])
    guess = word_identity_guess(words, codes, np.array(["cat", "run", "zoo", "aardvark", "sea"]))
    # "zoo" and "aardvark" are unseen; 1 and 2 are equally frequent, for "sea" and over all.
    assert guess.tolist() == [2, 1, 1, 1, 1]


def test_word_identity_breaks_a_tie_by_the_overall_frequency():
    words = np.array(["sea", "sea", "cat", "cat"])
    guess = word_identity_guess(words, np.array([0, 2, 2, 2]), np.array(["sea"]))
    assert guess.tolist() == [2]
