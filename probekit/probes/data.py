"""What a probe needs beside the activations: labels, groups and the split."""

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

LARGEST_NUMBER = 1e100  # of a label; the squares of larger ones, summed, are infinite
# With a smaller share of typical rows, their spread would say little of that of all.
LEAST_TYPICAL = 0.5


@dataclass(frozen=True, eq=False)
class ProbeData:
    """Labels `y`, `groups` and word `types` of all rows (n_rows,), and the split into row numbers.

    `typical` (n_rows,) says which rows features are scaled by, if they are half of the training
    rows or more; None means all. `texts` (n_rows,) are what baselines read; None for none.
    `examples` (n_rows,) number the text or sentence that each row is a token of, for kinds that
    read these; None makes each row its own.

    Raises:
        DataError: The parts do not fit together, a group stands on both sides of the split, or a
            label is missing where one is needed.

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
    texts: NDArray[np.object_] | None = None
    examples: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        _check_lengths(self)
        _check_split(self)
        _check_groups(self)
        _check_several_labels(self)

    @cached_property
    def classes(self) -> NDArray[np.str_]:
        """The training labels, sorted; a label's code is its place here."""
        return np.unique(self.y[self.train])


def _check_lengths(data: ProbeData) -> None:
    lengths = {name: len(getattr(data, name)) for name in ("y", "groups", "types")}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"y, groups and types need one entry a row, but have {told}.")


def _check_split(data: ProbeData) -> None:
    for name in ("train", "test"):
        rows = getattr(data, name)
        if not len(rows):
            raise DataError(f"{name} is empty: the split leaves no row to it.")
        if rows.min() < 0 or rows.max() >= len(data.y):
            raise DataError(
                f"{name} holds row numbers from {rows.min()} to {rows.max()}, but there are "
                f"{len(data.y)} rows, counted from 0."
            )
    both, counts = np.unique(np.concatenate([data.train, data.test]), return_counts=True)
    if counts.max() > 1:
        raise DataError(
            f"{counted((counts > 1).sum(), 'row')} twice in the split, first row "
            f"{both[counts > 1][0]}. Name each row once, in train or in test."
        )


def _check_groups(data: ProbeData) -> None:
    crossing = np.intersect1d(data.groups[data.train], data.groups[data.test])
    if len(crossing):
        raise DataError(
            f"{counted(len(crossing), 'group')} with rows in train and in test, first "
            f"{str(crossing[0])!r}: the score would count what was learnt by heart. Split by group."
        )
    if len(np.unique(data.groups[data.test])) < 2:
        raise DataError(
            f"all test rows are of the group {str(data.groups[data.test][0])!r}, so there is no "
            "interval to resample. Give test two groups or more."
        )


def _check_several_labels(data: ProbeData) -> None:
    if len(data.classes) < 2:
        raise DataError(
            f"the {len(data.train)} training rows have one label only, {str(data.classes[0])!r}: "
            "there is nothing to tell apart. Give train two labels or more."
        )


def typical_rows(data: ProbeData, rows: NDArray[np.int64]) -> NDArray[np.bool_] | None:
    """Return which of some rows features are scaled by; None for all, as where those are few."""
    if data.typical is None:
        return None
    typical = data.typical[rows]
    return typical if typical.mean() >= LEAST_TYPICAL else None


def check_known(data: ProbeData) -> None:
    """Return nothing if every test label stands in the training rows too.

    Raises:
        DataError: One does not, so that no probe could say it.
    """
    unseen = ~np.isin(data.y[data.test], data.classes)
    if unseen.any():
        label = str(data.y[data.test][unseen][0])
        raise DataError(
            f"{unseen.sum()} test rows have labels that no training row has, first {label!r} in "
            f"row {data.test[unseen][0]}. {nearest(label, map(str, data.classes))} Drop those rows "
            "or split anew."
        )


def numbers(data: ProbeData) -> NDArray[np.float64]:
    """Return the labels of the training and test rows as numbers (n_rows,); NaN elsewhere.

    Raises:
        DataError: A label is no finite number.
    """
    found = np.full(len(data.y), np.nan)
    rows = np.concatenate([data.train, data.test])
    check_numbers(data.y[rows], [f"row {row}" for row in rows])
    found[rows] = [as_number(label) for label in data.y[rows]]
    return found


def as_number(label: str) -> float | None:
    """Return the number that a label is; None if it is none that regression can compute with.

    >>> as_number("-1.5"), as_number("1_000"), as_number("nan"), as_number("1e308")
    (-1.5, None, None, None)
    """
    try:
        # Python takes 1_000 for a number; in a label it is a name.
        number = math.nan if "_" in label else float(label)
    except ValueError:
        return None
    return number if abs(number) <= LARGEST_NUMBER else None


def check_numbers(labels: Sequence[str] | NDArray[Any], where: Sequence[str]) -> None:
    """Return nothing if each label is a number that regression can compute with.

    `where` (n_labels,) says for messages where each label was read.

    Raises:
        DataError: One is not.
    """
    wrong = [n for n, label in enumerate(labels) if as_number(label) is None]
    if wrong:
        raise DataError(
            f"{where[wrong[0]]}: the label {str(labels[wrong[0]])!r} is not a number from "
            f"{-LARGEST_NUMBER:g} to {LARGEST_NUMBER:g} ({counted(len(wrong), 'such label')}). "
            "Regression reads numbers: correct or remove the rows, or choose a kind of probe that "
            "classifies, such as `kinds: [{kind: logistic}]`."
        )
