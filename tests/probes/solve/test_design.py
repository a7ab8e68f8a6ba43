"""Shared design matrices: standardisation, units, and folding back to raw rows."""

import numpy as np
import torch

from probekit.probes.solve import design
from probekit.probes.solve.design import DesignRows, dual, moments, shared
from tests.probes.logistic import problem


def everything(X):
    return np.ones(len(X), dtype=bool)


def standardised_in_share(made, share):
    """Rows (n_samples, n_features) in the units of a share."""
    rows = torch.cat([block for _, block in made.rows.blocks()])
    return (rows * made.units[share]).numpy()


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


def test_rows_far_from_zero_keep_their_differences():
    # A mean that float32 cannot hold would shift all rows by an amount that folding does not undo.
    generator = np.random.default_rng(0)
    X = (1e4 + generator.normal(size=(500, 1))).astype(np.float32)
    made = shared(X, [np.ones(500)], everything(X))
    coef, intercept = made.fold(0, np.ones((1, 1)), np.zeros(1))
    scores = coef @ X.T.astype(np.float64) + intercept[:, None]
    np.testing.assert_allclose(scores[0], standardised_in_share(made, 0)[:, 0], atol=1e-6)


def test_identical_rows_span_no_coordinates():
    made = dual(np.ones((3, 5)), np.ones(3), np.ones(3, dtype=bool))
    coef, intercept = made.fold(0, np.zeros((1, 0)), np.array([2.0]))
    assert (coef.tolist(), intercept.tolist()) == ([[0.0] * 5], [2.0])


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


def test_a_feature_is_nothing_to_a_share_in_which_it_is_constant():
    X, _ = problem(2)
    inside = np.arange(len(X)) < 200
    for value in (0.0, X[0, 3], 1e6):
        X[inside, 3] = value
        made = shared(X.astype(np.float32), [inside * 1.0, ~inside * 1.0], everything(X))
        assert (made.units[0] == 0).nonzero().flatten().tolist() == [3]
        assert (made.units[1] > 0).all()
