"""The k-sparse probe: logistic regression on the k most informative features."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probekit.errors import ConfigError
from probekit.lazy_rows import Codes, Floats, LazyRows, Mask, Rows, Sum
from probekit.probes.kinds.base import TunedProbe
from probekit.probes.kinds.class_means import class_means
from probekit.probes.kinds.logistic import TOLERANCES
from probekit.probes.kinds.registry import C_GRID
from probekit.probes.solve.descent import StoppingRule
from probekit.probes.solve.layers import AffineLayer, FittedLayers
from probekit.probes.solve.solver import Problem, Solver
from probekit.probes.training_rows import Scaling, TrainingRows

# Scores of identical features differ by rounding error; rounded, they tie and the first one wins.
SCORE_DIGITS = 12


@dataclass(eq=False, repr=False)
class KSparseProbe(TunedProbe):
    """Logistic regression on the k features with the highest univariate ANOVA F.

    Features are ranked on the training rows only, separately in each cross-validation fold.

    Args:
        k: Number of features to select.
        C: Inverse regularisation strength, for standardised features; of several values the one
            with the highest held-out accuracy is selected.
        folds: Number of cross-validation folds that select C.
        max_iter: Maximum number of solver iterations.
        random_state: Random seed for the folds.
        balanced: Whether all classes have the same total weight.

    Attributes:
        features_: Indices (k,) of the selected features, best first; `coef_` is 0 elsewhere.

    >>> X = [[0.0, -2.0, 0.0], [1.0, -1.0, 0.0], [0.0, 1.0, 0.0], [1.0, 2.0, 0.0]]
    >>> probe = KSparseProbe(k=1, C=1.0).fit(X, [0, 0, 1, 1])
    >>> probe.features_.tolist(), probe.coef_.round(1).tolist()
    ([1], [[0.0, 0.6, 0.0]])

    Source: Gurnee et al. (2023), Finding Neurons in a Haystack, section 4 (the ranking by F).
    """

    penalty = "C"
    counts = ("k", "max_iter")

    k: int = 1
    C: float | Sequence[float] = C_GRID
    max_iter: int = 2000
    balanced: bool = False

    def solve(self, data: TrainingRows) -> FittedLayers:
        """Return the fit on the training rows, and store the selected features."""
        solution = super().solve(data)
        self.features_ = best_features(data.X, data.codes, self.k, data.typical)
        return solution

    def path(self, values: Floats, data: TrainingRows) -> list[FittedLayers]:
        """Return the fit at each value of C.

        Raises:
            ConfigError: k is larger than the number of features.
        """
        width = data.X.shape[1]
        if self.k > width:
            raise ConfigError(
                f"k is {self.k}, but the rows have {width} feature(s). Set k to at most {width}."
            )
        features = best_features(data.X, data.codes, self.k, data.typical)
        rows = LazyRows.of(data.X)
        X = np.concatenate([block[:, features] for _, block in rows.blocks()])
        selected = LazyRows.of(X).on(rows.device)
        solver = Solver(selected, [np.ones(len(X), dtype=bool)], typical=data.typical)
        problems = [Problem(data.codes, float(C), balanced=self.balanced) for C in values]
        path = []
        stopping = StoppingRule(TOLERANCES[selected.dtype.name], self.max_iter)
        for fit in solver.solve(problems, stopping):
            weight = np.zeros((len(fit.coef), width))  # the other features get a weight of 0
            weight[:, features] = fit.coef
            layer = AffineLayer(weight, fit.intercept)
            # The solver may stop before its first iteration if the features are uninformative, but
            # scikit-learn requires that `n_iter_` is at least 1.
            path.append(FittedLayers(fit.classes, (layer,), max(fit.n_iter, 1), fit.converged))
        return path


def best_features(X: Rows, codes: Codes, k: int, typical: Mask | None = None) -> Codes:
    """Return the indices (k,) of the features with the highest ANOVA F, best first.

    Features are ranked by the share of their variance that the classes explain, which increases
    with F and is also defined where F is infinite. Ties go to the lower index; the share of a
    constant feature is 0.

    >>> X = np.array([[0.0, -1.0, -1.0], [1.0, -1.1, -1.1], [0.0, 1.0, 1.0], [1.0, 1.1, 1.1]])
    >>> best_features(X, np.array([0, 0, 1, 1]), k=2).tolist()
    [1, 2]
    """
    return np.argsort(-explained_shares(X, codes, typical), kind="stable")[:k]


def explained_shares(X: Rows, codes: Codes, typical: Mask | None = None) -> Floats:
    """Return the share (n_features,) of each feature's variance that the classes explain, 0 to 1.

    If `typical` (n_samples,) is given, only those rows are used, unless they have fewer than two
    classes. The share of a constant feature is 0.

    >>> explained_shares(np.array([[0.0, 5.0], [0.0, 7.0], [2.0, 6.0]]), np.array([0, 0, 1]))
    array([1., 0.])
    """
    if typical is not None and len(np.unique(codes[typical])) > 1:
        X, codes = LazyRows.of(X).select(typical), codes[typical]
    rows = Scaling.standard(X).lazily(X)
    _, class_of_row, sizes = np.unique(codes, return_inverse=True, return_counts=True)
    # Scaled rows have a mean of 0, so these are sums of squares around the overall mean.
    squares = Sum(rows.device)
    for (block,) in rows.parts():
        squares.add((block**2).sum(axis=0))
    total = squares.array()
    between = np.sum(class_means(rows, class_of_row) ** 2 * sizes[:, None], axis=0)
    share = np.divide(between, total, out=np.zeros_like(total), where=total > 0)
    found: Floats = share.round(SCORE_DIGITS)
    return found
