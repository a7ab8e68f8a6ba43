"""Predictions of several kinds of probe, pooled over folds or averaged over networks."""

import numpy as np

from probekit.probes.score.measurement import Resampler, Score, joined, measure, metrics_of
from probekit.probes.score.metrics import ClassPredictions

TRUTH = np.array([0, 1, 0, 1])
LOGS = np.log([[0.9, 0.1], [0.2, 0.8], [0.7, 0.3], [0.4, 0.6]])
LOGISTIC = ClassPredictions(TRUTH, TRUTH, 2, LOGS, True)
RIDGE = ClassPredictions(TRUTH, TRUTH, 2, LOGS + 3.0, False)
GUESSES = ClassPredictions(TRUTH, TRUTH, 2)


def test_pooled_scores_are_probabilities_only_if_all_are():
    assert "brier" in metrics_of(joined([LOGISTIC, LOGISTIC]))
    for parts in ([LOGISTIC, RIDGE], [RIDGE, LOGISTIC]):
        pooled = joined(parts)
        assert "brier" not in metrics_of(pooled)
        assert "auroc" in metrics_of(pooled)
        assert pooled.folds.tolist() == [0] * 4 + [1] * 4


def test_scores_that_one_part_lacks_are_left_out():
    assert joined([LOGISTIC, GUESSES]).scores is None
    assert joined([GUESSES, LOGISTIC]).scores is None


def test_a_mean_over_networks_has_the_metrics_of_all():
    groups = np.array(["a", "b", "c", "d"])
    pairs = tuple((one, one) for one in (LOGISTIC, RIDGE))
    score = Score("chosen", "chosen_random_weights", 0, 9, pairs=pairs, groups=groups)
    found = {one.metric for one in measure(score, Resampler())}
    assert {"accuracy", "auroc"} <= found
    assert "brier" not in found
