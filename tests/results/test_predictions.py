"""Predictions read from a file are in one order, so that pages and tables are deterministic."""

import numpy as np

from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.scored import Predictor
from probekit.results.site_results import pack, unpack


def test_predictions_are_sorted_by_probe_and_target():
    one = ClassPredictions(np.array([0, 1]), np.array([0, 0]), n_classes=2)
    predictors = [Predictor("probe", f"target{number:02}") for number in range(30)]
    content = pack(dict.fromkeys(predictors[::-1], one))
    assert list(unpack(content, lambda _: one.truth, 2)) == predictors
