"""Linear discriminant analysis with shrinkage of the covariance."""

from __future__ import annotations

from typing import Literal

import numpy as np

from probekit.errors import ConfigError
from probekit.probes.kinds.base import LayeredProbe, TrainingRows
from probekit.probes.kinds.class_means import (
    apply_inverse,
    class_means,
    nearest_rule,
    within_covariance,
)
from probekit.probes.kinds.scaling import Scaling
from probekit.probes.solve.layers import FittedLayers


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
    4.3. With a given shrinkage it equals scikit-learn's LinearDiscriminantAnalysis on standardised
    rows; "auto" shrinks the pooled covariance, where scikit-learn shrinks that of each class.
    """

    def __init__(self, shrinkage: float | Literal["auto"] = "auto") -> None:
        self.shrinkage = shrinkage

    def solve(self, data: TrainingRows) -> FittedLayers:
        """Return the fit on the training rows."""
        shrinkage = _shrinkage(self.shrinkage)
        scaling = Scaling.standard(data.measured)
        rows = scaling.apply(data.X)
        means = class_means(rows, data.codes)
        covariance = within_covariance(rows, means, data.codes, shrinkage)
        log_priors = np.log(np.bincount(data.codes) / len(rows))
        layer = scaling.fold(*nearest_rule(means, apply_inverse(means, covariance), log_priors))
        return FittedLayers(np.unique(data.codes), (layer,))


def _shrinkage(shrinkage: float | str) -> float | None:
    if shrinkage == "auto":
        return None
    if isinstance(shrinkage, str) or not 0 <= shrinkage <= 1:
        raise ConfigError(
            f'shrinkage is {shrinkage!r}, but must be "auto" or a number from 0 to 1.'
        )
    return shrinkage
