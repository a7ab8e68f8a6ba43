"""Every fit of the batched solver compared with a tightly converged reference."""

import tracemalloc
import warnings
from itertools import product

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit, log_softmax

from probekit import lazy_rows
from probekit.probes.kinds.class_means import class_means
from probekit.probes.solve import coordinates, design, solver
from probekit.probes.solve.descent import StoppingRule
from probekit.probes.solve.solver import Problem, Solver
from probekit.probes.training_rows import Scaling
from tests.probes.logistic import excess, objective, problem, scaling, standardised

GRID = (1e-4, 1e-2, 1.0, 100.0)


def solved(X, codes, penalties, shares=None, **others):
    """Problems of each value of C on each share (all rows, if none is given), and their fits."""
    shares = [np.ones(len(X))] if shares is None else shares
    problems = [Problem(codes, C, share) for C in penalties for share in range(len(shares))]
    stopping = others.pop("stopping", StoppingRule())
    fits = Solver(X, shares, **others).solve(problems, stopping)
    return list(zip(problems, fits, strict=True))


def alone(X, codes, C, counts=None, **others):
    """The fit of one problem on one share."""
    ((_, fit),) = solved(X, codes, [C], None if counts is None else [counts], **others)
    return fit


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_objective_is_as_low_as_a_tight_reference(n_classes, dtype):
    X, codes = problem(n_classes)
    X = X.astype(dtype)
    ones = np.ones(len(X))
    (mean, spread), Z = scaling(X.astype(float), ones), standardised(X.astype(float), ones)
    for _, fit in solved(X, codes, GRID):
        assert fit.converged
        assert abs(excess(fit, X, codes)) < 1e-6
        own = fit.coef * spread, fit.intercept + fit.coef @ mean
        value = objective(Z, codes, ones, fit.C, *own) / len(X)
        exact = dtype == np.float64
        assert fit.objective == pytest.approx(value, rel=1e-6 if exact else 1e-5)
        no_mean = pytest.approx(0, abs=1e-9 if exact else 1e-6)
        assert n_classes == 2 or fit.intercept.mean() == no_mean


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_features", [7, 400])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_fits_with_an_offset_equal_those_of_a_general_minimiser(n_classes, n_features, dtype):
    X, codes = problem(n_classes, n_samples=250, n_features=n_features)
    generator = np.random.default_rng(1)
    offset = generator.normal(size=(len(X), n_classes)) * 2
    # The fits on a small share are computed from products of their own, or from its rows alone.
    shares = [(generator.random(len(X)) < part) * 1.0 for part in (0.8, 0.2)]
    own, ones = np.eye(n_classes)[codes], np.ones((len(X), 1))
    shape = (n_features + 1, 1 if n_classes == 2 else n_classes)

    def loss(point, C, rows, share):
        """The objective and its gradient on standardised rows, written out."""
        W = point.reshape(shape)
        scores = rows @ W if n_classes > 2 else np.hstack([0 * rows[:, :1], rows @ W])
        scores = scores + offset[share > 0]
        logs, truth = log_softmax(scores, axis=1), own[share > 0]
        slope = rows.T @ (np.exp(logs) - truth)[:, -shape[1] :]
        slope[:-1] += W[:-1] / C
        return -(logs * truth).sum() + (W[:-1] ** 2).sum() / (2 * C), slope.ravel()

    grid = product((1e-5, 1e-3, 0.1), (0, 1))
    problems = [Problem(codes, C, number, offset=offset) for C, number in grid]
    is_exact = dtype == np.float64
    stopping = StoppingRule(tolerance=1e-10, aim=1e-15) if is_exact else StoppingRule()
    fits = Solver(X.astype(dtype), shares).solve(problems, stopping)
    for one, fit in zip(problems, fits, strict=True):
        options = {"gtol": 1e-11, "ftol": 1e-15, "maxiter": 20_000, "maxcor": 50}
        start, share = np.zeros(np.prod(shape)), shares[one.share]
        whole = np.hstack([standardised(X, share), ones])
        given = one.C, whole[share > 0], share
        best = minimize(loss, start, given, jac=True, method="L-BFGS-B", options=options)
        scores = X @ fit.coef.T + fit.intercept
        expected = whole @ best.x.reshape(shape)
        expected -= expected.mean(axis=1, keepdims=True) * (n_classes > 2)
        assert fit.converged
        assert fit.objective * share.sum() == pytest.approx(best.fun, rel=1e-6)
        scores -= scores.mean(axis=1, keepdims=True) * (n_classes > 2)
        assert np.abs(scores - expected).max() < (1e-6 if is_exact else 2e-4)


def test_fits_with_an_offset_equal_those_of_statsmodels():
    models = pytest.importorskip("statsmodels.api")
    X, codes = problem(2, n_samples=600, n_features=5)
    offset = np.random.default_rng(1).normal(size=(len(X), 2))
    one, stopping = Problem(codes, 1e9, offset=offset), StoppingRule(tolerance=1e-12, aim=1e-18)
    (fit,) = Solver(X, [np.ones(len(X))]).solve([one], stopping)  # hardly a penalty
    design, difference = models.add_constant(X), offset[:, 1] - offset[:, 0]
    model = models.GLM(codes, design, models.families.Binomial(), offset=difference)
    expected = model.fit(tol=1e-14).params
    assert np.abs(np.append(fit.intercept, fit.coef) - expected).max() < 1e-6


def hard_problems():
    """Name -> rows, codes, weights of each share, values of C."""
    found, generator = {}, np.random.default_rng(0)
    for n_classes in (2, 4):
        X, codes = problem(n_classes)
        folds = np.arange(len(X)) % 3
        # Rows of a fold are larger, so that a spread of all rows is wrong by far in each share.
        X[folds == 0] *= 1.5
        shares = [(folds != fold) * 1.0 for fold in range(3)]
        found[f"shares, {n_classes} classes"] = X, codes, shares, (0.01, 1.0)
        for n_features in (7, 400):
            X, codes = problem(n_classes, n_features=n_features)
            counts = np.random.default_rng(1).integers(4, size=len(X)) * 0.5
            name = f"weights, {n_classes} classes, {n_features} features"
            found[name] = X, codes, [counts], (0.1,)
        for n in (40, 59, 61):
            X, codes = problem(n_classes, n_samples=n, n_features=60)
            name = f"{n} rows of 60 features, {n_classes} classes"
            found[name] = X, codes, [np.ones(n)], (1e-3, 0.1, 10.0)
    X, codes = problem(3, n_samples=90, n_features=50)
    shares = [(np.arange(90) < size) * 1.0 for size in (80, 30, 90)]
    found["few rows and many side by side"] = X, codes, shares, (1.0, 1.0)
    for n_features in (20, 500):
        X = generator.normal(size=(300, 5)) @ generator.normal(size=(5, n_features))
        X[:, 1] = X[:, 0]
        codes = (X[:, 0] + generator.normal(size=300) > 0).astype(int)
        name = f"low rank and copies of features, {n_features} features"
        found[name] = X, codes, [np.ones(300)], (1.0,)
    X, codes = problem(2)
    X[7] *= 1e4
    shares = [(np.arange(len(X)) != 7) * 1.0, np.ones(len(X))]
    found["a row of another size in one share"] = X, codes, shares, (0.1,)
    # Folds with and without the row have different units and do not share a Hessian.
    X, codes = problem(2, n_samples=600, n_features=20)
    X[0, 3] += 1e4 * X[:, 3].std()
    shares = [(np.arange(600) % 5 != fold) * 1.0 for fold in range(5)]
    found["a row far off in one feature"] = X, codes, shares, (1.0, 1e3)
    return found


HARD = hard_problems()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", HARD)
def test_fits_of_hard_problems_are_as_low_as_a_tight_reference(name, dtype):
    X, codes, shares, penalties = HARD[name]
    X = X.astype(dtype)
    for one, fit in solved(X, codes, penalties, shares):
        assert fit.converged
        assert abs(excess(fit, X, codes, shares[one.share])) < 1e-6
        assert name.split(",")[0] not in ("shares", "weights") or excess(fit, X, codes) > 1e-4


@pytest.mark.parametrize("n_features", [3, 400])
@pytest.mark.parametrize("constant", [0.0, 0.1, 1e6])
def test_a_constant_feature_does_not_matter(constant, n_features):
    X, codes = problem(2, n_features=n_features)
    X = X.astype(np.float32)
    padded = np.hstack([X, np.full((len(X), 1), constant, dtype=np.float32)])
    with_constant, without = alone(padded, codes, 0.1), alone(X, codes, 0.1)
    assert with_constant.coef[0, -1] == 0
    np.testing.assert_allclose(with_constant.scores(padded), without.scores(X), atol=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [0.1, 1e8])
def test_a_feature_that_varies_only_by_rounding_is_ignored(dtype, size):
    generator = np.random.default_rng(0)
    X, codes = generator.normal(size=(3000, 3)), generator.integers(2, size=3000)
    # Constant except for the last bit: of a float32 forward pass, of a sum in float64.
    X[:, 2] = size * (1 + codes * np.finfo(dtype).eps)
    X = X.astype(dtype)
    fit = alone(X, codes, C=1.0)
    assert np.mean(fit.predict(X) == codes) < 0.6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("value", [0.0, 8.0, 300.0])
def test_a_feature_that_is_constant_in_one_fold_only(value, dtype):
    X, codes = problem(2)
    X = X[:, :4] / X[:, :4].std(axis=0)
    outside = np.arange(len(X)) < 60
    X[~outside, 3] = value
    X = X.astype(dtype)
    shares = [(~outside).astype(np.float32), np.ones(len(X))]
    (_, inside), (_, whole) = solved(X, codes, [1.0], shares)
    without = alone(X[:, :3], codes, 1.0, shares[0])
    assert abs(excess(inside, X, codes, shares[0])) < 1e-6
    assert abs(excess(whole, X, codes)) < 1e-6
    # A feature that is constant in training gets no weight, so it is not used where it varies.
    np.testing.assert_allclose(inside.scores(X), without.scores(X[:, :3]), atol=1e-3)


def test_rows_that_are_not_typical_have_no_say_in_the_scaling():
    X, codes = problem(2)
    typical = np.arange(len(X)) % 20 != 0
    X[~typical] += 300 * X.std(axis=0)  # as GPT-2's position 0
    fit, spoilt = alone(X, codes, 0.1, typical=typical), alone(X, codes, 0.1)
    assert abs(excess(fit, X, codes, typical=typical)) < 1e-6
    assert excess(spoilt, X, codes, typical=typical) > 1e-3
    nothing = alone(X, codes, 0.1, typical=np.zeros(len(X), dtype=bool))
    np.testing.assert_array_equal(nothing.coef, spoilt.coef)


@pytest.mark.parametrize("n_features", [5, 400])
def test_many_fits_together_equal_each_alone(n_features):
    X, codes = problem(3, n_features=n_features)
    labels = [codes, (codes == 1).astype(int), np.random.default_rng(1).integers(4, size=len(X))]
    shares = [np.where(np.arange(len(X)) % 4 != fold, 1.0, 0.0) for fold in range(4)]
    problems = [Problem(y, C, share) for y in labels for C in (0.01, 1.0) for share in range(4)]
    stopping = StoppingRule(tolerance=1e-16)
    for one, fit in zip(problems, Solver(X, shares).solve(problems, stopping), strict=True):
        own = alone(X, one.codes, one.C, shares[one.share], stopping=stopping)
        np.testing.assert_allclose(fit.scores(X), own.scores(X), atol=1e-6)
        assert fit.C == one.C


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_rows_in_a_file_have_the_fits_of_rows_in_memory(tmp_path, monkeypatch, n_classes, dtype):
    X, codes = problem(n_classes)
    file = np.memmap(tmp_path / "rows", dtype, "w+", shape=X.shape)
    file[:] = X
    monkeypatch.setattr(lazy_rows, "BLOCK_ROWS", 64)
    stored, fits = X.itemsize * X.shape[1] * 100, []
    for most in (X.nbytes, stored, 0):
        monkeypatch.setattr(design, "MAPPED_BYTES", most)
        fits.append(alone(file, codes, C=10.0))
        assert fits[-1].coef.tobytes() == fits[0].coef.tobytes()
        assert fits[-1].n_iter == fits[0].n_iter
    assert alone(np.array(file), codes, C=10.0).coef.tobytes() == fits[0].coef.tobytes()


def test_the_memory_of_streaming_does_not_grow_with_the_file(tmp_path, monkeypatch):
    shape = (20_000, 64)
    file = np.memmap(tmp_path / "rows", np.float32, "w+", shape=shape)
    file[:] = np.random.default_rng(0).normal(size=shape)
    codes = (file[:, 0] > 0).astype(int)
    monkeypatch.setattr(lazy_rows, "BLOCK_ROWS", 256)
    monkeypatch.setattr(coordinates, "MOST_COORDINATES", 0)  # a Hessian has its own rows
    numbers, standardised = [], design.DesignRows._standardised

    def noted(rows, places):
        for block in standardised(rows, places):
            numbers.append(len(block))
            yield block

    monkeypatch.setattr(design.DesignRows, "_standardised", noted)
    monkeypatch.setattr(design, "MAPPED_BYTES", 0)
    tracemalloc.start()
    alone(file, codes, C=0.1, stopping=StoppingRule(max_iter=3))
    assert tracemalloc.get_traced_memory()[1] < file.nbytes / 4
    tracemalloc.stop()
    assert max(numbers) == 256
    assert sum(numbers) > 4 * len(file)
    numbers.clear()
    monkeypatch.setattr(design, "MAPPED_BYTES", file.nbytes)
    alone(file, codes, C=0.1, stopping=StoppingRule(max_iter=3))
    assert len(file) < sum(numbers) < 2 * len(file)  # and the sample of the correlations


@pytest.mark.parametrize(("most", "expected"), [(2, [2, 2, 1]), (4, [3, 2])])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_batches_that_fit_the_memory_give_the_same(monkeypatch, n_classes, most, expected):
    X, codes = problem(n_classes)
    sizes, descend = [], solver.descend

    def noted(objectives, start, *others):
        sizes.append(len(start))
        return descend(objectives, start, *others)

    monkeypatch.setattr(solver, "descend", noted)
    penalties = (0.01, 0.1, 1.0, 10.0, 100.0)
    together = solved(X, codes, penalties)
    per_number = 8 * (codes.max() if n_classes == 2 else n_classes)
    needs = 8 * len(X) + 20 * 7 + 8**2
    monkeypatch.setattr(solver, "BATCH_BYTES", most * per_number * needs)
    for (_, one), (_, other) in zip(together, solved(X, codes, penalties), strict=True):
        np.testing.assert_allclose(one.scores(X), other.scores(X), atol=2e-3)
        assert one.C == other.C
    assert sizes == [5, *expected]


def test_fits_share_a_hessian_if_labels_classes_and_shares_are_similar(monkeypatch):
    X, codes = problem(3)
    rows, groups, descend = np.arange(len(X)), [], solver.descend

    def noted(objectives, *others):
        groups.append(objectives.group.tolist())
        return descend(objectives, *others)

    monkeypatch.setattr(solver, "descend", noted)
    shares = [rows % 4 != 0, rows % 4 != 1, rows < 40, codes != 0, codes != 1]
    solved(X, codes, (0.1, 1.0), [share.astype(float) for share in shares])
    assert sorted(groups) == [[0, 0, 1, 4, 4, 5], [2, 3, 6, 7]]


@pytest.mark.parametrize("n_classes", [2, 4])
def test_exact_hessians_spare_steps_and_end_at_the_same_place(monkeypatch, n_classes):
    X, codes = problem(n_classes, n_samples=600, n_features=60)
    shares = [np.where(np.arange(len(X)) % 4 != fold, 1.0, 0.0) for fold in range(4)]
    usual = [fit for _, fit in solved(X, codes, [10.0], shares)]
    monkeypatch.setattr(coordinates, "MOST_COORDINATES", 0)
    without = [fit for _, fit in solved(X, codes, [10.0], shares)]
    assert 1.3 * sum(fit.n_iter for fit in usual) < sum(fit.n_iter for fit in without)
    for fit, other in zip(usual, without, strict=True):
        assert fit.objective == pytest.approx(other.objective, rel=1e-6)


def test_a_hessian_without_a_factor_is_no_obstacle(monkeypatch):
    X, codes = problem(2, n_samples=600, n_features=60)
    usual, made = alone(X, codes, C=10.0), []

    def indefinite(*_):
        made.append(-torch.eye(61))
        return made[-1][None]

    monkeypatch.setattr(coordinates, "_hessians", indefinite)
    fit = alone(X, codes, C=10.0)
    assert made
    assert fit.converged
    assert fit.objective == pytest.approx(usual.objective, rel=1e-6)


def test_too_few_iterations_are_recorded_and_nothing_is_printed(capfd):
    X, codes = problem(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = alone(X, codes, C=100.0, stopping=StoppingRule(max_iter=2))
    assert (fit.converged, fit.n_iter) == (False, 2)
    assert fit.gradient_norm > 1e-3
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_a_tolerance_below_rounding_error_stops_unconverged(n_classes, dtype):
    X, codes = problem(n_classes)
    X = X.astype(dtype)
    fit = alone(X, codes, 1.0, stopping=StoppingRule(tolerance=0.0, max_iter=100_000))
    assert not fit.converged
    assert fit.n_iter < 1000
    assert abs(excess(fit, X, codes)) < 1e-6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("n_features", "n_classes"),
    [(7, 2), (7, 4), (400, 2), pytest.param(400, 4, marks=pytest.mark.nightly)],
)
def test_separable_classes_with_hardly_a_penalty_end(n_features, n_classes, dtype):
    X, _ = problem(2, n_features=n_features)
    rank = X[:, 0].argsort().argsort()
    codes = rank * n_classes // len(X)
    X[:, 0] += 5 * codes * X[:, 0].std()
    X = X.astype(dtype)
    fit = alone(X, codes, C=1e8, stopping=StoppingRule(max_iter=300))
    assert fit.n_iter <= 300
    assert np.isfinite(fit.coef).all()
    assert np.array_equal(fit.predict(X), codes)


@pytest.mark.parametrize("n_features", [7, 400])
def test_a_class_that_is_missing_in_a_share_has_no_probability(n_features):
    X, codes = problem(4, n_features=n_features)
    shares = [(codes != 1).astype(np.float32), np.ones(len(X))]
    (_, part), (_, whole) = solved(X, codes, [0.1], shares)
    assert part.classes.tolist() == [0, 2, 3]
    assert abs(excess(part, X, codes, shares[0])) < 1e-6
    assert abs(excess(whole, X, codes)) < 1e-6
    logs = log_softmax(part.outputs(X, 4), axis=1)
    assert np.all(np.isneginf(logs[:, 1]))
    np.testing.assert_allclose(np.exp(logs).sum(axis=1), 1)
    assert np.array_equal(logs.argmax(axis=1), part.predict(X))


def test_one_class_alone_is_always_guessed():
    X, codes = problem(2)
    three = np.full(len(X), 3)
    certain, usual = Solver(X, [np.ones(len(X))]).solve([Problem(three, 0.1), Problem(codes, 0.1)])
    assert (certain.converged, certain.n_iter, certain.objective) == (True, 0, 0.0)
    assert set(certain.predict(X)) == {3}
    assert log_softmax(certain.outputs(X, 4), axis=1)[:, 3].tolist() == [0.0] * len(X)
    assert abs(excess(usual, X, codes)) < 1e-6


@pytest.mark.parametrize("n_features", [7, 700])
def test_equal_rows_of_contradicting_labels_get_the_share_of_each(n_features):
    X, _ = problem(2, n_features=n_features)
    rows, codes = np.repeat(X, 4, axis=0), np.tile([0, 0, 0, 1], len(X))
    fit = alone(rows, codes, C=1e6)
    assert fit.converged
    odds = np.diff(fit.outputs(rows, 2))
    np.testing.assert_allclose(expit(odds), 0.25, atol=1e-3)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_a_start_changes_the_way_but_not_the_solution(n_classes):
    X, codes = problem(n_classes)
    X = np.hstack([X, np.ones((len(X), 1))])
    cold = alone(X, codes, C=1.0)
    # That of other labels leads the wrong way, that of the same ones at another C nearly there.
    wrong = alone(X, codes.max() - codes, C=1.0)
    starts = cold, alone(X, codes, C=2.0), wrong
    problems = [Problem(codes, 1.0, start=start.layers[0]) for start in starts]
    same, near, far = Solver(X, [np.ones(len(X))]).solve(problems)
    assert same.n_iter == 0
    assert near.n_iter > 0
    for fit in (same, near, far):
        np.testing.assert_allclose(fit.scores(X), cold.scores(X), atol=5e-3)


def test_the_same_bytes_each_time():
    X, codes = problem(3)
    for rows in (X, X.astype(np.float32), X[:5]):
        one, other = (alone(rows, codes[: len(rows)], C=1.0) for _ in range(2))
        assert one.coef.tobytes() == other.coef.tobytes()
        assert one.intercept.tobytes() == other.intercept.tobytes()


def test_sums_over_two_million_rows_are_exact():
    """Of a feature with two values, the counts of the cells are the solution."""
    counts = np.array([[700_001, 299_999], [400_003, 599_997]])  # of each value and class
    values, codes = np.divmod(np.repeat(np.arange(4), counts.ravel()), 2)
    order = np.random.default_rng(0).permutation(counts.sum())
    X, codes = (10_000 + values[order, None]).astype(np.float32), codes[order]
    share, n = counts[1] / counts.sum(axis=0), counts.sum()
    np.testing.assert_allclose(class_means(X, codes)[:, 0], 10_000 + share, rtol=1e-14)
    scaling, high = Scaling.standard(X), counts[1].sum() / n
    assert Scaling.centred(X).mean[0] == scaling.mean[0] == pytest.approx(10_000 + high, rel=1e-14)
    assert scaling.scale[0] == pytest.approx(np.sqrt(high * (1 - high)), rel=1e-12)
    fit = alone(X, codes, C=1e3, stopping=StoppingRule(tolerance=1e-14))
    scores = fit.scores(np.array([[10_000.0], [10_001.0]]))[:, 0]
    np.testing.assert_allclose(scores, np.log(counts[:, 1] / counts[:, 0]), atol=1e-6)
