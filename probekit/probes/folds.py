"""Group-disjoint folds and samples of training rows, independent of the order of the rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probekit.amounts import counted
from probekit.errors import DataError, TooFewGroupsError


def group_folds(
    labels: NDArray[np.generic], groups: NDArray[np.generic], folds: int, seed: int
) -> NDArray[np.int64]:
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
    return _assign(counts, order, folds)[group_of_row]


def fittable_insides(
    labels: NDArray[np.generic], fold_of_row: NDArray[np.int64]
) -> list[NDArray[np.bool_]]:
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


def _assign(counts: NDArray[np.int64], order: NDArray[np.int64], folds: int) -> NDArray[np.int64]:
    """Return the fold (n_groups,) of each group, given its label counts (n_groups, n_classes)."""
    fold_of_group = np.zeros(len(counts), dtype=np.int64)
    label_counts = np.zeros((folds, counts.shape[1]), dtype=np.int64)
    share = counts / counts.sum(axis=0)
    for group in order:
        # The number of rows breaks ties, so that no fold stays empty.
        fold = np.lexsort((label_counts.sum(axis=1), label_counts @ share[group]))[0]
        label_counts[fold] += counts[group]
        fold_of_group[group] = fold
    return fold_of_group


def sample_groups(groups: NDArray[np.generic], limit: int, seed: int) -> NDArray[np.bool_]:
    """Return a mask (n_samples,) of a random sample of whole groups with at most `limit` rows.

    Raises:
        DataError: The first sampled group has more rows than the limit.

    >>> sample_groups(np.array(["a", "a", "b", "c"]), limit=3, seed=1).tolist()
    [True, True, True, False]
    """
    names, group_of_row, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    sampled = order[np.cumsum(sizes[order]) <= limit]
    if not len(sampled):
        raise DataError(
            f"fit_rows is {limit}, but the group {str(names[order[0]])!r} alone has "
            f"{sizes[order[0]]} rows. Increase `fit_rows` or use finer groups."
        )
    return np.isin(group_of_row, sampled)
