"""Fits from products of the rows of a site: their bound, shares and fallback."""

from dataclasses import replace

import numpy as np
import pytest

from probekit.lazy_rows import LazyRows
from probekit.probes.solve import kernel, solver
from probekit.probes.solve.descent import StoppingRule
from probekit.probes.solve.solver import Problem, Solver
from tests.probes.logistic import excess, problem

N_ROWS, N_FEATURES = 300, 400


def rows_with_products(X):
    """Rows that share their products."""
    rows = LazyRows.of(X)
    return replace(rows, products=kernel.SiteProducts(rows))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("most", [2, 5, 100])
def test_the_excess_of_a_fit_is_at_most_its_bound(most, n_classes, dtype):
    X, codes = problem(n_classes, n_samples=N_ROWS, n_features=N_FEATURES)
    shares = [np.arange(N_ROWS) % 4 != 1, np.arange(N_ROWS) < 60]
    problems = [Problem(codes, C, share) for C in (1e-3, 0.1, 10.0) for share in (0, 1)]
    fits = Solver(X.astype(dtype), shares).solve(problems, StoppingRule(1e-6, most, 1e-6))
    for one, fit in zip(problems, fits, strict=True):
        true = excess(fit, X.astype(dtype), codes, 1.0 * shares[one.share])
        assert -1e-7 < true <= fit.gradient_norm**2 / (2 * fit.objective) + 1e-7
        assert most < 100 or fit.converged


@pytest.mark.parametrize("is_alone", [False, True])
def test_rows_of_products_are_those_of_a_selection_of_the_site(is_alone, monkeypatch):
    monkeypatch.setattr(solver, "FAR_PRODUCTS", -1 if is_alone else np.inf)
    X, codes = problem(3, n_samples=N_ROWS, n_features=N_FEATURES)
    some = np.random.default_rng(0).permutation(N_ROWS)[:200]
    typical = np.arange(200) % 9 > 0
    weights = [np.where(np.arange(200) % 5 == fold, 0, 1.0 + np.arange(200) % 3) for fold in (0, 1)]
    problems = [
        Problem(codes[some], C, share, balanced=balanced)
        for share, C, balanced in ((0, 0.1, False), (1, 1.0, True))
    ]
    selected = rows_with_products(X).select(some)
    own = Solver(selected, weights, typical=typical).solve(problems)
    for fit, other in zip(
        own, Solver(X[some], weights, typical=typical).solve(problems), strict=True
    ):
        assert fit.converged
        np.testing.assert_allclose(fit.scores(X), other.scores(X), atol=1e-3)


def test_a_fit_that_rounding_errors_stop_is_computed_from_the_features(monkeypatch):
    X, codes = problem(2, n_samples=N_ROWS, n_features=N_FEATURES)
    (usual,) = Solver(X, [np.ones(N_ROWS)]).solve([Problem(codes, 0.1)])
    monkeypatch.setattr(kernel.Products, "size", lambda *_: kernel.torch.full((1,), np.inf))
    (fit,) = Solver(X, [np.ones(N_ROWS)]).solve([Problem(codes, 0.1)])
    assert usual.point is not None
    assert fit.point is None
    assert fit.converged
    np.testing.assert_allclose(fit.scores(X), usual.scores(X), atol=1e-3)


def test_products_serve_few_rows_of_many_features_only(monkeypatch):
    assert kernel.is_wide(LazyRows.of(np.zeros((20, 10))))
    assert not kernel.is_wide(LazyRows.of(np.zeros((21, 10))))
    monkeypatch.setattr(kernel, "MOST_ROWS", 19)
    assert not kernel.is_wide(LazyRows.of(np.zeros((20, 10))))


def test_identical_rows_are_predicted_by_the_class_frequencies():
    (fit,) = Solver(np.ones((4, 5)), [np.ones(4)]).solve([Problem(np.array([0, 1, 1, 1]), 1.0)])
    assert fit.converged
    assert fit.coef.tolist() == [[0.0] * 5]
    np.testing.assert_allclose(fit.intercept, np.log(3), atol=1e-6)
