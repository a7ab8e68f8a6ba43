"""Rows that probes are fitted and tested on: labels, split, folds and samples of whole groups."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.amounts import counted
from probekit.errors import DataError, TooFewGroupsError, nearest
from probekit.lazy_rows import Codes, Floats, Mask

LARGEST_NUMBER = 1e100  # largest numeric label: sums of squares of larger ones overflow
SMALLEST_RANGE = 1e-100  # of numeric labels: squares of smaller differences underflow
# Smallest share of typical rows; the spread of fewer does not represent that of all rows.
LEAST_TYPICAL = 0.5


@dataclass(frozen=True, eq=False)
class ProbeData:
    """Labels, groups and split of all rows.

    Attributes:
        y: The label (n_rows,) of each row.
        groups: The group (n_rows,) of each row, as a name or a number; groups are never split
            between train and test.
        types: The word type (n_rows,) of each row: the word at the probed position.
        train: The row numbers (n_train,) of the training rows.
        test: The row numbers (n_test,) of the test rows.
        typical: Mask (n_rows,) of the rows that feature scaling is estimated from. It is used only
            if it selects at least half of the fitted rows; None means all rows.
        words: The word (n_rows,) that the label of each row is about; None if the label is about
            the whole text, or unknown.
        texts: The text (n_rows,) of each row, for the baselines; None if there are no texts.
        replies: The reply (n_rows,) in the text of each row, whose length is a baseline; None for
            the length of the text.
        neighbours: The previous and the next word (n_rows, 2) of each row in its text, "" beyond
            an end of the text; None if rows are not words of a text.
        outputs: Numbers (n_rows, n_outputs) of the network's output at each row; None without them.
        examples: The number (n_rows,) of the text or sentence that each row is a token of, for
            kinds that read whole texts or sentences; None makes each row an example of its own.
        positive: The positive label, which metrics of one class refer to. If it is None, the rarer
            of two training labels is positive; with more labels, none is.
        group_names: The name (n_groups,) of each group if `groups` are indices of them, or its row
            number if each row is a group; None if `groups` are names.

    Raises:
        DataError: `train` or `test` is empty, a group is in both, or there are too few labels.

    >>> words = np.array(["a", "b", "c", "d"])
    >>> labels = np.array(["x", "y", "x", "y"])
    >>> data = ProbeData(labels, words, words, train=np.array([0, 1]), test=np.array([2, 3]))
    >>> data.classes.tolist()
    ['x', 'y']
    """

    y: NDArray[np.str_]
    groups: NDArray[np.generic]
    types: NDArray[np.str_]
    train: Codes
    test: Codes
    typical: Mask | None = None
    words: NDArray[np.str_] | None = None
    texts: NDArray[np.object_] | None = None
    replies: NDArray[np.object_] | None = None
    neighbours: NDArray[np.object_] | None = None
    outputs: Floats | None = None
    examples: Codes | None = None
    positive: str | None = None
    group_names: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        for name, rows in (("train", self.train), ("test", self.test)):
            if not len(rows):
                raise DataError(f"{name} is empty. Give it at least one row.")
        crossing = np.intersect1d(self.groups[self.train], self.groups[self.test])
        if len(crossing):
            first = names_of(crossing, self.group_names)[0]
            raise DataError(
                f"{counted(len(crossing), 'group')} with rows in both train and test, first "
                f"{first!r}: memorised training rows would inflate the score. Split by "
                "group."
            )
        if len(self.classes) < 2:
            raise DataError(
                f"All {len(self.train)} training rows have the label {str(self.classes[0])!r}. "
                "Give train at least two labels."
            )

    @cached_property
    def classes(self) -> NDArray[np.str_]:
        """The sorted training labels; the code of a label is its index in this array."""
        return np.unique(self.y[self.train])

    @cached_property
    def positive_code(self) -> int | None:
        """The code of the positive label; None if there is no positive label.

        Without `positive` it is the rarer of two training labels, or the second if both are equally
        frequent.

        Raises:
            DataError: `positive` is not a training label.

        >>> row = np.arange(5).astype(str)
        >>> y = np.array(["x", "y", "x", "y", "x"])
        >>> ProbeData(y, row, row, np.array([0, 1, 2]), np.array([3, 4])).positive_code
        1
        """
        if self.positive is not None:
            if self.positive not in self.classes:
                raise DataError(
                    f"positive is {self.positive!r}, which is no training label. "
                    f"{nearest(self.positive, map(str, self.classes))}"
                )
            return int(np.searchsorted(self.classes, self.positive))
        if len(self.classes) != 2:
            return None
        n_second = np.count_nonzero(self.y[self.train] == self.classes[1])
        return 1 if 2 * n_second <= len(self.train) else 0


def names_of(groups: NDArray[Any], names: NDArray[Any] | None) -> list[str]:
    """Return the names of groups, given as indices of `names`, or as names if there are none.

    If `names` are numbers, they are those of rows.

    >>> names_of(np.array([1, 0]), np.array(["a", "b"])), names_of(np.array(["a"]), None)
    (['b', 'a'], ['a'])
    >>> names_of(np.array([1]), np.array([0, 10, 2]))
    ['row 10']
    """
    before = "" if names is None or names.dtype.kind != "i" else "row "
    return [f"{before}{name}" for name in (groups if names is None else names[groups])]


def typical_rows(data: ProbeData, rows: Codes) -> Mask | None:
    """Return which of `rows` are typical, as a mask for feature scaling; None means all rows.

    It is None if the data do not mark typical rows, or if fewer than half of `rows` are typical.
    """
    if data.typical is None:
        return None
    typical = data.typical[rows]
    return typical if typical.mean() >= LEAST_TYPICAL else None


def check_known(data: ProbeData) -> None:
    """Raise DataError if a test label does not occur in the training rows.

    Raises:
        DataError: A test label is unknown, so that no probe can predict it.
    """
    unseen = ~np.isin(data.y[data.test], data.classes)
    if unseen.any():
        label = str(data.y[data.test][unseen][0])
        raise DataError(
            f"{unseen.sum()} test rows have labels that do not occur in the training rows, first "
            f"{label!r} in row {data.test[unseen][0]}. {nearest(label, map(str, data.classes))} "
            "Remove those rows or change the split."
        )


def numbers(labels: NDArray[np.str_], rows: Codes) -> Floats:
    """Return the labels (n_rows,) of some rows as numbers (n_rows,); NaN for all other rows.

    Raises:
        DataError: A label is not a number within the allowed range.
    """
    values = np.full(len(labels), np.nan)
    check_numbers(labels[rows], [f"row {row}" for row in rows])
    values[rows] = [as_number(label) for label in labels[rows]]
    return values


def as_number(label: str) -> float | None:
    """Return a label as a number; None if it is not a number within the allowed range.

    >>> as_number("-1.5"), as_number("1_000"), as_number("nan"), as_number("1e308")
    (-1.5, None, None, None)
    """
    try:
        # Python parses 1_000 as a number; in a label it is a name. NaN is not in the range below.
        number = math.nan if "_" in label else float(label)
    except ValueError:
        return None
    return number if abs(number) <= LARGEST_NUMBER else None


def check_numbers(labels: Sequence[str] | NDArray[Any], where: Sequence[str]) -> None:
    """Raise DataError unless every label is a number that regression can use.

    `where` (n_labels,) is the origin of each label, for the message.

    Raises:
        DataError: A label is not a number within the allowed range, or all are nearly equal.
    """
    values = [as_number(label) for label in labels]
    if invalid := [number for number, value in enumerate(values) if value is None]:
        raise DataError(
            f"{where[invalid[0]]}: the label {str(labels[invalid[0]])!r} is not a number from "
            f"{-LARGEST_NUMBER:g} to {LARGEST_NUMBER:g} ({counted(len(invalid), 'such label')}). "
            "Regression needs numbers. Correct or remove these rows, or choose a kind of probe for "
            "classification, such as `kinds: [{kind: logistic}]`."
        )
    numbers = [value for value in values if value is not None]
    if 0 < max(numbers, default=0) - min(numbers, default=0) < SMALLEST_RANGE:
        raise DataError(
            f"The labels are numbers that differ by less than {SMALLEST_RANGE:g}, so that their "
            "squares are 0 in float64. Write them in a smaller unit."
        )


def group_folds(
    labels: NDArray[np.generic], groups: NDArray[np.generic], folds: int, seed: int
) -> Codes:
    """Return the fold number (n_samples,) of each row, for stratified group cross-validation.

    All rows of a group are in one fold. Groups are shuffled, then assigned largest first, each to
    the fold that has the fewest rows with its labels.

    Raises:
        TooFewGroupsError: There are fewer groups than folds.

    >>> group_folds(np.array(list("abab")), np.array(list("wwxx")), folds=2, seed=0).tolist()
    [0, 0, 1, 1]
    """
    names, group_of_row = np.unique(groups, return_inverse=True)
    if len(names) < folds:
        fewer = f"Set `folds` to at most {len(names)}, or use" if len(names) > 1 else "Use"
        raise TooFewGroupsError(
            f"{folds} folds of these {len(labels):,} rows need at least {folds} groups, but the "
            f"rows are in {counted(len(names), 'group')}. {fewer} finer groups or more rows."
        )
    classes, codes = np.unique(labels, return_inverse=True)
    counts = np.zeros((len(names), len(classes)), dtype=np.int64)
    np.add.at(counts, (group_of_row, codes), 1)
    shuffled = np.random.default_rng(seed).permutation(len(names))
    order = shuffled[np.argsort(-counts[shuffled].sum(axis=1), kind="stable")]
    fold_of_group = np.zeros(len(counts), dtype=np.int64)
    label_counts = np.zeros((folds, len(classes)), dtype=np.int64)
    if np.count_nonzero(counts) == len(counts):
        # Groups of one label, such as single rows, need only comparisons of integers.
        rows_of_label, sizes = label_counts.T.tolist(), [0] * folds
        labels, n_rows = counts.argmax(axis=1)[order].tolist(), counts.max(axis=1)[order].tolist()
        for group, label, n in zip(order.tolist(), labels, n_rows, strict=True):
            rows = rows_of_label[label]
            *_, fold = min(zip(rows, sizes, range(folds), strict=True))
            rows[fold] += n
            sizes[fold] += n
            fold_of_group[group] = fold
    else:
        share = counts / counts.sum(axis=0)  # share of each label's rows that each group holds
        for group in order:
            # The fold with the fewest rows of the labels that the group has a large share of. The
            # total number of rows breaks ties, so that no fold stays empty; the last key is sorted
            # first.
            fold = np.lexsort((label_counts.sum(axis=1), label_counts @ share[group]))[0]
            label_counts[fold] += counts[group]
            fold_of_group[group] = fold
    return fold_of_group[group_of_row]


def fittable_insides(labels: NDArray[np.generic], fold_of_row: Codes) -> list[Mask]:
    """Return a mask (n_samples,) of the fitted rows, those not held out, for each fold.

    A fold whose fitted rows all have the same label is omitted, because every penalty gives the
    same predictions there. This happens if one of two labels occurs in a single group.

    Raises:
        DataError: No fold has fitted rows with two labels, so the penalty cannot be selected.

    >>> insides = fittable_insides(np.array([0, 1, 0, 1, 0]), np.array([0, 0, 1, 1, 2]))
    >>> insides[0].tolist()
    [False, False, True, True, True]
    """
    insides = [fold_of_row != fold for fold in range(int(fold_of_row.max()) + 1)]
    fittable = [inside for inside in insides if np.any(labels[inside] != labels[inside][0])]
    if not fittable:
        raise DataError(
            "In every fold the fitted rows have only one class, because each class is confined to "
            "a few groups. Use finer groups or more folds."
        )
    return fittable


def sample_groups(
    groups: NDArray[np.generic], limit: int, seed: int, names: NDArray[Any] | None = None
) -> Mask:
    """Return a mask (n_samples,) of a random sample of whole groups with at most `limit` rows.

    `names` are those of the groups, for messages, if `groups` (n_samples,) are indices of them.

    Raises:
        DataError: The first sampled group has more rows than the limit.

    >>> sample_groups(np.array(["a", "a", "b", "c"]), limit=3, seed=1).tolist()
    [True, True, True, False]
    """
    found, group_of_row, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(found))
    sampled = order[np.cumsum(sizes[order]) <= limit]
    if not len(sampled):
        (name,) = names_of(found[order[:1]], names)
        raise DataError(
            f"A sample of whole groups may have at most {limit} rows, but the group {name!r} "
            f"alone has {sizes[order[0]]} rows. Use finer groups, or a larger `fit_rows`."
        )
    return np.isin(group_of_row, sampled)
