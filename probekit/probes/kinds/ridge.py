"""Ridge regression, on labels as -1 and +1 or on numbers, all penalties from one decomposition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from probekit.probes.bounds import at_least
from probekit.probes.folds import group_folds
from probekit.probes.kinds.base import TrainingRows, TunedProbe
from probekit.probes.kinds.choice import choose
from probekit.probes.kinds.scaling import Scaling, measured
from probekit.probes.solve.design import Floats
from probekit.probes.solve.layers import AffineLayer, FittedLayers, apply_layers
from probekit.probes.validation import positive, refuse_mixed_types, units_of, warn_if_flat

ALPHAS = (1.0, 10.0, 100.0, 1e3, 1e4)


class RidgeProbe(TunedProbe):
    """Standardised ridge regression on +1 for a class and -1 for the rest; the top score wins.

    Args:
        alpha: Strength of the penalty on standardised features; of several values the one with the
            best held-out accuracy is taken, with folds that keep groups whole.
        folds: How many folds choose alpha.
        random_state: Seed of the folds.

    >>> X = [[-3.0], [-2.0], [-1.0], [1.0], [2.0], [3.0]]
    >>> probe = RidgeProbe(alpha=1.0).fit(X, ["down", "down", "down", "up", "up", "up"])
    >>> probe.predict([[-5.0], [5.0]]).tolist(), probe.alpha_
    (['down', 'up'], 1.0)
    """

    def __init__(
        self, alpha: float | Sequence[float] = ALPHAS, folds: int = 5, random_state: int = 0
    ) -> None:
        self.alpha = alpha
        self.folds = folds
        self.random_state = random_state

    def solve(self, data: TrainingRows) -> FittedLayers:
        """Return what is learned from the training rows."""
        self.alpha_, solution = self._solve_tuned("alpha", data, rising_shrinks=True)
        return solution

    def path(self, values: Floats, data: TrainingRows) -> list[FittedLayers]:
        """Return the solution at each of the values."""
        classes = np.unique(data.codes)
        positives = classes[1:] if len(classes) == 2 else classes
        targets = np.where(data.codes[:, None] == positives, 1.0, -1.0)
        layers = ridge_path(data.X, targets, values, data.typical)
        return [FittedLayers(classes, (layer,)) for layer in layers]


class RidgeRegressionProbe(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # no types
    """Standardised ridge regression on a number.

    Args:
        alpha: Strength of the penalty on standardised features; of several values the one with the
            least held-out squared error is taken, with folds that keep groups whole.
        folds: How many folds choose alpha.
        random_state: Seed of the folds.

    Attributes:
        layers_: One layer, for raw, unscaled rows.
        coef_: Its weight, shape (1, n_features).
        intercept_: Its bias, shape (1,).
        alpha_: The alpha of the fit.
        n_iter_: 1, as the form is closed.
        converged_: True.

    >>> probe = RidgeRegressionProbe(alpha=1e-6).fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
    >>> probe.predict([[10.0]]).round(3).tolist()
    [21.0]
    """

    def __init__(
        self, alpha: float | Sequence[float] = ALPHAS, folds: int = 5, random_state: int = 0
    ) -> None:
        self.alpha = alpha
        self.folds = folds
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Return self, fitted on X (n_samples, n_features), y and groups (n_samples,).

        Groups are what cross-validation keeps whole; without them each row is its own.

        Raises:
            ConfigError: An alpha is not positive, or there are too few folds.
            DataError: There are fewer groups than folds, or the targets mix types.
        """
        at_least(self, folds=2, random_state=0)
        refuse_mixed_types(y)
        grid = positive("alpha", self.alpha)[::-1]
        rows, targets = validate_data(
            self, X, y, dtype=[np.float64, np.float32], y_numeric=True, ensure_min_samples=2
        )
        targets = targets.astype(np.float64)
        self.alpha_ = self._choose(grid, rows, targets, units_of(rows, groups))
        self.layers_ = ridge_path(rows, targets[:, None], np.array([self.alpha_]))
        self.coef_, self.intercept_ = self.layers_[0]
        self.n_iter_, self.converged_ = 1, True
        warn_if_flat(self.coef_)
        return self

    def _choose(
        self,
        grid: Floats,
        X: NDArray[np.floating],
        y: Floats,
        groups: NDArray[np.generic],
    ) -> float:
        if len(grid) == 1:
            return float(grid[0])

        def errors(inside: NDArray[np.bool_]) -> list[float]:
            path = ridge_path(X[inside], y[inside, None], grid)
            guesses = [apply_layers((layer,), X[~inside])[:, 0] for layer in path]
            return [float(np.sum((guess - y[~inside]) ** 2)) for guess in guesses]

        # Numbers have no classes to spread over the folds: one label for all evens out the rows.
        fold_of_row = group_folds(np.zeros(len(y)), groups, self.folds, self.random_state)
        return choose(grid, [fold_of_row != fold for fold in range(self.folds)], errors)

    def predict(self, X: ArrayLike) -> Floats:
        """Return the predicted number (n_samples,) of each row."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return apply_layers(self.layers_, rows)[:, 0]


def ridge_path(
    X: NDArray[np.floating],
    targets: Floats,
    alphas: Floats,
    typical: NDArray[np.bool_] | None = None,
) -> tuple[AffineLayer, ...]:
    """Return for each alpha the layer that minimises squared error + alpha |weight|^2.

    Rows X (n_samples, n_features) are standardised for it, by the typical ones (n_samples,) if it
    is told which; the layer is for raw rows, with one output for each column of targets
    (n_samples, n_targets). The bias is free.

    >>> X, targets = np.array([[-1.0], [1.0]]), np.array([[-3.0], [3.0]])
    >>> [layer.weight.tolist() for layer in ridge_path(X, targets, np.array([2.0, 4.0]))]
    [[[1.5]], [[1.0]]]

    Source: Hastie, Tibshirani and Friedman (2009), The Elements of Statistical Learning, section
    3.4.1; for fewer rows than features the same from the eigenvectors of X X^T, section 18.3.5.
    """
    scaling = Scaling.standard(measured(X, typical))
    rows, mean = scaling.apply(X), targets.mean(axis=0)
    # Rows scaled by some of them are not centred, and the bias that is free takes up their mean.
    centre = rows.mean(axis=0)
    rows -= centre
    is_tall = rows.shape[0] >= rows.shape[1]
    values, axes = np.linalg.eigh(rows.T @ rows if is_tall else rows @ rows.T)
    values = np.maximum(values, 0.0)  # rounding leaves some just below
    onto_axes, back = (rows @ axes).T if is_tall else axes.T, axes if is_tall else rows.T @ axes
    turned = onto_axes @ (targets - mean)
    weights = [(back @ (turned / (values + alpha)[:, None])).T for alpha in alphas]
    return tuple(scaling.fold(weight, mean - weight @ centre) for weight in weights)
