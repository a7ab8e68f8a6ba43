"""Many label columns fitted on one feature matrix, with C chosen by cross-validation.

A fold is standardised and turned once and serves every label column and every C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from probekit.probes.parallel import Progress, run_all
from probekit.probes.solver import FINAL, SEARCH, Codes, Design, Fit, prepare, solve


@dataclass(frozen=True)
class Column:
    """One label column after tuning: the C chosen, the fit on all rows, and the held-out guesses.

    `held_out` (n_samples,) has for each row the code guessed by the fit that left out its fold;
    `search` are those fits, one a fold.
    """

    C: float
    fit: Fit
    held_out: Codes
    search: tuple[Fit, ...]


def count_fits(n_columns: int, folds: int, grid: Sequence[float]) -> int:
    """Return how many fits `fit_columns` makes: the search, and a last one for each column.

    >>> count_fits(n_columns=4, folds=5, grid=(0.01, 0.1, 1.0))
    64
    """
    return n_columns * (folds * len(grid) + 1)


def fit_columns(
    X: NDArray[np.floating],
    columns: Sequence[Codes],
    fold_of_row: NDArray[np.int64],
    grid: Sequence[float],
    max_iter: int,
    progress: Progress,
    typical: NDArray[np.bool_] | None = None,
) -> tuple[Design, list[Column]]:
    """Return the design of all rows X (n_samples, n_features) and each label column, tuned.

    `typical` (n_samples,) says which rows features are scaled by; None means all. The C with the
    best held-out accuracy wins; of equals the smallest, which shrinks most.

    >>> X = np.array([[-2.0], [2.0], [-1.0], [1.0]])
    >>> folds, labels = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    >>> design, (column,) = fit_columns(X, [labels], folds, (0.1, 1.0), 100, Progress(total=5))
    >>> column.C, column.held_out.tolist()
    (0.1, [0, 1, 0, 1])
    """
    grid = sorted(grid)
    typical = np.ones(len(X), dtype=bool) if typical is None else typical
    held_out = np.zeros((len(columns), len(grid), len(X)), dtype=np.int64)
    searched: dict[int, list[list[Fit]]] = {}  # by fold: [column][place of C]
    designs: list[Design] = []

    def prepare_all() -> None:
        designs.append(prepare(X, FINAL, typical))

    def search(fold: int) -> None:
        outside = fold_of_row == fold
        inside = [codes[~outside] for codes in columns]
        design = prepare(X[~outside], SEARCH, typical[~outside])
        rows = design.turn(X[outside])
        searched[fold] = [_path(design, codes, grid, max_iter, progress) for codes in inside]
        held_out[:, :, outside] = [[fit.predict(rows) for fit in path] for path in searched[fold]]

    def finish(column: int) -> Column:
        place = int(best[column])
        fit = solve(designs[0], columns[column], grid[place], max_iter=max_iter)
        progress.step()
        of_folds = tuple(paths[column][place] for paths in searched.values())
        return Column(grid[place], fit, held_out[column, place], of_folds)

    searches: list[Callable[[], None]] = [
        partial(search, fold) for fold in range(int(fold_of_row.max()) + 1)
    ]
    run_all([prepare_all, *searches], progress)
    right = held_out == np.stack(columns)[:, None, :]
    best = right.mean(axis=2).argmax(axis=1)
    finishes = [partial(finish, column) for column in range(len(columns))]
    return designs[0], run_all(finishes, progress)


def _path(
    design: Design, codes: Codes, grid: Sequence[float], max_iter: int, progress: Progress
) -> list[Fit]:
    """Return the fit at each C of a rising grid, each set out from the one before."""
    fits: list[Fit] = []
    for C in grid:
        start = fits[-1] if fits else None
        tolerance = SEARCH.tolerance
        fits.append(solve(design, codes, C, tolerance=tolerance, max_iter=max_iter, start=start))
        progress.step()
    return fits
