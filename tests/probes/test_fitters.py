"""Fits of a fold depend neither on the features nor on the labels of its held-out rows."""

import numpy as np
import pytest

from probekit.pipeline.selftest import KIND_SPECS, planted_direction
from probekit.probes.data import ProbeData
from probekit.probes.fitters import FittedRows
from probekit.probes.settings import ProbeSettings

# Kinds with a single penalty: held-out rows select among several.
ONE_PENALTY = [spec for spec in KIND_SPECS if spec.kind not in ("ridge", "mlp")]
FOLDS = np.arange(90) % 3
HELD_OUT = FOLDS == 0


def fit_of_first_fold(spec, X, codes):
    """The fit that held out the first fold."""
    settings, row = ProbeSettings(kinds=(spec,), C=(0.1,), folds=3), np.arange(90)
    data = ProbeData(codes.astype(str), row.astype(str), row.astype(str), row[:80], row[80:])
    rows = FittedRows(data, settings, row, FOLDS)
    (tuned,) = rows.fitter(spec).tune(X, [codes], lambda *_: None)
    return tuned.search[0]


@pytest.mark.parametrize("spec", ONE_PENALTY, ids=lambda spec: spec.text)
def test_held_out_rows_neither_rank_nor_scale_the_features_of_their_fold(spec):
    X, data, _ = planted_direction(90, seed=0)
    codes = (data.y == "yes").astype(int)
    scale = np.where(np.arange(X.shape[1]) % 2, 1.0, 9.0)
    other = np.where(HELD_OUT[:, None], X * scale + 20, X)
    turned = np.where(HELD_OUT, 1 - codes, codes)
    turned[0], turned[3] = 0, 1  # both labels are held out
    first, second = fit_of_first_fold(spec, X, codes), fit_of_first_fold(spec, other, turned)
    for ours, theirs in zip(first.layers[0], second.layers[0], strict=True):
        # A search stops early, at a point that depends on its preconditioner.
        np.testing.assert_allclose(ours, theirs, rtol=0.03, atol=0.005)


@pytest.mark.parametrize("spec", KIND_SPECS, ids=lambda spec: spec.text)
def test_a_refit_reads_the_rows_of_its_mask_alone(spec):
    """PITFALL 16."""
    X, data, _ = planted_direction(90, seed=0)
    codes, row = (data.y == "yes").astype(int), np.arange(90)
    own = ProbeData(codes.astype(str), row.astype(str), row.astype(str), row[:80], row[80:])
    settings = ProbeSettings(kinds=(spec,), C=(0.1,), folds=3)
    fitter = FittedRows(own, settings, row, FOLDS).fitter(spec)
    (tuned,) = fitter.tune(X, [codes], lambda *_: None)
    other, turned = np.where(HELD_OUT[:, None], X * 9 + 20, X), np.where(HELD_OUT, 1 - codes, codes)
    first, second = (
        fitter.refit(rows, [(labels, tuned.penalty)], [~HELD_OUT])[0][0]
        for rows, labels in ((X, codes), (other, turned))
    )
    for ours, theirs in zip(first.layers[0], second.layers[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
