"""Group-disjoint folds and samples of training rows, whatever the order of the rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probekit.errors import DataError, TooFewGroupsError


def group_folds(
    labels: NDArray[np.generic], groups: NDArray[np.generic], folds: int, seed: int
) -> NDArray[np.int64]:
    """Return the fold number (n_samples,) of each row: groups stay whole, labels spread evenly.

    Groups are shuffled, then dealt largest first, each to the fold that has least of its labels.

    Raises:
        TooFewGroupsError: There are fewer groups than folds.

    >>> group_folds(np.array(list("abab")), np.array(list("wwxx")), folds=2, seed=0).tolist()
    [0, 0, 1, 1]
    """
    names, group_of_row = np.unique(groups, return_inverse=True)
    if len(names) < folds:
        fewer = f"Set `folds` to {len(names)} or less, or use" if len(names) > 1 else "Use"
        raise TooFewGroupsError(
            f"{folds} folds need at least {folds} groups of rows, but there are {len(names)}. "
            f"{fewer} finer groups or more rows."
        )
    classes, codes = np.unique(labels, return_inverse=True)
    counts = np.zeros((len(names), len(classes)), dtype=np.int64)
    np.add.at(counts, (group_of_row, codes), 1)
    shuffled = np.random.default_rng(seed).permutation(len(names))
    order = shuffled[np.argsort(-counts[shuffled].sum(axis=1), kind="stable")]
    return _deal(counts, order, folds)[group_of_row]


def fittable_insides(
    labels: NDArray[np.generic], fold_of_row: NDArray[np.int64]
) -> list[NDArray[np.bool_]]:
    """Return for each fold which rows (n_samples,) are inside, that is, not held out.

    A fold whose inside has one label only is left out: all that can be learnt there is to guess
    that label, whatever the penalty. This happens where one of two labels stands in a single group.

    Raises:
        DataError: No fold has two labels inside, so that nothing would choose the penalty.

    >>> insides = fittable_insides(np.array([0, 1, 0, 1, 0]), np.array([0, 0, 1, 1, 2]))
    >>> insides[0].tolist()
    [False, False, True, True, True]
    """
    insides = [fold_of_row != fold for fold in range(int(fold_of_row.max()) + 1)]
    fittable = [inside for inside in insides if np.any(labels[inside] != labels[inside][0])]
    if not fittable:
        raise DataError(
            "no fold has two classes to fit on, as each class stands in groups of its own. Use "
            "finer groups or more folds."
        )
    return fittable


def _deal(counts: NDArray[np.int64], order: NDArray[np.int64], folds: int) -> NDArray[np.int64]:
    """Return a fold for each group of a table of label counts (n_groups, n_classes)."""
    fold_of_group = np.zeros(len(counts), dtype=np.int64)
    held = np.zeros((folds, counts.shape[1]), dtype=np.int64)
    share = counts / counts.sum(axis=0)
    for group in order:
        # A fold's row count breaks ties, so that no fold stays empty.
        fold = np.lexsort((held.sum(axis=1), held @ share[group]))[0]
        held[fold] += counts[group]
        fold_of_group[group] = fold
    return fold_of_group


def sample_groups(groups: NDArray[np.generic], limit: int, seed: int) -> NDArray[np.bool_]:
    """Return which rows (n_samples,) to keep: whole groups in random order while they fit `limit`.

    Raises:
        DataError: The first group drawn is larger than the limit.

    >>> sample_groups(np.array(["a", "a", "b", "c"]), limit=3, seed=1).tolist()
    [True, True, True, False]
    """
    names, group_of_row, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    kept = order[np.cumsum(sizes[order]) <= limit]
    if not len(kept):
        raise DataError(
            f"fit_rows is {limit}, but the group {str(names[order[0]])!r} alone has "
            f"{sizes[order[0]]} rows. Raise `fit_rows` or use finer groups."
        )
    return np.isin(group_of_row, kept)
