"""Cross-validated fits of many label columns on one feature matrix.

The search goes from small to large C. One batch contains all columns and folds at one value of C,
or at several if there are few columns and folds; it starts from an extrapolation of the previous
fits. The last batch contains the final fits, one per column, on all rows at the selected C.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, product
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from probekit.lazy_rows import Codes, Features, Floats, LazyRows, Mask, Rows, fetched
from probekit.probes.solve.descent import StoppingRule
from probekit.probes.solve.layers import AffineLayer, FittedLayers, on_rows, through
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


@dataclass(frozen=True)
class Search:
    """Label columns of some rows, and the folds in which their penalty is selected.

    Attributes:
        rows: numbers (n_samples,) of the rows.
        columns: label codes (n_samples,) of each column.
        fold_of_row: the fold number (n_samples,) of each row.
        tuning: how C is selected, and the stopping rule.
        weights: weight (n_samples,) of each row in every fit; None means equal weights.
        typical: which rows (n_samples,) feature scaling is estimated from; None means all.
    """

    rows: Codes
    columns: Sequence[Codes]
    fold_of_row: Codes
    tuning: Tuning = DEFAULT_TUNING
    weights: Features | None = None
    typical: Mask | None = None


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

    `grid` are the candidate values of C; for the other arguments see `Search`. After each fit
    `on_fit(done, total)` is called.

    >>> X = np.array([[-2.0], [2.0], [-1.0], [1.0]])
    >>> folds, labels = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    >>> (column,) = fit_columns(X, [labels], folds, (0.1, 1.0))
    >>> column.penalty, column.held_out.tolist()
    (1.0, [0, 1, 0, 1])
    """
    search = Search(np.arange(len(X)), columns, fold_of_row, tuning, weights, typical)
    return fit_jointly(LazyRows.of(X), [search], grid, on_fit)[0]


def fit_jointly(
    X: LazyRows, searches: Sequence[Search], grid: Sequence[float], on_fit: OnFit | None = None
) -> list[list[TunedProbeFit[Fit]]]:
    """Return the tuned fit of each label column of several searches, whose fits are one batch.

    The C with the highest held-out accuracy, weighted like the rows, is selected. Among those that
    are at most one row worse, the one with the least held-out log loss is. With a judge, it is the
    C that it rates highest; ties go to the smallest, the strongest regularisation. All searches
    have the same stopping rule and balance.
    """
    grid, tuning = sorted(grid), searches[0].tuning
    shares: list[Features | Mask] = []
    typical, tasks, ends = np.ones(len(X), dtype=bool), list[tuple[Codes, int]](), [0]
    for one in searches:
        if one.typical is not None:
            typical[one.rows] = one.typical
        weights = np.ones(len(one.rows), dtype=bool) if one.weights is None else one.weights
        folds = range(int(one.fold_of_row.max()) + 1)
        for codes in one.columns:
            whole = placed(codes, one.rows, len(X))
            tasks += [(whole, len(shares) + fold) for fold in folds]
        of_folds = [(one.fold_of_row != fold) * weights for fold in folds]
        shares += [placed(share, one.rows, len(X)) for share in (*of_folds, weights)]
        ends.append(len(tasks))
    solver = Solver(X, shares, typical=typical)
    total = len(tasks) * len(grid) + sum(len(one.columns) for one in searches)
    numbers = count(1)

    def report(*_: int) -> None:
        """Report that another fit is done."""
        if on_fit is not None:
            on_fit(next(numbers), total)

    fits = search_paths(solver, tasks, grid, tuning, report)
    chosen, finals = [], []
    for one, first, last in zip(searches, ends, ends[1:], strict=False):
        inside, n_folds = X.select(one.rows), (last - first) // len(one.columns)
        paths = fits[first:last].reshape(len(one.columns), n_folds, len(grid)).swapaxes(1, 2)
        for number, (codes, path) in enumerate(zip(one.columns, paths, strict=True)):
            scores = held_out_scores(inside, path, one.fold_of_row, int(codes.max()) + 1)
            if one.tuning.judge is None:
                best, is_close = _most_accurate(codes, scores, one.weights)
            else:
                best, is_close = best_rated(one.tuning.judge, codes, scores, one.fold_of_row), None
            search = tuple(replace(fit, point=None) for fit in path[best])  # saves memory
            chosen.append((grid[best], scores[best].argmax(axis=1), search, is_close))
            # The final fits use all rows: the share after those of the folds.
            whole, share = tasks[first + number * n_folds]
            start = _mean(codes, path[best])
            finals.append(Problem(whole, grid[best], share + n_folds, start, tuning.balanced))
    solutions = solver.solve(finals, tuning.stopping, report)
    tuned = iter(
        TunedProbeFit(penalty, replace(solution, point=None), guesses, search, is_close)
        for solution, (penalty, guesses, search, is_close) in zip(solutions, chosen, strict=True)
    )
    return [[next(tuned) for _ in one.columns] for one in searches]


def placed(values: NDArray[Any], rows: Codes, n_rows: int) -> NDArray[Any]:
    """Return numbers of some rows as an array of all (n_rows,), 0 elsewhere."""
    whole = np.zeros(n_rows, dtype=values.dtype)
    whole[rows] = values
    return whole


def _most_accurate(codes: Codes, scores: Floats, given: Features | None) -> tuple[int, bool]:
    """Return the index of the C with the most correct rows, and whether the loss decided.

    The log loss decides between scores (n_grid, n_samples, n_classes) that are within one row.
    """
    weights = np.ones(len(codes)) if given is None else given.astype(np.float64)
    correct = (scores.argmax(axis=2) == codes) @ weights
    near = np.flatnonzero(correct >= correct.max() - np.median(weights))
    if len(near) == 1:
        return int(near[0]), False
    losses = -log_softmax(scores[near], axis=2)[:, np.arange(len(codes)), codes]
    known = np.isfinite(losses[0])  # rows whose class was fitted
    return int(near[(losses[:, known] @ weights[known]).argmin()]), True


def search_paths(
    solver: Solver,
    tasks: Sequence[tuple[Codes, int]],
    grid: Sequence[float],
    tuning: Tuning,
    on_fit: OnFit | None = None,
) -> NDArray[np.object_]:
    """Return the fits (n_tasks, n_grid) of label columns on shares, from small to large C."""
    tolerance = PRODUCTS_TOLERANCE if solver.is_wide else SEARCH_TOLERANCE
    tolerance = max(tuning.stopping.tolerance, tolerance)
    stopping = replace(tuning.stopping, tolerance=tolerance, aim=tolerance)
    n_scores = sum(max(1, int(codes.max()) + (codes.max() > 1)) for codes, _ in tasks)
    # The number of values of C whose fits make one batch.
    at_once = 1 if solver.is_wide else max(1, PATH_SCORES // n_scores)
    fits: NDArray[Any] = np.empty((len(tasks), len(grid)), dtype=object)
    for first in range(0, len(grid), at_once):
        batch = list(product(range(len(tasks)), range(len(grid))[first : first + at_once]))
        problems = []
        for task, index in batch:
            codes, share = tasks[task]
            start = _ahead(list(fits[task, :first]), grid[index])
            problems.append(Problem(codes, grid[index], share, start, tuning.balanced))
        for place, fit in zip(batch, solver.solve(problems, stopping, on_fit), strict=True):
            fits[place] = fit
    return fits


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
    joined = []  # the first layers of all fits of a fold as one
    for fits in paths.T:
        weights, biases = zip(*(fit.layers[0] for fit in fits), strict=True)
        joined.append((AffineLayer(np.concatenate(weights), np.concatenate(biases)),))
    rows, first = on_rows(X, joined)
    for fold, numbers, block in _blocks(rows, fold_of_row):
        ends = np.cumsum([len(fit.layers[0].bias) for fit in paths[:, fold]])[:-1]
        outputs = np.split(fetched(through(first[fold], block)), ends, axis=1)
        for index, (fit, output) in enumerate(zip(paths[:, fold], outputs, strict=True)):
            later = fit.layers[1:]
            scored = through(later, output.clip(0.0)) if later else output
            scores[index, numbers] = fit.by_class(scored, n_classes)
    return scores


def _blocks(rows: LazyRows, fold_of_row: Codes) -> Iterator[tuple[int, Codes, Any]]:
    """Yield each fold with the numbers of its held-out rows and the rows, to compute with.

    There may be several blocks of rows of a fold.
    """
    for fold in np.unique(fold_of_row):
        numbers = np.flatnonzero(fold_of_row == fold)
        for place, block in rows.select(numbers).computed():
            yield int(fold), numbers[place], block


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
