"""Train and test sides that share no group, and on demand no example and no word."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from probekit.amounts import counted
from probekit.data.examples import Dataset, StringArray
from probekit.errors import ConfigError, DataError, nearest

IntArray = npt.NDArray[np.int64]

Strings: TypeAlias = Sequence[str] | StringArray | npt.NDArray[np.str_]

_SIDES = ("train", "test")
_ROUNDING = 1e-9
_SHOWN = 60  # characters of a name in a message


@dataclass(frozen=True)
class Split:
    """The two sides of a data set.

    Attributes:
        train: indices of examples, ascending, shape (n_train,).
        test: indices of examples, ascending, shape (n_test,); none of them in `train`.
    """

    train: IntArray
    test: IntArray


_LEAST_GROUPS = 2  # in test: one group cannot be resampled


def grouped_split(labels: Strings, groups: Strings, *, test: float, seed: int) -> Split:
    """Return a random split that keeps groups whole and puts a share `test` of each label in test.

    Groups are visited in random order, again and again, and one changes sides if that brings the
    number of rows of each label in test nearer to its target, in the chi-square distance. Where
    each row is its own group, this is the plain stratified split.

    Args:
        labels: the class of each row.
        groups: the group of each row.
        test: the wanted share, between 0 and 1; groups that are few or large may not allow it.
        seed: decides the order of the groups.

    Raises:
        ConfigError: `test` is not between 0 and 1.
        DataError: there is one label only, or a label cannot stand on both sides.

    >>> split = grouped_split("xyxyxyxyxyxy", "aabbccddeeff", test=0.3, seed=0)
    >>> split.train.size, split.test.size
    (8, 4)
    """
    if not 0 < test < 1:
        raise ConfigError(f"test: {test} is not between 0 and 1. Give a share, such as 0.2.")
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for label, group in zip(labels, groups, strict=True):
        counts[group][label] += 1
    targets = _targets(counts, test)
    chosen = _choose_groups(counts, targets, np.random.default_rng(seed))
    split = _split(group in chosen for group in groups)
    if len({groups[index] for index in split.test}) < _LEAST_GROUPS <= len(counts) // 2:
        least = math.ceil(100 * _LEAST_GROUPS / len(counts)) / 100
        raise DataError(
            f"A test share of {test} of {len(counts)} groups leaves {len(chosen)} in test, and an "
            f"interval needs {_LEAST_GROUPS}. Set split.test to {least} or more."
        )
    for side, indices in zip(_SIDES, (split.train, split.test), strict=True):
        _require_none(
            set(targets).difference(labels[index] for index in indices),
            f"The {side} side has no row of these labels: {{}}. Their groups are too few or too "
            "uneven for this share. Try another seed or share, or smaller groups.",
        )
    return split


def unlabelled_split(groups: Strings, *, test: float, seed: int) -> Split:
    """Return a random split that keeps groups whole, for labels that are no classes.

    Groups go to test in random order until it has the share `test` of the rows, and two of them.

    Raises:
        ConfigError: `test` is not between 0 and 1.
        DataError: there are fewer than three groups.

    >>> unlabelled_split("aabbccddee", test=0.4, seed=0).test.tolist()
    [4, 5, 8, 9]
    """
    if not 0 < test < 1:
        raise ConfigError(f"test: {test} is not between 0 and 1. Give a share, such as 0.2.")
    sizes = Counter(groups)
    if len(sizes) <= _LEAST_GROUPS:
        raise DataError(
            f"There are {len(sizes)} groups; test needs {_LEAST_GROUPS}, and train one more. Group "
            "more finely."
        )
    names = sorted(sizes)
    order = [names[n] for n in np.random.default_rng(seed).permutation(len(names))]
    rows = np.cumsum([sizes[name] for name in order])
    n_groups = int(np.searchsorted(rows, test * rows[-1])) + 1
    chosen = set(order[: min(max(n_groups, _LEAST_GROUPS), len(order) - 1)])
    return _split(group in chosen for group in groups)


def given_split(dataset: Dataset, *, has_classes: bool = True) -> Split:
    """Return the split that the data file itself assigns.

    Labels that are no classes (`has_classes` is false) need not stand on both sides.

    Raises:
        DataError: an example has no side or an unknown one, a side is empty, a group stands on
            both, test has a label that train lacks, or train has one label only.

    >>> from probekit.data.examples import Example
    >>> rows = [("x", "a", "train"), ("y", "b", "train"), ("y", "c", "test")]
    >>> examples = tuple(Example("Text.", *row[:2], id=row[1], split=row[2]) for row in rows)
    >>> given_split(Dataset("tiny", examples)).test
    array([2])
    """
    others = [example for example in dataset.examples if example.split not in _SIDES]
    if others:
        given = others[0].split
        near = nearest(given or "", _SIDES)
        allowed = "" if near.startswith("Allowed") else " Allowed: test, train."
        raise DataError(
            f"{others[0].where}: the split is {given!r}. {near}{allowed} "
            f"{counted(len(others), 'row')} with such a value: correct or remove them."
        )
    split = _split(example.split == "test" for example in dataset.examples)
    train_groups, test_groups = set(dataset.groups[split.train]), set(dataset.groups[split.test])
    train_labels, test_labels = set(dataset.labels[split.train]), set(dataset.labels[split.test])
    for side, labels in (("test", test_labels), ("train", train_labels)):
        if not labels:
            raise DataError(f"{dataset.name}: no example is on the {side} side.")
    _require_two(train_labels, f"{dataset.name}: the train side")
    _require_none(
        train_groups & test_groups,
        dataset.name + ": these groups stand on both sides: {}. Put each on one.",
    )
    _require_none(
        test_labels - train_labels if has_classes else set(),
        dataset.name + ": train has no example of these labels of test: {}. Move or remove some.",
    )
    return split


def without_repeated(split: Split, dataset: Dataset) -> Split:
    """Return the split less the test examples whose text and span stand in train as well.

    Raises:
        DataError: nothing would be left to test on.

    >>> from probekit.data.examples import Example
    >>> examples = tuple(Example(text, "x", text, text + str(n)) for n, text in enumerate("aba"))
    >>> split = Split(train=np.array([0]), test=np.array([1, 2]))
    >>> without_repeated(split, Dataset("tiny", examples)).test
    array([1])
    """
    seen = {dataset.examples[index].place for index in split.train}
    new = [index for index in split.test if dataset.examples[index].place not in seen]
    if not new:
        raise DataError(f"{dataset.name}: every example of the test side stands in train as well.")
    return Split(split.train, np.array(new))


def joined_groups(labels: Strings, groups: Strings, words: Strings) -> StringArray:
    """Return the groups (n_rows,), those that share a word made one, if these can be split.

    In lists of items few groups share words, and a split of the joined ones loses no row. In
    running text nearly all of them share some: where the largest would hold more than half the
    rows, or a label stand in one alone, the groups are returned as they are.

    >>> joined_groups("xyyx", ["a", "b", "c", "d"], ["Oslo", "Rome", "oslo", "Bonn"]).tolist()
    ['0', '1', '0', '2']
    >>> joined_groups("xyyx", ["a", "b", "c", "d"], ["the", "The", "the", "Bonn"]).tolist()
    ['a', 'b', 'c', 'd']
    """
    names, group_of_row = np.unique(np.asarray(groups, dtype=object), return_inverse=True)
    _, word_of_row = np.unique(_folded(words), return_inverse=True)
    size = len(names) + word_of_row.max() + 1
    links = (np.ones(len(group_of_row)), (group_of_row, len(names) + word_of_row))
    _, number = connected_components(csr_array(links, shape=(size, size)), directed=False)
    joined = number[group_of_row].astype(str).astype(object)
    pairs = Counter(label for label, _ in set(zip(labels, joined, strict=True)))
    largest = max(Counter(joined).values())
    can_be_split = largest <= len(joined) / 2 and min(pairs.values()) > 1
    return joined if can_be_split else np.asarray(groups, dtype=object)


def without_shared_words(
    split: Split, labels: Strings, words: Strings, *, test: float, seed: int
) -> Split:
    """Return the split of rows less those that keep a word, whatever its case, on both sides.

    A word that stands on both sides is given to one of them, and the other loses its rows: to test
    a share `test` of the rows of each label, as nearly as the words allow, else to train. A word of
    one side only stays. So rare words, which stand on one side mostly, weigh more in the test rows
    than before, and both sides shrink: tell how much.

    Args:
        split: indices of rows, no group of which crosses.
        labels: the class of each row.
        words: the word (type) of each row.
        test: the share of the shared words' rows that goes to test, between 0 and 1.
        seed: decides the order in which words are visited.

    Raises:
        DataError: a side would be empty, or test would have a label that train lacks.

    >>> split = Split(train=np.arange(4), test=np.arange(4, 8))
    >>> words = ["a", "b", "c", "d", "A", "B", "C", "f"]
    >>> new = without_shared_words(split, "xxyyxxyy", words, test=0.5, seed=0)
    >>> new.train.tolist(), new.test.tolist()
    ([1, 2, 3], [4, 7])
    """
    folded = _folded(words)
    shared = set(folded[split.train]) & set(folded[split.test])
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for index in (*split.train, *split.test):
        if folded[index] in shared:
            counts[folded[index]][labels[index]] += 1
    for_test = _choose_groups(counts, _wanted(counts, test), np.random.default_rng(seed))
    for_train = shared - for_test
    new = Split(
        np.array([index for index in split.train if folded[index] not in for_test], dtype=int),
        np.array([index for index in split.test if folded[index] not in for_train], dtype=int),
    )
    _require_learnable(new, labels)
    return new


def _require_learnable(split: Split, labels: Strings) -> None:
    train, test = ({labels[index] for index in side} for side in (split.train, split.test))
    for side, found in zip(_SIDES, (train, test), strict=True):
        if not found:
            raise DataError(
                f"Without the words of the other side no row is left in {side}: every word stands "
                "on both. Use another share or seed for the split, or set split.word_disjoint to "
                "false."
            )
    _require_none(
        test - train,
        "Without the words of test no training row has these labels: {}. Their words are too few. "
        "Merge or remove the labels, use another seed or share, or set split.word_disjoint to "
        "false.",
    )


def _folded(words: Strings) -> StringArray:
    """Return the words without regard to case and to spaces around them."""
    return np.array([str(word).strip().casefold() for word in words], dtype=object)


def _split(in_test: Iterable[bool]) -> Split:
    mask = np.fromiter(in_test, dtype=bool)
    return Split(np.flatnonzero(~mask), np.flatnonzero(mask))


def _targets(counts: Mapping[str, Counter[str]], test: float) -> dict[str, float]:
    """Return how many rows of each label the test side should have, if each label can be split."""
    n_rows, n_groups = _totals(counts)
    _require_two(n_rows, "The data set")
    _require_none(
        [label for label, n in n_groups.items() if n < 2],
        "These labels have rows in one group only, so that one side of the split would lack them: "
        "{}. Are they slips for another label? Else remove the rows, merge labels, or group more "
        "finely; numbers are for `kind: ridge_regression`.",
    )
    return _wanted(counts, test)


def _wanted(counts: Mapping[str, Counter[str]], test: float) -> dict[str, float]:
    """Return how many rows of each label the test side should have."""
    n_rows, n_groups = _totals(counts)
    # A rare label still wants one of its groups on either side, whatever the share.
    return {
        label: n_rows[label] * (min(max(test, 1 / n), 1 - 1 / n) if n > 1 else test)
        for label, n in n_groups.items()
    }


def _totals(counts: Mapping[str, Counter[str]]) -> tuple[Counter[str], Counter[str]]:
    """Return how many rows, and how many groups, have each label."""
    n_rows: Counter[str] = Counter()
    n_groups: Counter[str] = Counter()
    for labels in counts.values():
        n_rows.update(labels)
        n_groups.update(labels.keys())
    return n_rows, n_groups


def _choose_groups(
    counts: Mapping[str, Counter[str]], targets: Mapping[str, float], generator: np.random.Generator
) -> set[str]:
    groups = list(counts)
    missing = dict(targets)  # rows of each label that the test side still lacks
    order = [groups[index] for index in generator.permutation(len(groups))]
    chosen: set[str] = set()
    moved = True
    while moved:  # ends: each move lessens the sum of missing^2 / target
        moved = False
        for group in order:
            sign = -1 if group in chosen else 1
            rows = {label: sign * n for label, n in counts[group].items()}
            gain = sum(n * (2 * missing[label] - n) / targets[label] for label, n in rows.items())
            if gain > _ROUNDING:
                moved = True
                chosen ^= {group}
                for label, n in rows.items():
                    missing[label] -= n
    return chosen


def _require_two(labels: Collection[str], what: str) -> None:
    if len(labels) < 2:
        raise DataError(f"{what} has one label only: {_listed(labels)}. A probe needs two or more.")


def _require_none(names: Collection[str], message: str) -> None:
    """Raise `message`, its `{}` filled with the names, if there are any."""
    if names:
        raise DataError(message.format(_listed(names)))


def _listed(names: Collection[str]) -> str:
    cut = (name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..." for name in sorted(names)[:5])
    shown = ", ".join(map(repr, cut))
    return shown + (f", ... ({len(names)} in all)" if len(names) > 5 else "")
