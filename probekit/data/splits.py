"""Train/test splits without shared groups, and optionally without shared texts or words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from probekit.amounts import counted
from probekit.data.examples import Dataset, StringArray, TextSpan, rows_of
from probekit.data.labels import folded
from probekit.errors import DataError, nearest

IntArray = npt.NDArray[np.int64]

Strings: TypeAlias = Sequence[str] | StringArray | npt.NDArray[np.str_]
Groups: TypeAlias = Strings | IntArray  # names, or codes in their order

_SIDES = ("train", "test")
_ROUNDING = 1e-9
_SHOWN = 60  # characters of a name in a message
_MOST_TYPOS = 3  # labels in a message with the labels that they may be


class Split(NamedTuple):
    """Train and test side of a data set.

    Attributes:
        train: indices of training examples, ascending, shape (n_train,).
        test: indices of test examples, ascending, shape (n_test,); disjoint from `train`.
    """

    train: IntArray
    test: IntArray


_MIN_TEST_GROUPS = 2  # an interval over groups needs two


def grouped_split(
    labels: Strings, groups: Groups, *, test: float, seed: int, dataset: Dataset | None = None
) -> Split:
    """Split whole groups at random, so that about a share `test` of each label is in test.

    Groups are visited repeatedly in random order. A group changes sides if that reduces the
    chi-square distance between the label counts in test and their targets. If each row is its own
    group, this is a stratified split.

    Args:
        labels: label of each row.
        groups: group of each row.
        test: target share of test rows, between 0 and 1; only approximated if groups are few or
            large.
        seed: random seed for the order of groups.
        dataset: the rows, for messages.

    Raises:
        DataError: there is only one label, a label cannot be on both sides, or test would have
            fewer than two of at least four groups.

    >>> split = grouped_split("xyxyxyxyxyxy", "aabbccddeeff", test=0.3, seed=0)
    >>> split.train.size, split.test.size
    (8, 4)
    """
    counts = labels_of_groups(labels, groups, dataset)
    chosen = _choose_groups(counts, _target_rows(counts, test), np.random.default_rng(seed))
    split = _split(chosen[counts.group_of_row])
    n_groups, n_chosen = len(chosen), int(chosen.sum())
    if n_chosen < _MIN_TEST_GROUPS and n_groups >= 2 * _MIN_TEST_GROUPS:
        minimum = math.ceil(100 * _MIN_TEST_GROUPS / n_groups) / 100
        raise DataError(
            f"A test share of {test} puts {n_chosen} of {n_groups} groups in test, but a "
            f"confidence interval needs {_MIN_TEST_GROUPS}. Set split.test to at least {minimum}."
        )
    for side, indices in zip(_SIDES, split, strict=True):
        lacking = np.setdiff1d(np.arange(len(counts.labels)), counts.label_of_row[indices])
        _require_none(
            counts.labels[lacking],
            f"The {side} side has no row with these labels: {{}}. They have too few groups, or too "
            "large ones. Use another seed or share, or smaller groups.",
        )
    return split


@dataclass(frozen=True, eq=False)
class LabelCounts:
    """Number of rows of each label in each group: an entry for each pair that has rows.

    Attributes:
        labels: the labels in the order in which they appear, shape (n_labels,).
        label_of_row: index of the label of each row, shape (n_rows,).
        group_of_row: index of the group of each row, in order of appearance, shape (n_rows,).
        group: index of the group of each entry, ascending, shape (n_entries,).
        label: index of the label of each entry, shape (n_entries,).
        n_rows: number of rows of each entry, shape (n_entries,).
    """

    labels: StringArray
    label_of_row: IntArray
    group_of_row: IntArray
    group: IntArray
    label: IntArray
    n_rows: IntArray

    @classmethod
    def of(cls, labels: Strings, groups: Groups) -> LabelCounts:
        """Return the counts of rows with these labels and groups.

        >>> LabelCounts.of("xyxx", "aabb").n_rows.tolist()
        [1, 1, 2]
        """
        label_of_row, names = pd.factorize(np.array(list(labels), dtype=object))
        group_of_row, _ = pd.factorize(np.asarray(list(groups)))
        entries, n_rows = np.unique(group_of_row * len(names) + label_of_row, return_counts=True)
        group, label = np.divmod(entries, len(names))
        return cls(names, label_of_row, group_of_row, group, label, n_rows)

    @property
    def n_groups_of_label(self) -> IntArray:
        """Number of groups with rows of each label, shape (n_labels,)."""
        return np.bincount(self.label)


def labels_of_groups(
    labels: Strings, groups: Groups, dataset: Dataset | None = None
) -> LabelCounts:
    """Return the number of rows of each label in each group; messages name rows of `dataset`.

    Raises:
        DataError: there is only one label, or a label occurs in one group only.
    """
    counts = LabelCounts.of(labels, groups)
    _require_two(counts.labels, "The data set")
    is_alone = counts.n_groups_of_label < 2
    alone, others = counts.labels[is_alone], counts.labels[~is_alone].tolist()
    rows = ""
    if dataset is not None:
        rows = rows_of(dataset.select(np.flatnonzero(is_alone[counts.label_of_row])).examples)
    likely = ((label, nearest(label, others)) for label in sorted(alone))
    typos = [
        near.replace("Nearest:", f" Nearest to {label!r}:")
        for label, near in likely
        if near.startswith("Nearest:")
    ]
    are_numbers = all(label.lstrip("+-").replace(".", "", 1).isdecimal() for label in alone)
    _require_none(
        alone,
        f"These labels have rows in one group only{rows and f' ({rows})'}, so that one side of the "
        f"split would lack them: {{}}.{''.join(typos[:_MOST_TYPOS])} Correct typos, remove the "
        "rows, merge labels, or use smaller groups."
        + (" For numeric labels, use `kind: ridge_regression`." if are_numbers else ""),
    )
    return counts


def unlabelled_split(groups: Groups, *, test: float, seed: int) -> Split:
    """Return a random split by groups, for labels that are not classes.

    Groups are added to test in random order until it has a share `test` of the rows and at least
    two groups; one group remains in train in any case.

    Raises:
        DataError: there are fewer than three groups.

    >>> unlabelled_split("aabbccddee", test=0.4, seed=0).test.tolist()
    [4, 5, 8, 9]
    """
    _, group_of_row = np.unique(np.asarray(list(groups)), return_inverse=True)
    sizes = np.bincount(group_of_row)
    if len(sizes) <= _MIN_TEST_GROUPS:
        raise DataError(
            f"There are {len(sizes)} groups; test needs {_MIN_TEST_GROUPS} and train at least one. "
            "Use smaller groups."
        )
    order = np.random.default_rng(seed).permutation(len(sizes))
    n_rows = np.cumsum(sizes[order])
    # The fewest first groups that have the share of the rows.
    n_groups = int(np.searchsorted(n_rows, test * n_rows[-1])) + 1
    # Test has at least two groups, and train at least one.
    n_groups = min(max(n_groups, _MIN_TEST_GROUPS), len(order) - 1)
    return _split(np.isin(group_of_row, order[:n_groups]))


def given_split(dataset: Dataset, *, has_classes: bool = True) -> Split:
    """Return the split that the data file assigns.

    With `has_classes=False`, a label in test need not occur in train.

    Raises:
        DataError: an example has no split or an unknown one, a side is empty, a group is on both
            sides, test has a label that train lacks, or train has only one label.

    >>> from probekit.data.examples import Example
    >>> rows = [("x", "a", "train"), ("y", "b", "train"), ("y", "c", "test")]
    >>> examples = tuple(Example("Text.", *row[:2], id=row[1], split=row[2]) for row in rows)
    >>> given_split(Dataset("tiny", examples)).test
    array([2])
    """
    sides = dataset.column("split")
    others = np.flatnonzero([side not in _SIDES for side in sides])
    if len(others):
        raise DataError(
            f"{dataset.examples[others[0]].where}: the split is {sides[others[0]]!r}. Allowed: "
            f"test, train. {counted(len(others), 'row')} with such a value: correct or remove them."
        )
    split = _split(sides == "test")
    train_groups, test_groups = (set(dataset.groups[rows]) for rows in split)
    train_labels, test_labels = (set(dataset.labels[rows]) for rows in split)
    for side, labels in (("test", test_labels), ("train", train_labels)):
        if not labels:
            raise DataError(f"{dataset.name}: the {side} side has no example. Assign some to it.")
    _require_two(train_labels, f"{dataset.name}: the train side")
    _require_none(
        train_groups & test_groups,
        dataset.name + ": these groups are on both sides: {}. Assign each to one side.",
    )
    _require_none(
        test_labels - train_labels if has_classes else set(),
        dataset.name + ": train lacks these labels of test: {}. Move or remove their examples.",
    )
    return split


def without_repeated(split: Split, dataset: Dataset) -> Split:
    """Return the split without test examples whose text and span also occur in train.

    Raises:
        DataError: no test example would remain.

    >>> from probekit.data.examples import Example
    >>> examples = tuple(Example(text, "x", text, text + str(n)) for n, text in enumerate("aba"))
    >>> split = Split(train=np.array([0]), test=np.array([1, 2]))
    >>> without_repeated(split, Dataset("tiny", examples)).test
    array([1])
    """
    seen = {dataset.examples[index].place for index in split.train}
    new = [index for index in split.test if dataset.examples[index].place not in seen]
    if not new:
        raise DataError(
            f"{dataset.name}: all test examples also occur in train. Use another split."
        )
    return Split(split.train, np.array(new))


def in_one_group(dataset: Dataset, *, once: bool = False) -> IntArray:
    """Return the indices of the examples whose text and span occur in no earlier group, ascending.

    Folds of groups then share no text, and no text counts as several independent groups. With
    `once`, no earlier example has them.

    >>> from probekit.data.examples import Example
    >>> rows = [("a", "g"), ("b", "g"), ("a", "g"), ("a", "h"), ("c", "h")]
    >>> examples = tuple(Example(text, "x", group, str(n)) for n, (text, group) in enumerate(rows))
    >>> in_one_group(Dataset("tiny", examples))
    array([0, 1, 2, 4])
    >>> in_one_group(Dataset("tiny", examples), once=True)
    array([0, 1, 4])
    """
    first: dict[TextSpan, str | int] = {}
    owners = [n if once else one.group for n, one in enumerate(dataset.examples)]
    pairs = zip(dataset.examples, owners, strict=True)
    return np.flatnonzero([first.setdefault(one.place, owner) == owner for one, owner in pairs])


def joined_groups(labels: Strings, groups: Strings, words: Strings) -> StringArray:
    """Merge groups that share a word, as `folded`; return the group of each row, shape (n_rows,).

    The original groups are returned if the merged ones cannot be split: if the largest has more
    than half of the rows, or a label occurs in one of them only. In running text nearly all groups
    share words, so this is the usual case. In lists of items few groups do, and a split of the
    merged groups loses no row.

    >>> joined_groups("xyyx", ["a", "b", "c", "d"], ["Oslo", "Rome", "oslo", "Bonn"]).tolist()
    ['0', '1', '0', '2']
    >>> joined_groups("xyyx", ["a", "b", "c", "d"], ["the", "The", "the", "Bonn"]).tolist()
    ['a', 'b', 'c', 'd']
    """
    names, group_of_row = np.unique(np.asarray(groups, dtype=object), return_inverse=True)
    _, word_of_row = np.unique([*map(folded, words)], return_inverse=True)
    # A graph with a node for each group and for each word; each row links its group to its word.
    size = len(names) + word_of_row.max() + 1
    links = (np.ones(len(group_of_row)), (group_of_row, len(names) + word_of_row))
    _, component = connected_components(csr_array(links, shape=(size, size)), directed=False)
    merged = component[group_of_row].astype(str).astype(object)
    n_groups_of_label = Counter(label for label, _ in set(zip(labels, merged, strict=True)))
    largest = max(Counter(merged).values())
    can_be_split = largest <= len(merged) / 2 and min(n_groups_of_label.values()) > 1
    return merged if can_be_split else np.asarray(groups, dtype=object)


def without_shared_words(
    split: Split, labels: Strings, words: Strings, *, test: float, seed: int
) -> Split:
    """Drop rows so that no word, as `folded`, occurs on both sides of the split.

    Each word that is on both sides is assigned to one side, and its rows on the other side are
    dropped. For each label, about a share `test` of the rows of such words goes to test. Words that
    are on one side only keep all their rows. Both sides shrink, and rare words get a larger weight
    among the test rows, so report the numbers of dropped rows.

    Args:
        split: indices of rows; no group is on both sides.
        labels: label of each row.
        words: word type of each row.
        test: share of the rows of words on both sides that goes to test, between 0 and 1.
        seed: random seed for the order of words.

    Raises:
        DataError: a side would be empty, or test would have a label that train lacks.

    >>> split = Split(train=np.arange(4), test=np.arange(4, 8))
    >>> words = ["a", "b", "c", "d", "A", "B", "C", "f"]
    >>> new = without_shared_words(split, "xxyyxxyy", words, test=0.5, seed=0)
    >>> new.train.tolist(), new.test.tolist()
    ([1, 2, 3], [4, 7])
    """
    forms = np.array([*map(folded, words)], dtype=object)
    shared = set(forms[split.train]) & set(forms[split.test])
    rows = np.concatenate(split)
    rows = rows[[word in shared for word in forms[rows]]]
    for_test = set[str]()
    if len(rows):
        counts = LabelCounts.of([labels[row] for row in rows], forms[rows])
        chosen = _choose_groups(counts, _target_rows(counts, test), np.random.default_rng(seed))
        for_test = set(forms[rows[chosen[counts.group_of_row]]])
    for_train = shared - for_test
    train = [index for index in split.train if forms[index] not in for_test]
    tested = [index for index in split.test if forms[index] not in for_train]
    new = Split(np.array(train, dtype=int), np.array(tested, dtype=int))
    in_train, in_test = ({labels[index] for index in side} for side in new)
    for side, side_labels in zip(_SIDES, (in_train, in_test), strict=True):
        if not side_labels:
            raise DataError(
                f"No row is left in {side}, because every word is on both sides. Use another share "
                "or seed for the split, or set split.word_disjoint to false."
            )
    _require_none(
        in_test - in_train,
        "Without the words of test, no training row has these labels: {}. They have too few words. "
        "Merge or remove the labels, use another seed or share, or set split.word_disjoint to "
        "false.",
    )
    return new


def _split(in_test: npt.NDArray[np.bool_]) -> Split:
    """Return the split, given whether each example is in test."""
    return Split(np.flatnonzero(~in_test), np.flatnonzero(in_test))


def _target_rows(counts: LabelCounts, test: float) -> npt.NDArray[np.float64]:
    """Return the target number of test rows of each label, shape (n_labels,)."""
    n_groups = counts.n_groups_of_label
    # A rare label needs about one of its groups on each side, whatever the share.
    share = np.where(n_groups > 1, np.clip(test, 1 / n_groups, 1 - 1 / n_groups), test)
    return share * np.bincount(counts.label_of_row)


def _choose_groups(
    counts: LabelCounts, targets: npt.NDArray[np.float64], generator: np.random.Generator
) -> npt.NDArray[np.bool_]:
    """Return a mask (n_groups,) of groups whose rows are about as many, of each label, as targets.

    A group in the mask is in test.
    """
    n_groups = int(counts.group[-1]) + 1
    # Lists, because single numbers of an array are slow; the entries of group g begin at starts[g].
    starts = np.searchsorted(counts.group, np.arange(n_groups + 1)).tolist()
    label_of, n_rows_of, target = counts.label.tolist(), counts.n_rows.tolist(), targets.tolist()
    missing = targets.tolist()  # target minus current number of test rows of each label
    order = generator.permutation(n_groups).tolist()
    signs = [1] * n_groups  # -1 for a group in test, which can only leave it
    moved = True
    while moved:  # terminates: each move reduces the sum of missing^2 / target
        moved = False
        for group in order:
            entries, sign = range(starts[group], starts[group + 1]), signs[group]
            # The gain is the decrease of the sum of missing^2 / target if n rows are added to test,
            # with missing^2 - (missing - n)^2 = n (2 missing - n).
            gain = 0.0
            for entry in entries:
                n, label = sign * n_rows_of[entry], label_of[entry]
                gain += n * (2 * missing[label] - n) / target[label]
            if gain > _ROUNDING:
                moved = True
                signs[group] = -sign
                for entry in entries:
                    missing[label_of[entry]] -= sign * n_rows_of[entry]
    return np.array(signs) < 0


def _require_two(labels: Collection[str], what: str) -> None:
    """Raise DataError if there are fewer than two labels; `what` begins the message."""
    if len(labels) < 2:
        raise DataError(
            f"{what} has only one label: {_listed(labels)}. A probe needs at least two."
        )


def _require_none(names: Collection[str], message: str) -> None:
    """Raise DataError if there are any names; they replace the last `{}` in `message`.

    >>> _require_none(["b"], "{x}: unknown labels: {}.")
    Traceback (most recent call last):
    probekit.errors.DataError: {x}: unknown labels: 'b'.
    """
    if len(names):  # not `format`: the name of a data set may contain braces
        before, after = message.rsplit("{}", 1)
        raise DataError(f"{before}{_listed(names)}{after}")


def _listed(names: Collection[str]) -> str:
    """Return the first five names in sorted order, and the number of all if there are more."""
    cut = (name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..." for name in sorted(names)[:5])
    shown = ", ".join(map(repr, cut))
    return f"{shown}, ... ({len(names)} in all)" if len(names) > 5 else shown
