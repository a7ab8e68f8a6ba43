"""Cross-validated fits of many label columns on one feature matrix.

The fits of all columns, folds and values of C form one batch; the final fits, one per column on all
rows at the selected C, form another.
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
from probekit.probes.solve.solver import DEFAULT_STOPPING, Codes, Fit, OnFit, Problem, Solver

# Selecting C only compares accuracies, so these fits may stop earlier than the final one.
SEARCH_TOLERANCE = 1e-5

Fit_co = TypeVar("Fit_co", bound=FittedLayers, covariant=True)


@dataclass(frozen=True, eq=False)
class TunedProbeFit(Generic[Fit_co]):
    """Result of tuning on one label column.

    Attributes:
        penalty: the selected penalty; None for a kind without a penalty.
        solution: the fit on all rows.
        held_out: (n_samples,), the prediction for each row by the fit that held out its fold.
        search: the fits at the selected penalty, one per fold.
    """

    penalty: float | None
    solution: Fit_co
    held_out: NDArray[Any]
    search: tuple[Fit_co, ...]

    @property
    def solved_at(self) -> float:
        """The selected penalty, for kinds that have a penalty."""
        assert self.penalty is not None
        return self.penalty


def count_fits(n_columns: int, folds: int, grid: Sequence[float]) -> int:
    """Return the number of fits that `fit_columns` makes: the search plus one final fit per column.

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
    stopping: StoppingRule = DEFAULT_STOPPING,
    weights: Features | None = None,
    typical: NDArray[np.bool_] | None = None,
    device: str = "cpu",
    on_fit: OnFit | None = None,
) -> list[TunedProbeFit[Fit]]:
    """Return the tuned fit of each label column (n_samples,) on X (n_samples, n_features).

    The C with the highest held-out accuracy is selected; ties go to the smallest C, the strongest
    regularisation.

    Args:
        X: the rows.
        columns: label codes (n_samples,) of each column.
        fold_of_row: the fold number (n_samples,) of each row.
        grid: candidate values of C.
        stopping: stopping rule of the final fits; the search stops earlier.
        weights: weight (n_samples,) of each row in every fit; None means equal weights.
        typical: which rows (n_samples,) feature scaling is estimated from; None means all.
        device: where the products are computed.
        on_fit: called as `on_fit(done, total)` after each fit.

    >>> X = np.array([[-2.0], [2.0], [-1.0], [1.0]])
    >>> folds, labels = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    >>> (column,) = fit_columns(X, [labels], folds, (0.1, 1.0))
    >>> column.penalty, column.held_out.tolist()
    (0.1, [0, 1, 0, 1])
    """
    grid = sorted(grid)
    n_folds = int(fold_of_row.max()) + 1
    total = count_fits(len(columns), n_folds, grid)

    def report(done: int) -> None:
        if on_fit is not None:
            on_fit(done, total)

    counts = np.ones(len(X), dtype=np.float32) if weights is None else weights
    inside = [np.where(fold_of_row != fold, counts, 0) for fold in range(n_folds)]
    solver = Solver(X, [*inside, counts], typical=typical, device=device)
    problems = [
        Problem(codes, C, fold) for codes in columns for C in grid for fold in range(n_folds)
    ]
    tolerance = max(stopping.tolerance, SEARCH_TOLERANCE)
    early_stopping = replace(stopping, tolerance=tolerance, aim=tolerance)
    searched = solver.solve(problems, early_stopping, on_fit=lambda done, _: report(done))
    paths = np.array(searched, dtype=object).reshape(len(columns), len(grid), n_folds)
    held_out = _held_out(X, paths, fold_of_row)
    correct = held_out == np.stack(columns)[:, None, :]
    best = (correct @ counts.astype(np.float64)).argmax(axis=1)
    chosen = [tuple(path[place]) for path, place in zip(paths, best, strict=True)]
    finals = [
        Problem(codes, grid[place], share=n_folds, start=_with_all_classes(codes, fits))
        for codes, place, fits in zip(columns, best, chosen, strict=True)
    ]
    fits = solver.solve(finals, stopping, on_fit=lambda done, _: report(len(problems) + done))
    return [
        TunedProbeFit(grid[place], fit, held_out[column, place], search)
        for column, (place, fit, search) in enumerate(zip(best, fits, chosen, strict=True))
    ]


def _held_out(X: Features, paths: NDArray[np.object_], fold_of_row: NDArray[np.int64]) -> Codes:
    """Return the held-out predictions (n_columns, n_grid, n_samples) of the search.

    `paths` (n_columns, n_grid, n_folds) holds its fits. Rows are read in blocks, because they may
    be a memory-mapped file that is larger than the memory.
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


def _with_all_classes(codes: Codes, fits: Sequence[Fit]) -> tuple[Fit, ...]:
    """Return the fits whose training rows contained all classes of the labels."""
    n_classes = len(np.unique(codes))
    return tuple(fit for fit in fits if len(fit.classes) == n_classes)
