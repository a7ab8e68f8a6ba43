"""The linear support vector machine, solved by L-BFGS on dense rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from probekit.probes.arrays import Floats
from probekit.probes.kinds.base import TunedProbe
from probekit.probes.kinds.registry import C_GRID
from probekit.probes.solve.layers import AffineLayer, FittedLayers
from probekit.probes.training_rows import Scaling, TrainingRows, balanced_weights

# Largest gradient component of the mean objective at a solution, in scaled coordinates.
TOLERANCE = 1e-5


@dataclass(eq=False, repr=False)
class SvmProbe(TunedProbe):
    """Linear SVM with squared hinge loss on standardised features, one class against the rest.

    Args:
        C: Inverse regularisation strength, for standardised features; of several values the one
            with the highest held-out accuracy is selected.
        folds: Number of cross-validation folds that select C.
        max_iter: Maximum number of solver iterations.
        random_state: Random seed for the folds.
        balanced: Whether each class and the rest have the same total weight.

    >>> X = [[-3.0], [-2.0], [-1.0], [1.0], [2.0], [3.0]]
    >>> probe = SvmProbe(C=0.1).fit(X, ["down", "down", "down", "up", "up", "up"])
    >>> probe.predict([[-5.0], [5.0]]).tolist(), probe.C_
    (['down', 'up'], 0.1)

    Source: Fan et al. (2008), LIBLINEAR, section 2 (L2 regularisation, L2 loss). Unlike theirs,
    the intercept is not penalised. Their solver is designed for sparse rows: on 6,400 dense rows
    with 768 features and 17 classes it did not finish within nine minutes; this one takes 15
    seconds.
    """

    penalty = "C"
    counts = ("max_iter",)

    C: float | Sequence[float] = C_GRID
    folds: int = 5
    max_iter: int = 2000
    random_state: int = 0
    balanced: bool = False

    def path(self, values: Floats, data: TrainingRows) -> list[FittedLayers]:
        """Return the fit at each value of C."""
        scaling, classes = Scaling.standard(data.measured), np.unique(data.codes)
        rows = scaling.lazily(data.X)[:]
        _, axes = np.linalg.eigh(rows.T @ rows)
        rows = rows @ axes
        positives = classes[1:] if len(classes) == 2 else classes
        truth = np.where(positives[:, None] == data.codes, 1.0, -1.0)
        weights = np.ones_like(truth)
        if self.balanced:
            weights = np.stack([balanced_weights(signs) for signs in truth])
        # Each solution is the start for the next C.
        solutions, start = [], np.zeros((len(positives), rows.shape[1] + 1))
        for C in values.tolist():
            start, n_iter, converged = solve_hinge(rows, truth, weights, C, self.max_iter, start)
            layer: AffineLayer = scaling.fold(start[:, :-1] @ axes.T, start[:, -1])
            solutions.append(FittedLayers(classes, (layer,), n_iter, converged))
        return solutions


def solve_hinge(
    rows: Floats, truth: Floats, weights: Floats, C: float, max_iter: int, start: Floats
) -> tuple[Floats, int, bool]:
    """Return weights and biases (n_out, n_features + 1), the iteration count, and convergence.

    They minimise |weight|^2 / 2 + C sum(weights max(0, 1 - truth score)^2) for each row of `truth`
    and `weights` (n_out, n_samples); the entries of `truth` are -1 or +1. Rows
    (n_samples, n_features) should be given in their principal axes, where the Hessian is nearly
    diagonal and diagonal scaling works well.

    >>> rows, truth = np.array([[-1.0], [1.0]]), np.array([[-1.0, 1.0]])
    >>> once = np.ones((1, 2))
    >>> point, _, converged = solve_hinge(rows, truth, once, 0.25, 100, np.zeros((1, 2)))
    >>> point.round(3).tolist(), converged  # the minimum of w^2 / 2 + (1 - w)^2 / 2
    ([[0.5, 0.0]], True)
    """
    # The objective is divided by C n_samples, so that it is a mean over rows plus a penalty.
    penalty = 1.0 / (C * len(rows))
    # The diagonal of the Hessian if every row has a loss and weight 1; the bias has the last place.
    curvature = np.append(2 * np.mean(rows**2, axis=0) + penalty, 2.0)
    scaling = 1.0 / np.sqrt(curvature)

    def objective(point: Floats) -> tuple[float, Floats]:
        """Return the mean objective and its gradient in scaled parameters."""
        parameters = point.reshape(start.shape) * scaling
        weight, bias = parameters[:, :-1], parameters[:, -1]
        hinge = np.maximum(1.0 - truth * (weight @ rows.T + bias[:, None]), 0.0)
        slopes = -2.0 * weights * truth * hinge / len(rows)
        gradient = np.column_stack([slopes @ rows + penalty * weight, slopes.sum(axis=1)])
        loss = np.sum(weights * hinge**2) / len(rows) + 0.5 * penalty * np.sum(weight**2)
        return float(loss), (gradient * scaling).ravel()

    # An iteration needs one or two evaluations, so that `maxiter` is reached before `maxfun`.
    options = {"maxiter": max_iter, "maxfun": 4 * max_iter, "gtol": TOLERANCE, "ftol": 0.0}
    first = (start / scaling).ravel()
    result = minimize(objective, first, jac=True, method="L-BFGS-B", options=options)
    converged = bool(np.abs(result.jac).max() <= TOLERANCE)
    # scikit-learn requires at least one iteration.
    return result.x.reshape(start.shape) * scaling, max(int(result.nit), 1), converged
