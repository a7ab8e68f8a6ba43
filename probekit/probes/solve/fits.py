"""Many label columns fitted on one feature matrix, with C chosen by cross-validation.

All columns, folds and values of C of the search are one batch; the last fits, one a column, on all
rows and at the C that was best, are another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from probekit.probes.solve.descent import StoppingRule
from probekit.probes.solve.design import BLOCK_ROWS, Features
from probekit.probes.solve.layers import FittedLayers
from probekit.probes.solve.solver import FULL_EFFORT, Codes, Fit, OnFit, Problem, Solver

# Choosing C compares accuracies, so its fits may stop earlier than the one that is reported.
SEARCH_TOLERANCE = 1e-5

Fit_co = TypeVar("Fit_co", bound=FittedLayers, covariant=True)


@dataclass(frozen=True, eq=False)
class TunedProbeFit(Generic[Fit_co]):
    """One label column after tuning.

    Attributes:
        penalty: the value chosen; None for a kind without one.
        solution: the fit on all rows.
        held_out: (n_samples,), for each row the guess of the fit that left out its fold.
        search: those fits, one per fold.
    """

    penalty: float | None
    solution: Fit_co
    held_out: NDArray[Any]
    search: tuple[Fit_co, ...]

    @property
    def solved_at(self) -> float:
        """The penalty, of a kind that has one."""
        assert self.penalty is not None
        return self.penalty


def count_fits(n_columns: int, folds: int, grid: Sequence[float]) -> int:
    """Return how many fits `fit_columns` makes: the search, and a last one for each column.

    >>> count_fits(n_columns=4, folds=5, grid=(0.01, 0.1, 1.0))
    64
    """
    return n_columns * (folds * len(grid) + 1)


def fit_columns(
    X: Features,
    columns: Sequence[Codes],
    fold_of_row: NDArray[np.int64],
    grid: Sequence[float],
    *,
    effort: StoppingRule = FULL_EFFORT,
    weights: Features | None = None,
    typical: NDArray[np.bool_] | None = None,
    device: str = "cpu",
    on_fit: OnFit | None = None,
) -> list[TunedProbeFit[Fit]]:
    """Return each label column (n_samples,), tuned and fitted on X (n_samples, n_features).

    `weights` (n_samples,) says what each row counts in every fit, `typical` (n_samples,) which
    rows features are scaled by; None means equally, and all. The C with the best held-out accuracy
    wins; of equals the smallest, which shrinks most.

    >>> X = np.array([[-2.0], [2.0], [-1.0], [1.0]])
    >>> folds, labels = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    >>> (column,) = fit_columns(X, [labels], folds, (0.1, 1.0))
    >>> column.penalty, column.held_out.tolist()
    (0.1, [0, 1, 0, 1])
    """
    grid = sorted(grid)
    n_folds = int(fold_of_row.max()) + 1
    total = count_fits(len(columns), n_folds, grid)

    def tell(done: int) -> None:
        if on_fit is not None:
            on_fit(done, total)

    counts = np.ones(len(X), dtype=np.float32) if weights is None else weights
    inside = [np.where(fold_of_row != fold, counts, 0) for fold in range(n_folds)]
    solver = Solver(X, [*inside, counts], typical=typical, device=device)
    problems = [
        Problem(codes, C, fold) for codes in columns for C in grid for fold in range(n_folds)
    ]
    enough = max(effort.tolerance, SEARCH_TOLERANCE)
    quick = replace(effort, tolerance=enough, aim=enough)
    searched = solver.solve(problems, quick, on_fit=lambda done, _: tell(done))
    paths = np.array(searched, dtype=object).reshape(len(columns), len(grid), n_folds)
    held_out = _held_out(X, paths, fold_of_row)
    right = held_out == np.stack(columns)[:, None, :]
    best = (right @ counts.astype(np.float64)).argmax(axis=1)
    chosen = [tuple(path[place]) for path, place in zip(paths, best, strict=True)]
    finals = [
        Problem(codes, grid[place], share=n_folds, start=_alike(codes, fits))
        for codes, place, fits in zip(columns, best, chosen, strict=True)
    ]
    fits = solver.solve(finals, effort, on_fit=lambda done, _: tell(len(problems) + done))
    return [
        TunedProbeFit(grid[place], fit, held_out[column, place], search)
        for column, (place, fit, search) in enumerate(zip(best, fits, chosen, strict=True))
    ]


def _held_out(X: Features, paths: NDArray[np.object_], fold_of_row: NDArray[np.int64]) -> Codes:
    """Return for each path of fits (n_columns, n_grid, n_folds) the guesses for the rows left out.

    The answer has shape (n_columns, n_grid, n_samples). Rows are read in blocks, as they may be a
    file that is larger than the memory.
    """
    guesses = np.zeros((*paths.shape[:2], len(X)), dtype=np.int64)
    for fold in range(paths.shape[2]):
        outside = np.flatnonzero(fold_of_row == fold)
        for start in range(0, len(outside), BLOCK_ROWS):
            place = outside[start : start + BLOCK_ROWS]
            rows = X[place].astype(np.float64)
            guesses[:, :, place] = [
                [fit.predict(rows) for fit in path] for path in paths[..., fold]
            ]
    return guesses


def _alike(codes: Codes, fits: Sequence[Fit]) -> tuple[Fit, ...]:
    """Return the fits that know all the classes of the labels."""
    n_classes = len(np.unique(codes))
    return tuple(fit for fit in fits if len(fit.classes) == n_classes)
