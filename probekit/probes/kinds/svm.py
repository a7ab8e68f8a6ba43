"""The linear support vector machine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize

from probekit.probes.bounds import at_least
from probekit.probes.kinds.base import TrainingRows, TunedProbe
from probekit.probes.kinds.scaling import Scaling
from probekit.probes.solve.design import Floats
from probekit.probes.solve.layers import AffineLayer, FittedLayers

# Largest gradient of the mean objective, in scaled coordinates, at a solution.
TOLERANCE = 1e-5


class SvmProbe(TunedProbe):
    """Standardised linear SVM with squared hinge loss, one class against the rest.

    Args:
        C: Inverse strength of the penalty on standardised features; of several values the one with
            the best held-out accuracy is taken.
        folds: How many folds choose C.
        max_iter: Upper bound on the solver's steps.
        random_state: Seed of the folds.

    >>> X = [[-3.0], [-2.0], [-1.0], [1.0], [2.0], [3.0]]
    >>> probe = SvmProbe(C=0.1).fit(X, ["down", "down", "down", "up", "up", "up"])
    >>> probe.predict([[-5.0], [5.0]]).tolist(), probe.C_
    (['down', 'up'], 0.1)

    Source: Fan et al. (2008), LIBLINEAR, section 2 (L2 regularisation, L2 loss). Unlike theirs,
    the intercept is free. Their solver is for sparse rows: on 6,400 dense ones of 768 features
    and 17 classes it was not done in nine minutes, where this one takes 15 seconds.
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

    def solve(self, data: TrainingRows) -> FittedLayers:
        """Return what is learned from the training rows."""
        at_least(self, max_iter=1)
        self.C_, solution = self._solve_tuned("C", data)
        return solution

    def path(self, values: Floats, data: TrainingRows) -> list[FittedLayers]:
        """Return the solution at each of the values."""
        scaling, classes = Scaling.standard(data.measured), np.unique(data.codes)
        rows = scaling.apply(data.X)
        _, axes = np.linalg.eigh(rows.T @ rows)
        rows = rows @ axes
        positives = classes[1:] if len(classes) == 2 else classes
        truth = np.where(positives[:, None] == data.codes, 1.0, -1.0)
        solutions, start = [], np.zeros((len(positives), rows.shape[1] + 1))
        for C in values:
            start, n_iter, converged = solve_hinge(rows, truth, float(C), self.max_iter, start)
            layer: AffineLayer = scaling.fold(start[:, :-1] @ axes.T, start[:, -1])
            solutions.append(FittedLayers(classes, (layer,), n_iter, converged))
        return solutions


def solve_hinge(
    rows: Floats, truth: Floats, C: float, max_iter: int, start: Floats
) -> tuple[Floats, int, bool]:
    """Return weights and bias (n_out, n_features + 1), the steps taken, and whether they sufficed.

    They minimise |weight|^2 / 2 + C sum(max(0, 1 - truth score)^2), for each row of `truth`
    (n_out, n_samples), which is -1 or +1. Rows (n_samples, n_features) should stand in their
    principal axes, where the Hessian is nearly diagonal and steps scaled by it are few.

    >>> rows, truth = np.array([[-1.0], [1.0]]), np.array([[-1.0, 1.0]])
    >>> weights, _, converged = solve_hinge(rows, truth, 0.25, 100, np.zeros((1, 2)))
    >>> weights.round(3).tolist(), converged  # of w^2 / 2 + (1 - w)^2 / 2
    ([[0.5, 0.0]], True)
    """
    penalty = 1.0 / (C * len(rows))
    curvature = np.append(2 * np.mean(rows**2, axis=0) + penalty, 2.0)
    scaling = 1.0 / np.sqrt(curvature)

    def objective(point: Floats) -> tuple[float, Floats]:
        parameters = point.reshape(start.shape) * scaling
        weight, bias = parameters[:, :-1], parameters[:, -1]
        short = np.maximum(1.0 - truth * (weight @ rows.T + bias[:, None]), 0.0)
        pull = -2.0 * truth * short / len(rows)
        gradient = np.column_stack([pull @ rows + penalty * weight, pull.sum(axis=1)])
        loss = np.sum(short**2) / len(rows) + 0.5 * penalty * np.sum(weight**2)
        return float(loss), (gradient * scaling).ravel()

    result = minimize(
        objective,
        (start / scaling).ravel(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": max_iter, "maxfun": 4 * max_iter, "gtol": TOLERANCE, "ftol": 0.0},
    )
    converged = bool(np.abs(result.jac).max() <= TOLERANCE)
    return result.x.reshape(start.shape) * scaling, max(int(result.nit), 1), converged
