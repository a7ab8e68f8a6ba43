"""The linear support vector machine, solved by L-BFGS on dense rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probekit.lazy_rows import Floats, Sum, fetched, put_on, rows_of_block
from probekit.memory import is_accelerator
from probekit.probes.kinds.base import TunedProbe, minimum
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
    max_iter: int = 2000
    balanced: bool = False

    def path(self, values: Floats, data: TrainingRows) -> list[FittedLayers]:
        """Return the fit at each value of C."""
        scaling, classes = Scaling.standard(data.X, data.typical), np.unique(data.codes)
        lazily = scaling.lazily(data.X)
        rows = lazily.whole()
        _, axes = np.linalg.eigh(fetched(rows.T @ rows))
        rows = rows @ lazily.put(axes)
        positives = classes[1:] if len(classes) == 2 else classes
        truth = np.where(positives[:, None] == data.codes, 1.0, -1.0)
        weights = np.ones_like(truth)
        if self.balanced:
            weights = np.stack([balanced_weights(signs) for signs in truth])
        truth, weights = lazily.put(truth), lazily.put(weights)
        # Each solution is the start for the next C.
        solutions, start = [], np.zeros((len(positives), rows.shape[1] + 1))
        for C in values.tolist():
            start, n_iter, converged = solve_hinge(
                rows, truth, weights, C, self.max_iter, start, lazily.device
            )
            layer: AffineLayer = scaling.fold(start[:, :-1] @ axes.T, start[:, -1])
            solutions.append(FittedLayers(classes, (layer,), n_iter, converged))
        return solutions


def solve_hinge(
    rows: Any, truth: Any, weights: Any, C: float, max_iter: int, start: Floats, device: str = "cpu"
) -> tuple[Floats, int, bool]:
    """Return weights and biases (n_out, n_features + 1), the iteration count, and convergence.

    They minimise |weight|^2 / 2 + C sum(weights max(0, 1 - truth score)^2) for each row of `truth`
    and `weights` (n_out, n_samples); the entries of `truth` are -1 or +1. Rows
    (n_samples, n_features) should be given in their principal axes, where the Hessian is nearly
    diagonal and diagonal scaling works well. Rows, `truth` and `weights` are arrays or, on an
    accelerator, tensors. L-BFGS itself runs on the CPU.

    >>> rows, truth = np.array([[-1.0], [1.0]]), np.array([[-1.0, 1.0]])
    >>> once = np.ones((1, 2))
    >>> point, _, converged = solve_hinge(rows, truth, once, 0.25, 100, np.zeros((1, 2)))
    >>> point.round(3).tolist(), converged  # the minimum of w^2 / 2 + (1 - w)^2 / 2
    ([[0.5, 0.0]], True)
    """
    # The objective is divided by C n_samples, so that it is a mean over rows plus a penalty.
    penalty = 1.0 / (C * len(rows))
    # The diagonal of the Hessian if every row has a loss and weight 1; the bias has the last place.
    curvature = np.append(2 * fetched((rows**2).mean(axis=0)) + penalty, 2.0)
    scaling = 1.0 / np.sqrt(curvature)
    # Rows that are summed at once.
    step = rows_of_block(rows.shape[1], device) if is_accelerator(device) else len(rows)

    def objective(point: Floats) -> tuple[float, Floats]:
        """Return the mean objective and its gradient in scaled parameters."""
        parameters = point.reshape(start.shape) * scaling
        weight, bias = put_on(device, parameters[:, :-1]), put_on(device, parameters[:, -1:])
        loss, of_weight, of_bias = Sum(device), Sum(device), Sum(device)
        for begin in range(0, len(rows), step):
            place = slice(begin, begin + step)
            block, signs, counts = rows[place], truth[:, place], weights[:, place]
            hinge = (1.0 - signs * (weight @ block.T + bias)).clip(0.0)
            slopes = -2.0 * counts * signs * hinge / len(rows)
            loss.add((counts * hinge**2).sum() / len(rows))
            of_weight.add(slopes @ block)
            of_bias.add(slopes.sum(axis=1))
        of_rows, coef = of_weight.array(), parameters[:, :-1]
        gradient = np.column_stack([of_rows + penalty * coef, of_bias.array()])
        value = loss.array() + 0.5 * penalty * np.sum(coef**2)
        return float(value), (gradient * scaling).ravel()

    first = (start / scaling).ravel()
    result = minimum(objective, first, max_iter, device, gtol=TOLERANCE, ftol=0.0)
    converged = bool(np.abs(result.jac).max() <= TOLERANCE)
    return result.x.reshape(start.shape) * scaling, result.nit, converged
