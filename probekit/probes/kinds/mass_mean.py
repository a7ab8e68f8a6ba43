"""The mass-mean probe: the difference of the class means, as it stands in activation space."""

from __future__ import annotations

import numpy as np

from probekit.probes.kinds.base import LayeredProbe, TrainingRows
from probekit.probes.kinds.class_means import class_means, nearest_rule, tilted, within_covariance
from probekit.probes.kinds.scaling import Scaling
from probekit.probes.solve.layers import FittedLayers


class MassMeanProbe(LayeredProbe):
    """Classifier along the difference of means, theta = mean_1 - mean_0, zero half-way.

    Without covariance rows are not scaled, so that `coef_` is the very difference in activation
    space. With it theta is multiplied by the inverse covariance within the classes, shrunk after
    standardising. More than two classes take the nearest mean in the same measure.

    Args:
        covariance: Whether to tilt theta by the inverse covariance.

    >>> X = [[0.0, 0.0], [2.0, 0.0], [0.0, 4.0], [2.0, 4.0]]
    >>> probe = MassMeanProbe().fit(X, ["false", "false", "true", "true"])
    >>> probe.coef_.tolist(), probe.decision_function([[9.0, 2.0]]).tolist()
    ([[0.0, 4.0]], [0.0])

    Source: Marks and Tegmark (2023), The Geometry of Truth, section 5. There rows are centred and
    the classes balanced, so that the threshold is 0; here it is half-way whatever the balance.
    """

    def __init__(self, covariance: bool = False) -> None:
        self.covariance = covariance

    def solve(self, data: TrainingRows) -> FittedLayers:
        """Return what is learned from the training rows."""
        scaling = Scaling.standard(data.measured) if self.covariance else Scaling.centred(data.X)
        rows = scaling.apply(data.X)
        means = class_means(rows, data.codes)
        directions = means
        if self.covariance:
            directions = tilted(means, within_covariance(rows, means, data.codes))
        layer = scaling.fold(*nearest_rule(means, directions))
        return FittedLayers(np.unique(data.codes), (layer,))
