"""The k-sparse probe: how few features suffice, and which."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from probekit.errors import ConfigError
from probekit.probes.bounds import at_least
from probekit.probes.kinds.base import TrainingRows, TunedProbe
from probekit.probes.kinds.logistic import TOLERANCES
from probekit.probes.kinds.scaling import Scaling
from probekit.probes.solve.descent import StoppingRule
from probekit.probes.solve.design import Floats
from probekit.probes.solve.layers import AffineLayer, FittedLayers
from probekit.probes.solve.solver import Codes, Fit, Problem, Solver

# Scores of two copies of a feature differ by rounding; as equals the lower index comes first.
SCORE_DIGITS = 12


class KSparseProbe(TunedProbe):
    """Logistic regression on the k features that tell the classes apart best, each by itself.

    Features are ranked by their ANOVA F on the training rows alone, within each fold again.

    Args:
        k: How many features to keep.
        C: Inverse strength of the penalty on standardised features; of several values the one with
            the best held-out accuracy is taken.
        folds: How many folds choose C.
        max_iter: Upper bound on the solver's steps.
        random_state: Seed of the folds.

    Attributes:
        features_: Numbers of the k features (k,), the best first; `coef_` is zero elsewhere.

    >>> X = [[0.0, -2.0, 0.0], [1.0, -1.0, 0.0], [0.0, 1.0, 0.0], [1.0, 2.0, 0.0]]
    >>> probe = KSparseProbe(k=1, C=1.0).fit(X, [0, 0, 1, 1])
    >>> probe.features_.tolist(), probe.coef_.round(1).tolist()
    ([1], [[0.0, 0.6, 0.0]])

    Source: Gurnee et al. (2023), Finding Neurons in a Haystack, section 4 (the ranking by F).
    """

    def __init__(
        self,
        k: int = 1,
        C: float | Sequence[float] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0),
        folds: int = 5,
        max_iter: int = 2000,
        random_state: int = 0,
    ) -> None:
        self.k = k
        self.C = C
        self.folds = folds
        self.max_iter = max_iter
        self.random_state = random_state

    def solve(self, data: TrainingRows) -> FittedLayers:
        """Return what is learned from the training rows."""
        at_least(self, k=1, max_iter=1)
        self.C_, solution = self._solve_tuned("C", data)
        self.features_ = best_features(data.X, data.codes, self.k, data.typical)
        return solution

    def path(self, values: Floats, data: TrainingRows) -> list[FittedLayers]:
        """Return the solution at each of the values.

        Raises:
            ConfigError: k is above the number of features.
        """
        width = data.X.shape[1]
        if self.k > width:
            raise ConfigError(
                f"k is {self.k}, but the rows have {width} feature(s). Set k to {width} or less."
            )
        features = best_features(data.X, data.codes, self.k, data.typical)
        X = np.ascontiguousarray(data.X[:, features])
        solver = Solver(X, [np.ones(len(X), dtype=np.float32)], typical=data.typical)
        problems = [Problem(data.codes, float(C)) for C in values]
        fits = solver.solve(problems, StoppingRule(TOLERANCES[X.dtype.name], self.max_iter))
        return [self._wide(fit, features, width) for fit in fits]

    def _wide(self, fit: Fit, features: Codes, width: int) -> FittedLayers:
        weight = np.zeros((len(fit.coef), width))
        weight[:, features] = fit.coef
        layer = AffineLayer(weight, fit.intercept)
        # The solver may be done before its first step, on features that say nothing.
        return FittedLayers(fit.classes, (layer,), max(fit.n_iter, 1), fit.converged)


def best_features(
    X: NDArray[np.floating], codes: Codes, k: int, typical: NDArray[np.bool_] | None = None
) -> Codes:
    """Return the numbers (k,) of the features with the highest ANOVA F, the best first.

    Ranked by the share of variance that the classes explain, which grows with F and is defined
    where F divides by zero. Ties go to the lower number, constant features come last.

    >>> X = np.array([[0.0, -1.0, -1.0], [1.0, -1.1, -1.1], [0.0, 1.0, 1.0], [1.0, 1.1, 1.1]])
    >>> best_features(X, np.array([0, 0, 1, 1]), k=2).tolist()
    [1, 2]
    """
    best: Codes = np.argsort(-explained_shares(X, codes, typical), kind="stable")[:k]
    return best


def explained_shares(
    X: NDArray[np.floating], codes: Codes, typical: NDArray[np.bool_] | None = None
) -> Floats:
    """Return the share (n_features,) of each feature's variance that the classes explain, 0 to 1.

    Only the `typical` rows (n_samples,) count, if it is told which.

    >>> explained_shares(np.array([[0.0, 5.0], [0.0, 7.0], [2.0, 6.0]]), np.array([0, 0, 1]))
    array([1., 0.])
    """
    if typical is not None and len(np.unique(codes[typical])) > 1:
        X, codes = X[typical], codes[typical]
    rows = Scaling.standard(X).apply(X)
    _, own, sizes = np.unique(codes, return_inverse=True, return_counts=True)
    members = own == np.arange(len(sizes))[:, None]
    between = np.sum((members @ rows) ** 2 / sizes[:, None], axis=0)
    total = np.sum(rows**2, axis=0)
    share = np.divide(between, total, out=np.zeros_like(total), where=total > 0)
    rounded: Floats = share.round(SCORE_DIGITS)
    return rounded
