"""Class means, within-class covariance, and the nearest-mean classification rule."""

from __future__ import annotations

import numpy as np
from sklearn.covariance import empirical_covariance, ledoit_wolf_shrinkage, shrunk_covariance

from probekit.probes.solve.design import Floats
from probekit.probes.solve.solver import Codes

# Two mirrored rows per class give an estimated shrinkage of 0 and a singular covariance.
LEAST_SHRINKAGE = 1e-6


def class_means(X: Floats, codes: Codes) -> Floats:
    """Return the class means (n_classes, n_features) for the codes 0, 1, 2, ...

    >>> class_means(np.array([[1.0], [3.0], [7.0]]), np.array([0, 0, 1])).tolist()
    [[2.0], [7.0]]
    """
    members = codes == np.arange(codes.max() + 1)[:, None]
    means: Floats = members @ X / members.sum(axis=1, keepdims=True)
    return means


def within_covariance(
    X: Floats, means: Floats, codes: Codes, shrinkage: float | None = None
) -> Floats:
    """Return the shrunk within-class covariance (n_features, n_features).

    It equals (1 - s) S + s tr(S) / n_features I, where s is the Ledoit-Wolf estimate if `shrinkage`
    is not given. If all rows equal their class mean, as with one row per class, it is the identity.

    >>> X, codes = np.array([[0.0, 0.0], [2.0, 0.0]]), np.array([0, 0])
    >>> within_covariance(X, np.array([[1.0, 0.0]]), codes, shrinkage=0.5).tolist()
    [[0.75, 0.0], [0.0, 0.25]]

    Source: Ledoit and Wolf (2004), A well-conditioned estimator for large-dimensional covariance
    matrices; pooled over the classes before shrinking, so that rare classes contribute.
    """
    residuals = X - means[codes]
    covariance = empirical_covariance(residuals, assume_centered=True)
    if not np.trace(covariance) > 0:
        return np.eye(len(covariance))
    if shrinkage is None:
        shrinkage = ledoit_wolf_shrinkage(residuals, assume_centered=True)
    shrunk: Floats = shrunk_covariance(covariance, max(shrinkage, LEAST_SHRINKAGE))
    return shrunk


def apply_inverse(means: Floats, covariance: Floats) -> Floats:
    """Return each mean (n_classes, n_features) multiplied by the inverse covariance.

    >>> apply_inverse(np.array([[2.0, 3.0]]), np.diag([2.0, 1.0])).tolist()
    [[1.0, 3.0]]
    """
    return np.linalg.solve(covariance, means.T).T.astype(np.float64, copy=False)


def nearest_rule(
    means: Floats, directions: Floats, log_priors: Floats | None = None
) -> tuple[Floats, Floats]:
    """Return weights (n_out, n_features) and biases (n_out,) of the nearest-mean classifier.

    The nearest mean has the highest score. `directions` (n_classes, n_features) are the means,
    multiplied by the inverse covariance for Mahalanobis distances. For two classes there is one
    row, the difference; without priors its score is 0 at the midpoint between the means.

    >>> means = np.array([[0.0], [4.0]])
    >>> weight, bias = nearest_rule(means, means)
    >>> weight.tolist(), bias.tolist()
    ([[4.0]], [-8.0])
    """
    bias = -0.5 * np.sum(means * directions, axis=1)
    if log_priors is not None:
        bias = bias + log_priors
    if len(means) == 2:
        return directions[1:] - directions[:1], bias[1:] - bias[:1]
    return directions, bias
