"""Ridge regression for classification and regression, all penalties from one decomposition."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from probekit.lazy_rows import Codes, Floats, LazyRows, Mask, Rows, Sum
from probekit.probes.data import group_folds
from probekit.probes.kinds import base
from probekit.probes.kinds.registry import ALPHAS, at_least, positive_grid
from probekit.probes.solve.fits import rate_numbers, search
from probekit.probes.solve.layers import AffineLayer, FittedLayers, apply_layers
from probekit.probes.training_rows import Scaling, TrainingRows, balanced_weights
from probekit.products import without_tf32


@dataclass(eq=False, repr=False)
class RidgeProbe(base.TunedProbe):
    """Ridge classifier: regression on +1 for each class and -1 for the others, highest score wins.

    Args:
        alpha: Regularisation strength, for standardised features; of several values the one with
            the highest held-out accuracy is selected by group-disjoint cross-validation.
        folds: Number of cross-validation folds that select alpha.
        random_state: Random seed for the folds.
        balanced: Whether all classes have the same total weight.

    >>> X = [[-3.0], [-2.0], [-1.0], [1.0], [2.0], [3.0]]
    >>> probe = RidgeProbe(alpha=1.0).fit(X, ["down", "down", "down", "up", "up", "up"])
    >>> probe.predict([[-5.0], [5.0]]).tolist(), probe.alpha_
    (['down', 'up'], 1.0)
    """

    penalty = "alpha"

    alpha: float | Sequence[float] = ALPHAS
    balanced: bool = False

    def path(self, values: Floats, data: TrainingRows) -> list[FittedLayers]:
        """Return the fit at each value of alpha."""
        weights = balanced_weights(data.codes) if self.balanced else None
        layers = ridge_path(data.X, targets_of(data.codes), values, data.typical, weights)
        return [FittedLayers(np.unique(data.codes), (layer,)) for layer in layers]


def targets_of(codes: Codes) -> Floats:
    """Return +1 for the class of each column and -1 for others: (n_samples, 1 or n_classes)."""
    classes = np.unique(codes)
    positives = classes[1:] if len(classes) == 2 else classes
    return np.where(codes[:, None] == positives, 1.0, -1.0)


@dataclass(eq=False, repr=False)
class RidgeRegressionProbe(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # no types
    """Ridge regression of numeric labels on standardised features.

    Args:
        alpha: Regularisation strength, for standardised features; of several values the one with
            the smallest held-out squared error is selected by group-disjoint cross-validation.
        folds: Number of cross-validation folds that select alpha.
        random_state: Random seed for the folds.
        device: Where `fit` computes; see `LazyRows.on`.

    Attributes:
        layers_: One layer, for raw, unscaled rows.
        coef_: The weight of the layer, shape (1, n_features).
        intercept_: The bias of the layer, shape (1,).
        alpha_: The selected alpha.
        n_iter_: 1, because the solution has a closed form.
        converged_: True.

    >>> probe = RidgeRegressionProbe(alpha=1e-6).fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
    >>> probe.predict([[10.0]]).round(3).tolist()
    [21.0]
    """

    alpha: float | Sequence[float] = ALPHAS
    folds: int = 5
    random_state: int = 0
    device: str = "cpu"

    @without_tf32()
    def fit(self, X: ArrayLike, y: ArrayLike, groups: ArrayLike | None = None) -> Self:
        """Return self, fitted on X (n_samples, n_features), y and groups (n_samples,).

        Cross-validation keeps the rows of a group in one fold; without groups each row is its own
        group.

        Raises:
            ConfigError: An alpha is not positive, or there are too few folds.
            DataError: There are fewer groups than folds, or the labels have several types.
        """
        at_least(self, folds=2, random_state=0)
        base.refuse_mixed_types(y)
        grid = np.array(positive_grid("alpha", self.alpha))[::-1]  # the strongest first
        rows, targets = validate_data(
            self, X, y, dtype=[np.float64, np.float32], y_numeric=True, ensure_min_samples=2
        )
        targets = targets.astype(np.float64)
        units, there = base.units_of(rows, groups), LazyRows.of(rows).on(self.device)

        def held_out(outside: Mask) -> list[Floats]:
            """Return the predictions of held-out rows at each alpha, fitted on other rows."""
            path = ridge_path(there.select(~outside), targets[~outside, None], grid)
            return [apply_layers((layer,), rows[outside])[:, 0] for layer in path]

        best = 0
        if len(grid) > 1:
            # Numbers have no classes to stratify by; a single label balances the fold sizes.
            folds = group_folds(np.zeros(len(rows)), units, self.folds, self.random_state)
            best = search(rate_numbers, targets, folds, held_out)
        self.alpha_ = float(grid[best])
        self.layers_ = ridge_path(there, targets[:, None], np.array([self.alpha_]))
        self.coef_, self.intercept_ = self.layers_[0]
        self.n_iter_, self.converged_ = 1, True
        base.warn_if_flat(self.coef_)
        return self

    def predict(self, X: ArrayLike) -> Floats:
        """Return the predicted number (n_samples,) of each row."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return apply_layers(self.layers_, rows)[:, 0]


def ridge_path(
    X: Rows,
    targets: Floats,
    alphas: Floats,
    typical: Mask | None = None,
    weights: Floats | None = None,
) -> tuple[AffineLayer, ...]:
    """Return, for each alpha, the layer that minimises squared error + alpha |weight|^2.

    Rows X (n_samples, n_features) are standardised for the fit, with scaling estimated from the
    `typical` rows (n_samples,) if given. The layer applies to raw rows and has one output for each
    column of targets (n_samples, n_targets). The bias is not penalised. `weights` (n_samples,)
    multiply the squared errors, not the scaling; None means 1.

    >>> X, targets = np.array([[-1.0], [1.0]]), np.array([[-3.0], [3.0]])
    >>> [layer.weight.tolist() for layer in ridge_path(X, targets, np.array([2.0, 4.0]))]
    [[[1.5]], [[1.0]]]

    Source: Hastie, Tibshirani and Friedman (2009), The Elements of Statistical Learning, section
    3.4.1; with fewer rows than features, computed from the eigenvectors of X X^T, section 18.3.5.
    """
    scaling = Scaling.standard(X, typical)
    rows, counts = scaling.lazily(X), np.ones(len(X)) if weights is None else weights
    # Rows scaled by a subset are not centred; the unpenalised bias absorbs their mean.
    mean, sums = counts @ targets / counts.sum(), Sum(rows.device)
    for block, of_block in rows.parts(counts):
        sums.add(of_block @ block)
    centre = sums.array() / counts.sum()
    residuals, roots = targets - mean, np.sqrt(counts)[:, None]
    # The coefficients are axes (eigenvalues + alpha)^-1 axes^T rows^T residuals, with the axes of
    # X^T X. They equal rows^T axes (eigenvalues + alpha)^-1 axes^T residuals, with the axes of
    # X X^T, which is the smaller matrix if there are fewer rows than features.
    if len(X) >= X.shape[1]:
        there, gram, crossed = rows.put(centre), Sum(rows.device), Sum(rows.device)
        for block, root, residual in rows.parts(roots, residuals):
            weighted = root * (block - there)
            gram.add(weighted.T @ weighted)
            crossed.add(weighted.T @ (root * residual))
        eigenvalues, axes = np.linalg.eigh(gram.array())
        on_axes, back = axes.T @ crossed.array(), axes
    else:
        wide = roots * (rows[:] - centre)
        eigenvalues, axes = np.linalg.eigh(wide @ wide.T)
        on_axes, back = axes.T @ (roots * residuals), wide.T @ axes
    eigenvalues = np.maximum(eigenvalues, 0.0)  # rounding can make 0 slightly negative
    coefs = [(back @ (on_axes / (eigenvalues + alpha)[:, None])).T for alpha in alphas]
    return tuple(scaling.fold(coef, mean - coef @ centre) for coef in coefs)
