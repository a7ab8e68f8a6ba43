"""Fits on sites with fewer rows than features: Newton steps on the products of the rows.

The weights of a penalised fit are a combination of its rows: on features standardised within its
share they are u * Z^T a, where Z are the rows standardised over the whole site, u the ratio of the
site's standard deviations to the share's, and a (n,) the dual coefficients of each score. The
scores are Z (u^2 * Z^T a) + b. Two products with Z give them for all fits at once, whatever their
shares, labels and C. No share has a matrix of its own.

A step solves the Newton system of each fit approximately. Its matrix, of the products of a share's
rows, is replaced by that of the site, u = 1, which is computed once: the two differ by a few per
cent, so that each step removes all but a few per cent of the error. The system is solved by
conjugate gradients. Small shares, whose standard deviations differ more, have products of their
own. The intercept is the multiplier of the constraint sum(a) = 0, which is augmented by a large
constant in the products.

A fit stops at a bound of its excess, the duality gap: if the intercept is optimal, a' = C w (y - p)
is feasible in the dual problem, and the two objectives differ by (a' - a)^T K (a' - a) / (2 C).

Shapes: F fits, c scores per fit (one for two classes, else one per class), n rows, r leading axes.

Sources: Rasmussen and Williams (2006), Gaussian processes for machine learning, sections 3.4 and
3.5 (the symmetric Newton systems); Nocedal and Wright (2006), Numerical Optimization, chapter 17
(augmented Lagrangian); Shalev-Shwartz and Zhang (2013), Stochastic dual coordinate ascent methods
(the duality gap).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot, softplus

from probekit.lazy_rows import LazyRows, fetched
from probekit.memory import is_accelerator
from probekit.probes.arrays import Codes, Features, Floats, Mask
from probekit.probes.solve.layers import AffineLayer

AXES = 32  # leading axes of the preconditioner
SMALL = 128  # shares of at most this many rows have products of their own
FAR = 0.3  # mean difference of squared units from 1, beyond which a share has its own products
CG_STEPS, CG_TOLERANCE = 100, 0.1
LEAST_C = 1e-30
FIRST = 1.0  # size of the products of a row, times C, from which C is raised
TINY = 1e-30  # no divisor is smaller
RAISED = 10.0  # by which C is raised after each step from the class frequencies
LEAST_SLOPE = 1e-3  # along a step whose length does not matter, relative to the aim
TRIALS = 9  # lengths of a step that are tried, from 0
PATIENCE = 4  # steps without a smaller bound after which a fit stops: only rounding error is left
LEAST_CURVATURE = 1e-7  # of a row that is predicted with certainty
CONSTANT = 30.0  # of the products, relative to the inverse curvature of the intercept
BATCH_NUMBERS = 1 << 24  # of the scores (F, c, n) of a batch


@dataclass(eq=False)
class SiteProducts:
    """Standardised rows of a site and their products, which all fits of the site share."""

    source: LazyRows

    def put(self, values: NDArray[Any]) -> Tensor:
        """Return an array as a tensor where the rows are."""
        return torch.from_numpy(values).to(self.source.device)

    @property
    def kind(self) -> Any:
        """The dtype of the rows: float32 or float64."""
        return np.float64 if self.source.dtype == np.float64 else np.float32

    @cached_property
    def mean(self) -> Floats:
        """The means (d,) of the features, in the precision of the rows."""
        found: Floats = self.source[:].mean(axis=0, dtype=np.float64).astype(self.kind)
        return found.astype(np.float64)

    @cached_property
    def _rows_and_scale(self) -> tuple[Tensor, Floats]:
        """The standardised rows (n, d), and the standard deviations (d,) they were divided by."""
        rows = np.subtract(self.source[:], self.mean.astype(self.kind), dtype=self.kind)
        scale = np.sqrt(np.einsum("nd,nd->d", rows, rows) / len(rows)).astype(self.kind)
        scale[scale <= 1e-6 * np.abs(self.mean)] = 1  # nearly constant; see `squared_units`
        rows /= scale
        return self.put(rows), scale.astype(np.float64)

    @property
    def rows(self) -> Tensor:
        """The standardised rows (n, d)."""
        return self._rows_and_scale[0]

    @property
    def scale(self) -> Floats:
        """The standard deviations (d,) that the rows were divided by."""
        return self._rows_and_scale[1]

    @cached_property
    def products(self) -> Tensor:
        """The inner products (n, n) of the rows."""
        return self.rows @ self.rows.T

    @cached_property
    def axes(self) -> tuple[Tensor, Tensor, float]:
        """Leading axes (n, r) of the products, their sizes beyond the rest, and the mean rest.

        The last axis is constant; its size depends on the fit and is 0 here.
        """
        products = self.products
        n = len(products)
        r = min(AXES, n)
        generator = torch.Generator().manual_seed(0)
        found = torch.randn(n, min(r + 8, n), generator=generator, dtype=products.dtype)
        for _ in range(3):
            found = torch.linalg.qr(products @ found).Q
        sizes, turn = torch.linalg.eigh(found.T @ (products @ found))
        sizes = sizes[-r:]
        total = products.diagonal().sum() - sizes.sum()
        rest = max(float(total) / max(1, n - r), 1e-6 * float(sizes[-1]))
        axes = torch.cat([found @ turn[:, -r:], torch.full((n, 1), n**-0.5, dtype=found.dtype)], 1)
        sizes = (sizes - rest).clamp_min(1e-6 * float(sizes[-1]))
        return axes, torch.cat([sizes, torch.zeros(1, dtype=sizes.dtype)]), rest

    @cached_property
    def pairs(self) -> Tensor:
        """The products (n, r * r) of each pair of axes."""
        axes = self.axes[0]
        return (axes[:, :, None] * axes[:, None, :]).flatten(1)


@dataclass(frozen=True, eq=False)
class _Curvature:
    """The curvature C W of the loss of each row, as R R^T with R = diag(root) (1 - q q^T).

    Attributes:
        root: (F, c, n).
        q: (F, c, n), the roots of the probabilities of several classes; None for two.
        constant: (F, c, 1), the constant that is added to the products.
    """

    root: Tensor
    q: Tensor | None
    constant: Tensor

    @classmethod
    def at(cls, p: Tensor, weights: Tensor) -> _Curvature:
        """Return the curvature at probabilities p (F, c, n); `weights` (F, 1, n) contain C."""
        own = (p * (1 - p)).clamp_min(LEAST_CURVATURE)
        total = (weights * own).sum(dim=2, keepdim=True)
        if p.shape[1] == 1:
            return cls((weights * own).sqrt(), None, CONSTANT / total)
        p = p.clamp_min(LEAST_CURVATURE)
        q = (p / p.sum(dim=1, keepdim=True)).sqrt()
        return cls(weights.sqrt() * q, q, CONSTANT / total)

    def select(self, fits: Tensor) -> _Curvature:
        """Return that of some fits."""
        q = None if self.q is None else self.q[fits]
        return _Curvature(self.root[fits], q, self.constant[fits])

    @property
    def diagonal(self) -> Tensor:
        """The roots (F, c, n) of the diagonal of C W."""
        return self.root if self.q is None else self.root * (1 - self.q**2).sqrt()

    def inside(self, x: Tensor) -> Tensor:
        """Return (1 - q q^T) x."""
        return x if self.q is None else x - self.q * (self.q * x).sum(dim=1, keepdim=True)

    def times(self, x: Tensor) -> Tensor:
        """Return R x."""
        return self.root * self.inside(x)

    def transposed(self, x: Tensor) -> Tensor:
        """Return R^T x."""
        return self.inside(self.root * x)


@dataclass(frozen=True, eq=False)
class Own:
    """Small shares, with exact products of their own.

    Attributes:
        products: (n_shares, m, m), of the rows of each share, standardised within it.
        share: (F,), the index of the share of each fit.
        places: (n_shares, m), the numbers of its rows, padded with 0.
        filled: (n_shares, m), which of them are no padding.
        centres: (n_shares, d), means of the standardised rows of the site within each share.
        site: the products of the site.
    """

    products: Tensor
    share: Tensor
    places: Tensor
    filled: Tensor
    centres: Tensor
    site: SiteProducts

    def select(self, fits: Tensor) -> Own:
        """Return those of some fits."""
        return replace(self, share=self.share[fits])

    @property
    def typical_size(self) -> Floats:
        """The mean size (F,) of the products of a row with itself."""
        sizes = self.products.diagonal(dim1=1, dim2=2).sum(dim=1) / self.filled.sum(dim=1)
        found: Floats = fetched(sizes[self.share])
        return found

    def rows_of(self, values: NDArray[Any]) -> Tensor:
        """Return numbers (F, n) of all rows for those of the share of each fit (F, m)."""
        places = self.places[self.share]
        return self.site.put(values).gather(1, places) * self.filled[self.share]

    def whole(self, fit: int, dual: Tensor) -> Tensor:
        """Return dual coefficients (c, m) for all rows (c, n)."""
        found, share = dual.new_zeros(len(dual), len(self.site.rows)), self.share[fit]
        inside = self.places[share][self.filled[share]]
        found[:, inside] = dual[:, : len(inside)]
        return found

    def centre(self, fit: int) -> Floats:
        """Return what was subtracted from the standardised rows (d,) of the site."""
        found: Floats = fetched(self.centres[self.share[fit]])
        return found

    def scores(self, dual: Tensor) -> Tensor:
        """Return the exact products with dual coefficients (F, c, n)."""
        return dual @ self.products[self.share]

    near_scores = scores

    def size(self, dual: Tensor) -> Tensor:
        """Return the exact squared norm (F,) of the weights of dual coefficients (F, c, n)."""
        return (dual * self.scores(dual)).sum(dim=(1, 2))

    def inverse(self, curvature: _Curvature) -> _Factor:
        """Return an approximate inverse of 1 + R^T K R; the exact one for two classes."""
        root = curvature.diagonal
        matrix = self.products[self.share][:, None] + curvature.constant[..., None]
        matrix = matrix * root[..., :, None] * root[..., None, :]
        matrix.diagonal(dim1=2, dim2=3).add_(1)
        return _Factor(torch.linalg.cholesky_ex(matrix)[0])


@dataclass(frozen=True, eq=False)
class _Factor:
    """A Cholesky factor (F, c, n, n) of an approximate inverse."""

    lower: Tensor

    def select(self, fits: Tensor) -> _Factor:
        """Return those of some fits."""
        return _Factor(self.lower[fits])

    def times(self, x: Tensor) -> Tensor:
        """Return the inverse times x (F, c, n)."""
        return torch.cholesky_solve(x[..., None], self.lower)[..., 0]


@dataclass(frozen=True, eq=False)
class Shared:
    """Large shares: products of the site in the systems, exact scores by products with the rows."""

    site: SiteProducts
    squared_units: Tensor  # (n_shares, d)
    share: Tensor

    def select(self, fits: Tensor) -> Shared:
        """Return those of some fits."""
        return Shared(self.site, self.squared_units, self.share[fits])

    @property
    def typical_size(self) -> Floats:
        """The mean size (F,) of the products of a row with itself, without the leading axes."""
        return np.full(len(self.share), self.site.axes[2])

    def rows_of(self, values: NDArray[Any]) -> Tensor:
        """Return numbers (F, n) of all rows."""
        return self.site.put(values)

    def whole(self, _fit: int, dual: Tensor) -> Tensor:
        """Return dual coefficients of all rows."""
        return dual

    def centre(self, _fit: int) -> Floats:
        """Return what was subtracted from the standardised rows (d,) of the site."""
        return np.zeros(self.squared_units.shape[1])

    def scores(self, dual: Tensor) -> Tensor:
        """Return the exact products with dual coefficients (F, c, n)."""
        rows = self.site.rows
        return (dual @ rows).mul_(self.squared_units[self.share][:, None]) @ rows.T

    def near_scores(self, dual: Tensor) -> Tensor:
        """Return approximate products with dual coefficients (F, c, n)."""
        return dual @ self.site.products

    def size(self, dual: Tensor) -> Tensor:
        """Return the exact squared norm (F,) of the weights of dual coefficients (F, c, n)."""
        return ((dual @ self.site.rows).square_() * self.squared_units[self.share][:, None]).sum(
            dim=(1, 2)
        )

    def inverse(self, curvature: _Curvature) -> _Near:
        """Return an approximate inverse of 1 + R^T K R."""
        axes, sizes, rest = self.site.axes
        root, r = curvature.diagonal, len(sizes)
        squares = root * root
        inverse = 1 / (1 + rest * squares)
        inner = ((squares * inverse) @ self.site.pairs).unflatten(2, (r, r))
        diagonal = inner.diagonal(dim1=2, dim2=3)
        diagonal[..., :-1] += 1 / sizes[:-1]
        diagonal[..., -1:] += 1 / (len(axes) * curvature.constant)
        inner = torch.cholesky_inverse(torch.linalg.cholesky_ex(inner)[0])
        return _Near(axes, root, inverse, inner)


@dataclass(frozen=True, eq=False)
class _Near:
    """Approximate inverse of 1 + R K R: K with leading axes U and a constant rest (Woodbury).

    Attributes:
        axes: the axes U (n, r).
        root: the diagonal (F, c, n) of R.
        inverse: the inverse (F, c, n) of 1 + rest * R^2.
        inner: the inverse (F, c, r, r) of the system of the axes.
    """

    axes: Tensor
    root: Tensor
    inverse: Tensor
    inner: Tensor

    def select(self, fits: Tensor) -> _Near:
        """Return those of some fits."""
        return _Near(self.axes, self.root[fits], self.inverse[fits], self.inner[fits])

    def times(self, x: Tensor) -> Tensor:
        """Return the approximate inverse times x (F, c, n)."""
        scaled = self.inverse * x
        along = (((self.root * scaled) @ self.axes)[..., None, :] @ self.inner)[..., 0, :]
        return scaled - self.inverse * self.root * (along @ self.axes.T)


def _newton_step(system: Own | Shared, curvature: _Curvature, right: Tensor) -> Tensor:
    """Return x (F, c, n) with (1 + R^T K R) x = right, approximately, by conjugate gradients."""
    inverse = system.inverse(curvature)

    def better_of(rest: Tensor) -> Tensor:
        """Return the residuals, preconditioned."""
        return curvature.inside(inverse.times(rest))

    def dot(a: Tensor, b: Tensor) -> Tensor:
        """Return the inner products (F,)."""
        return torch.linalg.vecdot(a.flatten(1), b.flatten(1))

    found = torch.empty_like(right)
    running = torch.arange(len(right))
    x, rest = torch.zeros_like(right), right
    direction = better = better_of(rest)
    size = dot(rest, better).clamp_min(torch.finfo(right.dtype).tiny)
    goal = CG_TOLERANCE**2 * size
    for step in range(CG_STEPS):
        outer = curvature.times(direction)
        product = system.near_scores(outer) + curvature.constant * outer.sum(dim=2, keepdim=True)
        product = direction + curvature.transposed(product)
        length = (size / dot(direction, product).clamp_min(TINY))[:, None, None]
        x, rest = x + length * direction, rest - length * product
        better = better_of(rest)
        last, size = size, dot(rest, better).clamp_min(TINY)
        ended = size <= goal if step < CG_STEPS - 1 else torch.ones_like(size, dtype=torch.bool)
        # Products cost as much for systems that are solved, but each selection costs, too.
        if 4 * int(ended.sum()) >= len(ended):
            found[running[ended]] = x[ended]
            going = ~ended
            if not bool(going.any()):
                break
            system, curvature, inverse = (one.select(going) for one in (system, curvature, inverse))
            running, goal, last, size = running[going], goal[going], last[going], size[going]
            x, rest, better, direction = x[going], rest[going], better[going], direction[going]
        direction = better + (size / last)[:, None, None] * direction
    return found


def probabilities(score: Tensor) -> Tensor:
    """Return the probabilities (F, c, n) of the second class, or of each of several."""
    return torch.sigmoid(score) if score.shape[1] == 1 else torch.softmax(score, dim=1)


def _losses(score: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy (F, n) of each row."""
    own = (score * labels).sum(dim=1)
    if score.shape[1] == 1:
        return softplus(score[:, 0], threshold=40) - own
    return score.logsumexp(dim=1) - own


def _best_intercepts(score: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the change (F, c, 1) to the best intercepts for some scores (F, c, n)."""
    change = torch.zeros_like(score[..., :1])
    for _ in range(4):
        p = probabilities(score + change)
        slope = (weights * (p - labels)).sum(dim=2, keepdim=True)
        weighted = weights * p
        bend = torch.diag_embed(weighted.sum(dim=2)) - weighted @ p.mT
        size = bend.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
        if len(bend[0]) > 1:  # a constant that is added to all intercepts changes nothing
            bend = bend + size
        bend.diagonal(dim1=1, dim2=2).add_(1e-6 * size[..., 0] + TINY)
        change = change - torch.linalg.solve(bend, slope).clamp(-3, 3)
    return change


@dataclass(eq=False)
class _State:
    """The fits that have not stopped yet; see `descend`."""

    number: Tensor  # (F,), the index of each fit
    labels: Tensor  # (F, c, n)
    weights: Tensor  # (F, 1, n)
    C: Tensor  # (F, 1, 1)
    ramp: Tensor  # (F, 1, 1), the C of the next step, which is raised to that of the fit
    dual: Tensor  # (F, c, n)
    score: Tensor  # (F, c, n)
    intercept: Tensor  # (F, c, 1)
    value: Tensor  # (F,), the least objective so far
    excess: Tensor  # (F,), the least bound so far
    idle: Tensor  # (F,), consecutive steps without a smaller objective or bound

    def select(self, fits: Tensor) -> _State:
        """Return the state of some fits."""
        return _State(*(getattr(self, one.name)[fits] for one in fields(self)))


class DualFit(NamedTuple):
    """A minimum: dual coefficients (c, n), intercepts (c,), objective, excess and steps.

    The excess is a bound of that of the objective, relative to it.
    """

    dual: Tensor
    intercept: Tensor
    value: float
    excess: float
    n_iter: int


def descend(
    system: Own | Shared,
    labels: Tensor,
    weights: Tensor,
    C: Tensor,
    ramp: Tensor,
    start: tuple[Tensor, Tensor],
    aim: float,
    most: int,
) -> Iterator[tuple[int, DualFit]]:
    """Yield index and minimum of sum(weight * cross-entropy) + |w|^2 / (2 C) of each of F fits.

    Args:
        system: the products of the rows.
        labels: the indicators (F, c, n) of the second class, or of each class.
        weights: the row weights (F, 1, n), 0 for rows that are not in the share.
        C: the inverse regularisation strengths (F, 1, 1).
        ramp: that of the first step, which is raised tenfold with each step.
        start: dual coefficients (F, c, n) and intercepts (F, c, 1) to start from.
        aim: the relative excess at which a fit stops.
        most: the maximum number of steps.
    """
    dual, intercept = start
    score = system.scores(dual) if bool(dual.any()) else torch.zeros_like(dual)
    number = torch.arange(len(C), device=C.device)
    wide = C.dtype if is_accelerator(C.device) else torch.float64
    inf, idle = torch.full_like(C[:, 0, 0], torch.inf), torch.zeros_like(number)
    state = _State(
        number,
        labels,
        weights,
        C,
        ramp,
        dual,
        score + intercept,
        intercept,
        inf.to(wide),
        inf,
        idle,
    )
    for n_iter in range(1, most + 1):
        C = torch.minimum(state.ramp, state.C)
        p = probabilities(state.score)
        curvature = _Curvature.at(p, state.weights * C)
        error = -(state.dual + C * state.weights * (p - state.labels))
        right = torch.where(state.weights > 0, error / curvature.root.clamp_min(TINY), 0)
        drift = curvature.constant * state.dual.sum(dim=2, keepdim=True)
        right = curvature.inside(right) - curvature.transposed(drift)
        step = curvature.times(_newton_step(system, curvature, right))
        change = system.scores(step)
        move = drift + curvature.constant * step.sum(dim=2, keepdim=True)
        length = _length(state, C, step, change, change + move, aim)[:, None, None]
        state.dual = state.dual + length * step
        bare = state.score - state.intercept + length * change
        state.intercept = state.intercept + length * move
        state.intercept = state.intercept + _best_intercepts(
            bare + state.intercept, state.labels, state.weights
        )
        state.score = bare + state.intercept
        loss = state.weights[:, 0] * _losses(state.score, state.labels)
        value = loss.sum(dim=1, dtype=wide)
        value = value + 0.5 / C[:, 0, 0] * (state.dual * bare).sum(dim=(1, 2), dtype=wide)
        error = state.dual + C * state.weights * (probabilities(state.score) - state.labels)
        # The bound by the products of the site is nearly that of the share, and costs less.
        size = (error * system.near_scores(error)).sum(dim=(1, 2))
        excess = size / (2 * C[:, 0, 0] * value).to(size.dtype)
        nearly = excess <= 2 * aim
        if bool(nearly.any()):
            size = system.select(nearly).size(error[nearly])
            excess[nearly] = size / (2 * C[nearly, 0, 0] * value[nearly]).to(size.dtype)
        excess = torch.where(is_raised := (C < state.C)[:, 0, 0], torch.inf, excess)
        is_better = is_raised | (excess < state.excess) | (value < state.value)
        state.idle = torch.where(is_better, 0, state.idle + 1)
        state.value = torch.where(is_raised, torch.inf, torch.minimum(value, state.value))
        state.excess = torch.minimum(excess, state.excess)
        state.ramp = RAISED * C
        stopped = (excess <= aim) | (state.idle >= PATIENCE)
        if n_iter == most:
            stopped = torch.ones_like(stopped)
        for k in torch.nonzero(stopped).flatten().tolist():
            yield (
                int(state.number[k]),
                DualFit(
                    state.dual[k],
                    state.intercept[k, :, 0],
                    float(value[k]),
                    float(excess[k]),
                    n_iter,
                ),
            )
        if bool(stopped.all()):
            return
        if bool(stopped.any()):
            state, system = state.select(~stopped), system.select(~stopped)


def _length(
    state: _State, C: Tensor, step: Tensor, change: Tensor, total: Tensor, aim: float
) -> Tensor:
    """Return the length (F,) at which the slope of the objective along a step is about 0.

    The step changes the scores without intercepts by `change`, and the scores by `total`.
    """
    straight = (state.dual * change).sum(dim=(1, 2)) / C[:, 0, 0]
    bend = (step * change).sum(dim=(1, 2)) / C[:, 0, 0]
    length, first = torch.zeros_like(bend), torch.zeros_like(bend)
    least = LEAST_SLOPE * aim * state.weights.sum(dim=(1, 2))  # less is rounding error
    for trial in range(TRIALS):
        p = probabilities(state.score + length[:, None, None] * total)
        slope = (state.weights * (p - state.labels) * total).sum(dim=(1, 2))
        slope = slope + straight + length * bend
        if trial == 0:  # at the present scores
            first, length = slope.abs(), torch.ones_like(length)
            continue
        wrong = slope.abs() > torch.maximum(0.5 * first, least)
        if not bool(wrong.any()):
            break
        mean = (p * total).sum(dim=1, keepdim=True) if p.shape[1] > 1 else p * total
        spread = (p * total**2).sum(dim=1) - mean[:, 0] ** 2 if p.shape[1] > 1 else None
        if spread is None:
            spread = (p * (1 - p) * total**2)[:, 0]
        curved = (state.weights[:, 0] * spread).sum(dim=1) + bend
        better = length - slope / curved.clamp_min(TINY)
        length = torch.where(wrong, better.clamp(0.3 * length, 3 * length), length)
    return length


def squared_units(site: SiteProducts, used: NDArray[Any]) -> Tensor:
    """Return the inverse variance (n_shares, d) of the rows within each share; 0 if constant.

    `used` (n_shares, n) are the weights of the rows that scaling is estimated from.
    """
    rows, weights = site.rows, site.put(used)
    weights = weights / weights.sum(dim=1, keepdim=True)
    means = weights @ rows
    variance, squares = weights @ (rows * rows), means * means
    variance -= squares
    rounding = max(10 * float(np.finfo(site.kind).eps), len(rows) * float(np.finfo(float).eps))
    # Where the two terms nearly cancel, two passes are needed. This is rare, but in small shares.
    doubtful = variance <= 1e-2 * squares
    for share in torch.nonzero(doubtful.any(dim=1)).flatten().tolist():
        columns = torch.nonzero(doubtful[share]).flatten()
        place = torch.nonzero(weights[share]).flatten()
        own, w = fetched(rows[place][:, columns]), fetched(weights[share, place])
        centre = w @ own
        spread = np.sqrt(w @ (own - centre) ** 2)
        raw = (site.mean / site.scale)[fetched(columns).astype(int)]
        least = rounding * (np.abs(centre) + np.abs(centre + raw))
        exact = np.where(spread > least, spread**2, np.inf)
        variance[share, columns] = site.put(exact).to(variance.dtype)
    return 1 / variance


class Task(NamedTuple):
    """A fit: its share, the class index (n_samples,) of each row, its row weights, C and start.

    The start has dual coefficients (c, n) of all rows of the site, and intercepts (c,).
    """

    share: int
    index: Codes
    n_classes: int
    weights: Floats
    C: float
    start: AffineLayer | None


class Solution(NamedTuple):
    """A layer for raw rows, the dual coefficients and intercepts, and how the fit ended.

    `value` is the mean objective, `excess` a bound of its relative excess.
    """

    layer: AffineLayer
    dual: AffineLayer
    value: float
    excess: float
    n_iter: int


def solve(
    site: SiteProducts,
    numbers: Codes | None,
    shares: Sequence[Features | Mask],
    typical: Mask,
    tasks: Sequence[Task],
    aim: float,
    most: int,
) -> Iterator[tuple[int, Solution]]:
    """Yield the index and the solution of each task.

    Args:
        site: the products of the site.
        numbers: the rows (n_samples,) of the site that the shares refer to; None for all.
        shares: the row weights (n_samples,) of each share.
        typical: which rows (n_samples,) feature scaling is estimated from.
        tasks: the fits.
        aim: the relative excess at which a fit stops.
        most: the maximum number of steps.
    """
    of_site = partial(_of_site, site, numbers)
    used, share_of = np.unique([task.share for task in tasks], return_inverse=True)
    weights = of_site(np.stack([np.asarray(shares[share]) for share in used]))
    measured = weights * of_site(typical)
    few = np.count_nonzero(measured, axis=1) < 2
    measured[few] = weights[few]
    units = squared_units(site, measured)
    # The products of the site stand for those of a share only if their scales are about equal.
    varies = units > 0
    distance = ((units - 1).abs() * varies).sum(dim=1) / varies.sum(dim=1).clamp_min(1)
    is_own = (fetched(distance) > FAR) | (np.count_nonzero(weights, axis=1) <= SMALL)
    alike: dict[tuple[bool, int], list[int]] = defaultdict(list)
    for number, (task, share) in enumerate(zip(tasks, share_of, strict=True)):
        alike[bool(is_own[share]), task.n_classes].append(number)
    for (is_alone, n_classes), of_kind in alike.items():
        n_batches = math.ceil(len(of_kind) * n_classes * len(site.source) / BATCH_NUMBERS)
        for batch in np.array_split(np.array(of_kind), n_batches):
            chosen, share = [tasks[number] for number in batch], share_of[batch]
            if is_alone:
                system: Own | Shared = _own(site, units, weights > 0, share)
            else:
                system = Shared(site, units, site.put(share))
            for k, fit in _solve_alike(system, of_site, chosen, aim, most):
                dual, bias = system.whole(k, fit.dual), fetched(fit.intercept)
                on_rows = fetched((dual @ site.rows) * units[share[k]])
                raw = on_rows / site.scale
                bias = bias - (bias.mean() if len(bias) > 1 else 0)
                layer = AffineLayer(raw, bias - on_rows @ system.centre(k) - raw @ site.mean)
                point = AffineLayer(fetched(dual), bias)
                yield int(batch[k]), Solution(layer, point, fit.value, fit.excess, fit.n_iter)


def _of_site(site: SiteProducts, numbers: Codes | None, values: NDArray[Any]) -> NDArray[Any]:
    """Return numbers (..., n_samples) of some rows for all rows (..., n) of the site, 0 elsewhere."""
    whole = np.zeros((*values.shape[:-1], len(site.rows)), dtype=site.scale.dtype)
    whole[..., slice(None) if numbers is None else numbers] = values
    return whole.astype(site.kind)


def _solve_alike(
    system: Own | Shared,
    of_site: Callable[[NDArray[Any]], NDArray[Any]],
    tasks: Sequence[Task],
    aim: float,
    most: int,
) -> Iterator[tuple[int, DualFit]]:
    """Yield the index and the minimum of each task; all have the same number of classes.

    The values are mean objectives.
    """
    n_classes = tasks[0].n_classes
    # Rows of weight w with C are rows of weight 1 with w C.
    largest = np.array([task.weights.max() for task in tasks])
    weights = system.rows_of(of_site(np.stack([task.weights for task in tasks]) / largest[:, None]))
    index = system.rows_of(of_site(np.stack([task.index for task in tasks])))
    labels = one_hot(index.long(), n_classes).movedim(2, 1).to(weights.dtype)
    logs = (weights[:, None] * labels).sum(dim=2, keepdim=True).log()
    intercept = logs[:, 1:] - logs[:, :1] if n_classes == 2 else logs - logs.mean(1, keepdim=True)
    labels = labels[:, 1:] if n_classes == 2 else labels
    dual = torch.zeros_like(labels)
    C = np.maximum(largest * [task.C for task in tasks], LEAST_C)
    ramp = np.minimum(C, FIRST / system.typical_size)
    if isinstance(system, Shared):
        for k, task in enumerate(tasks):
            if task.start is not None and task.start.weight.shape[1] == dual.shape[2]:
                dual[k], bias = (torch.from_numpy(part) for part in task.start)
                intercept[k], ramp[k] = bias[:, None], C[k]
    of_fits = (torch.from_numpy(one).to(weights)[:, None, None] for one in (C, ramp))
    for k, fit in descend(system, labels, weights[:, None], *of_fits, (dual, intercept), aim, most):
        yield k, fit._replace(value=fit.value / float(weights[k].double().sum()))


def _own(site: SiteProducts, units: Tensor, inside: Mask, share: Codes) -> Own:
    """Return the products of the rows (n_shares, n) of the share of each fit, standardised in it."""
    which, of_fit = np.unique(share, return_inverse=True)
    members = [np.flatnonzero(inside[one]) for one in which]
    m = max(map(len, members))
    places = np.zeros((len(which), m), dtype=np.int64)
    centres, filled = units.new_zeros(len(which), units.shape[1]), np.zeros((len(which), m), bool)
    products = units.new_zeros(len(which), m, m)
    for k, (one, numbers) in enumerate(zip(which, members, strict=True)):
        size = len(numbers)
        places[k, :size], filled[k, :size] = numbers, True
        block = site.rows[site.put(numbers)]
        centres[k] = block.mean(dim=0)
        block = (block - centres[k]) * units[one].sqrt()
        products[k, :size, :size] = block @ block.T
    return Own(products, site.put(of_fit), site.put(places), site.put(filled), centres, site)
