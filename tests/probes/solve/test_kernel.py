"""Fits from products of the rows of a site: their bound, shares and fallback."""

import numpy as np
import pytest

from probekit.lazy_rows import LazyRows
from probekit.probes.solve import kernel, solver
from probekit.probes.solve.descent import StoppingRule
from probekit.probes.solve.fits import fit_columns
from probekit.probes.solve.solver import Problem, Solver
from tests.probes.logistic import excess, problem

N_ROWS, N_FEATURES = 300, 400


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("most", [2, 5, 100])
def test_the_excess_of_a_fit_is_at_most_its_bound(most, n_classes, dtype):
    X, codes = problem(n_classes, n_samples=N_ROWS, n_features=N_FEATURES)
    shares = [np.arange(N_ROWS) % 4 != 1, np.arange(N_ROWS) < 60, np.arange(N_ROWS) % 8 == 1]
    problems = [Problem(codes, C, share) for C in (1e-3, 0.1, 10.0) for share in (0, 1, 2)]
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
    selected = kernel.with_products(LazyRows.of(X), None).select(some)
    own = Solver(selected, weights, typical=typical).solve(problems)
    for fit, other in zip(
        own, Solver(X[some], weights, typical=typical).solve(problems), strict=True
    ):
        assert fit.converged
        np.testing.assert_allclose(fit.scores(X), other.scores(X), atol=1e-3)


@pytest.mark.parametrize("C", [1e3, 1e4])
def test_a_fit_that_needs_more_digits_gets_them(C):
    X, codes = problem(4, n_samples=100, n_features=150)
    rows = np.vstack([X, X]).astype(np.float32)
    codes = np.r_[codes, np.where(np.arange(100) < 5, (codes + 1) % 4, codes)]
    (fit,) = Solver(rows, [np.ones(200)]).solve([Problem(codes, C)])
    assert fit.converged
    assert excess(fit, rows, codes) < 1e-6


def test_float16_rows_are_fitted_in_float32():
    X, codes = problem(2, n_samples=60, n_features=40)
    X = ((X - X.mean(axis=0)) / X.std(axis=0)).astype(np.float16)
    (fit,), (other,) = (
        Solver(rows, [np.ones(60)]).solve([Problem(codes, 1.0)])
        for rows in (X, X.astype(np.float32))
    )
    np.testing.assert_array_equal(fit.coef, other.coef)


def test_a_selection_of_rows_has_products_of_its_own():
    X, codes = problem(2, n_samples=N_ROWS, n_features=N_FEATURES)
    some, few = np.random.default_rng(0).permutation(N_ROWS)[:200], np.r_[0:50, 0:50]
    rows = kernel.with_products(LazyRows.of(X).select(some), None)
    for place in (np.arange(0, 200, 2), few):  # the second has rows twice
        chosen = codes[some][place]
        (fit,) = Solver(rows.select(place), [np.ones(100)]).solve([Problem(chosen, 0.1)])
        (other,) = Solver(X[some][place], [np.ones(100)]).solve([Problem(chosen, 0.1)])
        np.testing.assert_allclose(fit.scores(X), other.scores(X), atol=1e-4)


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


@pytest.mark.parametrize("n_classes", [2, 3])
def test_shares_of_few_rows_converge_if_c_is_large(n_classes):
    generator = np.random.default_rng(1)
    X = generator.normal(size=(N_ROWS, 200)) + 5 * generator.normal(size=200)
    codes = generator.integers(n_classes, size=N_ROWS)
    X[150:], codes[150:270] = X[:150], codes[:120]  # the last 30 rows may contradict others
    order = generator.permutation(N_ROWS)
    shares = [np.isin(np.arange(N_ROWS), order[:n]) for n in (9, 17, 30)]
    problems = [Problem(codes, C, share) for C in (1e4, 1e5) for share in range(3)]
    fits = Solver(X.astype(np.float32), shares).solve(problems)
    assert all(fit.converged and fit.n_iter < 100 for fit in fits)


@pytest.mark.parametrize("shape", [(300, 100), (300, 140), (450, 200)])
def test_folds_without_a_massive_row_are_solved_with_those_that_have_it(shape):
    generator = np.random.default_rng(0)
    X, codes = generator.normal(size=shape), generator.integers(2, size=shape[0])
    X[7] *= 1000
    folds = np.arange(len(X)) % 5
    (column,) = fit_columns(X.astype(np.float32), [codes], folds, (0.01, 1.0))
    whole = np.ones(len(X))
    for fit, weights in zip(
        (*column.search, column.solution),
        (*(folds != fold for fold in range(5)), whole),
        strict=True,
    ):
        assert fit.converged
        assert excess(fit, X.astype(np.float32), codes, 1.0 * weights) < 1e-4  # of a search
