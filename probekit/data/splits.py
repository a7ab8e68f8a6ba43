"""Train/test splits without shared groups, and optionally without shared texts or words."""

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
from probekit.data.examples import Dataset, Example, StringArray, TextSpan, rows_of
from probekit.errors import DataError, nearest

IntArray = npt.NDArray[np.int64]

Strings: TypeAlias = Sequence[str] | StringArray | npt.NDArray[np.str_]

_SIDES = ("train", "test")
_ROUNDING = 1e-9
_SHOWN = 60  # characters of a name in a message
_MOST_TYPOS = 3  # labels in a message with the labels that they may be


@dataclass(frozen=True)
class Split:
    """Train and test side of a data set.

    Attributes:
        train: indices of training examples, ascending, shape (n_train,).
        test: indices of test examples, ascending, shape (n_test,); disjoint from `train`.
    """

    train: IntArray
    test: IntArray


_MIN_TEST_GROUPS = 2  # an interval over groups needs two


def grouped_split(
    labels: Strings, groups: Strings, *, test: float, seed: int, examples: Sequence[Example] = ()
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
        examples: the rows, for messages.

    Raises:
        DataError: there is only one label, a label cannot be on both sides, or test would have
            fewer than two of at least four groups.

    >>> split = grouped_split("xyxyxyxyxyxy", "aabbccddeeff", test=0.3, seed=0)
    >>> split.train.size, split.test.size
    (8, 4)
    """
    counts = labels_of_groups(labels, groups, examples)
    targets = _target_rows(counts, test)
    chosen = _choose_groups(counts, targets, np.random.default_rng(seed))
    split = _split(group in chosen for group in groups)
    if len(chosen) < _MIN_TEST_GROUPS and len(counts) >= 2 * _MIN_TEST_GROUPS:
        minimum = math.ceil(100 * _MIN_TEST_GROUPS / len(counts)) / 100
        raise DataError(
            f"A test share of {test} puts {len(chosen)} of {len(counts)} groups in test, but a "
            f"confidence interval needs {_MIN_TEST_GROUPS}. Set split.test to at least {minimum}."
        )
    for side, indices in zip(_SIDES, (split.train, split.test), strict=True):
        _require_none(
            set(targets).difference(labels[index] for index in indices),
            f"The {side} side has no row with these labels: {{}}. They have too few groups, or too "
            "large ones. Use another seed or share, or smaller groups.",
        )
    return split


def labels_of_groups(
    labels: Strings, groups: Strings, examples: Sequence[Example] = ()
) -> dict[str, Counter[str]]:
    """Return the number of rows of each label in each group; messages name rows of `examples`.

    Raises:
        DataError: there is only one label, or a label occurs in one group only.

    >>> labels_of_groups("xyxy", "aabb")["a"]
    Counter({'x': 1, 'y': 1})
    """
    sizes, of_one_row = Counter(groups), {label: Counter([label]) for label in set(labels)}
    counts: dict[str, Counter[str]] = {}
    for label, group in zip(labels, groups, strict=True):
        if sizes[group] == 1:
            counts[group] = of_one_row[label]  # one object for all, as there may be millions
        else:
            counts.setdefault(group, Counter())[label] += 1
    n_rows, n_groups = _totals(counts)
    _require_two(n_rows, "The data set")
    alone = {label for label, n in n_groups.items() if n < 2}
    rows = rows_of([example for example in examples if example.label in alone])
    likely = {label: nearest(label, n_rows.keys() - alone) for label in sorted(alone)}
    typos = [
        near.replace("Nearest:", f" Nearest to {label!r}:")
        for label, near in likely.items()
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


def unlabelled_split(groups: Strings, *, test: float, seed: int) -> Split:
    """Return a random split by groups, for labels that are not classes.

    Groups are added to test in random order until it has a share `test` of the rows and at least
    two groups; one group remains in train in any case.

    Raises:
        DataError: there are fewer than three groups.

    >>> unlabelled_split("aabbccddee", test=0.4, seed=0).test.tolist()
    [4, 5, 8, 9]
    """
    sizes = Counter(groups)
    if len(sizes) <= _MIN_TEST_GROUPS:
        raise DataError(
            f"There are {len(sizes)} groups; test needs {_MIN_TEST_GROUPS} and train at least one. "
            "Use smaller groups."
        )
    names = sorted(sizes)
    order = [names[n] for n in np.random.default_rng(seed).permutation(len(names))]
    n_rows = np.cumsum([sizes[name] for name in order])
    # The fewest first groups that have the share of the rows.
    n_groups = int(np.searchsorted(n_rows, test * n_rows[-1])) + 1
    # Test has at least two groups, and train at least one.
    chosen = set(order[: min(max(n_groups, _MIN_TEST_GROUPS), len(order) - 1)])
    return _split(group in chosen for group in groups)


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
    others = [example for example in dataset.examples if example.split not in _SIDES]
    if others:
        raise DataError(
            f"{others[0].where}: the split is {others[0].split!r}. Allowed: test, train. "
            f"{counted(len(others), 'row')} with such a value: correct or remove them."
        )
    split = _split(example.split == "test" for example in dataset.examples)
    train_groups, test_groups = set(dataset.groups[split.train]), set(dataset.groups[split.test])
    train_labels, test_labels = set(dataset.labels[split.train]), set(dataset.labels[split.test])
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


def in_one_group(dataset: Dataset) -> IntArray:
    """Return the indices of the examples whose text and span occur in no earlier group, ascending.

    Folds of groups then share no text, and no text counts as several independent groups.

    >>> from probekit.data.examples import Example
    >>> rows = [("a", "g"), ("b", "g"), ("a", "g"), ("a", "h"), ("c", "h")]
    >>> examples = tuple(Example(text, "x", group, str(n)) for n, (text, group) in enumerate(rows))
    >>> in_one_group(Dataset("tiny", examples))
    array([0, 1, 2, 4])
    """
    first: dict[TextSpan, str] = {}
    for example in dataset.examples:
        first.setdefault(example.place, example.group)
    is_first = [first[example.place] == example.group for example in dataset.examples]
    return np.flatnonzero(is_first)


def joined_groups(labels: Strings, groups: Strings, words: Strings) -> StringArray:
    """Merge groups that share a word, whatever its case; return the group of each row, (n_rows,).

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
    _, word_of_row = np.unique(_folded(words), return_inverse=True)
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
    """Drop rows so that no word occurs on both sides of the split; case is ignored.

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
    folded = _folded(words)
    shared = set(folded[split.train]) & set(folded[split.test])
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for index in (*split.train, *split.test):
        if folded[index] in shared:
            counts[folded[index]][labels[index]] += 1
    for_test = _choose_groups(counts, _target_rows(counts, test), np.random.default_rng(seed))
    for_train = shared - for_test
    train = [index for index in split.train if folded[index] not in for_test]
    tested = [index for index in split.test if folded[index] not in for_train]
    new = Split(np.array(train, dtype=int), np.array(tested, dtype=int))
    in_train, in_test = ({labels[index] for index in side} for side in (new.train, new.test))
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


def _folded(words: Strings) -> StringArray:
    """Return the words in case-folded form, without surrounding whitespace."""
    return np.array([str(word).strip().casefold() for word in words], dtype=object)


def _split(in_test: Iterable[bool]) -> Split:
    """Return the split, given whether each example is in test."""
    mask = np.fromiter(in_test, dtype=bool)
    return Split(np.flatnonzero(~mask), np.flatnonzero(mask))


def _target_rows(counts: Mapping[str, Counter[str]], test: float) -> dict[str, float]:
    """Return the target number of test rows of each label."""
    n_rows, n_groups = _totals(counts)
    targets = {}
    for label, n in n_groups.items():
        # A rare label needs about one of its groups on each side, whatever the share.
        share = min(max(test, 1 / n), 1 - 1 / n) if n > 1 else test
        targets[label] = n_rows[label] * share
    return targets


def _totals(counts: Mapping[str, Counter[str]]) -> tuple[Counter[str], Counter[str]]:
    """Return the number of rows and of groups of each label."""
    n_rows: Counter[str] = Counter()
    n_groups: Counter[str] = Counter()
    for labels in counts.values():
        n_rows.update(labels)
        n_groups.update(labels.keys())
    return n_rows, n_groups


def _choose_groups(
    counts: Mapping[str, Counter[str]], targets: Mapping[str, float], generator: np.random.Generator
) -> set[str]:
    """Return the groups whose rows are about as many, of each label, as the targets."""
    groups = list(counts)
    missing = dict(targets)  # target minus current number of test rows of each label
    order = [groups[index] for index in generator.permutation(len(groups))]
    chosen: set[str] = set()
    moved = True
    while moved:  # terminates: each move reduces the sum of missing^2 / target
        moved = False
        for group in order:
            # The rows of each label that a move of the group adds to test; negative if it leaves
            # test. The gain is the decrease of the sum of missing^2 / target, with
            # missing^2 - (missing - n)^2 = n (2 missing - n).
            sign = -1 if group in chosen else 1
            added = [(label, sign * n) for label, n in counts[group].items()]
            gain = 0.0
            for label, n in added:
                gain += n * (2 * missing[label] - n) / targets[label]
            if gain > _ROUNDING:
                moved = True
                chosen ^= {group}  # add it, or remove it
                for label, n in added:
                    missing[label] -= n
    return chosen


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
    if names:  # not `format`: the name of a data set may contain braces
        before, after = message.rsplit("{}", 1)
        raise DataError(f"{before}{_listed(names)}{after}")


def _listed(names: Collection[str]) -> str:
    """Return the first five names in sorted order, and the number of all if there are more."""
    cut = (name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..." for name in sorted(names)[:5])
    shown = ", ".join(map(repr, cut))
    return f"{shown}, ... ({len(names)} in all)" if len(names) > 5 else shown
