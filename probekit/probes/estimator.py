"""A linear probe as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from probekit.errors import ConfigError, DataError
from probekit.probes.fits import count_fits, fit_columns
from probekit.probes.folds import group_folds
from probekit.probes.parallel import Progress
from probekit.probes.solver import Codes, Design, Fit, fold, prepare, solve, with_reference


class LinearProbe(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # sklearn has no types
    """Standardised L2 logistic regression, with C chosen by grouped cross-validation.

    Args:
        C: Inverse strength of the penalty on standardised features; of several values the one with
            the best held-out accuracy is taken, with folds that keep groups whole.
        folds: How many folds choose C.
        max_iter: Upper bound on the solver's steps.
        random_state: Seed of the folds.

    Attributes:
        classes_: The labels, sorted.
        coef_: For raw, unscaled rows, shape (1, n_features) for two classes, else
            (n_classes, n_features).
        intercept_: Shape (1,) or (n_classes,).
        C_: The C of the fit.
        n_iter_: Steps the solver took.
        converged_: Whether it reached its tolerance.
        gradient_norm_: Norm of the mean objective's gradient at the solution.

    >>> X = np.array([[-3.0], [-2.0], [-1.0], [1.0], [2.0], [3.0]])
    >>> probe = LinearProbe(C=1.0).fit(X, ["down", "down", "down", "up", "up", "up"])
    >>> probe.predict([[-5.0], [5.0]]).tolist(), probe.converged_
    (['down', 'up'], True)
    """

    def __init__(
        self,
        C: float | Sequence[float] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0),
        folds: int = 5,
        max_iter: int = 2000,
        random_state: int = 0,
    ) -> None:
        self.C = C
        self.folds = folds
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> LinearProbe:
        """Return self, fitted on X (n_samples, n_features), y and groups (n_samples,).

        Without groups each row is its own.

        Raises:
            ConfigError: A C is not positive, or there are too few folds or steps.
            DataError: There is one class only, or fewer groups than folds.
        """
        grid = positive_grid(self.C)
        for name, least in (("folds", 2), ("max_iter", 1)):
            if not getattr(self, name) >= least:
                raise ConfigError(f"{name} is {getattr(self, name)}, but must be {least} or more.")
        rows, y = validate_data(self, X, y, dtype=[np.float64, np.float32], ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(
                f"a classifier needs two classes, but y holds one class, {self.classes_[0]}."
            )
        self.C_, design, fitted = self._fit_codes(rows, codes, groups, grid)
        self.coef_, self.intercept_ = fold(design, fitted)
        self.n_iter_ = fitted.n_iter
        self.converged_ = fitted.converged
        self.gradient_norm_ = fitted.gradient_norm
        return self

    def _fit_codes(
        self, X: NDArray[Any], codes: Codes, groups: ArrayLike | None, grid: tuple[float, ...]
    ) -> tuple[float, Design, Fit]:
        if len(grid) == 1:
            design = prepare(X)
            return grid[0], design, solve(design, codes, grid[0], max_iter=self.max_iter)
        units = np.arange(len(X)) if groups is None else np.asarray(groups)
        folds = group_folds(codes, units, self.folds, self.random_state)
        progress = Progress(count_fits(1, self.folds, grid))
        design, (column,) = fit_columns(X, [codes], folds, grid, self.max_iter, progress)
        return column.C, design, column.fit

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return scores (n_samples,) of the second of two classes, else (n_samples, n_classes)."""
        scores = self._scores(X)
        return scores[0] if len(scores) == 1 else scores.T

    def predict_log_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the log probabilities (n_samples, n_classes), in the order of `classes_`."""
        scores = with_reference(self._scores(X), len(self.classes_))
        logs: NDArray[np.float64] = log_softmax(scores, axis=0).T
        return logs

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probabilities (n_samples, n_classes), in the order of `classes_`."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the likeliest label (n_samples,) of each row."""
        scores = with_reference(self._scores(X), len(self.classes_))
        labels: NDArray[Any] = self.classes_[scores.argmax(axis=0)]
        return labels

    def _scores(self, X: ArrayLike) -> NDArray[np.float64]:
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        scores: NDArray[np.float64] = self.coef_ @ rows.T + self.intercept_[:, None]
        return scores


def positive_grid(C: float | Sequence[float]) -> tuple[float, ...]:
    """Return the values of C as a tuple.

    Raises:
        ConfigError: There is none, one is not a positive finite number, or one stands there twice.

    >>> positive_grid(0.1)
    (0.1,)
    """
    grid = tuple(float(value) for value in np.atleast_1d(np.asarray(C, dtype=np.float64)))
    wrong = [value for value in grid if not 0 < value < np.inf]
    if wrong or not grid:
        raise ConfigError(
            f"C must be positive and finite, but holds {wrong or 'nothing'}. Give one or more "
            "values, such as 0.01 or [0.001, 0.01, 0.1]."
        )
    if len(set(grid)) < len(grid):
        raise ConfigError(f"C holds a value twice: {', '.join(map(str, grid))}.")
    return grid
