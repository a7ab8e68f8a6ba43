import numpy as np
from probekit.probes.parallel import Progress

from probekit.probes import fits
from probekit.probes.fits import count_fits, fit_columns
from probekit.probes.folds import group_folds
from probekit.probes.solver import prepare, solve

GRID = (1e-3, 1e-1, 10.0)


def fit(X, columns, grid=GRID, folds=4):
    groups = np.arange(len(X))
    fold_of_row = group_folds(columns[0], groups, folds, 0)
    progress = Progress(count_fits(len(columns), folds, grid))
    return *fit_columns(X, columns, fold_of_row, grid, 1000, progress), fold_of_row, progress


def planted(n_samples: int = 400, n_features: int = 6, seed: int = 0):
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n_samples, n_features)).astype(np.float32)
    return X, (X[:, 0] + 0.5 * generator.normal(size=n_samples) > 0).astype(int)


def test_held_out_guesses_are_those_of_fits_that_left_the_fold_out():
    X, codes = planted()
    _, (column,), folds, _ = fit(X, [codes])
    for fold in range(4):
        outside = folds == fold
        design = prepare(X[~outside])
        alone = solve(design, codes[~outside], column.C).predict(design.turn(X[outside]))
        assert np.mean(alone == column.held_out[outside]) > 0.99


def test_rows_are_standardised_by_the_training_part_of_their_fold_alone():
    # One enormous row: the fit that leaves its fold out must not have seen it in its scaling.
    X, codes = planted()
    X[7] *= 1e6
    _, (column,), folds, _ = fit(X, [codes], grid=(0.1,))
    outside = folds == folds[7]
    design = prepare(X[~outside])
    assert np.all(np.abs(design.scale - 1) < 0.2)
    alone = solve(design, codes[~outside], 0.1).predict(design.turn(X[outside]))
    assert np.array_equal(alone, column.held_out[outside])
    leaked = prepare(X)
    spoilt = solve(leaked, codes, 0.1).predict(leaked.rows[outside])
    assert np.mean(column.held_out[outside] == codes[outside]) > 0.8
    assert np.mean(spoilt == codes[outside]) < 0.7


def test_rows_that_are_not_typical_scale_no_fold():
    X, codes = planted()
    X[::25] += 3000
    typical = np.arange(len(X)) % 25 != 0
    folds = group_folds(codes, np.arange(len(X)), 4, 0)
    arguments = (X, [codes], folds, (0.1,), 1000)
    _, (column,) = fit_columns(*arguments, Progress(total=5), typical)
    for fold in range(4):
        outside = folds == fold
        design = prepare(X[~outside], typical=typical[~outside])
        alone = solve(design, codes[~outside], 0.1).predict(design.turn(X[outside]))
        assert np.mean(alone == column.held_out[outside]) > 0.98
    _, (spoilt,) = fit_columns(*arguments, Progress(total=5))
    right, spoilt_right = (c.held_out[typical] == codes[typical] for c in (column, spoilt))
    assert right.mean() > spoilt_right.mean() + 0.05


def test_several_columns_get_what_each_gets_alone():
    X, codes = planted()
    other = np.random.default_rng(1).integers(3, size=len(X))
    _, both, _, _ = fit(X, [codes, other])
    _, (alone,), _, _ = fit(X, [codes])
    assert both[0].C == alone.C
    assert np.array_equal(both[0].held_out, alone.held_out)
    np.testing.assert_array_equal(both[0].fit.coef, alone.fit.coef)


def test_the_most_accurate_c_wins_and_of_equals_the_smallest():
    X, codes = planted()
    generator = np.random.default_rng(1)
    noisy = np.hstack([X, generator.normal(size=(len(X), 150)).astype(np.float32)])
    _, (column,), _, _ = fit(noisy, [codes])
    accuracies = [np.mean(fit(noisy, [codes], grid=(C,))[1][0].held_out == codes) for C in GRID]
    assert GRID[np.argmax(accuracies)] == column.C
    assert np.ptp(accuracies) > 0.02
    separable = np.where(codes[:, None] == 1, 5.0, -5.0) + 0.1 * X
    _, (column,), _, _ = fit(separable, [codes], grid=GRID[::-1])
    assert min(GRID) == column.C


def test_a_label_missing_from_a_fold_is_no_obstacle():
    X, codes = planted()
    codes[5] = 2
    _, (column,), _, _ = fit(X, [codes])
    assert column.held_out[5] != 2
    assert column.fit.classes.tolist() == [0, 1, 2]


def test_progress_counts_every_fit():
    X, codes = planted()
    *_, progress = fit(X, [codes, 1 - codes])
    assert progress.done == progress.total == 2 * (4 * len(GRID) + 1)


def test_each_fold_is_prepared_once_for_all_columns_and_every_c(monkeypatch):
    prepared = []

    def counted(*arguments):
        prepared.append(len(arguments[0]))
        return prepare(*arguments)

    monkeypatch.setattr(fits, "prepare", counted)
    X, codes = planted()
    fit(X, [codes, 1 - codes, codes])
    assert sorted(prepared) == [300, 300, 300, 300, 400]
