"""No group on both sides, every label on both, and the requested share."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.data.examples import Dataset, Example
from probekit.data.splits import (
    Split,
    given_split,
    grouped_split,
    joined_groups,
    without_repeated,
    without_shared_words,
)
from tests.stored import each_line


def shares(labels, split):
    """The share of each label's rows that is in test."""
    n_rows, n_test = Counter(labels), Counter(labels[index] for index in split.test)
    return {label: n_test[label] / n_rows[label] for label in n_rows}


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), test=st.floats(0.1, 0.6), n_labels=st.integers(2, 4))
def test_groups_stay_whole_and_every_label_has_its_share(seed, test, n_labels):
    generator = np.random.default_rng(seed)
    groups = np.repeat(np.arange(200), generator.integers(1, 9, 200)).astype(str).astype(object)
    labels = generator.choice(list("abcd")[:n_labels], len(groups)).astype(object)
    split = grouped_split(labels, groups, test=test, seed=seed)
    assert sorted([*split.train, *split.test]) == list(range(len(labels)))
    assert np.all(np.diff(split.train) > 0)
    assert np.all(np.diff(split.test) > 0)
    assert not set(groups[split.train]) & set(groups[split.test])
    for share in shares(labels, split).values():
        assert share == pytest.approx(test, abs=0.02)


def test_rows_that_are_their_own_groups_are_split_by_label_exactly():
    labels = ["rare"] * 10 + ["common"] * 190
    split = grouped_split(labels, [str(row) for row in range(200)], test=0.2, seed=0)
    assert Counter(labels[index] for index in split.test) == {"rare": 2, "common": 38}


def test_the_seed_alone_decides():
    labels, groups = list("ab") * 50, [str(row // 2) for row in range(100)]
    first, again, other = (grouped_split(labels, groups, test=0.3, seed=s) for s in (0, 0, 1))
    assert np.array_equal(first.test, again.test)
    assert not np.array_equal(first.test, other.test)


def test_large_groups_are_not_preferred():
    groups = np.repeat(np.arange(400), np.tile([1, 9], 200)).astype(str)
    split = grouped_split(list(np.resize(["a", "b"], len(groups))), list(groups), test=0.25, seed=0)
    n_rows = Counter(Counter(groups[split.test]).values())
    assert n_rows[1] == pytest.approx(50, abs=15)
    assert n_rows[9] == pytest.approx(50, abs=15)


def test_a_label_of_two_groups_has_one_on_each_side():
    labels = ["rare", "rare", *["common"] * 98]
    groups = [str(row) for row in range(100)]
    for test in (0.05, 0.9):
        assert shares(labels, grouped_split(labels, groups, test=test, seed=0))["rare"] == 0.5


ROWS = [("x", "a", "train"), ("y", "a", "train"), ("y", "b", "test"), ("x", "c", "test")]


def dataset_of(rows):
    """A data set of rows (label, group, split)."""
    examples = [
        Example("Text.", label, group, f"row {number}", split=side)
        for number, (label, group, side) in enumerate(rows)
    ]
    return Dataset("tiny", tuple(examples))


def test_the_split_of_the_file_is_kept():
    split = given_split(dataset_of(ROWS))
    assert split.train.tolist() == [0, 1]
    assert split.test.tolist() == [2, 3]


TEXTS = [("one", (0, 1)), ("one", (1, 2)), ("two", None), ("one", (0, 1)), ("one", None)]
REPEATED = Dataset(
    "tiny", tuple(Example(text, "y", str(n), str(n), span) for n, (text, span) in enumerate(TEXTS))
)


def test_test_examples_that_occur_in_train_are_dropped_by_span():
    split = Split(train=np.array([0, 2]), test=np.array([1, 3, 4]))
    assert without_repeated(split, REPEATED).test.tolist() == [1, 4]


def folded(words):
    return {word.strip().casefold() for word in words}


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), test=st.floats(0.1, 0.6), n_words=st.integers(20, 400))
def test_no_word_is_left_on_both_sides_and_none_of_one_side_is_lost(seed, test, n_words):
    generator = np.random.default_rng(seed)
    numbers = generator.integers(n_words, size=300)
    spellings = np.array([str.upper, str.lower, " {}".format])
    spelt = zip(generator.choice(spellings, 300), numbers, strict=True)
    words = np.array([spell(f"word{n}") for spell, n in spelt])
    labels = np.array(["a", "b"], dtype=object)[numbers % 2]
    split = Split(np.arange(200), np.arange(200, 300))
    new = without_shared_words(split, labels, words, test=test, seed=seed)
    assert not folded(words[new.train]) & folded(words[new.test])
    assert set(new.train) <= set(split.train)
    assert set(new.test) <= set(split.test)
    # Each word is on one side, with all the rows that it had there.
    alone = [set(numbers[side]) for side in (split.train, split.test)]
    kept = [set(numbers[side]) for side in (new.train, new.test)]
    assert kept[0] | kept[1] == alone[0] | alone[1]
    for side, words_there in zip((new.train, new.test), kept, strict=True):
        before = split.train if side is new.train else split.test
        assert len(side) == np.isin(numbers[before], list(words_there)).sum()


@pytest.mark.parametrize("other", ["Caf\xe9 ", "cafe\u0301", "caf\xe9\u200b"])
def test_words_that_look_the_same_are_one_word(other):
    words, labels = ["caf\xe9", "b", "c", other, "d", "e"], list("xyxxyx")
    assert len(set(joined_groups(labels, list("abcdef"), words))) == 5
    split = Split(np.arange(3), np.arange(3, 6))
    new = without_shared_words(split, labels, words, test=0.5, seed=0)
    assert len(new.train) + len(new.test) == 5


def test_shared_words_go_to_test_by_the_share_and_the_seed():
    words = np.array([f"w{n}" for n in range(400)] * 2)
    labels = np.array(["x", "y"] * 400, dtype=object)
    split = Split(np.arange(400), np.arange(400, 800))
    first, again, other = (
        without_shared_words(split, labels, words, test=0.25, seed=seed) for seed in (0, 0, 1)
    )
    assert (len(first.train), len(first.test)) == (300, 100)
    assert Counter(labels[first.test]) == {"x": 50, "y": 50}
    assert np.array_equal(first.test, again.test)
    assert not np.array_equal(first.test, other.test)


def test_groups_that_share_words_by_a_chain_are_one():
    groups = ["a", "b", "b", "c", "d", "e", "f", "f"]
    words = ["Oslo", "oslo", "Rome", "rome ", "Bonn", "Bern", "Bern", "Wien"]
    joined = joined_groups("xyxyxyxy", groups, words)
    assert len(set(joined[:4])) == 1
    assert len(set(joined)) == 3
    assert joined[4] not in (joined[0], joined[5])
    assert joined[5] == joined[6] == joined[7]


def test_groups_stay_separate_if_merged_ones_cannot_be_split():
    groups = ["a", "b", "c", "d"]
    assert joined_groups("xyyx", groups, ["the", "the", "the", "a"]).tolist() == groups
    assert joined_groups("xxyy", groups, ["p", "p", "q", "q"]).tolist() == groups


NUMBERS = [str(row) for row in range(400)]
# "rare" is only in groups that are far too large for the share.
LARGE = ["rare", *["common"] * 100] * 2, ["g"] * 101 + ["h"] * 101
FOUR, SIX = (Split(np.arange(n), np.arange(n, 2 * n)) for n in (2, 3))


@each_line("call")
def test_impossible_splits_are_refused_by_label_and_group(call, refused):
    refused(eval, call, globals())


def test_words_of_the_english_treebank_are_held_out_with_every_tag(ewt):
    examples = [*ewt["train"].examples[:30_000], *ewt["test"].examples]
    labels = np.array([example.label for example in examples], dtype=object)
    words = [example.text[slice(*example.span)] for example in examples]
    split = Split(np.arange(30_000), np.arange(30_000, len(examples)))
    new = without_shared_words(split, labels, words, test=0.25, seed=0)
    assert not folded(words[row] for row in new.train) & folded(words[row] for row in new.test)
    assert len(new.train) > 0.5 * len(split.train)
    assert len(new.test) > 0.25 * len(split.test)
    assert set(labels[new.train]) == set(labels)
