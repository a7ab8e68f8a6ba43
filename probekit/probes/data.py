"""What a probe needs beside the activations: labels, groups and the split."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from probekit.amounts import counted
from probekit.errors import DataError, nearest

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
    for row in np.concatenate([data.train, data.test]):
        try:
            # Python takes 1_000 for a number; in a label it is a name.
            found[row] = np.nan if "_" in data.y[row] else float(data.y[row])
        except ValueError:
            continue
    wrong = np.concatenate([data.train, data.test])
    wrong = wrong[~np.isfinite(found[wrong])]
    if len(wrong):
        raise DataError(
            f"not finite numbers: {counted(len(wrong), 'label')}, first {str(data.y[wrong[0]])!r} "
            f"in row {wrong[0]}. Regression reads numbers; classify other labels."
        )
    return found
