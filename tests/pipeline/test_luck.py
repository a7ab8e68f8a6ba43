"""P-values have the nominal rate if the test rows have different shares of labels."""

from types import SimpleNamespace

import numpy as np
import pytest

from probekit.pipeline.measure.significance import ScoredPredictions, p_value_rows
from probekit.probes.score.metrics import ClassPredictions


def p_value(share_said, share_true, seed):
    generator = np.random.default_rng(seed)
    truth, guess = (
        (generator.random(200) < share).astype(np.int64) for share in (share_true, share_said)
    )
    prober = SimpleNamespace(
        truth_of=lambda probe: truth,
        rows_of=lambda probe: np.arange(200),
        main_metric="accuracy",
        data=SimpleNamespace(groups=np.arange(200).astype(str)),
        settings=SimpleNamespace(reads_numbers=False, seed=seed),
    )
    row = {"probe": "logistic", "target": "task", "value": np.mean(truth == guess)}
    one = ScoredPredictions("site", row, ClassPredictions(truth, guess, 2))
    (found, *_) = p_value_rows([one], prober, draws=99)
    return found["value"]


@pytest.mark.parametrize(("predicted", "true"), [(0.5, 0.5), (0.52, 0.4), (0.55, 0.35), (0.4, 0.6)])
def test_rejection_rate_under_the_null_is_at_most_the_level(predicted, true):
    small = sum(p_value(predicted, true, seed) <= 0.05 for seed in range(300))
    assert small <= 27  # of 300 at 5 %; exceeded with probability 0.001
