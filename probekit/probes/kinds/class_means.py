"""Class means, what spreads around them, and the rule that takes the nearest."""

from __future__ import annotations

import numpy as np
from sklearn.covariance import empirical_covariance, ledoit_wolf_shrinkage, shrunk_covariance

from probekit.probes.solve.design import Floats
from probekit.probes.solve.solver import Codes

# Residuals of two mirrored rows a class give shrinkage 0 and a covariance without an inverse.
LEAST_SHRINKAGE = 1e-6


def class_means(X: Floats, codes: Codes) -> Floats:
    """Return the mean (n_classes, n_features) of the rows of each code 0, 1, 2, ...

    >>> class_means(np.array([[1.0], [3.0], [7.0]]), np.array([0, 0, 1])).tolist()
    [[2.0], [7.0]]
    """
    members = codes == np.arange(codes.max() + 1)[:, None]
    means: Floats = members @ X / members.sum(axis=1, keepdims=True)
    return means


def within_covariance(
    X: Floats, means: Floats, codes: Codes, shrinkage: float | None = None
) -> Floats:
    """Return the covariance (n_features, n_features) of rows around their class means, shrunk.

    It is (1 - s) S + s tr(S) / n_features I, with the s of Ledoit and Wolf if none is given. Where
    nothing spreads at all, as with one row a class, it is the identity.

    >>> X, codes = np.array([[0.0, 0.0], [2.0, 0.0]]), np.array([0, 0])
    >>> within_covariance(X, np.array([[1.0, 0.0]]), codes, shrinkage=0.5).tolist()
    [[0.75, 0.0], [0.0, 0.25]]

    Source: Ledoit and Wolf (2004), A well-conditioned estimator for large-dimensional covariance
    matrices; pooled over the classes before shrinking, so that rare classes have a part in it.
    """
    residuals = X - means[codes]
    covariance = empirical_covariance(residuals, assume_centered=True)
    if not np.trace(covariance) > 0:
        return np.eye(len(covariance))
    if shrinkage is None:
        shrinkage = ledoit_wolf_shrinkage(residuals, assume_centered=True)
    shrunk: Floats = shrunk_covariance(covariance, max(shrinkage, LEAST_SHRINKAGE))
    return shrunk


def tilted(means: Floats, covariance: Floats) -> Floats:
    """Return each mean (n_classes, n_features) times the inverse covariance.

    >>> tilted(np.array([[2.0, 3.0]]), np.diag([2.0, 1.0])).tolist()
    [[1.0, 3.0]]
    """
    return np.linalg.solve(covariance, means.T).T.astype(np.float64, copy=False)


def nearest_rule(
    means: Floats, directions: Floats, log_priors: Floats | None = None
) -> tuple[Floats, Floats]:
    """Return weights (n_out, n_features) and biases (n_out,) whose top score is the nearest mean.

    `directions` are the means (n_classes, n_features), times the inverse covariance if distances
    are measured by it. For two classes there is one row, their difference; its score is zero
    half-way between the means, but for the priors.

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
