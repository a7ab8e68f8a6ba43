"""Batched L2 logistic regression: many fits share the products with one matrix of rows.

Each fit has its own labels, its own share (weighted subset) of the rows and its own C. Fits with
the same number of classes are solved in one batch; fits that have converged are removed from it.

    Problem   labels, share and C of one fit
    Solver    rows and shares -> a Fit for each problem
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from probekit.lazy_rows import Codes, Features, Floats, LazyRows, Mask, Rows, fetched, rows_of_block
from probekit.memory import available_memory, is_accelerator
from probekit.probes.solve.coordinates import hessian_size
from probekit.probes.solve.descent import MEMORY, Minimum, StoppingRule, descend
from probekit.probes.solve.design import Design, Objectives, dual, shared
from probekit.probes.solve.layers import AffineLayer, FittedLayers, with_reference
from probekit.products import put

OnFit = Callable[[int, int], None]

# Memory of one batch: about eight score tensors (rows of a block x fits x classes), the L-BFGS
# memory, and a Hessian for each group and class.
BATCH_BYTES = 1 << 30
SCORE_TENSORS = 8
# Small shares are solved together up to this weighted C and this size of X, several times as fast
# as the dual form of each. At larger C float32 rows are not precise enough.
TOGETHER_C, TOGETHER_SIZE = 1.0, 1 << 22
# Shares whose features vary so many times less than all rows, as without a row of another size,
# are standardised alone: float32 would round them too much.
FAR = 16.0
# At this penalty all coefficients are exactly 0; a larger one overflows float32.
LARGEST_PENALTY = 1e30


@dataclass(frozen=True, eq=False)
class Problem:
    """Specification of one fit.

    Attributes:
        codes: Label codes (n_samples,).
        C: Inverse regularisation strength.
        share: Index of the share of the rows that is fitted.
        start: Starting point, a layer for raw rows; None, or a dual share, starts from the class
            frequencies.
        balanced: Whether rows are weighted so that all classes of the share have the same total
            weight. Feature scaling does not use these weights.
    """

    codes: Codes
    C: float
    share: int = 0
    start: AffineLayer | None = None
    balanced: bool = False


@dataclass(frozen=True, eq=False)
class Fit(FittedLayers):
    """A logistic fit: one layer for raw, unscaled rows.

    `classes` are the label codes that occurred in the share; for two classes `coef` has one row,
    that of the second, else one row per class. `objective` is the mean objective. `gradient_norm`
    is the norm of its gradient in coordinates in which the Hessian is approximately the identity;
    half its square estimates the difference of the objective from its minimum.
    """

    gradient_norm: float = np.nan
    C: float = np.nan
    objective: float = np.nan

    @property
    def coef(self) -> Floats:
        """The weights, shape (1 or n_classes, n_features)."""
        return self.layers[0].weight

    @property
    def intercept(self) -> Floats:
        """The biases, shape (1 or n_classes,)."""
        return self.layers[0].bias

    def predict(self, X: Features) -> Codes:
        """Return the most probable label code (n_samples,) of raw rows (n_samples, n_features)."""
        scores = with_reference(self.coef @ X.T + self.intercept[:, None], len(self.classes))
        found: Codes = self.classes[scores.argmax(axis=0)]
        return found


DEFAULT_STOPPING = StoppingRule()


class Solver:
    """Minimises sum(weight * cross-entropy) + |coef|^2 / (2 C) for many problems on the same rows.

    The objective is that of scikit-learn, on features standardised within the share: one
    coefficient vector for two classes, else one per class; the intercept is not penalised. Fits are
    computed on the device of the rows, in their precision, float32 or float64, with sums over rows
    in float64 or, on an accelerator, in pairs of float32; see `Sum`. Small shares, with
    fewer rows than features, are solved in their dual forms, unless all together are cheaper.

    Memory: the standardised rows, at most 4 GB, or 0.25 GB if they are in a file, plus at most 1 GB
    for scores of a block and Hessians. Results depend on the other fits of a batch only within the
    tolerance.

    Args:
        X: the rows (n_samples, n_features), which are read by blocks.
        shares: the row weights (n_samples,) of each share; rows with weight 0 are not part of it.
            A mask selects rows of equal weight.
        typical: which rows (n_samples,) feature scaling is estimated from; None means all.

    >>> X = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    >>> (fit,) = Solver(X, [np.ones(4)]).solve([Problem(np.array([0, 0, 1, 1]), C=1.0)])
    >>> fit.converged, fit.predict(X).tolist()
    (True, [0, 0, 1, 1])
    """

    def __init__(
        self, X: Rows, shares: Sequence[Features | Mask], *, typical: Mask | None = None
    ) -> None:
        self.X = X
        self.shares = shares
        self.typical = np.ones(len(X), dtype=bool) if typical is None else typical

    def solve(
        self,
        problems: Sequence[Problem],
        stopping: StoppingRule = DEFAULT_STOPPING,
        on_fit: OnFit | None = None,
    ) -> list[Fit]:
        """Return the fit of each problem; calls `on_fit(done, total)` after each."""
        fits: dict[int, Fit] = {}
        for design, rows, numbers in self._designs(problems):
            tasks = list(_tasks(problems, numbers, design, rows))
            for number, fit in _solved(design, tasks, stopping):
                fits[number] = fit
                if on_fit is not None:
                    on_fit(len(fits), len(problems))
        return [fits[number] for number in range(len(problems))]

    def _designs(
        self, problems: Sequence[Problem]
    ) -> Iterator[tuple[Design, slice | Codes, list[int]]]:
        """Yield each design with its rows of X and the indices of its problems."""
        by_share: dict[int, list[int]] = defaultdict(list)
        for number, problem in enumerate(problems):
            by_share[problem.share].append(number)
        dual_shares = self._dual_shares(problems)
        for share in sorted(dual_shares):
            rows = np.flatnonzero(self.shares[share])
            weights, typical = self.shares[share][rows], self.typical[rows]
            device = LazyRows.of(self.X).device
            yield dual(self.X[rows], weights, typical, device), rows, by_share[share]
        together = list[int]()
        for share in sorted(by_share.keys() - dual_shares):
            if len(self.shares) > 1 and float(self._shared.units[share].median()) > FAR:
                own = shared(self.X, [self.shares[share]], self.typical)
                yield own, slice(None), by_share[share]
            else:
                together += by_share[share]
        if together:
            yield self._shared, slice(None), together

    def is_small(self, share: int) -> bool:
        """Return whether a share has fewer rows than features."""
        return bool(np.count_nonzero(self.shares[share]) < self.X.shape[1])

    def _dual_shares(self, problems: Sequence[Problem]) -> set[int]:
        """Return the shares of some problems that are solved in their dual forms."""
        small = {share for share in {one.share for one in problems} if self.is_small(share)}
        # Rows of weight w with C are rows of weight 1 with w C.
        largest = {share: float(self.shares[share].max()) for share in small}
        most = max((one.C * largest.get(one.share, 0.0) for one in problems), default=0.0)
        n_fitted = sum(np.count_nonzero(self.shares[share]) for share in small)
        n_rows, n_features = self.X.shape
        is_cheaper = n_features <= n_rows <= 2 * n_fitted and n_rows * n_features <= TOGETHER_SIZE
        return set() if is_cheaper and most <= TOGETHER_C else small

    @cached_property
    def _shared(self) -> Design:
        """The design of all shares that are not dual."""
        return shared(self.X, self.shares, self.typical)


@dataclass(frozen=True, eq=False)
class _Task:
    """A problem in terms of a design.

    `number` is the index of the problem, `share` that of its share in the design, and `codes` are
    the label codes of the rows of the design. `classes` are those with weight in the share,
    `totals` (n_classes,) their weights, and `class_weights` (n_classes,) factors of these weights,
    None for equal ones. Tasks of a group have the same labels, classes and C, and shares of about
    the same size and standard deviations, and therefore about the same Hessian.
    """

    number: int
    group: int
    C: float
    share: int
    codes: Codes
    classes: Codes
    totals: Floats
    class_weights: Floats | None
    start: AffineLayer | None

    @property
    def n_scores(self) -> int:
        """Number of scores: one for two classes, else one per class."""
        return 1 if len(self.classes) == 2 else len(self.classes)


def _tasks(
    problems: Sequence[Problem], numbers: Sequence[int], design: Design, rows: slice | Codes
) -> Iterator[_Task]:
    """Yield the tasks of some problems; `rows` are the numbers of the rows of the design in X."""
    columns: dict[int, Codes] = {}
    totals_of: dict[tuple[int, int], Floats] = {}
    groups: dict[tuple[object, ...], int] = {}
    weights = design.weights.cpu().numpy()
    sizes = design.weights.sum(dim=1, keepdim=True)
    # Shares with equal rounded logarithms have similar Hessians; adding 0.0 turns -0 to 0.
    signatures = torch.cat([sizes, design.units], dim=1).log2().round().cpu().numpy() + 0.0
    for number in numbers:
        problem = problems[number]
        share = problem.share if len(weights) > 1 else 0  # a dual design has a single share
        labels = id(problem.codes)  # several problems, one for each C, have the same labels
        codes = columns.setdefault(labels, problem.codes[rows])
        if (labels, share) not in totals_of:
            of_rows = weights[share].astype(np.float64)
            totals_of[labels, share] = np.bincount(codes, weights=of_rows).astype(np.float64)
        classes = np.flatnonzero(totals_of[labels, share])
        totals = totals_of[labels, share][classes]
        factors = None
        if problem.balanced:  # each class gets the same total weight
            factors = totals.sum() / (len(totals) * totals)
        # Groups are numbered in the order in which their keys occur first.
        key = (labels, classes.tobytes(), problem.balanced, problem.C, signatures[share].tobytes())
        group = groups.setdefault(key, len(groups))
        yield _Task(number, group, problem.C, share, codes, classes, totals, factors, problem.start)


def _solved(
    design: Design, tasks: Sequence[_Task], stopping: StoppingRule
) -> Iterator[tuple[int, Fit]]:
    """Yield the index of each problem and its fit: of single classes first, then batch by batch.

    The fits of a batch are yielded in the order in which they stop.
    """
    for task in tasks:
        if len(task.classes) == 1:
            layer = AffineLayer(np.zeros((1, len(design.mean))), np.zeros(1))
            # A single class is predicted with certainty, so there is nothing to fit.
            fit = Fit(task.classes, (layer,), n_iter=0, gradient_norm=0.0, C=task.C, objective=0.0)
            yield task.number, fit
    for batch in _batches(design, [task for task in tasks if len(task.classes) > 1]):
        start = torch.stack([_start(design, task) for task in batch])
        for index, solution in descend(_objectives(design, batch), start, stopping):
            yield batch[index].number, _fit(design, batch[index], solution)


def _batches(design: Design, tasks: Sequence[_Task]) -> Iterator[list[_Task]]:
    """Yield batches of tasks with the same number of classes that fit into the memory limits."""
    device, most = design.rows.device, BATCH_BYTES
    if is_accelerator(device):
        most = max(most, int(available_memory(device) / 8))
    by_size: dict[int, list[_Task]] = defaultdict(list)
    for task in tasks:
        by_size[task.n_scores].append(task)
    for n_scores, alike in by_size.items():
        alike.sort(key=attrgetter("group"))
        n_coordinates = len(design.variances)
        n_groups = len({task.group for task in alike})
        # Numbers that each score of a task needs in memory; a group shares its Hessian.
        of_hessian = hessian_size(n_coordinates) * n_groups / len(alike)
        n_rows = min(rows_of_block(n_coordinates, device), len(design.rows))
        of_block = SCORE_TENSORS * n_rows
        n_numbers = of_block + 2 * MEMORY * n_coordinates + of_hessian
        most_tasks = most / (n_numbers * n_scores * design.variances.itemsize)
        n_batches = math.ceil(len(alike) / max(1, int(most_tasks)))
        for indices in np.array_split(np.arange(len(alike)), n_batches):
            yield [alike[index] for index in indices]


def _start(design: Design, task: _Task) -> Tensor:
    """Return the start (n_scores, n_coordinates + 1) of a task; by default the class log odds."""
    # A start is in features, which are not the coordinates of a dual design.
    if task.start is not None and design.back.ndim == 1:
        coef, intercept = design.unfold(task.share, *task.start)
    else:
        counts = task.totals * (1 if task.class_weights is None else task.class_weights)
        logs = np.log(counts / counts.sum())
        coef = np.zeros((task.n_scores, len(design.variances)))
        intercept = logs[1:] - logs[0] if task.n_scores == 1 else logs - logs.mean()
    point = np.column_stack([coef, intercept])
    return put(point, design.rows.device).to(design.variances.dtype)


def _objectives(design: Design, tasks: Sequence[_Task]) -> Objectives:
    """Return the objectives of a batch of tasks, with row weights that sum to 1 in each."""
    # Fits of the same labels and classes share a column; a code without weight gets any class.
    smallest = np.min_scalar_type(-max(len(task.classes) for task in tasks))
    columns: dict[tuple[int, bytes], Codes] = {}
    keys = [(id(task.codes), task.classes.tobytes()) for task in tasks]
    for key, task in zip(keys, tasks, strict=True):
        if key not in columns:
            index = np.searchsorted(task.classes, task.codes).clip(max=len(task.classes) - 1)
            columns[key] = index.astype(smallest)
    places = {key: place for place, key in enumerate(columns)}
    totals = np.array([task.totals.sum() for task in tasks])
    C = np.array([task.C for task in tasks])
    device, dtype, class_weights = design.rows.device, design.variances.dtype, None
    given = [task.class_weights for task in tasks]
    if any(one is not None for one in given):
        filled = [np.ones(len(tasks[0].classes)) if one is None else one for one in given]
        class_weights = put(np.stack(filled), device).to(dtype)
    penalty = np.minimum(1 / (C * totals * design.largest), LARGEST_PENALTY)
    share = [task.share for task in tasks]
    return Objectives(
        rows=design.rows,
        axes=design.axes,
        variances=design.variances,
        columns=put(np.stack(list(columns.values())), device),
        shares=design.weights,
        column=torch.tensor([places[key] for key in keys], device=device),
        share=torch.tensor(share, device=device),
        factor=put(1 / totals, device).to(dtype),
        class_weights=class_weights,
        units=design.units[share],
        penalty=put(penalty, device).to(dtype),
        group=torch.tensor([task.group for task in tasks], device=device),
    )


def _fit(design: Design, task: _Task, solution: Minimum) -> Fit:
    """Return the fit on raw rows, from the minimum in the coordinates of the design."""
    point = fetched(solution.point)
    coef, intercept = design.fold(task.share, point[:, :-1], point[:, -1])
    # Adding a constant to all intercepts does not change the predictions; centre them.
    bias = intercept - intercept.mean() if len(intercept) > 1 else intercept
    return Fit(
        classes=task.classes,
        layers=(AffineLayer(coef, bias),),
        C=task.C,
        n_iter=solution.n_iter,
        converged=solution.converged,
        gradient_norm=solution.gradient_norm,
        objective=solution.value,
    )
