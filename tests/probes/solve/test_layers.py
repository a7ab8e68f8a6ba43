"""Cosines of probes on permuted labels exceed their bound at its nominal rate."""

import numpy as np
import pytest

from probekit.chosen.directions.measure import permuted_fits
from probekit.lazy_rows import LazyRows
from probekit.probes.data import ProbeData
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve import layers
from probekit.probes.solve.layers import AffineLayer, bound_of_null, null_cosines, unit_rows
from probekit.probes.split import SplitProber


def test_a_guess_is_a_code_that_was_fitted():
    layer = AffineLayer(np.array([[1.0]]), np.array([0.0]))
    solution = layers.FittedLayers(np.array([3, 5]), (layer,))
    assert solution.outputs(np.array([[-1.0], [1.0]]), 7).argmax(axis=1).tolist() == [3, 5]


N_ROWS, WIDTH, DRAWS, C = 240, 16, 50, 0.01
TRAIN = np.arange(180)


def split_of(y, groups, seed):
    names = groups.astype(str)
    data = ProbeData(y.astype(str), names, names, TRAIN, np.arange(180, N_ROWS))
    settings = ProbeSettings(control_draws=0, folds=2, baselines=(), description=False, seed=seed)
    return SplitProber(data, settings)


def permuted(X, y, groups, seed):
    fitted = split_of(y, groups, seed).fitted
    rows = LazyRows.of(X).select(fitted.rows)
    fits = permuted_fits(fitted, ProbeSpec(kind="logistic"), rows, C, DRAWS)
    return np.stack([unit_rows(fit.layers[0].weight.astype(np.float64)) for fit in fits])


@pytest.mark.parametrize("is_mixed", [True, False])
def test_pitfall_43_five_percent_of_permuted_probes_exceed_the_bound(is_mixed):
    exceeding, isotropic = [], []
    for seed in range(8):
        generator = np.random.default_rng(seed)
        # A few directions have most of the variance, as in the residual stream.
        X = generator.normal(size=(N_ROWS, WIDTH)) / np.sqrt(np.arange(1, WIDTH + 1))
        X = X @ np.linalg.qr(generator.normal(size=(WIDTH, WIDTH)))[0]
        groups = np.arange(N_ROWS) // 4
        y = generator.integers(2, size=N_ROWS if is_mixed else N_ROWS // 4)
        y = y if is_mixed else y[groups]
        own = permuted(X, y, groups, seed=99)[0]  # a probe to compare with
        bound = bound_of_null(null_cosines(own, permuted(X, y, groups, seed=0)))
        new = np.abs(null_cosines(own, permuted(X, y, groups, seed=1)))
        exceeding.append(np.mean(new > bound))
        isotropic.append(np.mean(new > 1.96 / np.sqrt(WIDTH)))
    assert 0.01 < np.mean(exceeding) < 0.11
    assert np.mean(isotropic) > 0.08


def test_the_bound_is_exceeded_by_chance_in_five_percent_of_draws():
    generator = np.random.default_rng(0)
    null = generator.normal(size=(4000, 51))
    exceeding = [abs(new) > bound_of_null(draws) for new, *draws in null]
    assert np.mean(exceeding) == pytest.approx(0.05, abs=0.011)
    assert bound_of_null(np.array([-3.0, 1.0])) == 3.0


def test_several_directions_are_averaged_and_zero_weights_have_none():
    one, other = np.eye(2), np.array([[1.0, 0.0], [0.0, -1.0]])
    assert null_cosines(one, np.stack([one, other])).tolist() == [1.0, 0.0]
    assert unit_rows(np.array([[3.0, 4.0], [0.0, 0.0]])) is None
