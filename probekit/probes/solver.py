"""L2 logistic regression on shared rows: prepare the rows once, then solve for any labels and C.

The rows are standardised and turned to their principal axes, where the Hessian is nearly diagonal.
L-BFGS in coordinates scaled by that diagonal needs a fraction of the steps, and the preparation is
shared by every C and every label column fitted on the same rows.

    prepare   rows -> Design
    solve     Design, labels, C -> Fit
    fold      Design, Fit -> coefficients for the raw rows
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax

Codes = NDArray[np.int64]
Floats = NDArray[np.float64]

# Bounds the step of a class that is nearly always certain, as its curvature goes to zero.
SMALLEST_CURVATURE = 1e-3


@dataclass(frozen=True)
class Precision:
    """How exactly to solve: the type of the rows, and the largest scaled gradient left over."""

    dtype: DTypeLike
    tolerance: float


# Choosing C compares accuracies, so its fits may stop earlier than the one that is reported.
SEARCH = Precision(np.float32, 1e-4)
FINAL = Precision(np.float64, 1e-6)


@dataclass(frozen=True)
class Design:
    """Training rows in standardised principal axes, and the way there.

    `rows` has shape (n_samples, n_features); `mean` and `scale` (n_features,); the columns of
    `axes` (n_features, n_features) are orthonormal; `variances` (n_features,) are those of `rows`.
    """

    rows: NDArray[np.floating]
    mean: Floats
    scale: Floats
    axes: Floats
    variances: Floats

    def turn(self, X: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return other rows (n_samples, n_features), brought to the coordinates of `rows`."""
        dtype = self.rows.dtype
        return _standardise(X, self.mean, self.scale, dtype) @ self.axes.astype(dtype)


@dataclass(frozen=True)
class Fit:
    """A solution in the coordinates of its design, and how the solver came to it.

    `classes` are the label codes that occurred; with two of them `coef` has one row, that of the
    second, else one row a class. `gradient_norm` is that of the mean objective at the solution.
    """

    classes: Codes
    coef: Floats
    intercept: Floats
    n_iter: int
    converged: bool
    gradient_norm: float

    def log_probabilities(self, rows: NDArray[np.floating], n_classes: int) -> Floats:
        """Return log probabilities (n_samples, n_classes); -inf for a class that was not fitted."""
        scores = self.coef.astype(rows.dtype) @ rows.T + self.intercept[:, None]
        answer = np.full((len(rows), n_classes), -np.inf)
        answer[:, self.classes] = log_softmax(with_reference(scores, len(self.classes)), axis=0).T
        return answer

    def predict(self, rows: NDArray[np.floating]) -> Codes:
        """Return the likeliest label code for each of the turned rows (n_samples, n_features)."""
        scores = self.coef.astype(rows.dtype) @ rows.T + self.intercept[:, None]
        codes: Codes = self.classes[with_reference(scores, len(self.classes)).argmax(axis=0)]
        return codes


def prepare(
    X: NDArray[np.floating],
    precision: Precision = FINAL,
    typical: NDArray[np.bool_] | None = None,
) -> Design:
    """Return the rows (n_samples, n_features) standardised and turned to their principal axes.

    `typical` (n_samples,) says which rows mean and scale are taken of; None, or fewer than two,
    takes them of all. A constant feature has no spread to divide by and keeps scale 1.

    >>> design = prepare(np.array([[1.0, 5.0], [3.0, 5.0]]))
    >>> design.mean.tolist(), design.scale.tolist()
    ([2.0, 5.0], [1.0, 1.0])
    """
    take_all = typical is None or typical.all() or typical.sum() < 2
    measured = X if take_all else X[typical]
    mean = measured.mean(axis=0, dtype=np.float64)
    spread = measured.std(axis=0, dtype=np.float64)
    scale = np.where(spread <= _rounding(measured) * np.abs(mean), 1.0, spread)
    standardised = _standardise(X, mean, scale, precision.dtype)
    variances, axes = np.linalg.eigh((standardised.T @ standardised).astype(np.float64) / len(X))
    rows = standardised @ axes.astype(precision.dtype)
    return Design(rows, mean, scale, axes, np.maximum(variances, 0.0))


def _rounding(X: NDArray[np.floating]) -> float:
    """Return the share of its mean below which the spread of a feature is rounding, not data.

    A sum of n numbers rounds to n epsilons of float64; and one token at one place comes out of
    batches of different sizes with a few other last bits.
    """
    return max(10 * float(np.finfo(X.dtype).eps), len(X) * float(np.finfo(np.float64).eps))


def _standardise(
    X: NDArray[np.floating], mean: Floats, scale: Floats, dtype: DTypeLike
) -> NDArray[np.floating]:
    """Return (X - mean) / scale in `dtype`, with no temporary in a wider one."""
    standardised = X.astype(dtype)
    standardised -= mean.astype(dtype)
    standardised /= scale.astype(dtype)
    return standardised


def solve(
    design: Design,
    codes: Codes,
    C: float,
    *,
    tolerance: float = FINAL.tolerance,
    max_iter: int = 2000,
    start: Fit | None = None,
) -> Fit:
    """Return the minimiser of sum(cross-entropy) + |coef|^2 / (2 C); the intercept is free.

    The objective is scikit-learn's: one coefficient vector for two classes, one each for more.
    `start` is a fit of the same labels at another C to set out from.

    >>> design = prepare(np.array([[-2.0], [-1.0], [1.0], [2.0]]))
    >>> fit = solve(design, np.array([0, 0, 1, 1]), C=1.0)
    >>> fit.converged, fit.predict(design.rows).tolist()
    (True, [0, 0, 1, 1])

    Source: Nocedal and Wright (2006), Numerical Optimization, chapter 7 (L-BFGS). The scaling is
    the diagonal of the Hessian where every row is given the label frequencies.
    """
    objective = _Objective(design, codes, C)
    result = minimize(
        objective,
        objective.point(start),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": max_iter, "maxfun": 4 * max_iter, "gtol": tolerance, "ftol": 0.0},
    )
    coef, intercept = objective.parameters(result.x)
    if len(intercept) > 1:
        # Adding one number to all intercepts changes nothing; of these solutions take the centred.
        intercept = intercept - intercept.mean()
    return Fit(
        classes=objective.classes,
        coef=coef,
        intercept=intercept,
        n_iter=int(result.nit),
        converged=bool(np.abs(result.jac).max() <= tolerance),
        gradient_norm=float(np.linalg.norm(result.jac / objective.scaling.ravel())),
    )


def fold(design: Design, fit: Fit) -> tuple[Floats, Floats]:
    """Return the coefficients (n_rows, n_features) and intercepts (n_rows,) for raw, unscaled rows.

    >>> design = prepare(np.array([[10.0], [20.0], [30.0], [40.0]]))
    >>> fit = solve(design, np.array([0, 0, 1, 1]), C=1.0)
    >>> coef, intercept = fold(design, fit)
    >>> bool(np.allclose([[25.0]] @ coef.T + intercept, 0, atol=1e-6))  # half-way
    True
    """
    coef = fit.coef @ design.axes.T / design.scale
    return coef, fit.intercept - coef @ design.mean


class _Objective:
    """The mean cross-entropy and penalty, with its gradient, over scaled parameters.

    Scores and labels are kept one row a class, (n_classes, n_samples), so that sums over the
    classes run along contiguous memory.
    """

    def __init__(self, design: Design, codes: Codes, C: float) -> None:
        self.rows = design.rows
        self.classes, own = np.unique(codes, return_inverse=True)
        indicator = np.arange(len(self.classes))[:, None] == own
        # With two classes the first is the reference: its score is zero and has no parameters.
        self.truth = (indicator[1:] if len(indicator) == 2 else indicator).astype(self.rows.dtype)
        self.penalty = 1.0 / (C * len(own))
        frequency = self.truth.mean(axis=1, dtype=np.float64)
        curvature = np.maximum(frequency * (1 - frequency), SMALLEST_CURVATURE)
        hessian = np.outer(curvature, np.append(design.variances, 1.0))
        hessian[:, :-1] += self.penalty
        self.scaling = 1.0 / np.sqrt(hessian)

    def point(self, start: Fit | None) -> Floats:
        """Return the scaled parameters of a fit; zeros for none."""
        if start is None:
            return np.zeros(self.scaling.size)
        return (np.column_stack([start.coef, start.intercept]) / self.scaling).ravel()

    def parameters(self, point: Floats) -> tuple[Floats, Floats]:
        """Return coefficients and intercepts of a point."""
        unscaled = point.reshape(self.scaling.shape) * self.scaling
        return unscaled[:, :-1], unscaled[:, -1]

    def __call__(self, point: Floats) -> tuple[float, Floats]:
        coef, intercept = self.parameters(point)
        dtype = self.rows.dtype
        scores = coef.astype(dtype) @ self.rows.T + intercept.astype(dtype)[:, None]
        loss, residual = self._cross_entropy(scores)
        gradient = np.column_stack(
            [
                residual @ self.rows / len(self.rows) + self.penalty * coef,
                residual.mean(axis=1, dtype=np.float64),
            ]
        )
        penalty = 0.5 * self.penalty * np.sum(coef**2)
        return loss + penalty, (gradient * self.scaling).ravel()

    def _cross_entropy(self, scores: NDArray[np.floating]) -> tuple[float, NDArray[np.floating]]:
        """Return the mean loss, and probability minus truth with the shape of `scores`."""
        all_scores = with_reference(scores, len(self.classes))
        peak = all_scores.max(axis=0)
        odds = np.exp(all_scores - peak)
        total = odds.sum(axis=0)
        own_score = np.einsum("ij,ij->j", scores, self.truth)
        loss = np.mean(np.log(total) + peak - own_score, dtype=np.float64)
        return float(loss), (odds / total)[-len(scores) :] - self.truth


def with_reference(scores: NDArray[np.floating], n_classes: int) -> NDArray[np.floating]:
    """Return scores (n_classes, n_samples), with zeros for the reference class if it is absent.

    >>> with_reference(np.array([[0.5, -2.0]]), n_classes=2).tolist()
    [[0.0, 0.0], [0.5, -2.0]]
    """
    if len(scores) == n_classes:
        return scores
    return np.concatenate([np.zeros_like(scores), scores])
