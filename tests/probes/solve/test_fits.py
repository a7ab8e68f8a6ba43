"""Tuning of many columns at once: rows of each fold, the selected C, and progress reports."""

import tracemalloc
from functools import partial

import numpy as np
import pytest
from scipy.special import log_softmax

from probekit import lazy_rows
from probekit.probes.data import group_folds
from probekit.probes.solve import design, fits
from probekit.probes.solve.descent import StoppingRule
from probekit.probes.solve.fits import Tuning, fit_columns
from probekit.probes.solve.layers import AffineLayer
from probekit.probes.solve.solver import Fit, Problem, Solver
from tests.probes.logistic import excess, problem

GRID = (1e-3, 1e-1, 10.0)


def fit(X, columns, grid=GRID, folds=4, **others):
    fold_of_row = group_folds(columns[0], np.arange(len(X)), folds, 0)
    return fit_columns(X, columns, fold_of_row, grid, **others), fold_of_row


def planted(n_samples: int = 400, n_features: int = 6, seed: int = 0):
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n_samples, n_features)).astype(np.float32)
    return X, (X[:, 0] + 0.5 * generator.normal(size=n_samples) > 0).astype(int)


@pytest.fixture
def tight(monkeypatch):
    """Search fits as exact as the final ones, so that predictions can be compared."""
    monkeypatch.setattr(fits, "SEARCH_TOLERANCE", 0.0)


def without_fold(X, codes, C, outside, typical=None):
    """The fit on the rows of the other folds only."""
    inside = ~outside
    typical = None if typical is None else typical[inside]
    solver = Solver(X[inside], [np.ones(inside.sum())], typical=typical)
    return solver.solve([Problem(codes[inside], C)])[0]


@pytest.mark.parametrize(
    ("n_features", "how"), [(6, "plain"), (500, "plain"), (6, "outlier"), (6, "untypical")]
)
def test_held_out_guesses_are_those_of_fits_that_left_the_fold_out(tight, n_features, how):
    """A fit must not have seen rows of its fold in its scaling, nor any that are not typical."""
    X, codes = planted(n_features=n_features)
    typical = np.arange(len(X)) % 25 != 0
    if how == "outlier":
        X[7] *= 1e4
    if how == "untypical":
        X[::25] += 3000
    given = typical if how == "untypical" else None
    (column,), folds = fit(X, [codes], typical=given)
    for fold in range(4):
        outside = folds == fold
        alone = without_fold(X, codes, column.penalty, outside, given)
        assert np.mean(alone.predict(X[outside]) == column.held_out[outside]) >= 0.99
        assert column.penalty == column.search[fold].C
        assert np.array_equal(column.search[fold].predict(X[outside]), column.held_out[outside])
    assert np.mean(column.solution.predict(X) == column.held_out) < 1
    if how == "untypical":
        (spoilt,), _ = fit(X, [codes])
        right, wrong = (np.mean((one.held_out == codes)[typical]) for one in (column, spoilt))
        assert right > wrong + 0.05


def test_the_last_fit_is_as_low_as_a_tight_reference():
    X, codes = planted()
    counts = np.random.default_rng(1).uniform(0.5, 2, size=len(X))
    for weights in (None, counts):
        (column,), _ = fit(X, [codes], weights=weights)
        assert column.penalty == column.solution.C
        assert abs(excess(column.solution, X, codes, weights)) < 1e-6


def test_several_columns_get_what_each_gets_alone():
    X, codes = planted()
    other = np.random.default_rng(1).integers(3, size=len(X))
    together, folds = fit(X, [codes, other, np.ones_like(codes)])
    for labels, column in zip((codes, other), together, strict=False):
        (alone,) = fit_columns(X, [labels], folds, GRID)
        assert column.penalty == alone.penalty
        assert np.mean(column.held_out == alone.held_out) > 0.99
        np.testing.assert_allclose(column.solution.coef, alone.solution.coef, atol=1e-3)
    assert set(together[2].held_out) == {1}


@pytest.mark.parametrize("strength", [0.3, 5.0])
def test_the_most_accurate_c_wins_and_of_those_within_a_row_the_one_of_least_loss(strength):
    X, codes = planted()
    noise = np.random.default_rng(1).normal(size=(len(X), 150)).astype(np.float32)
    X = np.hstack([X + strength * np.where(codes[:, None] == 1, 1, -1), noise])
    (column,), folds = fit(X, [codes], grid=GRID[::-1])
    correct, losses = [], []
    for C in GRID:
        (alone,), _ = fit(X, [codes], grid=(C,))
        paths = np.array([alone.search], dtype=object)
        (scores,) = fits.held_out_scores(X, paths, folds, 2)
        correct.append(np.sum(alone.held_out == codes))
        losses.append(-log_softmax(scores, axis=1)[np.arange(len(X)), codes].sum())
    is_near = np.array(correct) >= max(correct) - 1
    assert column.penalty == GRID[np.where(is_near, losses, np.inf).argmin()]
    assert column.is_close == (strength == 5.0) == (is_near.sum() > 1)


def test_the_rows_are_made_ready_once_for_all_columns_folds_and_every_c(monkeypatch):
    made = []

    class Counted(Solver):
        def __init__(self, X, shares, **others):
            super().__init__(X, shares, **others)
            made.append((len(X), [int(share.sum()) for share in shares]))

    monkeypatch.setattr(fits, "Solver", Counted)
    X, codes = planted()
    fit(X, [codes, 1 - codes, codes])
    assert made == [(400, [300, 300, 300, 300, 400])]


def test_a_path_along_c_saves_iterations_and_ends_at_the_same_fits(tight, monkeypatch):
    X, codes = problem(4, n_samples=600, n_features=20)
    searches = []
    for path_scores in (1000, 1):
        monkeypatch.setattr(fits, "PATH_SCORES", path_scores)
        increasing = partial(next, iter(range(4)))
        tuning = Tuning(judge=lambda *_, rating=increasing: rating())  # selects the largest C
        (column,), _ = fit(X, [codes], grid=(0.1, 0.3, 1.0, 3.0), tuning=tuning)
        searches.append(column.search)
    batch, path = searches
    assert sum(one.n_iter for one in path) < 0.9 * sum(one.n_iter for one in batch)
    for one, other in zip(batch, path, strict=True):
        assert one.C == other.C == 3.0
        assert one.objective == pytest.approx(other.objective, rel=1e-7)


def test_a_start_continues_the_path_linearly_in_log_c():
    def on_path(C):
        value = 3.0 + 2.0 * np.log10(C)
        point = AffineLayer(np.array([[value]]), np.array([-value]))
        return Fit(np.arange(2), (), C=C, point=point)

    assert fits._ahead([], 1.0) is None
    assert fits._ahead([on_path(0.1)], 1.0) == on_path(0.1).point
    start = fits._ahead([on_path(C) for C in (1e-3, 1e-2, 1e-1)], 100.0)
    np.testing.assert_allclose(start.weight, [[7.0]])
    np.testing.assert_allclose(start.bias, [-7.0])


def test_the_memory_of_tuning_does_not_grow_with_the_file(tmp_path, monkeypatch):
    file = np.memmap(tmp_path / "rows", np.float32, "w+", shape=(20_000, 64))
    file[:] = np.random.default_rng(0).normal(size=file.shape)
    codes, folds = (file[:, 0] > 0).astype(int), np.arange(len(file)) % 2
    monkeypatch.setattr(design, "MAPPED_BYTES", 0)
    monkeypatch.setattr(lazy_rows, "BLOCK_ROWS", 256)
    tracemalloc.start()
    (column,) = fit_columns(file, [codes], folds, (0.1,), tuning=Tuning(StoppingRule(max_iter=3)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < file.nbytes / 2
    assert np.mean(column.held_out == codes) > 0.95
