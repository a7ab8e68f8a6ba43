"""Tests of columns of the data against the label: signs of groups, and the AUROC of one column.

A column is numbers (n_rows,), NaN where a cell is empty or infinite, or values of a category.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from probekit.amounts import FEWEST_UNITS
from probekit.chosen.left.section import numbers_in
from probekit.chosen.left.statistics import GRID_OF_KNOWN, Known, logistic, ridge
from probekit.lazy_rows import Codes, Floats
from probekit.probes.data import group_folds
from probekit.probes.score.differences import DRAWS
from probekit.probes.score.exchange import ROUNDING, holm, sign_patterns
from probekit.probes.score.metrics import ClassPredictions, NumberPredictions, Resamples
from probekit.probes.score.scored import metrics_of

FEWEST_GROUPS = 5  # of a value of a category; rarer ones are joined
MOST_VALUES = 20  # of a category; the values of the fewest groups are joined
RARE = "rare"  # value of those that are joined
NEARLY_ALL = 0.95  # of the rows, or groups, that have a number of their own
FOLDS = 5  # in which the AUROC of a column is held out

ColumnCells = NDArray[Any]


def column_in(cells: Sequence[str], groups: Codes) -> ColumnCells | None:
    """Return the numbers, or the values of a category, in the cells of a column (n_rows,).

    None for constants, free texts, names and row numbers. Values of few groups are joined.

    >>> groups = np.arange(20)
    >>> column_in(["1.5", "2"] * 10, groups)[:2].tolist(), column_in(["a", "b"] * 10, groups)[:2]
    ([1.5, 2.0], array(['a', 'b'], dtype='<U4'))
    >>> column_in([str(row) for row in range(20)], groups) is None  # row numbers
    True
    """
    texts = np.array(cells, dtype=object)
    filled = texts != ""
    numbers = numbers_in(texts[filled].tolist())
    if numbers is not None:
        values = np.full(len(texts), np.nan)
        values[filled] = numbers
        values[np.isinf(values)] = np.nan  # as good as empty
        known = values[~np.isnan(values)]
        firsts = values[np.unique(groups, return_index=True)[1]]
        is_of_groups = np.isclose(values, firsts[groups], equal_nan=True).all()
        is_name = _are_row_numbers(firsts if is_of_groups else values)
        is_constant = not len(known) or (len(known) == len(values) and not np.ptp(known))
        return None if is_name or is_constant else values
    names, codes = np.unique(texts.astype(str), return_inverse=True)
    pairs = np.unique(np.stack([codes, groups], axis=1), axis=0)
    n_groups = np.bincount(pairs[:, 0])
    most = np.argsort(n_groups, kind="stable")[-MOST_VALUES:]
    kept = most[n_groups[most] >= FEWEST_GROUPS]
    joined = np.where(np.isin(codes, kept), names[codes], RARE)
    return None if len(np.unique(joined)) < 2 else joined


def _are_row_numbers(values: Floats) -> bool:
    """Return whether values are integers, nearly all distinct, and consecutive or in order."""
    found = values[np.isfinite(values)]
    distinct, steps = np.unique(found), np.diff(found)
    if (found % 1).any() or len(distinct) < NEARLY_ALL * len(values):
        return False
    return bool(np.ptp(distinct) < 2 * len(found) or (steps > 0).all() or (steps < 0).all())


def _features(column: ColumnCells) -> Floats:
    """Return the features of a column (n_rows, n_features), each with mean 0.

    They are the rank of a number, its square and whether the cell is empty; or the values of a
    category.
    """
    if column.dtype.kind == "f":
        is_empty = np.isnan(column)
        ranks = np.zeros(len(column))
        ranks[~is_empty] = rankdata(column[~is_empty])
        ranks[~is_empty] -= ranks[~is_empty].mean()
        found = np.stack([ranks, ranks**2, is_empty], axis=1)
    else:
        names = np.unique(column)
        found = column[:, None] == (names if len(names) > 2 else names[:1])
    centred: Floats = found - found.mean(axis=0, dtype=np.float64)
    centred /= np.maximum(np.abs(centred).max(axis=0), ROUNDING)
    return centred


def label_columns(y: NDArray[Any]) -> Floats:
    """Return the codes of labels as 0 and 1 (n_rows, n_classes), or the ranks of numbers.

    >>> label_columns(np.array([1, 0])).tolist(), label_columns(np.array([0.5, 7.0])).tolist()
    ([[0.0, 1.0], [1.0, 0.0]], [[1.0], [2.0]])
    """
    found: Floats = rankdata(y)[:, None] if y.dtype.kind == "f" else np.eye(int(y.max()) + 1)[y]
    return found


def p_of_columns(columns: Mapping[str, ColumnCells], labels: Floats, groups: Codes) -> Floats:
    """Return the p-value (n_columns,) of each column by random signs of groups, not adjusted.

    Products of features and centred labels are summed by group. If a column is unrelated to the
    label, these sums are 0 on average. The statistic is the sum over features and classes of the
    squared total, divided by the sum of squares. NaN with too few groups, by effective number.

    Args:
        columns: the columns.
        labels: those of `label_columns`.
        groups: the group (n_rows,) of each row.

    Source: Kline and Santos (2012), A score based approach to wild bootstrap inference.
    """
    resamples = Resamples.leave_one_out(groups)
    if resamples.n_effective < FEWEST_UNITS:
        return np.full(len(columns), np.nan)
    rest = labels - labels.mean(axis=0)
    rest = rest[:, 1:] if rest.shape[1] == 2 else rest
    patterns = sign_patterns(resamples.n_units, DRAWS, seed=0)
    signs, found = np.concatenate([*patterns]).astype(np.float64), []
    for column in columns.values():
        pairs = product(_features(column).T, rest.T)
        sums = np.stack([resamples.by_unit(one * label)[0] for one, label in pairs], axis=1)
        sizes = np.square(sums).sum(axis=0)
        sums, sizes = sums[:, sizes > ROUNDING], sizes[sizes > ROUNDING]
        statistics = (np.square(signs @ sums) / sizes).sum(axis=1)
        found.append((statistics >= statistics[0] - ROUNDING * len(sums)).mean())
    return np.array(found)


def adjusted_p(p: Floats) -> Floats:
    """Return p-values with Holm's adjustment; NaN remains."""
    return p if np.isnan(p).any() else holm(p)


def guesses(
    column: ColumnCells, y: NDArray[Any], train: Codes, fold_of_row: Codes, test: Codes
) -> Floats:
    """Return the scores of one column alone (n_rows, n_classes), or numbers (n_rows,).

    Those of training rows are held out. `y` are codes, or numbers; see `of_classes` of the columns
    that are declared.
    """
    numbers, categories = {}, {}
    if column.dtype.kind == "f":
        is_empty = np.isnan(column)
        numbers["column"] = np.where(is_empty, np.nanmedian(column), column)
        if is_empty.any():
            categories["is empty"] = is_empty
    else:
        categories["column"] = column
    terms, rows = Known(numbers, categories).terms(train), (train, fold_of_row, test)
    if y.dtype.kind == "f":
        return ridge(terms, y[train, None], *rows)[0][:, 0]
    n_classes = int(y.max()) + 1
    flat = np.zeros((len(y), n_classes))
    return logistic(terms, y[train], flat, *rows, n_classes, GRID_OF_KNOWN, None)[0]


def auroc_alone(column: ColumnCells, y: NDArray[Any], groups: Codes) -> float:
    """Return the AUROC of one column alone, held out in folds of groups.

    Numbers are split at their median.
    """
    is_number = y.dtype.kind == "f"
    strata = y > np.median(y) if is_number else y
    folds = group_folds(strata, groups, min(FOLDS, len(np.unique(groups))), seed=0)
    scores = guesses(column, y, np.arange(len(y)), folds, np.arange(0))
    if is_number:
        scores, y = np.stack([-scores, scores], axis=1), strata.astype(np.int64)
    found = ClassPredictions.of_scores(y, scores, are_logits=not is_number)
    return float(metrics_of(found)["auroc"](found, Resamples.whole(len(y)))[0])


def predictions(y: NDArray[Any], scores: Floats, positive: int | None) -> Any:
    """Return the predictions of one column for rows with these labels."""
    if y.dtype.kind == "f":
        return NumberPredictions(y, scores)
    return ClassPredictions.of_scores(y, scores, are_logits=True, positive=positive)
