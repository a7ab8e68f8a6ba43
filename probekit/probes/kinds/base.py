"""What the kinds of probe share: checks of labels, choice of a penalty, base classes."""

import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field
from numbers import Number
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pandas import isna
from scipy.optimize import minimize
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from probekit.errors import DataError
from probekit.lazy_rows import Codes, Features, Floats, LazyRows, Mask
from probekit.memory import is_accelerator
from probekit.probes.data import fittable_insides, group_folds
from probekit.probes.kinds.registry import at_least, positive_grid
from probekit.probes.solve.fits import Judge, rate_scores, search
from probekit.probes.solve.layers import AffineLayer, FittedLayers, apply_layers, with_reference
from probekit.probes.training_rows import TrainingRows
from probekit.products import without_tf32


def labelled_rows(
    estimator: Any, X: ArrayLike, y: ArrayLike
) -> tuple[Features, NDArray[Any], Codes]:
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
    classes, codes = class_codes(labels)
    return rows, classes, codes


def class_codes(labels: NDArray[Any]) -> tuple[NDArray[Any], Codes]:
    """Return the sorted classes (n_classes,) and the code (n_samples,) of each label.

    Raises:
        DataError: All labels are the same.
    """
    classes, codes = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise DataError(
            f"A classifier needs at least two classes, but y contains one class, {classes[0]}. Add "
            "rows with another label."
        )
    return classes, codes


def refuse_mixed_types(y: ArrayLike, what: str = "labels") -> None:
    """Raise DataError unless all labels are text, all are numbers, or all have one other type.

    NumPy would silently convert the numbers to text, so that 1 and "1" became one class.

    Args:
        y: The values; a list of lists has only one type, list.
        what: Name of the values in the message.

    Raises:
        DataError: The values have several types.

    >>> refuse_mixed_types([1, "1"])
    Traceback (most recent call last):
    probekit.errors.DataError: The labels have several types: number, str. Make all of them text ...
    """
    if not isinstance(y, list | tuple):
        y = np.asarray(y).ravel()
        if y.dtype != object:
            return
    types = set()
    for value in y:  # all numbers count as one type; NumPy's str_ is a subclass of str
        one = type(value).__name__ if not isinstance(value, str) else "str"
        types.add("number" if isinstance(value, Number) else one)
    if len(types) > 1:
        raise DataError(
            f"The {what} have several types: {', '.join(sorted(types))}. Make all of them text or "
            "all of them numbers, and remove rows without a value."
        )


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


def units_of(X: Sized, groups: ArrayLike | None) -> NDArray[Any]:
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


def weights_of(X: Features, sample_weight: ArrayLike | None) -> Features:
    """Return the weight (n_samples,) of each row in the dtype of X; without weights all are 1.

    A single number is the weight of every row.

    Raises:
        DataError: The number of weights is not n_samples, a weight is negative, or all are 0.
        ValueError: scikit-learn rejects the weights, for example because one is NaN or infinite.

    >>> weights_of(np.zeros((2, 1)), [1, 3]).tolist()
    [1.0, 3.0]
    """
    if sample_weight is None:
        sample_weight = 1
    if isinstance(sample_weight, Number):
        sample_weight = np.full(len(X), sample_weight, X.dtype)
    weights: Features = check_array(
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


def minimum(
    objective: Callable[[Floats], tuple[float, Floats]],
    start: Floats,
    max_iter: int,
    device: str,
    **tolerances: float,
) -> Any:
    """Return the result of SciPy's L-BFGS-B for a function that returns value and gradient.

    L-BFGS-B itself runs on the CPU. Near the minimum, values that an accelerator computes in
    float32 have too few digits for its line search. It is therefore continued from there with
    differences of values that are computed from gradients, which is exact for a quadratic function.

    Args:
        objective: the function of a point (n_parameters,).
        start: the first point.
        max_iter: most iterations.
        device: where values and gradients are computed.
        tolerances: `gtol` and `ftol` of L-BFGS-B.
    """
    # An iteration needs one or two evaluations, so that `maxiter` is reached before `maxfun`.
    options = {"maxiter": max_iter, "maxfun": 4 * max_iter, **tolerances}
    how: Any = {"jac": True, "method": "L-BFGS-B"}
    first = last = minimize(objective, start, options=options, **how)
    n_left = max_iter - first.nit
    if is_accelerator(device) and n_left > 0:

        def difference(point: Floats) -> tuple[float, Floats]:
            """Return value and gradient, with the value minus that of the first result."""
            _, gradient = objective(point)
            return float(0.5 * (first.jac + gradient) @ (point - first.x)), gradient

        last = minimize(difference, first.x, options=options | {"maxiter": n_left}, **how)
        last.nit += first.nit
    last.nit = max(int(last.nit), 1)  # scikit-learn requires at least 1
    return last


def selected(
    probe: Any,
    n_values: int,
    judge: Judge,
    codes: Codes,
    groups: NDArray[Any],
    held_out: Callable[[Mask], Sequence[Floats]],
) -> int:
    """Return the index of the penalty with the best held-out scores; 0 if there is a single one.

    Args:
        probe: an estimator with `folds` and `random_state`.
        n_values: number of penalties.
        judge: rates held-out class scores.
        codes: codes (n_samples,) of the labels.
        groups: groups (n_samples,); the rows of a group are in one fold.
        held_out: returns the class scores of held-out rows at each penalty; see `search`.
    """
    if n_values == 1:
        return 0
    folds = group_folds(codes, groups, probe.folds, probe.random_state)
    fittable_insides(codes, folds)  # raises an error if no fold can be fitted
    return search(judge, codes, folds, held_out)


@dataclass(eq=False, repr=False)
class LayeredProbe(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # sklearn has no types
    """Base class of classifiers whose fit is a `FittedLayers`; subclasses implement `solve`.

    Args:
        device: Where `fit` computes; see `LazyRows.on`.

    Attributes:
        classes_: The sorted labels.
        layers_: The fitted layers, for raw, unscaled rows; see `FittedLayers`.
        coef_: The weight of a single layer, shape (1, n_features) for two classes, else
            (n_classes, n_features).
        intercept_: The bias of a single layer, shape (1,) or (n_classes,).
        n_iter_: Number of solver iterations; 1 for a closed form.
        converged_: Whether the solver reached its tolerance.
    """

    device: str = field(default="cpu", kw_only=True)

    @without_tf32()
    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Return self, fitted on X (n_samples, n_features), y and groups (n_samples,).

        Cross-validation keeps the rows of a group in one fold; without groups each row is its own
        group.

        Raises:
            ConfigError: A parameter is out of range.
            DataError: There is only one class, the labels have several types, or there are fewer
                groups than folds.
        """
        rows, self.classes_, codes = labelled_rows(self, X, y)
        there = LazyRows.of(rows).on(self.device)
        solution = self.solve(TrainingRows(there, codes, units_of(rows, groups)))
        self.layers_: tuple[AffineLayer, ...] = solution.layers
        if len(solution.layers) == 1:
            self.coef_, self.intercept_ = solution.layers[0]
        self.n_iter_ = solution.n_iter
        self.converged_ = solution.converged
        warn_if_flat(self.layers_[0].weight)
        return self

    @abstractmethod
    def solve(self, data: TrainingRows) -> FittedLayers:
        """Return the fit on the training rows."""

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the scores of all classes (n_samples, n_classes).

        For two classes, return only the score (n_samples,) of the second.
        """
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the label (n_samples,) with the highest score for each row."""
        scores = with_reference(self._scores(X).T, len(self.classes_))
        found: NDArray[Any] = self.classes_[scores.argmax(axis=0)]
        return found

    def _scores(self, X: ArrayLike) -> Floats:
        """Return the scores (n_samples, n_out) of validated rows."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return apply_layers(self.layers_, rows)


@dataclass(eq=False, repr=False)
class TunedProbe(LayeredProbe):
    """Base class of kinds whose penalty is selected by grouped cross-validation.

    If several values are given, the one with the highest held-out accuracy is selected; ties go to
    the strongest regularisation.

    Args:
        folds: Number of cross-validation folds that select the penalty.
        random_state: Random seed for the folds, and for initial weights.

    Attributes of subclasses:
        penalty: Name of the penalty; larger values of "alpha" regularise more, of "C" less.
        counts: Names of the integer parameters that must be at least 1.
    """

    penalty: ClassVar[str]
    counts: ClassVar[tuple[str, ...]] = ()

    folds: int = field(default=5, kw_only=True)
    random_state: int = field(default=0, kw_only=True)

    def solve(self, data: TrainingRows) -> FittedLayers:
        """Return the fit on the training rows, and store the selected value of the penalty."""
        at_least(self, **dict.fromkeys(self.counts, 1), folds=2, random_state=0)
        grid = np.array(positive_grid(self.penalty, getattr(self, self.penalty)))
        grid = grid[::-1] if self.penalty == "alpha" else grid  # strongest regularisation first

        def held_out(outside: Mask) -> list[Floats]:
            """Return the class scores of held-out rows at each penalty, fitted on other rows."""
            path = self.path(grid, data.take(~outside))
            return [fit.outputs(data.X[outside], int(data.codes.max()) + 1) for fit in path]

        best = selected(self, len(grid), rate_scores, data.codes, data.groups, held_out)
        setattr(self, f"{self.penalty}_", float(grid[best]))
        (solution,) = self.path(grid[best : best + 1], data)
        return solution

    @abstractmethod
    def path(self, values: Floats, data: TrainingRows) -> list[FittedLayers]:
        """Return the fit at each value of the penalty."""
