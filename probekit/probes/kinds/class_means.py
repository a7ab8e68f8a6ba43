"""Probes from class means: discriminant analysis, mass mean and nearest mean."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import numpy as np

from probekit.errors import ConfigError
from probekit.lazy_rows import Codes, Floats, LazyRows, Rows, Sum
from probekit.probes.kinds.base import LayeredProbe
from probekit.probes.solve.layers import FittedLayers
from probekit.probes.training_rows import Scaling, TrainingRows

# Two mirrored rows per class give an estimated shrinkage of 0 and a singular covariance.
LEAST_SHRINKAGE = 1e-6


def within_covariance(
    X: Rows, means: Floats, codes: Codes, shrinkage: float | None = None
) -> Floats:
    """Return the shrunk within-class covariance (n_features, n_features).

    It equals (1 - s) S + s tr(S) / n_features I, where s is `shrinkage` or, if that is None, the
    Ledoit-Wolf estimate, but at least 1e-6. If all rows equal their class mean, as with one row per
    class, it is the identity.

    >>> X, codes = np.array([[0.0, 0.0], [2.0, 0.0]]), np.array([0, 0])
    >>> within_covariance(X, np.array([[1.0, 0.0]]), codes, shrinkage=0.5).tolist()
    [[0.75, 0.0], [0.0, 0.25]]

    Source: Ledoit and Wolf (2004), A well-conditioned estimator for large-dimensional covariance
    matrices; pooled over the classes before shrinking, so that rare classes contribute.
    """
    rows, (n, d) = LazyRows.of(X), X.shape
    there, products, squares_of_norms = rows.put(means), Sum(rows.device), Sum(rows.device)
    for block, of_block in rows.parts(codes):
        residuals = block - there[of_block]
        products.add(residuals.T @ residuals / n)
        squares_of_norms.add(((residuals**2).sum(axis=1) ** 2).sum())
    covariance, fourths = products.array(), float(squares_of_norms.array())
    variance = np.trace(covariance) / d
    if not variance > 0:
        return np.eye(d)
    if shrinkage is None:
        # The variance of the covariance, and its distance from a multiple of the identity.
        squares = np.sum(covariance**2)
        distance = squares - d * variance**2
        noise = min((fourths / n - squares) / n, distance)
        shrinkage = noise / distance if noise > 0 else 0.0
    weight = max(shrinkage, LEAST_SHRINKAGE)
    shrunk: Floats = (1 - weight) * covariance + weight * variance * np.eye(d)
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

    The score of a class is direction . row - mean . direction / 2, which is highest for the nearest
    mean, plus its log prior, if given. `directions` (n_classes, n_features) are the means,
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


@dataclass(eq=False, repr=False)
class LdaProbe(LayeredProbe):
    """Classifier that models each class as a Gaussian with a shared covariance.

    Scores are log posterior probabilities up to a constant shared by all classes. Rows are
    standardised before the covariance is shrunk.

    Args:
        shrinkage: Weight of the identity in the covariance, from 0 to 1; "auto" uses the estimate
            of Ledoit and Wolf.

    >>> X = [[-3.0], [-2.0], [-1.0], [1.0], [2.0], [3.0]]
    >>> probe = LdaProbe().fit(X, ["down", "down", "down", "up", "up", "up"])
    >>> probe.predict([[-5.0], [5.0]]).tolist()
    ['down', 'up']

    Source: Hastie, Tibshirani and Friedman (2009), The Elements of Statistical Learning, section
    4.3. With a given shrinkage of at least 1e-6 it equals scikit-learn's LinearDiscriminantAnalysis
    on standardised rows; "auto" shrinks the pooled covariance, where scikit-learn shrinks that of
    each class.
    """

    shrinkage: float | Literal["auto"] = "auto"

    def solve(self, data: TrainingRows) -> FittedLayers:
        """Return the fit on the training rows.

        Raises:
            ConfigError: `shrinkage` is neither "auto" nor a number from 0 to 1.
        """
        given: Any = self.shrinkage
        if given != "auto" and not (isinstance(given, Real) and 0 <= float(given) <= 1):
            raise ConfigError(
                f'shrinkage is {given!r}, but must be "auto" or a number from 0 to 1.'
            )
        shrinkage = None if given == "auto" else given
        scaling = Scaling.standard(data.X, data.typical)
        rows = scaling.lazily(data.X)
        means = class_means(rows, data.codes)
        covariance = within_covariance(rows, means, data.codes, shrinkage)
        log_priors = np.log(np.bincount(data.codes) / len(rows))
        layer = scaling.fold(*nearest_rule(means, apply_inverse(means, covariance), log_priors))
        return FittedLayers(np.unique(data.codes), (layer,))


@dataclass(eq=False, repr=False)
class MassMeanProbe(LayeredProbe):
    """Classifier whose weights are the difference of the class means, theta = mean_1 - mean_0.

    This is for two classes; the score is 0 at the midpoint between the means. Without `covariance`,
    rows are not scaled, so that `coef_` is the difference of the class means, up to rounding. With
    it, theta is multiplied by the inverse within-class covariance, which is estimated with
    shrinkage on standardised rows. With more than two classes, the class with the nearest mean is
    predicted, in the Euclidean distance or, with `covariance`, the Mahalanobis distance.

    Args:
        covariance: Whether to multiply theta by the inverse within-class covariance.

    >>> X = [[0.0, 0.0], [2.0, 0.0], [0.0, 4.0], [2.0, 4.0]]
    >>> probe = MassMeanProbe().fit(X, ["false", "false", "true", "true"])
    >>> probe.coef_.tolist(), probe.decision_function([[9.0, 2.0]]).tolist()
    ([[0.0, 4.0]], [0.0])

    Source: Marks and Tegmark (2023), The Geometry of Truth, section 5. There rows are centred and
    classes balanced, so that the threshold is 0; here it is the midpoint for any class balance.
    """

    covariance: bool = False

    def solve(self, data: TrainingRows) -> FittedLayers:
        """Return the fit on the training rows."""
        scaling = (
            Scaling.standard(data.X, data.typical) if self.covariance else Scaling.centred(data.X)
        )
        rows = scaling.lazily(data.X)
        means = class_means(rows, data.codes)
        directions = means
        if self.covariance:
            directions = apply_inverse(means, within_covariance(rows, means, data.codes))
        layer = scaling.fold(*nearest_rule(means, directions))
        return FittedLayers(np.unique(data.codes), (layer,))


@dataclass(eq=False, repr=False)
class NearestMeanProbe(LayeredProbe):
    """Classifier that predicts the class with the nearest mean, on standardised features.

    Unlike in `MassMeanProbe`, features are scaled, so that the few very large coordinates of a
    residual stream do not dominate every distance.

    >>> X = [[0.0, 0.0], [0.0, 100.0], [1.0, 0.0], [1.0, 100.0]]
    >>> probe = NearestMeanProbe().fit(X, ["past", "past", "present", "present"])
    >>> probe.predict([[0.9, 500.0]]).tolist()
    ['present']
    """

    def solve(self, data: TrainingRows) -> FittedLayers:
        """Return the fit on the training rows."""
        scaling = Scaling.standard(data.X, data.typical)
        means = class_means(scaling.lazily(data.X), data.codes)
        return FittedLayers(np.unique(data.codes), (scaling.fold(*nearest_rule(means, means)),))


def class_means(X: Rows, codes: Codes) -> Floats:
    """Return the class means (n_classes, n_features) for the codes 0, 1, 2, ...

    Each code up to the largest must occur.

    >>> class_means(np.array([[1.0], [3.0], [7.0]]), np.array([0, 0, 1])).tolist()
    [[2.0], [7.0]]
    """
    rows, sizes = LazyRows.of(X), np.bincount(codes)
    classes, sums = rows.put(np.arange(len(sizes))[:, None]), Sum(rows.device)
    for block, of_block in rows.parts(codes):
        sums.add((of_block == classes) * 1.0 @ block)
    means: Floats = sums.array() / sizes[:, None]
    return means
