"""Cross-validated fits of many label columns on one feature matrix.

The search goes from small to large C. One batch contains all columns and folds at one value of C,
or at several if there are few columns and folds; it starts from an extrapolation of the previous
fits. The last batch contains the final fits, one per column, on all rows at the selected C.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from probekit.lazy_rows import Codes, Features, Floats, LazyRows, Mask, Rows, fetched
from probekit.probes.solve.descent import StoppingRule
from probekit.probes.solve.layers import AffineLayer, FittedLayers, on_rows, through, with_reference
from probekit.probes.solve.solver import DEFAULT_STOPPING, Fit, OnFit, Problem, Solver

# Selecting C only compares accuracies, so these fits may stop earlier than the final one.
SEARCH_TOLERANCE = 1e-5
PRODUCTS_TOLERANCE = 1e-6  # costs one step more where rows are few
# Number of scores, of all fits together, in a batch of the search. Products with fewer columns take
# hardly less time.
PATH_SCORES = 40

# A function that rates held-out outputs, higher for better ones. Its arguments are the true labels
# (n_samples,), the outputs, which are class scores (n_samples, n_classes) or numbers (n_samples,),
# and the fold (n_samples,) of each row.
Judge = Callable[[NDArray[Any], NDArray[Any], Codes], float]

Fit_co = TypeVar("Fit_co", bound=FittedLayers, covariant=True)


@dataclass(frozen=True, eq=False)
class TunedProbeFit(Generic[Fit_co]):
    """Result of tuning on one label column.

    Attributes:
        penalty: the selected penalty; None for a kind without a penalty.
        solution: the fit on all rows.
        held_out: (n_samples,), the prediction for each row by the fit that held out its fold.
        search: the fits at the selected penalty, one per fold.
        is_close: whether another penalty was at most one correct row worse or better, so that the
            log loss decided; None if it is not asked.
    """

    penalty: float | None
    solution: Fit_co
    held_out: NDArray[Any]
    search: tuple[Fit_co, ...]
    is_close: bool | None = None


@dataclass(frozen=True)
class Tuning:
    """How C is selected and when a fit stops.

    Attributes:
        stopping: the stopping rule of the final fits; the search stops earlier.
        judge: rates the held-out class scores of each C; None for the accuracy.
        balanced: whether all classes have the same total weight in each fit.
    """

    stopping: StoppingRule = DEFAULT_STOPPING
    judge: Judge | None = None
    balanced: bool = False


DEFAULT_TUNING = Tuning()


def fit_columns(
    X: Rows,
    columns: Sequence[Codes],
    fold_of_row: Codes,
    grid: Sequence[float],
    *,
    tuning: Tuning = DEFAULT_TUNING,
    weights: Features | None = None,
    typical: Mask | None = None,
    on_fit: OnFit | None = None,
) -> list[TunedProbeFit[Fit]]:
    """Return the tuned fit of each label column (n_samples,) on X (n_samples, n_features).

    The C with the highest held-out accuracy, weighted like the rows, is selected. Among those that
    are at most one row worse, the one with the least held-out log loss is. With a judge, it is the
    C that it rates highest; ties go to the smallest, the strongest regularisation.

    Args:
        X: the rows.
        columns: label codes (n_samples,) of each column.
        fold_of_row: the fold number (n_samples,) of each row.
        grid: candidate values of C.
        tuning: how C is selected, and the stopping rule.
        weights: weight (n_samples,) of each row in every fit; None means equal weights.
        typical: which rows (n_samples,) feature scaling is estimated from; None means all.
        on_fit: called as `on_fit(done, total)` after each fit.

    >>> X = np.array([[-2.0], [2.0], [-1.0], [1.0]])
    >>> folds, labels = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    >>> (column,) = fit_columns(X, [labels], folds, (0.1, 1.0))
    >>> column.penalty, column.held_out.tolist()
    (0.1, [0, 1, 0, 1])
    """
    grid = sorted(grid)
    n_folds = int(fold_of_row.max()) + 1
    total = len(columns) * (n_folds * len(grid) + 1)  # the search, and one final fit per column

    def report(done: int) -> None:
        """Report the number of fits that are done."""
        if on_fit is not None:
            on_fit(done, total)

    row_weights = np.ones(len(X), dtype=bool) if weights is None else weights
    shares = [(fold_of_row != fold) * row_weights for fold in range(n_folds)]
    solver = Solver(X, [*shares, row_weights], typical=typical)
    paths = search_paths(solver, columns, grid, tuning, report)
    held_out, losses = _held_out(X, columns, paths, fold_of_row, row_weights)
    # `best` holds the index in the grid of the best C of each column.
    is_close: list[bool | None] = [None] * len(columns)
    if tuning.judge is None:
        correct = (held_out == np.stack(columns)[:, None, :]) @ row_weights.astype(np.float64)
        is_near = correct >= correct.max(axis=1, keepdims=True) - row_weights.max()
        best = np.where(is_near, losses, np.inf).argmin(axis=1).tolist()
        is_close = (is_near.sum(axis=1) > 1).tolist()
    else:
        best = []
        for codes, path in zip(columns, paths, strict=True):
            scores = held_out_scores(X, path, fold_of_row, int(codes.max()) + 1)
            best.append(best_rated(tuning.judge, codes, scores, fold_of_row))
    searches = [tuple(path[index]) for path, index in zip(paths, best, strict=True)]
    # The final fits use all rows: the last share, number `n_folds`.
    finals = [
        Problem(codes, grid[index], n_folds, _mean(codes, fits), tuning.balanced)
        for codes, index, fits in zip(columns, best, searches, strict=True)
    ]
    solutions = solver.solve(finals, tuning.stopping, lambda done, _: report(paths.size + done))
    return [
        TunedProbeFit(grid[index], solution, guesses[index], fits, close)
        for index, solution, guesses, fits, close in zip(
            best, solutions, held_out, searches, is_close, strict=True
        )
    ]


def search_paths(
    solver: Solver,
    columns: Sequence[Codes],
    grid: Sequence[float],
    tuning: Tuning,
    report: Callable[[int], None],
) -> NDArray[np.object_]:
    """Return the fits (n_columns, n_grid, n_folds) of the search.

    The shares of the solver are the fitted rows of each fold, then all rows. The search does not
    use the last share.
    """
    tolerance = PRODUCTS_TOLERANCE if solver.is_wide else SEARCH_TOLERANCE
    tolerance = max(tuning.stopping.tolerance, tolerance)
    stopping = replace(tuning.stopping, tolerance=tolerance, aim=tolerance)
    n_folds = len(solver.shares) - 1
    n_classes = [int(codes.max()) + 1 for codes in columns]
    n_scores = n_folds * sum(1 if n <= 2 else n for n in n_classes)
    # The number of values of C whose fits make one batch.
    at_once = 1 if solver.is_wide else max(1, PATH_SCORES // n_scores)
    paths = np.empty((len(columns), len(grid), n_folds), dtype=object)
    for first in range(0, len(grid), at_once):
        indices = range(len(grid))[first : first + at_once]
        batch = list(product(range(len(columns)), indices, range(n_folds)))
        problems = []
        for column, index, fold in batch:
            start, C = _ahead(paths[column, :first, fold], grid[index]), grid[index]
            problems.append(Problem(columns[column], C, fold, start, tuning.balanced))
        n_done = first * len(columns) * n_folds
        solved = solver.solve(problems, stopping, lambda done, _, n=n_done: report(n + done))
        for place, fit in zip(batch, solved, strict=True):
            paths[place] = fit
    return paths


def _ahead(path: Sequence[Fit], C: float) -> AffineLayer | None:
    """Return the start of a fit at C: its path so far, extrapolated linearly in log C.

    `path` holds the fits at smaller values of C, in ascending order. None if it is empty; a single
    fit is the start itself.
    """
    points = [(fit.C, fit.point) for fit in path[-2:] if fit.point is not None]
    if len(points) < 2 or points[0][0] == points[1][0]:  # or the grid has a value twice
        return points[-1][1] if points else None
    (before, earlier), (last, later) = points
    steps = np.log(C / last) / np.log(last / before)
    return AffineLayer(*(b + steps * (b - a) for a, b in zip(earlier, later, strict=True)))


def best_rated(
    judge: Judge, truth: NDArray[Any], outputs: Iterable[NDArray[Any]], fold_of_row: Codes
) -> int:
    """Return the index of the best of several outputs (n_grid, n_samples, ...), the first of ties.

    Outputs whose rating is undefined (NaN) come last.
    """
    ratings = np.array([judge(truth, output, fold_of_row) for output in outputs])
    return int(np.where(np.isnan(ratings), -np.inf, ratings).argmax())


def search(
    judge: Judge,
    truth: NDArray[Any],
    fold_of_row: Codes,
    held_out: Callable[[Mask], Sequence[NDArray[Any]]],
) -> int:
    """Return the index of the model whose held-out outputs are rated best; ties go to the first.

    `held_out` takes the mask (n_samples,) of the rows of a fold and returns their outputs of each
    model, fitted on all other rows. Folds whose other rows have a single label are left out; if no
    fold is left, the first model is returned.

    >>> truth, folds = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0, 0, 1, 1])
    >>> search(rate_numbers, truth, folds, lambda outside: [0 * truth[outside], truth[outside]])
    1
    """
    rows_of_folds, outputs_of_folds = [], []
    for fold in np.unique(fold_of_row):
        outside = fold_of_row == fold
        if len(np.unique(truth[~outside])) > 1:
            rows_of_folds.append(np.flatnonzero(outside))
            outputs_of_folds.append(held_out(outside))
    if not rows_of_folds:
        return 0
    rows = np.concatenate(rows_of_folds)
    outputs = [np.concatenate(of_model) for of_model in zip(*outputs_of_folds, strict=True)]
    return best_rated(judge, truth[rows], outputs, fold_of_row[rows])


def rate_scores(truth: NDArray[Any], scores: NDArray[Any], _fold_of_row: Codes) -> float:
    """Return the number of rows whose true code has the highest of the scores of all classes."""
    return float(np.sum(truth == scores.argmax(axis=1)))


def rate_numbers(truth: NDArray[Any], numbers: NDArray[Any], _fold_of_row: Codes) -> float:
    """Return the negative squared error."""
    return -float(np.sum((numbers - truth) ** 2))


def held_out_scores(
    X: Rows, paths: NDArray[np.object_], fold_of_row: Codes, n_classes: int
) -> Floats:
    """Return the class scores (n_grid, n_samples, n_classes) by the fit that held out each row.

    `paths` (n_grid, n_folds) holds fits of type `FittedLayers`.
    """
    scores = np.zeros((len(paths), len(X), n_classes))
    rows, layers = on_rows(X, [fit.layers for fit in paths.ravel()])
    for fold, numbers, block in _blocks(rows, fold_of_row):
        for index, path in enumerate(paths):
            output = fetched(through(layers[index * paths.shape[1] + fold], block))
            scores[index, numbers] = path[fold].by_class(output, n_classes)
    return scores


def _held_out(
    X: Rows,
    columns: Sequence[Codes],
    paths: NDArray[np.object_],
    fold_of_row: Codes,
    row_weights: Features | Mask,
) -> tuple[Codes, Floats]:
    """Return the held-out predictions (n_columns, n_grid, n_samples) of the search, and its losses.

    `paths` (n_columns, n_grid, n_folds) holds its fits. The losses (n_columns, n_grid) are those of
    rows whose class was fitted.
    """
    guesses = np.zeros((*paths.shape[:2], len(X)), dtype=np.int64)
    losses = np.zeros(paths.shape[:2])
    of_folds = []  # the layers of all fits of a fold as one
    for fits in paths.reshape(-1, paths.shape[2]).T:
        weights, biases = zip(*(fit.layers[0] for fit in fits), strict=True)
        of_folds.append((AffineLayer(np.concatenate(weights), np.concatenate(biases)),))
    rows, layers = on_rows(X, of_folds)
    for fold, numbers, block in _blocks(rows, fold_of_row):
        ((weight, bias),) = layers[fold]
        scores = fetched(weight @ block.T + bias[:, None])
        fits = paths[..., fold].ravel()
        ends = np.cumsum([len(fit.layers[0].bias) for fit in fits])
        for place, fit, own in zip(
            np.ndindex(paths.shape[:2]), fits, np.split(scores, ends[:-1]), strict=True
        ):
            of_classes = with_reference(own, len(fit.classes))
            guesses[(*place, numbers)] = fit.classes[of_classes.argmax(axis=0)]
            truth = columns[place[0]][numbers]
            known = np.flatnonzero(np.isin(truth, fit.classes))
            own_class = of_classes[np.searchsorted(fit.classes, truth[known]), known]
            loss = logsumexp(of_classes[:, known], axis=0) - own_class
            losses[place] += loss @ row_weights[numbers][known]
    return guesses, losses


def _blocks(rows: LazyRows, fold_of_row: Codes) -> Iterator[tuple[int, Codes, Any]]:
    """Yield each fold with the numbers of its held-out rows and the rows, to compute with.

    There are several blocks of rows of a fold.
    """
    for place, block in rows.computed():
        folds = fold_of_row[place]
        for fold in np.unique(folds):
            inside = np.flatnonzero(folds == fold)
            yield int(fold), place.start + inside, block[rows.put(inside)]


def _mean(codes: Codes, fits: Sequence[Fit]) -> AffineLayer | None:
    """Return the mean of the fits whose training rows contained all classes of the labels.

    None if there is no such fit.
    """
    n_classes = len(np.unique(codes))
    points = [fit.point for fit in fits if len(fit.classes) == n_classes and fit.point is not None]
    if not points:
        return None
    weights, biases = zip(*points, strict=True)
    return AffineLayer(np.mean(weights, axis=0), np.mean(biases, axis=0))
