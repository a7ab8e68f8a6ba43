"""The mass-mean probe: the difference of the class means in raw activation space."""

from __future__ import annotations

import numpy as np

from probekit.probes.kinds.base import LayeredProbe, TrainingRows
from probekit.probes.kinds.class_means import (
    apply_inverse,
    class_means,
    nearest_rule,
    within_covariance,
)
from probekit.probes.kinds.scaling import Scaling
from probekit.probes.solve.layers import FittedLayers


class MassMeanProbe(LayeredProbe):
    """Classifier whose weights are the difference of the class means, theta = mean_1 - mean_0.

    The score is 0 at the midpoint between the means. Without `covariance`, rows are not
    scaled, so that `coef_` is exactly the difference of the class means. With it, theta is
    multiplied by the inverse within-class covariance, which is estimated with shrinkage on
    standardised rows. With more than two classes, the class with the nearest mean is predicted, in
    the Euclidean distance or, with `covariance`, the Mahalanobis distance.

    Args:
        covariance: Whether to multiply theta by the inverse within-class covariance.

    >>> X = [[0.0, 0.0], [2.0, 0.0], [0.0, 4.0], [2.0, 4.0]]
    >>> probe = MassMeanProbe().fit(X, ["false", "false", "true", "true"])
    >>> probe.coef_.tolist(), probe.decision_function([[9.0, 2.0]]).tolist()
    ([[0.0, 4.0]], [0.0])

    Source: Marks and Tegmark (2023), The Geometry of Truth, section 5. There rows are centred and
    classes balanced, so that the threshold is 0; here it is the midpoint for any class balance.
    """

    def __init__(self, covariance: bool = False) -> None:
        self.covariance = covariance

    def solve(self, data: TrainingRows) -> FittedLayers:
        """Return the fit on the training rows."""
        scaling = Scaling.standard(data.measured) if self.covariance else Scaling.centred(data.X)
        rows = scaling.apply(data.X)
        means = class_means(rows, data.codes)
        directions = means
        if self.covariance:
            directions = apply_inverse(means, within_covariance(rows, means, data.codes))
        layer = scaling.fold(*nearest_rule(means, directions))
        return FittedLayers(np.unique(data.codes), (layer,))
