"""The shape that all classifying kinds share: raw rows in, a stack of layers out."""

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
    """What a fit is made of: rows X (n_samples, n_features), label codes and groups (n_samples,).

    The codes are 0, 1, 2, ... in the order of `classes_`; inside a fold one may be missing.
    `typical` (n_samples,) says which rows features are scaled by; None means all.
    """

    X: NDArray[np.floating]
    codes: Codes
    groups: NDArray[np.generic]
    typical: NDArray[np.bool_] | None = None

    @property
    def measured(self) -> NDArray[np.floating]:
        """The rows (n_typical, n_features) that features are scaled by."""
        return measured(self.X, self.typical)

    def take(self, rows: NDArray[np.bool_]) -> TrainingRows:
        """Return the part of these rows."""
        typical = None if self.typical is None else self.typical[rows]
        return TrainingRows(self.X[rows], self.codes[rows], self.groups[rows], typical)


class LayeredProbe(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # sklearn has no types
    """A classifier whose fit is a `FittedLayers`; a kind says how it comes by one.

    Attributes:
        classes_: The labels, sorted.
        layers_: For raw, unscaled rows; see `FittedLayers`.
        coef_: The weight of a single layer, shape (1, n_features) for two classes, else
            (n_classes, n_features).
        intercept_: Its bias, shape (1,) or (n_classes,).
        n_iter_: Steps the solver took; 1 for a closed form.
        converged_: Whether it reached its tolerance.
    """

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Return self, fitted on X (n_samples, n_features), y and groups (n_samples,).

        Groups are what cross-validation keeps whole; without them each row is its own.

        Raises:
            ConfigError: A parameter is out of its range.
            DataError: There is one class only, or the labels mix types.
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
        """Return what is learned from the training rows."""

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return scores (n_samples,) of the second of two classes, else (n_samples, n_classes)."""
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the label with the highest score (n_samples,) of each row."""
        scores = with_reference(self._scores(X).T, len(self.classes_))
        labels: NDArray[Any] = self.classes_[scores.argmax(axis=0)]
        return labels

    def _scores(self, X: ArrayLike) -> Floats:
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return apply_layers(self.layers_, rows)


class TunedProbe(LayeredProbe):
    """A kind with a penalty that is chosen by grouped cross-validation if several are given.

    The value with the best held-out accuracy is taken, of equals the one that shrinks most.
    """

    folds: int
    random_state: int

    def _solve_tuned(
        self, name: str, data: TrainingRows, *, rising_shrinks: bool = False
    ) -> tuple[float, FittedLayers]:
        """Return the value chosen for the named penalty, and the solution at it on all rows."""
        at_least(self, folds=2, random_state=0)
        grid = positive(name, getattr(self, name))[:: -1 if rising_shrinks else 1]

        def wrong(inside: NDArray[np.bool_]) -> list[int]:
            held = data.take(~inside)
            path = self.path(grid, data.take(inside))
            return [int(np.sum(fit.guess(held.X) != held.codes)) for fit in path]

        value = float(grid[0])
        if len(grid) > 1:
            folds = inner_folds(data.codes, data.groups, self.folds, self.random_state)
            value = choose(grid, folds, wrong)
        (solution,) = self.path(np.array([value]), data)
        return value, solution

    @abstractmethod
    def path(self, values: Floats, data: TrainingRows) -> list[FittedLayers]:
        """Return the solution at each of the values."""
