"""Errors of other probing tools: each test fails if its pitfall is reintroduced.

The numbers are those of the list of pitfalls that the design keeps.
"""

from dataclasses import replace

import numpy as np
import pytest

from probekit.pipeline.selftest import KIND_SPECS, planted_direction
from probekit.probes.data import ProbeData
from probekit.probes.fitters import FittedRows
from probekit.probes.prober import Prober
from probekit.probes.score.differences import paired_differences
from probekit.probes.score.intervals import jackknife_interval
from probekit.probes.score.metrics import ClassPredictions, Resamples, accuracy
from probekit.probes.score.unpaired import Side, unpaired_differences
from probekit.probes.settings import ProbeSettings, ProbeSpec

BY_ROW = [spec for spec in KIND_SPECS if spec.kind != "mlp"]


def ids(spec):
    return spec.text


def machine(spec, n_rows, **settings):
    """A machine for rows of chance, with rows in three folds by turns."""
    chosen = ProbeSettings(kinds=(spec,), C=(0.1, 1.0), folds=3, **settings)
    row = np.arange(n_rows)
    names = row.astype(str)
    data = ProbeData(np.array(["0", "1"])[row % 2], names, names, row[:-2], row[-2:])
    return FittedRows(data, chosen, row, row % 3).fitter(spec)


def tuned(spec, X, codes, **settings):
    (found,) = machine(spec, len(X), **settings).tune(X, [codes], lambda *_: None)
    return found


def test_pitfall_17_feature_scale_is_no_prior_and_non_convergence_is_reported():
    X, data, _ = planted_direction(300, seed=0)
    codes = (data.y == "yes").astype(int)
    logistic = ProbeSpec(kind="logistic")
    sizes = 10.0 ** np.arange(-6, 6)
    plain, sized = (tuned(logistic, X, codes) for X in (X, X * sizes))
    assert plain.penalty == sized.penalty
    np.testing.assert_allclose(
        plain.solution.scores(X), sized.solution.scores(X * sizes), rtol=1e-5, atol=1e-6
    )
    short = tuned(logistic, X, codes, max_iter=1).solution
    assert (short.converged, short.n_iter) == (False, 1)
    assert short.gradient_norm > 10 * plain.solution.gradient_norm
    assert plain.solution.converged


@pytest.mark.parametrize("spec", BY_ROW, ids=ids)
def test_pitfall_18_the_bias_takes_up_the_mean_of_raw_rows(spec):
    X, data, _ = planted_direction(300, seed=0)
    codes = (data.y == "yes").astype(int)
    here, there = (tuned(spec, X + shift, codes).solution for shift in (0, 50))
    np.testing.assert_allclose(here.scores(X), there.scores(X + 50), rtol=1e-5, atol=1e-5)


def test_pitfall_23_test_rows_choose_nothing():
    X, data, _ = planted_direction(300, seed=0)
    turned = replace(data, y=data.y.copy())
    turned.y[turned.test] = np.where(turned.y[turned.test] == "yes", "no", "yes")
    settings = ProbeSettings(C=(1e-3, 1.0), folds=3, control_draws=0)
    first, second = (Prober(one, settings).site(X) for one in (data, turned))
    ours, theirs = (next(iter(one.predictions.values())).guess for one in (first, second))
    assert ours.tolist() == theirs.tolist()
    for ours, theirs in zip(first.measurements, second.measurements, strict=True):
        if ours.split != "test":
            assert ours == theirs


def test_pitfall_25_intervals_are_those_of_groups_and_differences_are_paired():
    generator = np.random.default_rng(0)
    groups = np.repeat(np.arange(80), 8)
    right = np.repeat(generator.random(80) < 0.7, 8)
    better = right | np.repeat(generator.random(80) < 0.2, 8)
    truth = np.ones(640, dtype=int)
    a, b = (ClassPredictions(truth, guess.astype(int), 2) for guess in (better, right))

    def width(low, high):
        return high - low

    by_group, by_row = (Resamples.leave_one_out(names) for names in (groups, np.arange(640)))
    wide, narrow = (
        width(found.low, found.high)
        for found in (
            jackknife_interval(accuracy(a, resamples), resamples, (0, 1))
            for resamples in (by_group, by_row)
        )
    )
    assert wide / narrow == pytest.approx(np.sqrt(8), rel=0.15)
    values = [accuracy(one, by_group) for one in (a, b)]
    (paired,) = paired_differences([tuple(values)], by_group)
    (apart,) = unpaired_differences([tuple(Side(one, by_group) for one in values)], (0.0, 1.0))
    assert width(paired.ci_low, paired.ci_high) < 0.6 * width(apart.ci_low, apart.ci_high)


@pytest.mark.parametrize("spec", BY_ROW, ids=ids)
def test_pitfall_26_fits_of_float32_rows_are_those_of_float64(spec):
    X, data, _ = planted_direction(300, seed=0)
    codes = (data.y == "yes").astype(int)
    near, wide = (X + 300).astype(np.float32), (X + 300).astype(np.float32)
    wide = wide.astype(np.float64)
    ours, exact = (tuned(spec, X, codes).solution for X in (near, wide))
    assert ours.layers[0].weight.dtype == np.float64
    # bfloat16 would keep the 300 and lose what differs.
    np.testing.assert_allclose(ours.scores(wide), exact.scores(wide), rtol=2e-3, atol=2e-3)
