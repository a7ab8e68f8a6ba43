"""Batched L2 logistic regression: many fits share the products with one matrix of rows.

Each fit has its own labels, its own share (weighted subset) of the rows and its own C. Fits with
the same number of classes are solved in one batch; fits that have converged are removed from it.

    Problem   labels, share and C of one fit
    Solver    rows and shares -> a Fit for each problem
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot, pad

from probekit.lazy_rows import Codes, Features, Floats, LazyRows, Mask, Rows, fetched, rows_of_block
from probekit.memory import available_memory, is_accelerator
from probekit.probes.solve import kernel
from probekit.probes.solve.coordinates import hessian_size
from probekit.probes.solve.descent import MEMORY, Minimum, StoppingRule, descend
from probekit.probes.solve.design import Design, Objectives, shared
from probekit.probes.solve.kernel import SiteProducts
from probekit.probes.solve.layers import AffineLayer, FittedLayers, with_reference
from probekit.products import put

OnFit = Callable[[int, int], None]

# Memory of one batch: about eight score tensors (rows of a block x fits x classes), the L-BFGS
# memory, and a Hessian for each group and class.
BATCH_BYTES = 1 << 30
SCORE_TENSORS = 8
# At this penalty all coefficients are exactly 0; a larger one overflows float32.
LARGEST_PENALTY = 1e30
# Shares whose features vary so many times less than all rows, as without a row of another size,
# are standardised alone: float32 would round them too much.
FAR = 16.0
# Products of a site serve shares that have at least this part of its rows, and whose features vary
# about as much: the mean difference of squared units from 1 is at most this number.
LEAST_PART, FAR_PRODUCTS = 0.25, 0.3
LEAST_C = 1e-30
PRECISE_FROM = 0.1  # the `gradient_norm` of a fit in float32 from which one in float64 starts
FIRST = 1.0  # size of the products of a row, times C, from which C is raised
BATCH_NUMBERS = 1 << 25  # of the products of a batch of fits with the rows
# Fits on a share are in a batch with those on others if they have at most so many products, which
# is the number of scores of all of them times that of rows squared: each has a matrix of its own.
OWN_NUMBERS = 1 << 18


@dataclass(frozen=True, eq=False)
class Problem:
    """Specification of one fit.

    Attributes:
        codes: Label codes (n_samples,).
        C: Inverse regularisation strength.
        share: Index of the share of the rows that is fitted.
        start: Starting point, the `point` of a fit on the same rows; None starts from the class
            frequencies.
        balanced: Whether rows are weighted so that all classes of the share have the same total
            weight. Feature scaling does not use these weights.
        offset: Known scores (n_samples, n_codes) of the classes, which those of the fit are added
            to; None for none. Either all problems that are solved together have one, or none.
    """

    codes: Codes
    C: float
    share: int = 0
    start: AffineLayer | None = None
    balanced: bool = False
    offset: Floats | None = None


@dataclass(frozen=True, eq=False)
class Fit(FittedLayers):
    """A logistic fit: one layer for raw, unscaled rows.

    `classes` are the label codes that occurred in the share; for two classes `coef` has one row,
    that of the second, else one row per class. `objective` is the mean objective. `gradient_norm`
    is the norm of its gradient in coordinates in which the Hessian is approximately the identity;
    half its square estimates the difference of the objective from its minimum. `point` is where
    other fits on the same rows may start; see `Problem.start`.
    """

    gradient_norm: float = np.nan
    C: float = np.nan
    objective: float = np.nan
    point: AffineLayer | None = None

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
    in float64 or, on an accelerator, in pairs of float32; see `Sum`. Fits on few rows are
    computed from the products of the rows; see `kernel`.

    Memory: the standardised rows; of many rows at most 4 GB, or 0.25 GB if they are in a file, plus
    at most 1 GB for scores of a block and Hessians, or for products of the rows of shares. Results
    depend on the other fits of a batch only within the tolerance.

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
        self.X = rows = LazyRows.of(X)
        if rows.products and rows.numbers is not None and len(np.unique(rows.numbers)) < len(rows):
            self.X = replace(rows, products=None)  # a row of the site has one weight
        self.is_wide = kernel.is_wide(self.X)  # whether fits are computed from their products
        self.shares = shares
        self.typical = np.ones(len(X), dtype=bool) if typical is None else typical
        numbers = self.X.numbers if self.X.products else None
        self._numbers = slice(None) if numbers is None else numbers  # of the rows, in the site
        self._parts: dict[int, _Part] = {}  # by share

    def solve(
        self,
        problems: Sequence[Problem],
        stopping: StoppingRule = DEFAULT_STOPPING,
        on_fit: OnFit | None = None,
    ) -> list[Fit]:
        """Return the fit of each problem; calls `on_fit(done, total)` after each."""
        fits: dict[int, Fit] = {}
        for number, fit in self._fits(problems, stopping):
            fits[number] = fit
            if on_fit is not None:
                on_fit(len(fits), len(problems))
        return [fits[number] for number in range(len(problems))]

    def _fits(
        self, problems: Sequence[Problem], stopping: StoppingRule
    ) -> Iterator[tuple[int, Fit]]:
        """Yield the index and the fit of each problem."""
        tasks = list(self._tasks(problems))
        together, own, by_share = list[_Task](), list[_Task](), defaultdict[int, list[_Task]](list)
        for task in tasks:
            if len(task.classes) == 1:  # it is predicted with certainty
                layer = AffineLayer(np.zeros((1, self.X.shape[1])), np.zeros(1))
                sure = Fit(task.classes, (layer,), n_iter=0, gradient_norm=0.0, objective=0.0)
                yield task.number, replace(sure, C=task.C)
            elif not self._is_alone[task.share]:
                together.append(task)
            else:
                by_share[task.share].append(task if self.is_wide else replace(task, start=None))
        for share, alike in by_share.items():
            n_scores = sum(task.n_scores for task in alike)
            if n_scores * np.count_nonzero(self.shares[share]) ** 2 <= OWN_NUMBERS:
                own += alike
            else:
                yield from self._apart(alike, stopping)
        if together and not self.is_wide:
            yield from _solved(self._shared, together, stopping)
        left = []
        for task, fit in self._from_products(together if self.is_wide else [], own, stopping):
            if fit.converged or fit.n_iter >= stopping.max_iter:
                # Points of fits on many rows are weights, those of products dual coefficients.
                yield task.number, fit if self.is_wide else replace(fit, point=None)
            else:
                start = fit.point if fit.gradient_norm < PRECISE_FROM else None
                left.append(replace(task, start=start))
        if left:
            yield from self._precisely(left, stopping)

    def _apart(self, tasks: Sequence[_Task], stopping: StoppingRule) -> Iterator[tuple[int, Fit]]:
        """Yield the number and the fit of tasks of one share, by a solver of its rows."""
        weights = self.shares[tasks[0].share]
        rows = np.flatnonzero(weights)
        X, alone = replace(self.X.select(rows), products=None), [0] * len(tasks)
        solver = Solver(X, [weights[rows]], typical=self.typical[rows])
        anew = [replace(task, start=None) for task in tasks]
        yield from _delegated(solver, rows, alone, anew, stopping)

    def _precisely(
        self, tasks: Sequence[_Task], stopping: StoppingRule
    ) -> Iterator[tuple[int, Fit]]:
        """Yield the number and the fit of tasks for which float32 has too few digits."""
        if self._site.kind == np.float32 and not self.X.is_elsewhere:
            zeros, shares = np.zeros(self.X.shape[1]), [task.share for task in tasks]
            solver = Solver(self.X.scaled(zeros, zeros + 1), self.shares, typical=self.typical)
            yield from _delegated(solver, slice(None), shares, tasks, stopping)
            return
        # Equal rows of contradicting labels have dual coefficients that grow with C.
        together = [replace(task, start=None) for task in tasks if not self._is_alone[task.share]]
        for number, fit in _solved(self._shared, together, stopping) if together else ():
            yield number, replace(fit, point=None)
        for task in tasks:
            if self._is_alone[task.share]:
                yield from self._apart([task], stopping)

    def _tasks(self, problems: Sequence[Problem]) -> Iterator[_Task]:
        """Yield the task of each problem."""
        totals_of: dict[tuple[int, int], Floats] = {}
        for number, problem in enumerate(problems):
            share, codes = problem.share, problem.codes
            labels = id(codes)  # several problems, one for each C, have the same labels
            if (labels, share) not in totals_of:
                weights = np.asarray(self.shares[share], dtype=np.float64)
                totals_of[labels, share] = np.bincount(codes, weights).astype(np.float64)
            classes = np.flatnonzero(totals_of[labels, share])
            totals = totals_of[labels, share][classes]
            # With balance each class gets the same total weight.
            factors = totals.sum() / (len(totals) * totals) if problem.balanced else totals**0
            own: dict[str, Any] = {"number": number, "classes": classes, "totals": totals}
            yield _Task(**vars(problem), **own, class_weights=factors)

    @cached_property
    def _is_alone(self) -> Mask:
        """Whether the fits on each share (n_shares,) are computed from its own rows."""
        n_rows = np.array([np.count_nonzero(share) for share in self.shares])
        if not self.is_wide:
            units = fetched(self._shared.units.median(dim=1).values) if len(n_rows) > 1 else 1.0
            return np.asarray((n_rows < min(self.X.shape[1], len(self.X))) | (units > FAR))
        if self.X.products is None and n_rows.min() == len(self.X):
            return np.zeros(len(n_rows), dtype=bool)
        # The products of the site stand for those of a share if their scales are about equal.
        units = fetched(self._squared_units)
        far = (abs(units - 1) * (units > 0)).sum(axis=1) > FAR_PRODUCTS * (units > 0).sum(axis=1)
        alone: Mask = far | (n_rows < LEAST_PART * len(self._site.rows))
        return alone

    def _from_products(
        self, tasks: Sequence[_Task], own: Sequence[_Task], stopping: StoppingRule
    ) -> Iterator[tuple[_Task, Fit]]:
        """Yield each task and its fit, computed from the products of all rows.

        Those of `own` are computed from the products of the rows of their share.
        """
        by_size = defaultdict[int, list[_Task]](list)
        for task in own:  # products of a batch are padded to the same number of rows
            by_size[len(self._own(task.share).rows).bit_length() // 2].append(task)
        for alike in by_size.values():
            most = max(len(self._own(task.share).rows) for task in alike)
            for batch in _batches(alike, partial(_most_fits, most * most)):
                parts = [self._own(task.share) for task in batch]
                padded = [pad(part.products, [0, most - len(part.rows)] * 2) for part in parts]
                system = kernel.OwnProducts(torch.stack(padded))
                size = most, FIRST / self.X.shape[1]
                yield from self._batch(batch, parts, system, size, stopping)
        if not tasks:
            return
        site, numbers = self._site, np.arange(len(self.X))
        size = len(site.rows), FIRST / max(site.axes[3], LEAST_C)
        for batch in _batches(tasks, partial(_most_fits, max(site.source.shape))):
            units = self._squared_units[[task.share for task in batch]]
            parts = [_Part(numbers, self._numbers, site, one, site.products) for one in units]
            yield from self._batch(batch, parts, kernel.Products(site, units), size, stopping)

    def _batch(
        self,
        tasks: Sequence[_Task],
        parts: Sequence[_Part],
        system: kernel.System,
        size: tuple[int, float],
        stopping: StoppingRule,
    ) -> Iterator[tuple[_Task, Fit]]:
        """Yield some tasks with equally many classes and their fits, from products of rows.

        `parts` and `system` have the rows of each task; `size` is the number of rows of the system
        and the C of the first step.
        """
        n_classes, (n_rows, first) = len(tasks[0].classes), size

        def on_rows(values: Sequence[NDArray[Any]]) -> Tensor:
            """Return numbers (F, n_samples) for the rows of each fit, 0 elsewhere."""
            whole = np.zeros((len(tasks), n_rows))
            for of_fit, part, given in zip(whole, parts, values, strict=True):
                of_fit[part.places] = given[part.rows]
            return put(whole, self.X.device).to(parts[0].units.dtype)

        row_weights = np.stack([np.float64(self.shares[task.share]) for task in tasks])
        for k, task in enumerate(tasks):
            row_weights[k] *= task.class_weights[task.index]
        # Rows of weight w with C are rows of weight 1 with w C.
        largest = row_weights.max(axis=1, keepdims=True)
        row_weights = row_weights / largest
        weights = on_rows(row_weights)[:, None]
        index = on_rows([task.index for task in tasks])
        labels = one_hot(index.long(), n_classes).movedim(2, 1).to(weights.dtype)
        logs = (weights * labels).sum(dim=2, keepdim=True).log()
        intercept = logs - logs.mean(dim=1, keepdim=True)
        if n_classes == 2:
            labels, intercept = labels[:, 1:], logs[:, 1:] - logs[:, :1]
        C = np.maximum(largest[:, 0] * [task.C for task in tasks], LEAST_C)
        dual, ramp = torch.zeros_like(labels), np.minimum(C, first)
        offset = torch.zeros_like(intercept if tasks[0].offset is None else labels)
        for k, (task, part) in enumerate(zip(tasks, parts, strict=True)):
            if (known := task.known) is not None:
                offset[k][:, part.places] = put(known[:, part.rows], self.X.device)
            if task.start is not None:
                dual[k][:, part.places] = put(task.start.weight[:, part.rows], self.X.device)
                intercept[k], ramp[k] = put(task.start.bias[:, None], self.X.device), C[k]
        of_C, ramp = put(np.stack([C, ramp]), self.X.device).to(labels.dtype)[..., None, None]
        wide = labels.dtype if self.X.is_elsewhere else torch.float64
        given = labels, weights, of_C, ramp, (dual, intercept + offset), stopping, wide
        for k, (solution, intercepts, objective, excess, n_iter) in kernel.minimise(system, *given):
            part, bias = parts[k], fetched(intercepts - offset[k, :, 0])
            mean, scale = part.site.moments
            raw = fetched(solution[:, : len(part.site.rows)] @ part.site.rows * part.units) / scale
            raw *= C[k] > LEAST_C  # else they are smaller than float32 holds
            if part.site is not self._site:
                del part.site.rows  # saves memory; they are computed again for the next fit
            point = np.zeros((len(raw), len(self.X)), part.site.kind)
            point[:, part.rows] = fetched(solution)[:, part.places]
            centred = bias - (bias.mean() if n_classes > 2 else 0)
            value = objective / float(row_weights[k].sum())
            fit = Fit(
                classes=tasks[k].classes,
                layers=(AffineLayer(raw, centred - raw @ mean),),
                n_iter=n_iter,
                converged=excess <= stopping.tolerance,
                gradient_norm=math.sqrt(2 * excess * value),
                C=tasks[k].C,
                objective=value,
                point=AffineLayer(point, bias),
            )
            yield tasks[k], fit

    @cached_property
    def _site(self) -> SiteProducts:
        """The products of the rows, or those of all rows that X was selected from."""
        return self.X.products or SiteProducts(self.X, self.typical)

    @cached_property
    def _squared_units(self) -> Tensor:
        """The inverse variances (n_shares, d) of the rows of the site within each share."""
        pairs = [(share * self.typical, share) for share in self.shares]
        used = [one if np.count_nonzero(one) > 1 else whole for one, whole in pairs]
        whole = np.zeros((len(used), len(self._site.source)))
        whole[:, self._numbers] = used
        return self._site.squared_units(put(whole, self.X.device).to(self._site.rows.dtype))

    def _own(self, share: int) -> _Part:
        """Return the products of the rows of a share."""
        if share not in self._parts:
            rows = np.flatnonzero(self.shares[share])
            typical = self.typical[rows]
            typical = typical if np.count_nonzero(typical) > 1 else np.ones_like(typical)
            site = SiteProducts(replace(self.X.select(rows), products=None), typical)
            weights = put(self.shares[share][None, rows] * typical, self.X.device)
            units = site.squared_units(weights.to(site.rows.dtype))[0]
            products = site.rows * units @ site.rows.T
            del site.rows  # saves memory
            self._parts[share] = _Part(rows, slice(0, len(rows)), site, units, products)
        return self._parts[share]

    @cached_property
    def _shared(self) -> Design:
        """The design of all shares."""
        return shared(self.X, self.shares, self.typical)


@dataclass(frozen=True, eq=False)
class _Part:
    """Rows whose products fits are computed from.

    Attributes:
        rows: their numbers (m,) among the rows of the solver.
        places: the places of these rows among the columns of a batch.
        site: the rows, or all rows of the site.
        units: the inverse variance (d,) of its features in the share.
        products: the products (m, m) of the rows of the share with these units, or of the site.
    """

    rows: Codes
    places: Codes | slice
    site: SiteProducts
    units: Tensor
    products: Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class _Task(Problem):
    """A problem with its index and its classes.

    `classes` are those with weight in the share, `totals` (n_classes,) their weights, and
    `class_weights` (n_classes,) factors of these weights.
    """

    number: int
    classes: Codes
    totals: Floats
    class_weights: Floats

    @property
    def n_scores(self) -> int:
        """Number of scores: one for two classes, else one per class."""
        return 1 if len(self.classes) == 2 else len(self.classes)

    @property
    def known(self) -> Floats | None:
        """The offset of each score (n_scores, n_samples); None without one."""
        of_class = None if self.offset is None else self.offset[:, self.classes].T
        return of_class if of_class is None or self.n_scores > 1 else of_class[1:] - of_class[:1]

    @property
    def index(self) -> Codes:
        """The index (n_samples,) of the class of each row; any for a code without weight."""
        found: Codes = np.searchsorted(self.classes, self.codes).clip(max=len(self.classes) - 1)
        return found


def _delegated(
    solver: Solver,
    rows: Codes | slice,
    shares: Sequence[int],
    tasks: Sequence[_Task],
    stopping: StoppingRule,
) -> Iterator[tuple[int, Fit]]:
    """Yield number and fit of some tasks, by a solver of some rows that has shares of its own.

    They start as the tasks do.
    """
    parts = []
    for task, share in zip(tasks, shares, strict=True):
        offset = None if task.offset is None else task.offset[rows]
        parts.append(Problem(task.codes[rows], task.C, share, task.start, task.balanced, offset))
    for task, fit in zip(tasks, solver.solve(parts, stopping), strict=True):
        yield task.number, replace(fit, point=None)


def _solved(
    design: Design, tasks: Sequence[_Task], stopping: StoppingRule
) -> Iterator[tuple[int, Fit]]:
    """Yield the number of each task and its fit, batch by batch, in the order in which they stop.

    Tasks of a group have the same labels, classes and C, and shares of about the same size and
    standard deviations, and therefore about the same Hessian.
    """
    sizes = design.weights.sum(dim=1, keepdim=True)
    # Shares with equal rounded logarithms have similar Hessians; adding 0.0 turns -0 to 0.
    signatures = torch.cat([sizes, design.units], dim=1).log2().round().cpu().numpy() + 0.0
    numbers, groups = dict[tuple[object, ...], int](), dict[int, int]()
    for task in tasks:  # groups are numbered in the order in which their keys occur first
        signature = signatures[task.share].tobytes()
        key = (id(task.codes), task.classes.tobytes(), task.balanced, task.C, signature)
        groups[task.number] = numbers.setdefault(key, len(numbers))
    in_order = sorted(tasks, key=lambda task: groups[task.number])
    for batch in _batches(in_order, partial(_most_tasks, design, len(numbers) / len(tasks))):
        start = torch.stack([_start(design, task) for task in batch])
        for index, solution in descend(_objectives(design, batch, groups), start, stopping):
            yield batch[index].number, _fit(design, batch[index], solution)


def _most_tasks(design: Design, n_groups: float, n_scores: int) -> float:
    """Return how many tasks of a number of scores fit into the memory of a batch.

    `n_groups` is the number of groups for each task.
    """
    device, most = design.rows.device, BATCH_BYTES
    if is_accelerator(device):
        most = max(most, int(available_memory(device) / 8))
    n_coordinates = len(design.variances)
    # Numbers that each score of a task needs in memory; a group shares its Hessian.
    of_block = SCORE_TENSORS * min(rows_of_block(n_coordinates, device), len(design.rows))
    of_hessian = hessian_size(n_coordinates) * n_groups
    n_numbers = of_block + 2 * MEMORY * n_coordinates + of_hessian
    return most / (n_numbers * n_scores * design.variances.itemsize)


def _most_fits(size: int, n_scores: int) -> float:
    """Return how many fits are one batch, from the size of the products of each score."""
    return BATCH_NUMBERS / (size * n_scores)


def _batches(tasks: Sequence[_Task], most_of: Callable[[int], float]) -> Iterator[list[_Task]]:
    """Yield batches of tasks with the same number of scores, at most `most_of` this number."""
    by_size = defaultdict[int, list[_Task]](list)
    for task in tasks:
        by_size[task.n_scores].append(task)
    for n_scores, alike in by_size.items():
        n_batches = math.ceil(len(alike) / max(1, int(most_of(n_scores))))
        for indices in np.array_split(np.arange(len(alike)), n_batches):
            yield [alike[index] for index in indices]


def _start(design: Design, task: _Task) -> Tensor:
    """Return the start (n_scores, n_coordinates + 1) of a task; by default the class log odds."""
    if task.start is not None:
        coef, intercept = design.unfold(task.share, *task.start)
    else:
        counts = task.totals * task.class_weights
        logs = np.log(counts / counts.sum())
        coef = np.zeros((task.n_scores, len(design.variances)))
        intercept = logs[1:] - logs[0] if task.n_scores == 1 else logs - logs.mean()
    point = np.column_stack([coef, intercept])
    return put(point, design.rows.device).to(design.variances.dtype)


def _objectives(design: Design, tasks: Sequence[_Task], groups: Mapping[int, int]) -> Objectives:
    """Return the objectives of a batch of tasks, with row weights that sum to 1 in each."""
    # Fits of the same labels and classes share a column; a code without weight gets any class.
    smallest = np.min_scalar_type(-max(len(task.classes) for task in tasks))
    columns: dict[tuple[int, bytes], Codes] = {}
    keys = [(id(task.codes), task.classes.tobytes()) for task in tasks]
    for key, task in zip(keys, tasks, strict=True):
        if key not in columns:
            columns[key] = task.index.astype(smallest)
    places = {key: place for place, key in enumerate(columns)}
    totals = np.array([task.totals.sum() for task in tasks])
    C = np.array([task.C for task in tasks])
    device, dtype = design.rows.device, design.variances.dtype
    weights = [task.class_weights for task in tasks]
    offsets = [known for task in tasks if (known := task.known) is not None]
    penalty = np.minimum(1 / (C * totals), LARGEST_PENALTY)
    share = [task.share for task in tasks]
    return Objectives(
        rows=design.rows,
        axes=design.axes,
        variances=design.variances,
        columns=put(np.stack(list(columns.values())), device),
        shares=design.weights,
        column=torch.tensor([places[key] for key in keys], device=device),
        share=torch.tensor(share, device=device),
        factor=put(design.largest / totals, device).to(dtype),
        class_weights=put(np.stack(weights), device).to(dtype) if np.ptp(weights) else None,
        offsets=put(np.stack(offsets), device).to(dtype) if offsets else None,
        units=design.units[share],
        penalty=put(penalty, device).to(dtype),
        group=torch.tensor([groups[task.number] for task in tasks], device=device),
    )


def _fit(design: Design, task: _Task, solution: Minimum) -> Fit:
    """Return the fit on raw rows, from the minimum in the coordinates of the design."""
    point = fetched(solution.point)
    coef, intercept = design.fold(task.share, point[:, :-1], point[:, -1])
    # Adding a constant to all intercepts does not change the predictions; centre them.
    bias = intercept - intercept.mean() if len(intercept) > 1 else intercept
    layer = AffineLayer(coef, bias)
    stopped = solution.n_iter, solution.converged, solution.gradient_norm
    return Fit(task.classes, (layer,), *stopped, task.C, solution.value, layer)
