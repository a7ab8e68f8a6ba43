"""Checks of the labels, groups and weights that every kind of probe is fitted on."""

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
    """Return validated rows (n_samples, n_features), classes (n_classes,) and codes (n_samples,).

    Raises:
        DataError: The labels have several types, or all are the same.
        ValueError: scikit-learn rejects X or y, for example because a feature is NaN or infinite.

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
            f"A classifier needs at least two classes, but y contains one class, {classes[0]}. Add "
            "rows with another label."
        )
    return rows, classes, codes


def refuse_mixed_types(y: ArrayLike, what: str = "labels") -> None:
    """Raise DataError unless all labels are text, all are numbers, or all have one other type.

    NumPy would silently convert the numbers to text, so that 1 and "1" became one class.

    Args:
        y: The values.
        what: Name of the values in the message.

    Raises:
        DataError: The values have several types.

    >>> refuse_mixed_types([1, "1"])
    Traceback (most recent call last):
    probekit.errors.DataError: The labels have several types: number, str. Make all of them text ...
    """
    values = y if isinstance(y, list | tuple) else np.asarray(y)
    if isinstance(values, np.ndarray) and values.dtype != object:
        return
    flat = values.ravel() if isinstance(values, np.ndarray) else values
    types = {_type_name(value) for value in flat}
    if len(types) > 1:
        raise DataError(
            f"The {what} have several types: {', '.join(sorted(types))}. Make all of them text or "
            "all of them numbers, and remove rows without a value."
        )


def _type_name(value: Any) -> str:
    # NumPy's str_ is a subclass of str.
    known = {"number": Number, "str": str}
    return next((n for n, kind in known.items() if isinstance(value, kind)), type(value).__name__)


def warn_if_flat(weights: Floats) -> None:
    """Warn if all weights (n_out, n_features) are 0, so that all rows get the same prediction.

    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_if_flat(np.zeros((1, 3)))
    >>> len(caught)
    1
    """
    if not np.any(weights):
        warnings.warn(
            "All weights are 0, so all rows get the same prediction: either no feature is related "
            "to the labels, or the features vary less than the rounding error of their mean, or "
            "the penalty is too strong. If the features are far from 0, subtract their mean in "
            "float64.",
            stacklevel=3,
        )


def units_of(X: NDArray[np.floating], groups: ArrayLike | None) -> NDArray[Any]:
    """Return the groups (n_samples,) as an array; without groups each row is its own group.

    Raises:
        DataError: The groups have several types or more than one dimension, or a row has no group.
        ValueError: The number of groups differs from the number of rows.

    >>> units_of(np.zeros((3, 1)), None).tolist()
    [0, 1, 2]
    """
    if groups is None:
        return np.arange(len(X))
    refuse_mixed_types(groups, "groups")
    units = np.asarray(groups)
    if units.ndim != 1:
        raise DataError(f"The groups have shape {units.shape}. Give each row one group.")
    check_consistent_length(X, units)
    missing = np.flatnonzero(isna(units))
    if len(missing):
        raise DataError(f"Row {missing[0]} has no group. Give it one or remove the row.")
    return units


def weights_of(X: NDArray[np.floating], sample_weight: ArrayLike | None) -> NDArray[np.floating]:
    """Return the weight (n_samples,) of each row in the dtype of X; without weights all are 1.

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
            f"Negative values in sample_weight: {weights.min()} in row {weights.argmin()}. Use 0 "
            "to exclude a row."
        )
    if not weights.any():
        raise DataError("All values in sample_weight are 0: at least one must be non-zero.")
    return weights


def positive(name: str, values: float | Sequence[float]) -> Floats:
    """Return the candidate values (n_values,) of a penalty as an array in ascending order.

    Raises:
        ConfigError: No value is given, a value is not a positive finite number, or a value is
            given twice.

    >>> positive("alpha", [10.0, 1.0]).tolist()
    [1.0, 10.0]
    """
    return np.array(positive_grid(name, values))
