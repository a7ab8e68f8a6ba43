"""Scores of the training rows without their own group, computed from the final fit alone.

Scores of a fit on its own training rows are optimistic, and scores of cross-validation folds belong
to other fits, on fewer rows, whose scores differ in scale. A threshold for the final fit needs the
scores that its own training rows would have if their group had not been fitted. Both kinds of probe
minimise a sum over rows plus a squared penalty, so that one factorisation of the Hessian serves all
groups:

    ridge_left_out      exact, because the objective is quadratic
    logistic_left_out   one Newton step from the solution, for two classes

Feature scaling and row weights remain those of all rows. With a weak penalty and few large groups
(C = 100, 10 groups of 40 rows), one Newton step goes too far: thresholds are then too high, and
3.2 % of new negatives are above one for 5 %.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky
from scipy.linalg.blas import dsyrk, dtrsm
from scipy.linalg.lapack import dpotrf, dtrtri
from scipy.special import expit

from probekit.lazy_rows import Codes, Features, Floats, LazyRows, rows_of_block
from probekit.probes.solve.kernel import is_wide
from probekit.probes.solve.layers import AffineLayer, apply_layers
from probekit.probes.training_rows import Scaling, TrainingRows

SMALLEST_CURVATURE = 1e-12
# Products of rows in float32 are precise enough for penalties from this, for each feature.
LEAST_PENALTY = 1e-4


def ridge_left_out(
    data: TrainingRows,
    targets: Floats,
    layer: AffineLayer,
    alpha: float,
    weights: Floats | None = None,
) -> Floats:
    """Return the scores (n_samples, n_targets) of a ridge fit without the group of each row.

    They equal those of `ridge_path` on the other groups, with the feature scaling of all rows.

    Args:
        data: the rows of the fit; distinct groups leave out single rows.
        targets: the targets (n_samples, n_targets).
        layer: the fit, on raw rows; see `ridge_path`.
        alpha: the regularisation strength.
        weights: the weight (n_samples,) of each row in the fit; None means 1.

    >>> X, targets = np.array([[-1.0], [0.0], [1.0]]), np.array([[-1.0], [0.0], [4.0]])
    >>> layer = AffineLayer(np.array([[2.5]]), np.array([1.0]))  # least squares
    >>> data = TrainingRows(X, np.zeros(3, int), groups=np.arange(3))
    >>> ridge_left_out(data, targets, layer, alpha=1e-12).round(6).tolist()
    [[-4.0], [1.5], [1.0]]

    Source: Hastie, Tibshirani and Friedman (2009), The Elements of Statistical Learning, section
    7.10 (leave-one-out of linear smoothers); here for groups.
    """
    scores = apply_layers((layer,), data.X)
    curvature = np.ones(len(scores)) if weights is None else weights
    slopes = curvature[:, None] * (scores - targets)
    return _without_group(data, scores, slopes, curvature, alpha)


def logistic_left_out(
    data: TrainingRows, layer: AffineLayer, C: float, weights: Floats | None = None
) -> Floats:
    """Return approximate scores (n_samples, 1) of a logistic fit without the group of each row.

    One Newton step on the objective of the other groups, which starts at the fit on all rows.

    Args:
        data: the rows of the fit, of two classes; distinct groups leave out single rows.
        layer: the fit, on raw rows: one output, the score of the second class; see `Solver`.
        C: the inverse regularisation strength.
        weights: the weight (n_samples,) of each row in the fit; None means 1.

    >>> X, codes = np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.array([0, 0, 1, 1])
    >>> layer = AffineLayer(np.array([[0.6309]]), np.zeros(1))  # the fit at C = 1
    >>> data = TrainingRows(X, codes, groups=np.arange(4))
    >>> logistic_left_out(data, layer, C=1.0).round(2).ravel().tolist()
    [-0.49, 0.15, -0.15, 0.49]

    Source: Rad and Maleki (2020), A scalable estimate of the out-of-sample prediction error via
    approximate leave-one-out cross-validation; here for groups.
    """
    scores = apply_layers((layer,), data.X)
    predicted = expit(scores[:, 0])
    counts = np.ones(len(scores)) if weights is None else weights
    slopes = counts * (predicted - data.codes)
    # The Hessian stays positive definite if all probabilities round to 0 or 1.
    curvature = counts * np.maximum(predicted * (1 - predicted), SMALLEST_CURVATURE)
    return _without_group(data, scores, slopes[:, None], curvature, 1 / C)


def _without_group(
    data: TrainingRows, scores: Floats, slopes: Floats, curvature: Floats, penalty: float
) -> Floats:
    """Return the scores (n_samples, n_out) after a Newton step that removes the group of each row.

    `slopes` (n_samples, n_out) and `curvature` (n_samples,) are the derivatives of the loss of each
    row in its scores. In coordinates in which the Hessian of all rows is the identity, the Hessian
    without the rows B of a group is I - B^T D B, with their curvature in the diagonal of D.
    """
    X, scaling = LazyRows.of(data.X), Scaling.standard(data.X, data.typical)
    if is_wide(X) and penalty >= LEAST_PENALTY * X.shape[1]:
        return scores + _by_products(X, scaling, slopes, curvature, penalty, data.groups)
    if len(X) < X.shape[1]:
        # Coordinates within the span of the scaled rows have the same inner products.
        X = LazyRows.of(np.linalg.qr(scaling.apply(X[:]).T).R.T)
        scaling = Scaling(np.zeros(len(X)), np.ones(len(X)))
    n_features = X.shape[1]
    # The lower triangle; the bias, in the last place, has no penalty.
    hessian = np.asfortranarray(np.diag(np.append(np.full(n_features, penalty), 0.0)))
    for part, rows in X.blocks():
        weighted = _with_bias(scaling, rows)
        weighted *= np.sqrt(curvature[part, None])
        hessian = dsyrk(1.0, weighted.T, 1.0, hessian, lower=True, overwrite_c=True)
    root = cholesky(hessian, lower=True, overwrite_a=True)
    left_out = scores.copy()
    for numbers in _blocks(data.groups, rows_of_block(X.shape[1])):
        block = _with_bias(scaling, X[numbers.ravel()])
        whitened = dtrsm(1.0, root, block.T, lower=True, overwrite_b=True).T
        whitened = whitened.reshape(*numbers.shape, -1)
        left_out[numbers] += _step(whitened, curvature[numbers, None], slopes[numbers])
    return left_out


def _by_products(
    X: LazyRows,
    scaling: Scaling,
    slopes: Floats,
    curvature: Floats,
    penalty: float,
    groups: NDArray[np.generic],
) -> Floats:
    """Return the changes (n_samples, n_out) of `_without_group`, from the products of the rows.

    With K the products of the scaled rows and D their curvature, the products of the rows with bias
    in whitened coordinates are D^-1 - p D^-1 (M - M 1 1^T M / 1^T M 1) D^-1, M = (K + p D^-1)^-1.
    """
    rows = np.empty(X.shape, X.dtype)
    for place, block in X.blocks():
        np.subtract(block, scaling.mean.astype(X.dtype), out=rows[place])
    rows /= scaling.scale.astype(X.dtype)
    matrix = (rows @ rows.T).astype(np.float64).T  # in the order of Fortran; it is symmetric
    matrix[np.diag_indices(len(rows))] += penalty / curvature
    factor, _ = dpotrf(matrix, lower=1, overwrite_a=1)
    root, _ = dtrtri(factor, lower=1, overwrite_c=1)  # M = root^T root
    columns = root.T
    sums = columns @ root.sum(axis=1)
    change = np.empty_like(slopes)
    for numbers in _blocks(groups, rows_of_block(X.shape[1])):
        ratios = 1 / curvature[numbers]
        of_groups = columns[numbers]  # (n_groups, n_rows, n)
        inner = of_groups @ of_groups.swapaxes(1, 2)
        inner -= sums[numbers][:, :, None] * sums[numbers][:, None, :] / sums.sum()
        inner *= -penalty * ratios[:, :, None] * ratios[:, None, :]
        inner.reshape(len(inner), -1)[:, :: inner.shape[1] + 1] += ratios
        own = curvature[numbers, None]
        change[numbers] = inner @ np.linalg.solve(
            np.eye(inner.shape[1]) - own * inner, slopes[numbers]
        )
    return change


def _with_bias(scaling: Scaling, X: Features) -> Floats:
    """Return the scaled rows with a column of ones (n_samples, n_features + 1)."""
    rows = np.ones((len(X), X.shape[1] + 1))
    rows[:, :-1] = X
    rows[:, :-1] -= scaling.mean
    rows[:, :-1] /= scaling.scale
    return rows


def _step(B: Floats, curvature: Floats, slopes: Floats) -> Floats:
    """Return the change (n_groups, n_rows, n_out) of the scores of groups that are removed.

    At the solution the gradient without the group is -B^T slopes, so that the change has a plus.
    B (n_groups, n_rows, n_coordinates) are the rows of each group in coordinates in which the
    Hessian of all rows is the identity. Of the two equal expressions B (I - B^T D B)^-1 B^T slopes
    and B B^T (I - D B B^T)^-1 slopes, with the curvature in the diagonal of D, the one with the
    smaller system is computed.
    """
    step: Floats
    _, n_rows, n_coordinates = B.shape
    transposed = B.swapaxes(1, 2)
    if n_rows == 1:
        inner = np.einsum("gnf,gnf->gn", B, B)[..., None]
        step = inner * slopes / (1 - curvature * inner)
    elif n_rows <= n_coordinates:
        inner = B @ transposed
        step = inner @ np.linalg.solve(np.eye(n_rows) - curvature * inner, slopes)
    else:
        without = np.eye(n_coordinates) - transposed @ (curvature * B)
        step = B @ np.linalg.solve(without, transposed @ slopes)
    return step


def _blocks(groups: NDArray[np.generic], at_once: int) -> Iterator[Codes]:
    """Yield row numbers (n_groups, n_rows) of groups of one size, about `at_once` at a time."""
    _, codes, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    by_group, starts = np.argsort(codes, kind="stable"), np.cumsum(sizes) - sizes
    for size in np.unique(sizes):
        rows = by_group[starts[sizes == size, None] + np.arange(size)]
        yield from np.array_split(rows, min(len(rows), 1 + rows.size // at_once))
