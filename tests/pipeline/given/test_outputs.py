"""Given numbers of the output explain a label that is the confidence, and no other one."""

import numpy as np
import pandas as pd
import pytest

from probekit.pipeline.experiment.probe import probe

N = 400
RNG = np.random.default_rng(0)
ENTROPY = RNG.gamma(4, size=N)
DIRECTION = RNG.normal(size=N)
X = RNG.normal(size=(N, 6)).astype(np.float32)
X[:, 0] += 3 * (ENTROPY - ENTROPY.mean())
X[:, 1] += 3 * DIRECTION
SETTINGS = {"C": [0.1, 1.0], "folds": 3, "description": False, "control_draws": 0}
SETTINGS |= {"permutations": 200, "baselines": ["majority", "output"]}
OUTPUTS = {"entropy": ENTROPY, "margin": RNG.normal(size=N)}


def call(folder, labels, outputs=OUTPUTS):
    options = {"split": {"folds": 4}, "probe": SETTINGS, "workers": 1, "progress": False}
    return probe({"layer_0": X}, labels, out=folder, outputs=outputs, page=False, **options)


def test_a_label_that_is_the_confidence_is_not_better_than_it_and_another_one_is(tmp_path):
    own = call(tmp_path / "own", (np.median(ENTROPY) < ENTROPY).astype(int))
    verdict = own._record.verdict
    doubts, rivals = verdict.doubts, verdict.rivals
    assert rivals["output"].value > 0.95
    assert "output" in doubts
    assert "the network's own confidence" in own.answer
    other = call(tmp_path / "other", (DIRECTION > 0).astype(int))
    assert "output" not in other._record.verdict.doubts
    assert other._record.verdict.rivals["output"].value < 0.6
    assert other._record.verdict.rivals["output"].p_adjusted < 0.001


def test_another_shape_than_a_line_is_the_confidence_too(tmp_path):
    middle = np.abs(ENTROPY - np.median(ENTROPY))
    result = call(tmp_path, (middle < np.median(middle)).astype(int))
    assert result._record.verdict.rivals["output"].value > 0.85


def test_the_run_depends_on_the_numbers_and_a_data_frame_has_the_same(tmp_path):
    labels = (DIRECTION > 0).astype(int)
    one = call(tmp_path, labels)
    assert call(tmp_path, labels, pd.DataFrame(OUTPUTS)).folder == one.folder
    changed = OUTPUTS | {"entropy": ENTROPY + 1}
    assert call(tmp_path, labels, changed).folder != one.folder
    assert "output" not in call(tmp_path, labels, None)._record.verdict.rivals


@pytest.mark.parametrize(
    "outputs",
    [
        {"entropy": ENTROPY[1:]},
        {"entropy": [*ENTROPY[1:], np.nan]},
        {"entropy": ["low"] * N},
        {"entropy": [1e300] * N},
        {"1": [0.5] * N, 1: [0.5] * N},
        ENTROPY,
        {},
    ],
)
def test_columns_that_are_no_numbers_of_the_rows_are_refused(tmp_path, refused, outputs):
    refused(call, tmp_path, (DIRECTION > 0).astype(int), outputs)
