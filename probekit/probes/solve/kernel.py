"""Fits on few rows of many features: Newton steps on the products of the rows of a site.

The weights of a penalised fit are a combination of its rows: on features standardised within its
share they are u * Z^T a, where Z are the rows standardised over the whole site, u the ratio of the
site's standard deviations to the share's, and a (n,) the dual coefficients of each score. The
scores are Z (u^2 * Z^T a) + b. Two products with Z give them for all fits at once, whatever their
shares, labels and C. No share has a matrix of its own.

A step solves the Newton system of each fit approximately. Its matrix, of the products of a share's
rows, is replaced by that of the site, u = 1, which is computed once: the two differ by a few per
cent, so that each step removes all but a few per cent of the error. The system is solved by
conjugate gradients. The intercept is the multiplier of the constraint sum(a) = 0, which is
augmented by a large constant in the products.

A fit stops at a bound of its excess, the duality gap: if the intercept is optimal, a' = C w (y - p)
is feasible in the dual problem, and the two objectives differ by (a' - a)^T K (a' - a) / (2 C).

Shapes: F fits, c scores per fit (one for two classes, else one per class), n rows, r leading axes.

Sources: Rasmussen and Williams (2006), Gaussian processes for machine learning, sections 3.4 and
3.5 (the symmetric Newton systems); Nocedal and Wright (2006), Numerical Optimization, chapter 17
(augmented Lagrangian); Shalev-Shwartz and Zhang (2013), Stochastic dual coordinate ascent methods
(the duality gap).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from probekit.lazy_rows import Floats, LazyRows, Mask, fetched
from probekit.probes.solve.descent import StoppingRule
from probekit.probes.solve.design import moments
from probekit.products import put

MOST_ROWS = 8192  # products of more rows take too much memory
WIDE = 2.0  # the largest ratio of rows to features at which products are faster
AXES = 32  # leading axes of the preconditioner
AT_ONCE = 200  # rows whose products with all later ones are computed together
CG_STEPS, CG_TOLERANCE = 100, 0.1
TINY = 1e-30  # no divisor is smaller
# By which C is raised after each step from the class frequencies, depending on the excess.
RAISED, CAREFUL, NEAR = 10.0, 2.0, 0.3
LEAST_SLOPE = 1e-3  # along a step whose length does not matter, relative to the aim
LEAST_DECREASE = 1e-13  # of the objective by the intercepts, relative to the sum of the weights
TRIALS = 9  # lengths of a step that are tried, from 0
PATIENCE = 4  # steps without a smaller bound after which a fit stops: only rounding error is left
LEAST_CURVATURE = 1e-7  # of a row that is predicted with certainty
CONSTANT = 30.0  # of the products, relative to the inverse curvature of the intercept


Map = Callable[[Tensor], Tensor]


def is_wide(rows: LazyRows) -> bool:
    """Return whether fits on some rows are computed from their products."""
    return len(rows) <= min(MOST_ROWS, WIDE * rows.shape[1])


def with_products(rows: LazyRows, typical: Mask | None) -> LazyRows:
    """Return rows whose selections share their products, if fits on them are computed from these.

    For `typical` see `SiteProducts`.
    """
    if not is_wide(rows):
        return rows
    if rows.numbers is not None:  # numbers of later selections are those of rows of the site
        rows = LazyRows.of(rows[:]).on(rows.device)
    return replace(rows, products=SiteProducts(rows, typical))


@dataclass(eq=False)
class SiteProducts:
    """Standardised rows of a site and their products, which all fits of the site share.

    Attributes:
        source: the rows (n, d).
        typical: which rows (n,) the standardisation is estimated from; None means all.
    """

    source: LazyRows
    typical: Mask | None = None

    @property
    def kind(self) -> Any:
        """The dtype of the standardised rows: float64 for rows in float64, else float32."""
        return np.float64 if self.source.dtype == np.float64 else np.float32

    @cached_property
    def moments(self) -> tuple[Floats, Floats]:
        """The means and the standard deviations (d,) of the features, inf for constant ones.

        They are rounded to the dtype of the rows, so that fits on these exactly undo them.
        """
        rows = self.source if self.typical is None else self.source.select(self.typical)
        every = np.ones(len(rows), dtype=bool)
        mean, scale = (one.astype(self.kind) for one in moments(rows, every, every))
        return mean.astype(np.float64), scale.astype(np.float64)

    @cached_property
    def rows(self) -> Tensor:
        """The standardised rows (n, d)."""
        rows = np.empty(self.source.shape, self.kind)
        mean, scale = (one.astype(self.kind) for one in self.moments)
        for place, block in self.source.blocks():
            np.subtract(block, mean, out=rows[place])
            rows[place] /= scale
        return torch.from_numpy(rows).to(self.source.device)  # without a copy on the CPU

    def squared_units(self, weights: Tensor) -> Tensor:
        """Return the inverse variance (n_shares, d) of the rows in each share; 0 if constant.

        `weights` (n_shares, n) are those of the rows that scaling is estimated from.
        """
        rows, weights = self.rows, weights / weights.sum(dim=1, keepdim=True)
        means = weights @ rows
        mean_squares = [weights @ part.square() for part in torch.split(rows, 512, dim=1)]
        squares = means * means
        variance = torch.cat(mean_squares, dim=1) - squares
        # Where the two terms nearly cancel, two passes are needed. It is rare, but in small shares.
        doubtful = variance <= 1e-2 * squares
        for share in torch.nonzero(doubtful.any(dim=1)).flatten().tolist():
            columns, place = (torch.nonzero(one[share])[:, 0] for one in (doubtful, weights))
            raw = self.source[fetched(place).astype(int)][:, fetched(columns).astype(int)]
            spread = moments(raw, fetched(weights[share, place]), np.ones(len(raw), dtype=bool))[1]
            scale = self.moments[1][fetched(columns).astype(int)]
            exact = np.divide(spread, scale, out=spread, where=np.isfinite(spread)) ** 2
            variance[share, columns] = put(exact, self.source.device).to(variance.dtype)
        return 1 / variance

    @cached_property
    def products(self) -> Tensor:
        """The inner products (n, n) of the rows."""
        rows = self.rows
        found = rows.new_empty(len(rows), len(rows))
        for first in range(0, len(rows), AT_ONCE):  # it is symmetric
            part = slice(first, first + AT_ONCE)
            found[part, first:] = rows[part] @ rows[first:].T
        return found.triu() + found.triu(1).T

    @cached_property
    def axes(self) -> tuple[Tensor, Tensor, Tensor, float]:
        """Leading axes (n, r), their products (n, r * r) in pairs, their sizes, and the rest.

        The sizes (r - 1,) are those beyond the rest, the mean size of all other axes. The last axis
        is constant; its size depends on the fit.
        """
        products = self.products.cpu()  # not every accelerator has these decompositions
        n = len(products)
        r = min(AXES, n)
        generator = torch.Generator().manual_seed(0)
        basis = torch.randn(n, min(r + 8, n), generator=generator, dtype=products.dtype)
        for _ in range(3):
            basis = torch.linalg.qr(products @ basis).Q
        sizes, turn = torch.linalg.eigh(basis.T @ (products @ basis))
        sizes = sizes[-r:]
        total = products.diagonal().sum() - sizes.sum()
        rest = max(float(total) / max(1, n - r), 1e-6 * float(sizes[-1]))
        axes = torch.cat([basis @ turn[:, -r:], basis.new_full((n, 1), n**-0.5)], 1)
        sizes = (sizes - rest).clamp_min(1e-6 * float(sizes[-1]))
        found = axes, (axes[:, :, None] * axes[:, None, :]).flatten(1), sizes
        axes, pairs, sizes = (one.to(self.products.device) for one in found)
        return axes, pairs, sizes, rest


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
class OwnProducts:
    """The products of the rows of each fit, computed for it alone.

    Attributes:
        matrix: (F, n, n), 0 at the rows that a fit lacks.
    """

    matrix: Tensor
    ratio = 1.0  # see `Products`

    def select(self, fits: Tensor) -> OwnProducts:
        """Return those of some fits."""
        return OwnProducts(self.matrix[fits])

    def scores(self, dual: Tensor) -> Tensor:
        """Return the exact products with dual coefficients (F, c, n)."""
        return dual @ self.matrix

    near_scores = scores

    def inverse(self, curvature: _Curvature) -> Map:
        """Return products with the inverse of 1 + R^T K R, or of its blocks of one class."""
        root = curvature.diagonal
        inner = self.matrix[:, None] + curvature.constant[..., None]
        inner = inner * root[..., None] * root[..., None, :]
        inner.diagonal(dim1=2, dim2=3).add_(1)
        factor = torch.linalg.cholesky_ex(inner)[0]
        return lambda x: torch.cholesky_solve(x[..., None], factor)[..., 0]


@dataclass(frozen=True, eq=False)
class Products:
    """The products of the rows of each fit; those of the site are an approximation.

    Attributes:
        site: those of the site.
        squared_units: (F, d), the inverse variances of its rows within the share of each fit.
    """

    site: SiteProducts
    squared_units: Tensor

    def select(self, fits: Tensor) -> Products:
        """Return those of some fits."""
        return Products(self.site, self.squared_units[fits])

    @cached_property
    def ratio(self) -> Tensor:
        """The largest ratio (F,) of exact to approximate squared lengths x^T K x."""
        return self.squared_units.max(dim=1).values

    def scores(self, dual: Tensor) -> Tensor:
        """Return the exact products with dual coefficients (F, c, n)."""
        rows = self.site.rows
        return (dual @ rows).mul_(self.squared_units[:, None]) @ rows.T

    def near_scores(self, dual: Tensor) -> Tensor:
        """Return approximate products with dual coefficients (F, c, n)."""
        return dual @ self.site.products

    def inverse(self, curvature: _Curvature) -> Map:
        """Return products with an approximate inverse of 1 + R^T K R.

        K has leading axes and a constant rest (Woodbury).
        """
        axes, pairs, sizes, rest = self.site.axes
        root, r = curvature.diagonal, axes.shape[1]
        squares = root * root
        inverse = 1 / (1 + rest * squares)
        inner = ((squares * inverse) @ pairs).reshape(*root.shape[:2], r, r)
        diagonal = inner.diagonal(dim1=2, dim2=3)
        diagonal[..., :-1] += 1 / sizes
        diagonal[..., -1:] += 1 / (len(axes) * curvature.constant)
        inner = torch.cholesky_inverse(torch.linalg.cholesky_ex(inner)[0])

        def times(x: Tensor) -> Tensor:
            """Return the approximate inverse times x (F, c, n)."""
            scaled = inverse * x
            along = (((root * scaled) @ axes)[..., None, :] @ inner)[..., 0, :]
            return scaled - inverse * root * (along @ axes.T)

        return times


System = Products | OwnProducts


def _newton_step(system: System, curvature: _Curvature, right: Tensor) -> Tensor:
    """Return x (F, c, n) with (1 + R^T K R) x = right, approximately, by conjugate gradients."""
    inverse = system.inverse(curvature)

    def better_of(rest: Tensor) -> Tensor:
        """Return the residuals, preconditioned."""
        return curvature.inside(inverse(rest))

    def dot(a: Tensor, b: Tensor) -> Tensor:
        """Return the inner products (F,)."""
        return (a * b).sum(dim=(1, 2))

    x, rest = torch.zeros_like(right), right
    direction = better = better_of(rest)
    size = dot(rest, better).clamp_min(TINY)
    goal = CG_TOLERANCE**2 * size
    for _ in range(CG_STEPS):
        outer = curvature.times(direction)
        product = system.near_scores(outer) + curvature.constant * outer.sum(dim=2, keepdim=True)
        product = direction + curvature.transposed(product)
        length = size / dot(direction, product).clamp_min(TINY)
        length = torch.where(size > goal, length, 0)[:, None, None]
        x, rest = x + length * direction, rest - length * product
        better = better_of(rest)
        last, size = size, dot(rest, better).clamp_min(TINY)
        if not bool((size > goal).any()):
            break
        direction = better + (size / last)[:, None, None] * direction
    return x


def probabilities(score: Tensor) -> Tensor:
    """Return the probabilities (F, c, n) of the second class, or of each of several."""
    return torch.sigmoid(score) if score.shape[1] == 1 else torch.softmax(score, dim=1)


def _losses(score: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy (F, n) of each row."""
    own = (score * labels).sum(dim=1)
    if score.shape[1] == 1:
        return softplus(score[:, 0], threshold=40) - own
    return score.logsumexp(dim=1) - own


def _best_intercepts(score: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the change (F, c, 1) to the best intercepts for scores (F, c, n), and the rest.

    The rest is the decrease (F,) of the objective that a further Newton step would bring.
    """
    change = torch.zeros_like(score[..., :1])
    for _ in range(5):
        p = probabilities(score + change)
        slope = (weights * (p - labels)).sum(dim=2, keepdim=True)
        weighted = weights * p
        bend = torch.diag_embed(weighted.sum(dim=2)) - weighted @ p.mT
        size = bend.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
        if len(bend[0]) > 1:  # a constant that is added to all intercepts changes nothing
            bend = bend + size
        bend.diagonal(dim1=1, dim2=2).add_(1e-6 * size[..., 0] + TINY)
        step = torch.linalg.solve(bend, slope).clamp(-3, 3)
        rest = 0.5 * (slope * step).sum(dim=(1, 2))
        if bool((rest <= LEAST_DECREASE * weights.sum(dim=(1, 2))).all()):
            break
        change = change - step
    return change, rest


@dataclass(eq=False)
class _State:
    """The fits that have not stopped yet; see `minimise`."""

    number: Tensor  # (F,), the index of each fit
    labels: Tensor  # (F, c, n)
    weights: Tensor  # (F, 1, n)
    C: Tensor  # (F, 1, 1)
    ramp: Tensor  # (F, 1, 1), the C of the next step, which is raised to that of the fit
    dual: Tensor  # (F, c, n)
    score: Tensor  # (F, c, n)
    intercept: Tensor  # (F, c, 1), or (F, c, n) with the offset of each row
    value: Tensor  # (F,), the least objective so far
    excess: Tensor  # (F,), the least bound so far
    idle: Tensor  # (F,), consecutive steps without a smaller objective or bound

    def select(self, fits: Tensor) -> _State:
        """Return the state of some fits."""
        return _State(*(getattr(self, one.name)[fits] for one in fields(self)))


def minimise(
    system: System,
    labels: Tensor,
    weights: Tensor,
    C: Tensor,
    ramp: Tensor,
    start: tuple[Tensor, Tensor],
    stopping: StoppingRule,
    wide: torch.dtype,
) -> Iterator[tuple[int, tuple[Tensor, Tensor, float, float, int]]]:
    """Yield index and minimum of sum(weight * cross-entropy) + |w|^2 / (2 C) of each of F fits.

    A minimum is given by dual coefficients (c, n), intercepts (c,) with the offset of the first
    row, the objective, a bound of its relative excess, and the number of steps.

    Args:
        system: the products of the rows.
        labels: the indicators (F, c, n) of the second class, or of each class.
        weights: the row weights (F, 1, n), 0 for rows that are not in the share.
        C: the inverse regularisation strengths (F, 1, 1).
        ramp: that of the first step, which is raised after each step; see `RAISED`.
        start: dual coefficients (F, c, n) and intercepts to start from, (F, c, 1), or (F, c, n) if
            rows have known offsets: each step adds the same number to all of them.
        stopping: when a fit stops, by the bound of its excess.
        wide: the dtype of sums over the rows.
    """
    aim = min(stopping.aim, stopping.tolerance)
    dual, intercept = start
    score = system.scores(dual) if bool(dual.any()) else torch.zeros_like(dual)
    number = torch.arange(len(C), device=C.device)
    inf, idle = torch.full_like(C[:, 0, 0], torch.inf), torch.zeros_like(number)
    of_fits = number, labels, weights, C, ramp, dual, score + intercept, intercept
    state = _State(*of_fits, inf.to(wide), inf, idle)
    for n_iter in range(1, stopping.max_iter + 1):
        C = torch.minimum(state.ramp, state.C) if n_iter < stopping.max_iter else state.C
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
        # The products of the site bound the excess, and cost less.
        value, excess = _measured(state, bare, C, system.near_scores, system.ratio)
        nearly = excess <= 2 * system.ratio * stopping.tolerance
        if aim == stopping.tolerance:
            nearly &= excess > aim
        if len(nearly := torch.nonzero(nearly).flatten()):
            part, of_part = system.select(nearly), state.select(nearly)
            bare = part.scores(of_part.dual)  # without the rounding errors of earlier steps
            value[nearly], excess[nearly] = _measured(of_part, bare, C[nearly], part.scores)
            state.score[nearly], state.intercept[nearly] = of_part.score, of_part.intercept
        state.ramp = torch.where(excess[:, None, None] <= NEAR, RAISED, CAREFUL) * C
        excess = torch.where(is_raised := (C < state.C)[:, 0, 0], torch.inf, excess)
        is_better = is_raised | (excess < 0.5 * state.excess) | (value < (1 - aim) * state.value)
        state.idle = torch.where(is_better, 0, state.idle + 1)
        # From the tolerance on, a fit continues as long as its steps make a difference.
        ended = (excess <= stopping.tolerance) & ~is_better
        state.value = torch.where(is_raised, torch.inf, torch.minimum(value, state.value))
        state.excess = torch.minimum(excess, state.excess)
        is_last = n_iter == stopping.max_iter
        stopped = (excess <= aim) | ended | (state.idle >= PATIENCE) | is_last
        for k in torch.nonzero(stopped).flatten().tolist():
            end = state.dual[k], state.intercept[k, :, 0], float(value[k]), float(excess[k])
            yield int(state.number[k]), (*end, n_iter)
        if bool(stopped.all()):
            return
        if bool(stopped.any()):
            state, system = state.select(~stopped), system.select(~stopped)


def _measured(
    state: _State, bare: Tensor, C: Tensor, scores: Map, ratio: Tensor | float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return the objectives (F,) and the bounds of their relative excess; sets the best intercepts.

    Args:
        state: the fits; their scores become `bare` with the best intercepts.
        bare: scores (F, c, n) without intercepts.
        C: the inverse regularisation strengths (F, 1, 1).
        scores: products with dual coefficients, for the bound.
        ratio: the largest ratio of exact to these products; see `Products`.
    """
    change, rest = _best_intercepts(bare + state.intercept, state.labels, state.weights)
    state.intercept = state.intercept + change
    state.score = bare + state.intercept
    wide = state.value.dtype
    loss = state.weights[:, 0] * _losses(state.score, state.labels)
    value = loss.sum(dim=1, dtype=wide)
    value = value + 0.5 / C[:, 0, 0] * (state.dual * bare).sum(dim=(1, 2), dtype=wide)
    error = state.dual + C * state.weights * (probabilities(state.score) - state.labels)
    gap = ratio * (error * scores(error)).sum(dim=(1, 2)) / (2 * C[:, 0, 0])
    return value, (gap.clamp_min(0) + rest.abs()) / value.to(gap.dtype)


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
        spread = (p * total**2).sum(dim=1) - (p * total).sum(dim=1) ** 2
        curved = (state.weights[:, 0] * spread).sum(dim=1) + bend
        better = length - slope / curved.clamp_min(TINY)
        length = torch.where(wrong, better.clamp(0.3 * length, 3 * length), length)
    return length
