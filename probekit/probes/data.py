"""Labels, groups and split of the rows that probes are fitted and tested on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.amounts import counted
from probekit.errors import DataError, nearest

LARGEST_NUMBER = 1e100  # largest numeric label: sums of squares of larger ones overflow
# Smallest share of typical rows; the spread of fewer does not represent that of all rows.
LEAST_TYPICAL = 0.5


@dataclass(frozen=True, eq=False)
class ProbeData:
    """Labels, groups and split of all rows.

    Attributes:
        y: The label (n_rows,) of each row.
        groups: The group (n_rows,) of each row; groups are never split between train and test.
        types: The word type (n_rows,) of each row: the word at the probed position.
        train: The row numbers (n_train,) of the training rows.
        test: The row numbers (n_test,) of the test rows.
        typical: Mask (n_rows,) of the rows that feature scaling is estimated from. It is used only
            if it selects at least half of the fitted rows; None means all rows.
        words: The word (n_rows,) that the label of each row is about; None if the label is about
            the whole text, or unknown.
        texts: The text (n_rows,) of each row, for the baselines; None if there are no texts.
        neighbours: The previous and the next word (n_rows, 2) of each row in its text, "" beyond
            an end of the text; None if rows are not words of a text.
        examples: The number (n_rows,) of the text or sentence that each row is a token of, for
            kinds that read whole texts or sentences; None makes each row an example of its own.
        positive: The positive label, which metrics of one class refer to. If it is None, the rarer
            of two training labels is positive; with more labels, none is.

    Raises:
        DataError: The arrays are inconsistent, a group has rows in train and in test, or there are
            too few labels.

    >>> words = np.array(["a", "b", "c", "d"])
    >>> labels = np.array(["x", "y", "x", "y"])
    >>> data = ProbeData(labels, words, words, train=np.array([0, 1]), test=np.array([2, 3]))
    >>> data.classes.tolist()
    ['x', 'y']
    """

    y: NDArray[np.str_]
    groups: NDArray[np.str_]
    types: NDArray[np.str_]
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    typical: NDArray[np.bool_] | None = None
    words: NDArray[np.str_] | None = None
    texts: NDArray[np.object_] | None = None
    neighbours: NDArray[np.object_] | None = None
    examples: NDArray[np.int64] | None = None
    positive: str | None = None

    def __post_init__(self) -> None:
        _check_lengths(self)
        _check_split(self)
        _check_groups(self)
        _check_several_labels(self)

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
        return int(2 * n_second <= len(self.train))


def _check_lengths(data: ProbeData) -> None:
    lengths = {name: len(getattr(data, name)) for name in ("y", "groups", "types")}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise DataError(f"y, groups and types need one entry per row, but {found}.")


def _check_split(data: ProbeData) -> None:
    for name in ("train", "test"):
        rows = getattr(data, name)
        if not len(rows):
            raise DataError(f"{name} is empty. Give it at least one row.")
        if rows.min() < 0 or rows.max() >= len(data.y):
            raise DataError(
                f"{name} has row numbers from {rows.min()} to {rows.max()}, but with "
                f"{len(data.y)} rows they must be from 0 to {len(data.y) - 1}."
            )
    split_rows, counts = np.unique(np.concatenate([data.train, data.test]), return_counts=True)
    if counts.max() > 1:
        raise DataError(
            f"The split contains {counted((counts > 1).sum(), 'row')} more than once, first row "
            f"{split_rows[counts > 1][0]}. Put each row once in train or once in test."
        )


def _check_groups(data: ProbeData) -> None:
    crossing = np.intersect1d(data.groups[data.train], data.groups[data.test])
    if len(crossing):
        raise DataError(
            f"{counted(len(crossing), 'group')} with rows in both train and test, first "
            f"{str(crossing[0])!r}: memorised training rows would inflate the score. Split by "
            "group."
        )


def _check_several_labels(data: ProbeData) -> None:
    if len(data.classes) < 2:
        raise DataError(
            f"All {len(data.train)} training rows have the label {str(data.classes[0])!r}. Give "
            "train at least two labels."
        )


def typical_rows(data: ProbeData, rows: NDArray[np.int64]) -> NDArray[np.bool_] | None:
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


def numbers(data: ProbeData) -> NDArray[np.float64]:
    """Return the labels as numbers (n_rows,); NaN for rows that are not in the split.

    Raises:
        DataError: A label is not a number within the allowed range.
    """
    values = np.full(len(data.y), np.nan)
    rows = np.concatenate([data.train, data.test])
    check_numbers(data.y[rows], [f"row {row}" for row in rows])
    values[rows] = [as_number(label) for label in data.y[rows]]
    return values


def as_number(label: str) -> float | None:
    """Return a label as a number; None if it is not a number within the allowed range.

    >>> as_number("-1.5"), as_number("1_000"), as_number("nan"), as_number("1e308")
    (-1.5, None, None, None)
    """
    try:
        # Python parses 1_000 as a number; in a label it is a name.
        number = math.nan if "_" in label else float(label)
    except ValueError:
        return None
    return number if abs(number) <= LARGEST_NUMBER else None


def check_numbers(labels: Sequence[str] | NDArray[Any], where: Sequence[str]) -> None:
    """Raise DataError unless every label is a number that regression can use.

    `where` (n_labels,) is the origin of each label, for the message.

    Raises:
        DataError: A label is not a number within the allowed range.
    """
    invalid = [n for n, label in enumerate(labels) if as_number(label) is None]
    if invalid:
        raise DataError(
            f"{where[invalid[0]]}: the label {str(labels[invalid[0]])!r} is not a number from "
            f"{-LARGEST_NUMBER:g} to {LARGEST_NUMBER:g} ({counted(len(invalid), 'such label')}). "
            "Regression needs numbers. Correct or remove these rows, or choose a kind of probe for "
            "classification, such as `kinds: [{kind: logistic}]`."
        )
