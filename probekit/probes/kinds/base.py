"""Base classes of the kinds for classification, whose fits are stacks of layers on raw rows."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from probekit.probes.bounds import at_least
from probekit.probes.kinds.choice import choose, inner_folds
from probekit.probes.kinds.scaling import measured
from probekit.probes.solve.design import Floats
from probekit.probes.solve.layers import AffineLayer, FittedLayers, apply_layers, with_reference
from probekit.probes.solve.solver import Codes
from probekit.probes.validation import labelled_rows, positive, units_of, warn_if_flat


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Training rows of one fit, with their labels and groups.

    Attributes:
        X: The rows (n_samples, n_features).
        codes: The label codes (n_samples,), numbered in the order of `classes_`; a code may be
            absent from the rows of a fold.
        groups: The groups (n_samples,).
        typical: Which rows (n_samples,) feature scaling is estimated from; None means all.
    """

    X: NDArray[np.floating]
    codes: Codes
    groups: NDArray[np.generic]
    typical: NDArray[np.bool_] | None = None

    @property
    def measured(self) -> NDArray[np.floating]:
        """The rows (n_typical, n_features) that feature scaling is estimated from."""
        return measured(self.X, self.typical)

    def take(self, rows: NDArray[np.bool_]) -> TrainingRows:
        """Return the rows selected by a mask (n_samples,)."""
        typical = None if self.typical is None else self.typical[rows]
        return TrainingRows(self.X[rows], self.codes[rows], self.groups[rows], typical)


class LayeredProbe(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # sklearn has no types
    """Base class of classifiers whose fit is a `FittedLayers`; subclasses implement `solve`.

    Attributes:
        classes_: The sorted labels.
        layers_: The fitted layers, for raw, unscaled rows; see `FittedLayers`.
        coef_: The weight of a single layer, shape (1, n_features) for two classes, else
            (n_classes, n_features).
        intercept_: The bias of a single layer, shape (1,) or (n_classes,).
        n_iter_: Number of solver iterations; 1 for a closed form.
        converged_: Whether the solver reached its tolerance.
    """

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Return self, fitted on X (n_samples, n_features), y and groups (n_samples,).

        Cross-validation keeps the rows of a group in one fold; without groups each row is its own
        group.

        Raises:
            ConfigError: A parameter is out of range.
            DataError: There is only one class, or the labels have several types.
        """
        rows, self.classes_, codes = labelled_rows(self, X, y)
        solution = self.solve(TrainingRows(rows, codes, units_of(rows, groups)))
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
        labels: NDArray[Any] = self.classes_[scores.argmax(axis=0)]
        return labels

    def _scores(self, X: ArrayLike) -> Floats:
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return apply_layers(self.layers_, rows)


class TunedProbe(LayeredProbe):
    """Base class of kinds whose penalty is selected by grouped cross-validation.

    If several values are given, the one with the highest held-out accuracy is selected; ties go to
    the strongest regularisation.
    """

    folds: int
    random_state: int

    def _solve_tuned(
        self, name: str, data: TrainingRows, *, rising_shrinks: bool = False
    ) -> tuple[float, FittedLayers]:
        """Return the selected value of the named penalty, and its fit on all rows.

        `rising_shrinks` is True if larger values regularise more, as for alpha.
        """
        at_least(self, folds=2, random_state=0)
        grid = positive(name, getattr(self, name))[:: -1 if rising_shrinks else 1]

        def n_errors(inside: NDArray[np.bool_]) -> list[int]:
            held_out = data.take(~inside)
            path = self.path(grid, data.take(inside))
            return [int(np.sum(fit.guess(held_out.X) != held_out.codes)) for fit in path]

        value = float(grid[0])
        if len(grid) > 1:
            folds = inner_folds(data.codes, data.groups, self.folds, self.random_state)
            value = choose(grid, folds, n_errors)
        (solution,) = self.path(np.array([value]), data)
        return value, solution

    @abstractmethod
    def path(self, values: Floats, data: TrainingRows) -> list[FittedLayers]:
        """Return the fit at each value of the penalty."""
