"""Rating of held-out predictions by the main metric, to select a penalty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from probekit.probes.score.measurement import Predictions, metrics_of
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import ClassPredictions, Resamples
from probekit.probes.score.regression import NumberPredictions
from probekit.probes.solve.fits import Judge
from probekit.probes.solve.solver import Codes

# Makes predictions. Arguments: true labels, held-out outputs, number of the fit of each row.
MakePredictions = Callable[[NDArray[Any], NDArray[Any], Codes], Predictions]


def judge_of(metric: str, predictions_of: MakePredictions) -> Judge:
    """Return a function that rates held-out outputs by a metric, so that higher is better."""

    def judge(truth: NDArray[Any], outputs: NDArray[Any], folds: Codes) -> float:
        return rating(metric, predictions_of(truth, outputs, folds))

    return judge


def rating(metric: str, predictions: Predictions) -> float:
    """Return the value of a metric for predictions, negated if lower values are better.

    >>> import numpy as np
    >>> rating("accuracy", ClassPredictions(np.array([0, 1]), np.array([0, 0]), n_classes=2))
    0.5
    """
    assert isinstance(predictions, ClassPredictions | NumberPredictions)
    whole = Resamples.whole(len(predictions.truth))
    return METRICS[metric].sign * float(metrics_of(predictions)[metric](predictions, whole)[0])
