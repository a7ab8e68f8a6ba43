"""Shared design matrices: standardisation, units, and folding back to raw rows."""

import numpy as np
import pytest
import torch

from probekit.probes.solve import design
from probekit.probes.solve.design import DesignRows, dual, moments, shared
from tests.probes.logistic import problem, scaling


def everything(X):
    return np.ones(len(X), dtype=bool)


def standardised_in_share(made, share):
    """Rows (n_samples, n_features) in the units of a share."""
    rows = torch.cat([block for _, block in made.rows.blocks()])
    return (rows * made.units[share]).numpy()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_each_share_sees_unit_spread_of_its_own_rows(dtype):
    X, _ = problem(2)
    X[:100] *= 3
    X = X.astype(dtype)
    shares = [np.ones(len(X)), (np.arange(len(X)) < 100) * 2.0, np.arange(len(X)) % 5 * 1.0]
    made = shared(X, shares, everything(X))
    for number, counts in enumerate(shares):
        _, spread = scaling(standardised_in_share(made, number).astype(np.float64), counts)
        np.testing.assert_allclose(spread, 1, rtol=1e-4)


def test_a_feature_is_nothing_to_a_share_in_which_it_is_constant():
    X, _ = problem(2)
    inside = np.arange(len(X)) < 200
    for value in (0.0, X[0, 3], 1e6):
        X[inside, 3] = value
        made = shared(X.astype(np.float32), [inside * 1.0, ~inside * 1.0], everything(X))
        assert (made.units[0] == 0).nonzero().flatten().tolist() == [3]
        assert (made.units[1] > 0).all()


def test_a_row_that_counts_nowhere_has_no_say():
    X, _ = problem(2)
    spoilt = np.vstack([X, X[:1] * 1e9])
    counts = np.append(np.ones(len(X)), 0.0)
    one, other = (
        shared(X, [counts[:-1]], everything(X)),
        shared(spoilt, [counts], everything(spoilt)),
    )
    np.testing.assert_allclose(one.mean, other.mean)
    np.testing.assert_allclose(one.back, other.back)
    np.testing.assert_allclose(one.variances, other.variances, atol=1e-12)


def test_axes_are_the_principal_ones_of_the_typical_rows():
    X, _ = problem(2)
    typical = np.arange(len(X)) % 10 != 0
    spoilt = np.where(typical[:, None], X, X + 1e6 * X.std(axis=0))
    made = shared(spoilt, [np.ones(len(X))], typical)
    correlations = np.corrcoef(X[typical].T)
    axes, variances = made.axes.numpy(), made.variances.numpy()
    np.testing.assert_allclose(axes.T @ correlations @ axes, np.diag(variances), atol=1e-10)


@pytest.mark.parametrize("make", [shared, dual])
def test_folded_coefficients_give_the_same_scores_on_raw_rows(make):
    X, _ = problem(2, n_samples=30, n_features=30 if make is shared else 90)
    counts = np.where(np.arange(30) < 20, 1.0, 0.0)
    made = make(X, [counts] if make is shared else counts, everything(X))
    rows = standardised_in_share(made, 0)
    generator = np.random.default_rng(1)
    coef, intercept = generator.normal(size=(3, rows.shape[1])), generator.normal(size=3)
    raw, raw_intercept = made.fold(0, coef, intercept)
    expected = coef @ rows.T + intercept[:, None]
    seen = X if make is shared else X[:20]
    np.testing.assert_allclose(raw @ seen.T + raw_intercept[:, None], expected, atol=1e-8)
    if make is shared:
        back, back_intercept = made.unfold(0, raw, raw_intercept)
        np.testing.assert_allclose(back, coef, atol=1e-10)
        np.testing.assert_allclose(back_intercept, intercept, atol=1e-10)


def test_rows_far_from_zero_keep_their_differences():
    # A mean that float32 cannot hold would shift all rows by an amount that folding does not undo.
    generator = np.random.default_rng(0)
    X = (1e4 + generator.normal(size=(500, 1))).astype(np.float32)
    made = shared(X, [np.ones(500)], everything(X))
    coef, intercept = made.fold(0, np.ones((1, 1)), np.zeros(1))
    scores = coef @ X.T.astype(np.float64) + intercept[:, None]
    np.testing.assert_allclose(scores[0], standardised_in_share(made, 0)[:, 0], atol=1e-6)


def test_dual_coordinates_keep_all_distances_and_no_more_than_the_span():
    X, _ = problem(2, n_samples=20, n_features=50)
    X[5:10] = X[:5]
    made = dual(X, np.ones(20), everything(X))
    mean, spread = scaling(X, np.ones(20))
    Z = (X - mean) / spread
    rows = standardised_in_share(made, 0)
    assert rows.shape == (20, 14)
    np.testing.assert_allclose(rows @ rows.T, Z @ Z.T, atol=1e-8)
    np.testing.assert_allclose(rows.T @ rows / 20, np.diag(made.variances), atol=1e-8)


def test_identical_rows_span_no_coordinates():
    made = dual(np.ones((3, 5)), np.ones(3), np.ones(3, dtype=bool))
    coef, intercept = made.fold(0, np.zeros((1, 0)), np.array([2.0]))
    assert (coef.tolist(), intercept.tolist()) == ([[0.0] * 5], [2.0])


def test_products_over_blocks_are_those_of_the_whole(monkeypatch):
    X, _ = problem(2)
    whole = DesignRows(X, X.mean(axis=0), X.std(axis=0), torch.float64)
    generator = torch.Generator().manual_seed(0)
    coef = torch.randn(3, X.shape[1], dtype=torch.float64, generator=generator)
    values = torch.randn(3, len(X), dtype=torch.float64, generator=generator)
    Z = torch.from_numpy((X - X.mean(axis=0)) / X.std(axis=0))
    monkeypatch.setattr(design, "BLOCK_ROWS", 70)
    for resident in (0, 4 << 30):
        monkeypatch.setattr(design, "RESIDENT_BYTES", resident)
        rows = DesignRows(whole.raw, whole.mean, whole.scale, torch.float64)
        torch.testing.assert_close(rows.times(coef), coef @ Z.T)
        torch.testing.assert_close(rows.sum_of(values), values @ Z)


def test_sums_over_blocks_are_in_float64(monkeypatch):
    # In float32 the ones would be lost in the partial sum.
    monkeypatch.setattr(design, "BLOCK_ROWS", 1)
    X = np.array([[1e8]] + [[1.0]] * 64, dtype=np.float32)
    rows = DesignRows(X, np.zeros(1), np.ones(1), torch.float32)
    assert rows.sum_of(torch.ones(1, 65)).item() == np.float32(1e8 + 64)


def test_weights_and_typical_rows_decide_the_moments():
    X = np.array([[0.0], [2.0], [50.0]])
    weights, typical = np.array([3.0, 1.0, 1.0]), np.array([True, True, False])
    mean, spread = moments(X, weights, typical)
    assert (mean[0], spread[0]) == (0.5, np.sqrt(0.75))
    one_left = np.array([True, False, False])
    np.testing.assert_allclose(moments(X, weights, one_left)[0], (3 * 0 + 2 + 50) / 5)
