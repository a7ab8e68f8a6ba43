import warnings

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression

from probekit.probes.solver import SEARCH, fold, prepare, solve


def problem(n_classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Correlated features on very different scales, as activations have them."""
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(300, 7)) @ generator.normal(size=(7, 7)) * 10.0 ** np.arange(-3, 4)
    scores = (X / X.std(axis=0)) @ generator.normal(size=(7, n_classes))
    codes = (scores + generator.gumbel(size=scores.shape)).argmax(axis=1)
    return X + 100, codes


def objective(X: np.ndarray, codes: np.ndarray, C: float, coef: np.ndarray, intercept: np.ndarray):
    """The objective written once more, from its definition, for standardised rows."""
    scores = X @ coef.T + intercept
    if scores.shape[1] == 1:
        scores = np.hstack([np.zeros_like(scores), scores])
    loss = logsumexp(scores, axis=1) - scores[np.arange(len(X)), codes]
    return loss.sum() + np.sum(coef**2) / (2 * C)


def standardised(X: np.ndarray) -> np.ndarray:
    return (X - X.mean(axis=0)) / X.std(axis=0)


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("C", [1e-4, 1e-2, 1.0, 100.0])
def test_objective_is_as_low_as_a_tight_reference(n_classes, C):
    X, codes = problem(n_classes)
    design = prepare(X)
    fit = solve(design, codes, C)
    reference = LogisticRegression(C=C, tol=1e-10, max_iter=10_000).fit(standardised(X), codes)
    ours = objective(standardised(X), codes, C, fit.coef @ design.axes.T, fit.intercept)
    best = objective(standardised(X), codes, C, reference.coef_, reference.intercept_)
    assert abs(ours - best) < 1e-6 * best
    assert fit.converged


@pytest.mark.parametrize("n_classes", [2, 4])
def test_gradient_norm_is_that_of_the_mean_objective(n_classes):
    X, codes = problem(n_classes)
    design = prepare(X)
    fit = solve(design, codes, C=0.1, max_iter=3)
    shape = fit.coef.shape

    def mean_objective(flat: np.ndarray) -> float:
        coef, intercept = np.split(flat, [fit.coef.size])
        return objective(design.rows, codes, 0.1, coef.reshape(shape), intercept) / len(X)

    point = np.concatenate([fit.coef.ravel(), fit.intercept])
    steps = 1e-6 * np.eye(len(point))
    slope = [(mean_objective(point + s) - mean_objective(point - s)) / 2e-6 for s in steps]
    assert fit.gradient_norm == pytest.approx(np.linalg.norm(slope), rel=1e-4)


def test_too_few_steps_are_told_and_nothing_is_printed(capfd):
    X, codes = problem(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = solve(prepare(X), codes, C=100.0, max_iter=2)
    assert (fit.converged, fit.n_iter) == (False, 2)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("n_classes", [2, 4])
def test_folded_coefficients_score_raw_rows_as_the_scaled_ones_do(n_classes):
    X, codes = problem(n_classes)
    design = prepare(X)
    fit = solve(design, codes, C=0.1)
    coef, intercept = fold(design, fit)
    scaled = standardised(X) @ (fit.coef @ design.axes.T).T + fit.intercept
    np.testing.assert_allclose(X @ coef.T + intercept, scaled, atol=1e-8)


def test_other_rows_are_brought_to_the_same_coordinates():
    X, _ = problem(2)
    design = prepare(X)
    np.testing.assert_allclose(design.turn(X), design.rows, atol=1e-10)


def test_a_start_changes_the_way_but_not_the_solution():
    X, codes = problem(4)
    design = prepare(X)
    cold = solve(design, codes, C=1.0)
    near = solve(design, codes, C=1.0, start=cold)
    assert near.n_iter < cold.n_iter / 2
    np.testing.assert_allclose(near.coef, cold.coef, atol=1e-4)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e6])
def test_a_constant_feature_survives_and_does_not_matter(constant):
    X, codes = problem(2)
    padded = np.hstack([X, np.full((len(X), 1), constant)]).astype(np.float32)
    with_constant, without = prepare(padded), prepare(X.astype(np.float32))
    assert with_constant.scale[-1] == 1
    rows = solve(with_constant, codes, C=0.1).log_probabilities(with_constant.rows, 2)
    expected = solve(without, codes, C=0.1).log_probabilities(without.rows, 2)
    np.testing.assert_allclose(rows, expected, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_feature_that_varies_by_rounding_alone_tells_nothing(dtype):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(3000, 3))
    # Constant but for the last bit: of a float32 forward pass, of a sum in float64.
    codes = generator.integers(2, size=3000)
    X[:, 2] = 0.1 * (1 + codes * np.finfo(dtype).eps)
    design = prepare(X.astype(dtype))
    assert design.scale[2] == 1
    right = solve(design, codes, C=1.0).predict(design.rows) == codes
    assert right.mean() < 0.6


def test_rows_that_are_not_typical_have_no_say_in_the_scaling():
    X, _ = problem(2)
    X[::20] += 3000  # as GPT-2's position 0
    typical = np.arange(len(X)) % 20 != 0
    design, alone = prepare(X, typical=typical), prepare(X[typical])
    np.testing.assert_array_equal(design.scale, alone.scale)
    np.testing.assert_array_equal(design.mean, alone.mean)
    nothing = prepare(X, typical=np.zeros(len(X), dtype=bool))
    np.testing.assert_array_equal(nothing.scale, prepare(X).scale)


def test_a_class_that_was_not_fitted_has_no_probability():
    X, codes = problem(4)
    kept = codes != 1
    design = prepare(X[kept])
    fit = solve(design, codes[kept], C=0.1)
    logs = fit.log_probabilities(design.rows, 4)
    assert np.all(np.isneginf(logs[:, 1]))
    np.testing.assert_allclose(np.exp(logs).sum(axis=1), 1)
    assert np.array_equal(logs.argmax(axis=1), fit.predict(design.rows))


def test_one_class_alone_is_always_guessed():
    X, _ = problem(2)
    design = prepare(X)
    fit = solve(design, np.full(len(X), 3), C=0.1)
    assert fit.converged
    assert set(fit.predict(design.rows)) == {3}


def test_the_search_in_float32_guesses_as_the_final_fit_does():
    X, codes = problem(4)
    X = X.astype(np.float32)
    quick, exact = prepare(X, SEARCH), prepare(X)
    quick_guess = solve(quick, codes, 0.1, tolerance=SEARCH.tolerance).predict(quick.rows)
    assert np.mean(quick_guess == solve(exact, codes, 0.1).predict(exact.rows)) > 0.99


def test_far_fewer_steps_than_without_the_turn_to_principal_axes():
    X, codes = problem(2)
    Z = np.hstack([np.ones((len(X), 1)), standardised(X)])

    def plain(w: np.ndarray) -> tuple[float, np.ndarray]:
        s = Z @ w
        gradient = Z.T @ (1 / (1 + np.exp(-s)) - codes) / len(Z)
        gradient[1:] += w[1:] / (10 * len(Z))
        loss = np.mean(np.logaddexp(0, s) - codes * s) + w[1:] @ w[1:] / (20 * len(Z))
        return loss, gradient

    options = {"gtol": 1e-6, "ftol": 0.0}
    without = minimize(plain, np.zeros(8), jac=True, method="L-BFGS-B", options=options)
    assert solve(prepare(X), codes, C=10.0).n_iter < without.nit
