"""Fits of two classes on shares with fewer rows than features: Newton steps on products of rows.

The weights of a penalised fit are a combination of its rows: on features standardised within its
share they are u * Z^T a, where Z are the rows standardised over the whole site, u the ratio of the
site's standard deviations to the share's, and a (n_samples,) the dual coefficients, whose sum is 0.
The scores are Z (u^2 * Z^T a) + b. Two products with Z give them for all fits at once, whatever
their shares, labels and C. No share has a matrix of its own.

A step solves the Newton system of each fit approximately. Its matrix, of the products of a share's
rows, is replaced by that of the site, u = 1, which is computed once: the two differ by a few per
cent, so that each step removes all but a few per cent of the error. The system is solved by
conjugate gradients, preconditioned by the leading axes of the site's products and a constant for
the rest. Small shares, whose standard deviations differ more, have exact products of their own.

Shapes: F fits, n rows, r leading axes.

Sources: Rasmussen and Williams (2006), Gaussian processes for machine learning, algorithm 3.1 (the
symmetric Newton system); Gould, Hribar and Nocedal (2001) (conjugate gradients with a constraint).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from probekit.lazy_rows import LazyRows
from probekit.probes.arrays import Codes, Floats, Mask
from probekit.probes.solve.layers import AffineLayer

AXES = 32  # leading axes of the preconditioner
SMALL = 128  # shares of at most this many rows have products of their own
FAR = 0.3  # mean difference of squared units from 1, beyond which a share has its own products
CG_STEPS, CG_TOLERANCE = 12, 0.1
NEWTON_STEPS = 60
LEAST_C = 1e-30
TINY = 1e-30  # no divisor is smaller
LEAST_CURVATURE = 1e-7  # of a row that is predicted with certainty
# A step leaves less than this fraction of the excess that is estimated before it.
LEFT = 0.03


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Return x @ weight.T. The sizes of a batch vary, so that kernels for one size do not pay."""
    return x @ weight.T


@dataclass(eq=False)
class SiteProducts:
    """Standardised rows of a site and their products, which all fits of the site share."""

    source: LazyRows

    @cached_property
    def standardised(self) -> tuple[Tensor, Floats, Floats]:
        """The rows (n, d), and the mean and standard deviation (d,) that they were scaled by."""
        X = self.source[:]
        kind = np.float64 if X.dtype == np.float64 else np.float32
        mean = X.mean(axis=0, dtype=np.float64).astype(kind)
        rows = np.subtract(X, mean, dtype=kind)
        squares = np.einsum("nd,nd->d", rows, rows) / len(rows)
        scale = np.sqrt(squares).astype(kind)
        scale[scale <= 1e-6 * np.abs(mean)] = 1  # nearly constant; see `squared_units`
        rows /= scale
        return torch.from_numpy(rows), mean.astype(np.float64), scale.astype(np.float64)

    @cached_property
    def products(self) -> Tensor:
        """The inner products (n, n) of the rows."""
        rows = self.standardised[0]
        return linear(rows, rows)

    @cached_property
    def axes(self) -> tuple[Tensor, Tensor, float]:
        """Leading axes (n, r) of the products, their sizes beyond the rest, and the mean rest."""
        products = self.products
        n = len(products)
        r = min(AXES, n)
        found = torch.randn(
            n, min(r + 8, n), generator=torch.Generator().manual_seed(0), dtype=products.dtype
        )
        for _ in range(3):
            found = torch.linalg.qr(linear(products, found.T)).Q
        sizes, turn = torch.linalg.eigh(found.T @ linear(products, found.T))
        sizes = sizes[-r:]
        total = products.diagonal().sum() - sizes.sum()
        rest = max(float(total) / max(1, n - r), 1e-6 * float(sizes[-1]))
        return found @ turn[:, -r:], (sizes - rest).clamp_min(1e-6 * float(sizes[-1])), rest

    @cached_property
    def pairs(self) -> Tensor:
        """The products (n, r * r) of each pair of axes."""
        axes = self.axes[0]
        return (axes[:, :, None] * axes[:, None, :]).flatten(1)


def products_of(rows: Any) -> Floats:
    """Return the inner products (n, n) of rows (n, d), in their precision."""
    there = torch.from_numpy(rows)
    found: Floats = linear(there, there).numpy()
    return found


class System(Protocol):
    """Newton systems of F fits: products of rows, exact or approximate, and their solution."""

    def scores(self, fits: Tensor, step: Tensor) -> Tensor:
        """Return the exact change of the scores (F, n) by a step of the dual coefficients."""

    def solve(self, fits: Tensor, root: Tensor, right: Tensor, total: Tensor) -> Any:
        """Return x (F, n) and the intercept's step (F,): (1 + R K R) x + R db = right, R x = total.

        R is the diagonal matrix of `root` (F, n).
        """


@dataclass(frozen=True, eq=False)
class Own:
    """Small shares: exact products (n_shares, m, m) of each, solved by Cholesky factors."""

    products: Tensor
    share: Tensor

    def scores(self, fits: Tensor, step: Tensor) -> Tensor:
        return torch.bmm(self.products[self.share[fits]], step[..., None])[..., 0]

    def solve(self, fits: Tensor, root: Tensor, right: Tensor, total: Tensor) -> Any:
        matrix = self.products[self.share[fits]] * root[:, :, None] * root[:, None, :]
        matrix.diagonal(dim1=1, dim2=2).add_(1)
        factor = torch.linalg.cholesky_ex(matrix)[0]
        both = torch.cholesky_solve(torch.stack([right, root], dim=2), factor)
        x, one = both.unbind(dim=2)
        change = ((root * x).sum(dim=1) - total) / (root * one).sum(dim=1)
        return x - change[:, None] * one, change


@dataclass(frozen=True, eq=False)
class Shared:
    """Large shares: products of the site in the systems, exact scores by products with the rows."""

    site: SiteProducts
    squared_units: Tensor
    share: Tensor

    def weights(self, fits: Tensor, dual: Tensor) -> Tensor:
        """Return the weights (F, d) on the standardised rows."""
        rows = self.site.standardised[0]
        return linear(dual, rows.T).mul_(self.squared_units[self.share[fits]])

    def scores(self, fits: Tensor, step: Tensor) -> Tensor:
        return linear(self.weights(fits, step), self.site.standardised[0])

    def solve(self, fits: Tensor, root: Tensor, right: Tensor, total: Tensor) -> Any:
        near = whole = _Near.of(self.site, root)
        x = (total / near.weight)[:, None] * near.one
        rest = right.clone()
        if bool(total.abs().max() > 0):
            rest -= x + root * linear(root * x, self.site.products)
        found, found_rest = torch.empty_like(x), torch.empty_like(x)
        running = torch.arange(len(x))
        direction = better = near.projected(rest)
        size = torch.linalg.vecdot(rest, better).clamp_min(TINY)
        goal = CG_TOLERANCE**2 * size
        for step in range(CG_STEPS):
            root = near.root
            product = direction + root * linear(root * direction, self.site.products)
            length = (size / torch.linalg.vecdot(direction, product).clamp_min(TINY))[:, None]
            x, rest = x + length * direction, rest - length * product
            better = near.projected(rest)
            last, size = size, torch.linalg.vecdot(rest, better)
            ended = size <= goal
            if step == CG_STEPS - 1:
                ended[:] = True
            # Products cost as much for systems that are solved, but each selection costs, too.
            if 4 * int(ended.sum()) >= len(ended):
                found[running[ended]], found_rest[running[ended]] = x[ended], rest[ended]
                if bool(ended.all()):
                    break
                going = ~ended
                near, running, goal = near.select(going), running[going], goal[going]
                x, rest, better, direction = x[going], rest[going], better[going], direction[going]
                last, size = last[going], size[going]
            size = size.clamp_min(TINY)
            direction = better + (size / last)[:, None] * direction
        return found, (whole.one * found_rest).sum(dim=1) / whole.weight


@dataclass(frozen=True, eq=False)
class _Near:
    """Approximate inverse of 1 + R K R of F fits: K with leading axes U and a constant rest.

    Attributes:
        axes: the axes U (n, r).
        root: the diagonal (F, n) of R.
        inverse: the inverse (F, n) of 1 + rest * R^2.
        inner: the inverse (F, r, r) of the system in the formula of Woodbury.
        one: the approximate inverse (F, n) times R 1.
        weight: the inner product (F,) of R 1 and `one`.
    """

    axes: Tensor
    root: Tensor
    inverse: Tensor
    inner: Tensor
    one: Tensor
    weight: Tensor

    @classmethod
    def of(cls, site: SiteProducts, root: Tensor) -> _Near:
        """Return the approximate inverses for diagonals R."""
        axes, sizes, rest = site.axes
        squares, r = root * root, len(sizes)
        inverse = 1 / (1 + rest * squares)
        inner = ((squares * inverse) @ site.pairs).view(-1, r, r)
        inner.diagonal(dim1=1, dim2=2).add_(1 / sizes)
        inner = torch.cholesky_inverse(torch.linalg.cholesky_ex(inner)[0])
        first = cls(axes, root, inverse, inner, root, root[:, 0])
        one = first.times(root)
        return replace(first, one=one, weight=(root * one).sum(dim=1))

    def select(self, fits: Tensor) -> _Near:
        """Return those of some fits."""
        of_fits = (self.root, self.inverse, self.inner, self.one, self.weight)
        return _Near(self.axes, *(one[fits] for one in of_fits))

    def times(self, x: Tensor) -> Tensor:
        """Return the approximate inverse times x (F, n)."""
        scaled = self.inverse * x
        along = torch.bmm(((self.root * scaled) @ self.axes)[:, None], self.inner)[:, 0]
        return scaled - self.inverse * self.root * linear(along, self.axes)

    def projected(self, x: Tensor) -> Tensor:
        """Return the same within the vectors whose inner product with R 1 is 0."""
        found = self.times(x)
        return found - ((self.root * found).sum(dim=1) / self.weight)[:, None] * self.one


class DualFits(NamedTuple):
    """Solutions: dual coefficients (F, n), intercepts, objectives, excess and steps, (F,) each."""

    dual: Tensor
    intercept: Tensor
    value: Tensor
    excess: Tensor
    n_iter: Tensor


def descend(
    system: System,
    labels: Tensor,
    weights: Tensor,
    C: Tensor,
    rest: Tensor,
    aim: float,
    most: int,
    start: Tensor | None = None,
) -> DualFits:
    """Return the minima of sum(weight * loss) + |w|^2 / (2 C) of F fits.

    Args:
        system: the products of the rows.
        labels: the class (F, n) of each row, 0 or 1.
        weights: the row weights (F, n), 0 for rows that are not in the share.
        C: the inverse regularisation strengths (F,).
        rest: the typical size (F,) of the products of rows, to start from.
        aim: the relative excess at which a fit stops.
        most: the maximum number of steps.
        start: scores (F, n) to start from; NaN for fits without.
    """
    n_fits = len(labels)
    inside = weights > 0
    sign = 2 * labels - 1
    # The margin m of a fit of equal independent rows: m = rest * C * sigmoid(-m). Start there.
    typical = rest * C * weights.sum(dim=1) / inside.sum(dim=1)
    margin = torch.zeros_like(C)
    for _ in range(30):
        p = torch.sigmoid(-margin)
        margin = margin + (typical * p - margin) / (1 + typical * p * (1 - p))
    odds = torch.log((weights * labels).sum(dim=1) / (weights * (1 - labels)).sum(dim=1))
    fits = torch.arange(n_fits)
    dual, score, intercept = torch.zeros_like(weights), torch.zeros_like(weights), odds
    ended = DualFits(
        torch.zeros_like(weights),
        torch.zeros_like(C),
        torch.zeros(n_fits, dtype=torch.float64),
        torch.full((n_fits,), torch.inf, dtype=torch.float64),
        torch.zeros(n_fits, dtype=torch.long),
    )
    at = sign * margin[:, None]  # scores that the first step is linearised at
    if start is not None:
        at = torch.where(start.isnan(), at, start)
    p = torch.sigmoid(at)
    for n_iter in range(1, min(most, NEWTON_STEPS) + 1):
        slopes = weights * (p - labels)
        penalty = (1 / C)[:, None]
        gradient = slopes + penalty * dual
        curvature = weights * (p * (1 - p)).clamp_min(LEAST_CURVATURE)
        root = (curvature / penalty).sqrt()
        right = torch.where(inside, -gradient / (penalty * root), 0.0)
        if n_iter == 1:
            right += root * (at - odds[:, None])
        x, move = system.solve(fits, root, right, -dual.sum(dim=1))
        step = root * x
        change = system.scores(fits, step)
        total = change + move[:, None]
        if n_iter == 1:  # from 0, where the gradient is another
            score = odds[:, None].expand_as(weights)
            slopes = weights * (torch.sigmoid(score) - labels)
            gradient = slopes
            linear_part = torch.zeros_like(C)
        else:
            linear_part = penalty[:, 0] * torch.linalg.vecdot(dual, change)
        quadratic = penalty[:, 0] * torch.linalg.vecdot(step, change)
        start = torch.linalg.vecdot(slopes, total) + linear_part
        length = torch.ones_like(C)
        moved = score + total
        p = torch.sigmoid(moved)
        slope = torch.linalg.vecdot(weights * (p - labels), total) + linear_part + quadratic
        wrong = slope.abs() > 0.5 * start.abs()
        for _ in range(8):
            if not bool(wrong.any()):
                break
            q = p[wrong]
            bend = torch.linalg.vecdot(weights[wrong] * q * (1 - q), total[wrong] ** 2)
            # A Newton step along the line, at most to its half or threefold.
            before = length[wrong]
            after = before - slope[wrong] / (bend + quadratic[wrong]).clamp_min(1e-30)
            length[wrong] = torch.minimum(torch.maximum(after, 0.3 * before), 3 * before)
            moved[wrong] = score[wrong] + length[wrong, None] * total[wrong]
            q = p[wrong] = torch.sigmoid(moved[wrong])
            slope[wrong] = (
                torch.linalg.vecdot(weights[wrong] * (q - labels[wrong]), total[wrong])
                + linear_part[wrong]
                + length[wrong] * quadratic[wrong]
            )
            wrong = slope.abs() > 0.5 * start.abs()
        dual = dual + length[:, None] * step
        score, intercept = moved, intercept + length * move
        loss = weights * (softplus(score, threshold=40) - score * labels)
        bare = torch.linalg.vecdot(dual, score - intercept[:, None])
        value = loss.sum(dim=1, dtype=torch.float64) + (0.5 / C) * bare.double()
        excess = LEFT * 0.5 * start.abs().double() / value if n_iter > 1 else value / 0
        stopped = (excess <= aim) | (n_iter == min(most, NEWTON_STEPS))
        if bool(stopped.any()):
            for whole, own in zip(ended[:4], (dual, intercept, value, excess), strict=True):
                whole[fits[stopped]] = own[stopped]
            ended.n_iter[fits[stopped]] = n_iter
            keep = ~stopped
            if not bool(keep.any()):
                break
            fits, dual, score, intercept, labels, weights, inside, C, p = (
                one[keep] for one in (fits, dual, score, intercept, labels, weights, inside, C, p)
            )
            odds, at = odds[keep], at[keep]
    return ended


def squared_units(
    rows: Tensor, used: Tensor, mean: Floats, scale: Floats, rounding: float
) -> Tensor:
    """Return the inverse variance (n_shares, d) of the rows within each share; 0 if constant.

    `used` (n_shares, n) are the weights of the rows that scaling is estimated from.
    """
    weights = used / used.sum(dim=1, keepdim=True)
    means = linear(weights, rows.T)
    variance = linear(weights, (rows * rows).T)
    squares = means * means
    variance -= squares
    # Where the two terms nearly cancel, two passes are needed. This is rare, but in small shares.
    doubtful = variance <= 1e-2 * squares
    for share in torch.nonzero(doubtful.any(dim=1)).flatten().tolist():
        columns = torch.nonzero(doubtful[share]).flatten()
        place = torch.nonzero(used[share]).flatten()
        own, w = rows[place][:, columns].double(), weights[share, place].double()
        centre = w @ own
        spread = (w @ (own - centre) ** 2).sqrt()
        raw = torch.from_numpy(mean / scale)[columns]
        least = rounding * (centre.abs() + (centre + raw).abs())
        exact = torch.where(spread > least, spread**2, torch.inf)
        variance[share, columns] = exact.to(variance.dtype)
    return 1 / variance


class Binary(NamedTuple):
    """A fit of two classes: its share, which rows are of the second class, C, weights and start."""

    share: int
    is_second: Mask
    C: float
    weights: Floats
    start: AffineLayer | None


class Solution(NamedTuple):
    """Raw weights (d,), intercept, mean objective, relative excess and number of steps of a fit."""

    weight: Floats
    intercept: float
    value: float
    excess: float
    n_iter: int


def solve(
    site: SiteProducts,
    numbers: Any,
    shares: Sequence[Floats | Mask],
    typical: Mask,
    problems: Sequence[Binary],
    aim: float,
    most: int,
) -> list[Solution]:
    """Return the solution of each problem.

    Args:
        site: the products of the site.
        numbers: the rows (n,) of the site that the shares refer to; None for all.
        shares: the row weights (n,) of each share.
        typical: which rows (n,) feature scaling is estimated from.
        problems: the fits.
        aim: the relative excess at which a fit stops.
        most: the maximum number of steps.
    """
    found: list[Any] = [None] * len(problems)
    rows, mean, scale = site.standardised
    kind = rows.numpy().dtype
    sizes = np.array([np.count_nonzero(share) for share in shares])
    rounding = max(10 * float(np.finfo(kind).eps), len(rows) * 2.3e-16)

    def spread_out(values: NDArray[Any]) -> NDArray[Any]:
        """Return numbers (n,) of the rows of the shares for all rows of the site."""
        whole = np.zeros(len(rows), dtype=kind)
        whole[slice(None) if numbers is None else numbers] = values
        return whole

    all_used = sorted({one.share for one in problems})
    all_masks = np.stack([spread_out(np.asarray(shares[share])) for share in all_used])
    measured = all_masks * spread_out(typical)
    few = np.count_nonzero(measured, axis=1) < 2
    measured[few] = all_masks[few]
    all_units = squared_units(rows, torch.from_numpy(measured), mean, scale, rounding)
    # The products of the site stand for those of a share only if their scales are about equal.
    varies = all_units > 0
    distance = ((all_units - 1).abs() * varies).sum(dim=1) / varies.sum(dim=1).clamp_min(1)
    is_own = (distance.numpy() > FAR) | (sizes[all_used] <= SMALL)
    for is_small in (False, True):
        used = [share for share, one in zip(all_used, is_own, strict=True) if one == is_small]
        own = [i for i, one in enumerate(problems) if one.share in used]
        if not own:
            continue
        index = torch.tensor([used.index(problems[i].share) for i in own])
        masks, units = all_masks[is_own == is_small], all_units[is_own == is_small]
        place = np.flatnonzero(masks.any(axis=0)) if is_small else slice(None)
        some, masks = rows[place], masks[:, place]
        labels = np.stack([spread_out(problems[i].is_second)[place] for i in own])
        # Rows of weight w with C are rows of weight 1 with w C; a C below this overflows float32.
        largest = np.array([problems[i].weights.max() for i in own])
        scaled = [problems[i].weights / most_of for i, most_of in zip(own, largest, strict=True)]
        weights = np.stack([spread_out(one)[place] for one in scaled])
        strengths = np.maximum(largest * [problems[i].C for i in own], LEAST_C)
        C = torch.from_numpy(strengths).to(rows.dtype)
        if is_small:
            places, padding = _places(masks)
            own_products = _own_products(some, units, places, padding)
            diagonals = own_products.diagonal(dim1=1, dim2=2).sum(dim=1)
            typical_size = (diagonals / torch.tensor(sizes[used]))[index].to(rows.dtype)
            of_fit = places[index.numpy()]
            labels = np.take_along_axis(labels, of_fit, 1)
            weights = np.take_along_axis(weights, of_fit, 1) * padding[index.numpy()]
            system: System = Own(own_products, index)
            start = None
        else:
            system = Shared(site, units, index)
            typical_size = torch.full_like(C, site.axes[2])
            start = torch.full(labels.shape, torch.nan, dtype=rows.dtype)
            for k, i in enumerate(own):
                layer = problems[i].start
                if layer is not None:
                    on_rows = torch.from_numpy((layer.weight[0] * scale).astype(kind))
                    start[k] = rows @ on_rows + float(layer.bias[0] + layer.weight[0] @ mean)
        tensors = torch.from_numpy(labels), torch.from_numpy(weights), C, typical_size
        fits = descend(system, *tensors, aim, most, start)
        dual = fits.dual
        if is_small:
            dual = torch.zeros(len(own), len(some), dtype=rows.dtype)
            dual.scatter_add_(1, torch.from_numpy(of_fit), fits.dual)
        on_rows = linear(dual, some.T).mul_(units[index]).double().numpy()
        raw = on_rows / scale
        intercepts = fits.intercept.double().numpy() - raw @ mean
        if is_small:  # scores were those of centred rows
            shares_of_rows = torch.from_numpy(masks / masks.sum(axis=1, keepdims=True))
            centres = linear(shares_of_rows, some.T)[index].double().numpy()
            intercepts -= np.einsum("fd,fd->f", on_rows, centres)
        values = fits.value.numpy() / weights.sum(axis=1, dtype=np.float64)
        for k, i in enumerate(own):
            excess, n_iter = float(fits.excess[k]), int(fits.n_iter[k])
            found[i] = Solution(raw[k], float(intercepts[k]), float(values[k]), excess, n_iter)
    return found


def _places(masks: NDArray[Any]) -> tuple[Codes, Mask]:
    """Return the row numbers (n_shares, m) of each share, padded, and which are no padding."""
    inside = [np.flatnonzero(mask) for mask in masks]
    m = max(map(len, inside))
    places = np.zeros((len(masks), m), dtype=np.int64)
    filled = np.zeros((len(masks), m), dtype=bool)
    for k, one in enumerate(inside):
        places[k, : len(one)], filled[k, : len(one)] = one, True
    return places, filled


def _own_products(rows: Tensor, units: Tensor, places: Codes, filled: Mask) -> Tensor:
    """Return the products (n_shares, m, m) of the rows of each share, standardised within it."""
    n_shares, m = places.shape
    products = torch.zeros(n_shares, m, m, dtype=rows.dtype)
    for k, size in enumerate(filled.sum(axis=1).tolist()):
        block = rows[torch.from_numpy(places[k, :size])] * units[k].sqrt()
        block -= block.mean(dim=0)
        products[k, :size, :size] = block @ block.T
    return products
