"""What all kinds ask of labels, groups and parameters, and what they say when it is not so."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pandas import isna
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, validate_data

from probekit.errors import DataError
from probekit.probes.bounds import positive_grid
from probekit.probes.solve.design import Floats
from probekit.probes.solve.solver import Codes


def labelled_rows(
    estimator: Any, X: ArrayLike, y: ArrayLike
) -> tuple[NDArray[np.floating], NDArray[Any], Codes]:
    """Return rows (n_samples, n_features), classes (n_classes,) and codes (n_samples,) for a fit.

    Raises:
        DataError: The labels are of several types, or all the same.
        ValueError: scikit-learn refuses X or y, for instance for a NaN or an infinite feature.

    >>> from sklearn.base import BaseEstimator
    >>> _, classes, codes = labelled_rows(BaseEstimator(), [[1.0], [2.0], [3.0]], ["b", "a", "b"])
    >>> classes.tolist(), codes.tolist()
    (['a', 'b'], [1, 0, 1])
    """
    refuse_mixed_types(y)
    rows, labels = validate_data(
        estimator, X, y, dtype=[np.float64, np.float32], ensure_min_samples=2
    )
    check_classification_targets(labels)
    classes, codes = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise DataError(
            f"a classifier needs two classes, but y holds one class, {classes[0]}. Add rows of "
            "another label."
        )
    return rows, classes, codes


def refuse_mixed_types(y: ArrayLike, what: str = "labels") -> None:
    """Return nothing if all labels are text, or all numbers, or all of one other type.

    NumPy would make text of the numbers without a word, and 1 and "1" one class.

    Raises:
        DataError: The labels, or `what` they are, are of several types.

    >>> refuse_mixed_types([1, "1"])
    Traceback (most recent call last):
    probekit.errors.DataError: the labels mix types: number, str. Make all of them text, or all ...
    """
    values = y if isinstance(y, list | tuple) else np.asarray(y)
    if isinstance(values, np.ndarray) and values.dtype != object:
        return
    flat = values.ravel() if isinstance(values, np.ndarray) else values
    types = {_type_name(value) for value in flat}
    if len(types) > 1:
        raise DataError(
            f"the {what} mix types: {', '.join(sorted(types))}. Make all of them text, or all "
            "numbers, and drop rows that have none."
        )


def _type_name(value: Any) -> str:
    # NumPy's text is a kind of Python's.
    known = {"number": Number, "str": str}
    return next((n for n, kind in known.items() if isinstance(value, kind)), type(value).__name__)


def warn_if_flat(weights: Floats) -> None:
    """Warn where no feature has a weight (n_out, n_features), so that all rows get one answer.

    >>> with warnings.catch_warnings(record=True) as told:
    ...     warnings.simplefilter("always")
    ...     warn_if_flat(np.zeros((1, 3)))
    >>> len(told)
    1
    """
    if not np.any(weights):
        warnings.warn(
            "All weights are 0, and all rows get the same answer: no feature says anything of the "
            "labels or varies by more than the rounding of its mean, or the penalty leaves nothing "
            "of them. If the features are far from 0, subtract their mean in float64.",
            stacklevel=3,
        )


def units_of(X: NDArray[np.floating], groups: ArrayLike | None) -> NDArray[Any]:
    """Return the groups (n_samples,) as an array; without groups each row is its own.

    Raises:
        DataError: The groups are of several types, a row has none, or several.
        ValueError: There are more or fewer groups than rows.

    >>> units_of(np.zeros((3, 1)), None).tolist()
    [0, 1, 2]
    """
    if groups is None:
        return np.arange(len(X))
    refuse_mixed_types(groups, "groups")
    units = np.asarray(groups)
    if units.ndim != 1:
        raise DataError(f"the groups have shape {units.shape}. Give each row one group.")
    check_consistent_length(X, units)
    lacking = np.flatnonzero(isna(units))
    if len(lacking):
        raise DataError(f"row {lacking[0]} has no group. Give each row one, or drop it.")
    return units


def weights_of(X: NDArray[np.floating], sample_weight: ArrayLike | None) -> NDArray[np.floating]:
    """Return the weight of each row (n_samples,) in the dtype of X; without any, all are 1.

    Raises:
        DataError: The shape is not (n_samples,), a weight is negative, or all are 0.
        ValueError: A weight is not a finite number.

    >>> weights_of(np.zeros((2, 1)), [1, 3]).tolist()
    [1.0, 3.0]
    """
    if sample_weight is None or isinstance(sample_weight, Number):
        weights = np.full(len(X), 1 if sample_weight is None else sample_weight, X.dtype)
    else:
        weights = check_array(
            sample_weight, ensure_2d=False, dtype=X.dtype, input_name="sample_weight"
        )
    if weights.shape != (len(X),):
        raise DataError(
            f"sample_weight has shape {weights.shape}, but must be 1D with one weight per row: "
            f"({len(X)},)."
        )
    if (weights < 0).any():
        raise DataError(
            f"Negative values in sample_weight: {weights.min()} in row {weights.argmin()}. Give 0 "
            "to leave a row out."
        )
    if not weights.any():
        raise DataError("all sample_weight are 0: at least one must be non-zero.")
    return weights


def positive(name: str, values: float | Sequence[float]) -> Floats:
    """Return the values of a penalty (n_values,), in rising order, as an array.

    Raises:
        ConfigError: There is none, one is not a positive finite number, or one is given twice.

    >>> positive("alpha", [10.0, 1.0]).tolist()
    [1.0, 10.0]
    """
    return np.array(positive_grid(name, values))
