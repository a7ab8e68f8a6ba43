"""The nearest-mean probe: the class with the nearest mean on standardised features."""

from __future__ import annotations

import numpy as np

from probekit.probes.kinds.base import LayeredProbe, TrainingRows
from probekit.probes.kinds.class_means import class_means, nearest_rule
from probekit.probes.kinds.scaling import Scaling
from probekit.probes.solve.layers import FittedLayers


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
        scaling = Scaling.standard(data.measured)
        means = class_means(scaling.apply(data.X), data.codes)
        return FittedLayers(np.unique(data.codes), (scaling.fold(*nearest_rule(means, means)),))
