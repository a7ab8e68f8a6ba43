"""Coordinates in which the Hessians of many logistic fits are about the identity.

The Hessian of a fit is close to a product of two small ones: that of the classes, the covariance
of the predicted labels, and that of the features, their correlations. Both have eigenvectors that
cost nothing more, and where all rows are about as uncertain this is all it takes.

Where a fit is sure of most rows the others alone make its Hessian. That is then computed, once for
all fits of which it is about the same, and has a Cholesky factor for each score.

Shapes: F fits, c scores a fit, n rows, q coordinates and one more for the intercept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from probekit.probes.solve.design import enough_rows
from probekit.probes.solve.objectives import Objectives, probabilities
from probekit.products import linear

LEAST_CURVATURE = 1e-4  # of a class that is nearly always certain
# Rows whose curvature together is this share of the penalty's are left out of a Hessian.
LEFT_OUT = 0.1
# Of more coordinates a Hessian takes too much memory, and time.
MOST_COORDINATES = 2048
# A Hessian is worth while when the steps so far have cost this share of it.
WORTH = 0.1
# Products with fewer columns take as long as with these: they wait for the rows.
LEAST_COLUMNS = 4


class _Part(Protocol):
    """Coordinates of some fits."""

    def keep(self, fits: Tensor) -> _Part:
        """Return the coordinates of some of them."""

    def to_point(self, step: Tensor) -> Tensor:
        """Return coefficients and intercepts (F, c, q + 1) for a step in these coordinates."""

    def of_gradient(self, gradient: Tensor) -> Tensor:
        """Return a gradient (F, c, q + 1) in these coordinates."""


@dataclass(frozen=True, eq=False)
class Product:
    """Those of a Hessian that is a product of classes and features.

    `classes` (F, c, c) are the eigenvectors of the label covariance; `scaling` (F, c, q + 1) is the
    inverse square root of the curvature along each axis of classes and features.
    """

    axes: Tensor
    classes: Tensor
    scaling: Tensor

    @classmethod
    def at(cls, objectives: Objectives, scores: Tensor) -> Product:
        """Return the coordinates that fit where the fits have these scores (F, c, n)."""
        curvature, classes = torch.linalg.eigh(_label_covariance(objectives.weights, scores))
        curvature = curvature.clamp_min(0)[..., None]
        along_axes = curvature * objectives.variances + objectives.penalty[:, None, None]
        # No intercepts change the scores along (1, ..., 1): no step is taken there.
        intercept = curvature.clamp_min(LEAST_CURVATURE)
        scaling = torch.cat([along_axes, intercept], dim=2).rsqrt()
        return cls(objectives.axes, classes, scaling)

    def keep(self, fits: Tensor) -> Product:
        """Return the coordinates of some of the fits."""
        return Product(self.axes, self.classes[fits], self.scaling[fits])

    def to_point(self, step: Tensor) -> Tensor:
        """Return coefficients and intercepts (F, c, q + 1) for a step in these coordinates."""
        scaled = self.classes @ (step * self.scaling)
        return torch.cat([linear(scaled[..., :-1], self.axes), scaled[..., -1:]], dim=2)

    def of_gradient(self, gradient: Tensor) -> Tensor:
        """Return a gradient (F, c, q + 1) in these coordinates."""
        along = linear(gradient[..., :-1], self.axes.T)
        turned = torch.cat([along, gradient[..., -1:]], dim=2)
        return (self.classes.mT @ turned) * self.scaling


@dataclass(frozen=True, eq=False)
class Factor:
    """Those of the Hessian of each score, `lower` (c, q + 1, q + 1) times its transpose.

    What two scores have together is left to the pairs of the descent.
    """

    lower: Tensor

    @classmethod
    def at(cls, objectives: Objectives, scores: Tensor) -> Factor | None:
        """Return the coordinates of all fits where they have these scores (F, c, n).

        None if rounding leaves a Hessian that is not positive.
        """
        hessians = _hessians(objectives, scores)
        for hessian in hessians:
            lower, failed = torch.linalg.cholesky_ex(hessian)
            if failed:
                return None
            hessian.copy_(lower)
        return cls(hessians)

    def keep(self, fits: Tensor) -> Factor:
        """Return the coordinates of some of the fits."""
        del fits
        return self

    def to_point(self, step: Tensor) -> Tensor:
        """Return coefficients and intercepts (F, c, q + 1) for a step in these coordinates."""
        columns = step.permute(1, 2, 0)
        point: Tensor = torch.linalg.solve_triangular(self.lower.mT, columns, upper=True)
        return point.permute(2, 0, 1)

    def of_gradient(self, gradient: Tensor) -> Tensor:
        """Return a gradient (F, c, q + 1) in these coordinates."""
        columns = gradient.permute(1, 2, 0)
        along: Tensor = torch.linalg.solve_triangular(self.lower, columns, upper=False)
        return along.permute(2, 0, 1)


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Coordinates of F fits: parts, with the places (F_part,) of their fits.

    A Hessian that fits share may be far above that of one of them. So that a fit is not thought to
    be at its minimum for that, each has its `own` product beside it.
    """

    parts: tuple[tuple[Tensor, _Part], ...]
    own: Product

    @classmethod
    def at(cls, objectives: Objectives, scores: Tensor, n_steps: int = 0) -> Coordinates:
        """Return the coordinates where the fits have these scores (F, c, n), after some steps."""
        own = Product.at(objectives, scores)
        return cls(tuple(_parts(objectives, scores, n_steps, own)), own)

    def keep(self, fits: Tensor) -> Coordinates:
        """Return the coordinates of some of the fits."""
        return Coordinates(tuple(self._kept(fits)), self.own.keep(fits))

    def _kept(self, fits: Tensor) -> Iterator[tuple[Tensor, _Part]]:
        for places, part in self.parts:
            new, old = torch.nonzero(fits[:, None] == places).T
            if len(new):
                yield new, part.keep(old)

    def to_point(self, step: Tensor) -> Tensor:
        """Return coefficients and intercepts (F, c, q + 1) for a step in these coordinates."""
        return centred(self._each(step, lambda part, own: part.to_point(own)))

    def of_gradient(self, gradient: Tensor) -> Tensor:
        """Return a gradient (F, c, q + 1) in these coordinates."""
        return self._each(centred(gradient), lambda part, own: part.of_gradient(own))

    def own_norms(self, gradient: Tensor) -> Tensor:
        """Return the norms (F,) of gradients (F, c, q + 1) in each fit's own coordinates."""
        norms: Tensor = self.own.of_gradient(centred(gradient)).flatten(1).norm(dim=1)
        return norms

    def _each(self, tensor: Tensor, turned: Callable[[_Part, Tensor], Tensor]) -> Tensor:
        answer = torch.empty_like(tensor)
        for places, part in self.parts:
            answer[places] = turned(part, tensor[places])
        return answer


def _parts(
    objectives: Objectives, scores: Tensor, n_steps: int, product: Product
) -> Iterator[tuple[Tensor, _Part]]:
    rest = []
    for group in torch.unique(objectives.group):
        places = torch.nonzero(objectives.group == group).flatten()
        own = objectives.keep(places)
        factor = Factor.at(own, scores[places]) if _is_worth_it(own, n_steps) else None
        if factor is None:
            rest.append(places)
        else:
            yield places, factor
    if rest:
        places = torch.cat(rest)
        yield places, product.keep(places)


def hessian_size(n_coordinates: int) -> int:
    """Return how many numbers the Hessian of a score takes, 0 if none is made.

    >>> hessian_size(768), hessian_size(4096)
    (591361, 0)
    """
    return (n_coordinates + 1) ** 2 if n_coordinates <= MOST_COORDINATES else 0


def _is_worth_it(objectives: Objectives, n_steps: int) -> bool:
    """Return whether so many steps have cost enough beside a Hessian, by the products of both."""
    n, q = len(objectives.rows), len(objectives.variances)
    step = 2 * n * q * max(len(objectives.group), LEAST_COLUMNS)
    hessian = min(n, enough_rows(q)) * q**2 + q**3
    return hessian_size(q) > 0 and n_steps * step >= WORTH * hessian


def _hessians(objectives: Objectives, scores: Tensor) -> Tensor:
    """Return about the mean Hessian (c, q + 1, q + 1) of the fits, for each score by itself."""
    curvature = objectives.curvature(scores).mean(dim=0)
    penalty, units = objectives.penalty.mean(), objectives.units.mean(dim=0)
    c, q = len(curvature), len(units)
    counted = _counted(curvature, LEFT_OUT * penalty, enough_rows(q))
    hessians = curvature.new_zeros(c, q + 1, q + 1)
    for place, block in objectives.rows.blocks():
        for hessian, own in zip(hessians, counted[:, place], strict=True):
            chosen = torch.nonzero(own).flatten()
            root = own[chosen].sqrt()
            weighted = (block[chosen] * root[:, None]).T
            hessian[:-1, :-1] += linear(weighted, weighted)
            hessian[-1, :-1] += weighted @ root
    hessians[:, -1, :-1] *= units
    hessians[:, :-1, :-1] *= units * units[:, None]
    diagonal = hessians.diagonal(dim1=1, dim2=2)
    rounding = torch.finfo(hessians.dtype).eps * diagonal.sum(dim=1, keepdim=True)
    diagonal[:, :-1] += penalty
    diagonal[:, -1] = curvature.sum(dim=1).clamp_min(LEAST_CURVATURE)
    diagonal += rounding
    return hessians


def _counted(curvature: Tensor, least: Tensor, most: int) -> Tensor:
    """Return the curvature (c, n) of the rows that a Hessian is made of, 0 for others.

    The flattest rows, with less than `least` together, are left out. Of the rest, from flat to
    steep, as many are taken at equal distances as are over `most`, and count for those between.
    """
    by_size, order = curvature.sort(dim=1)
    first = (by_size.cumsum(dim=1, dtype=torch.float64) <= least).sum(dim=1)
    counted = torch.zeros_like(curvature)
    for score in range(len(curvature)):
        rows = order[score, first[score] :]
        stride = max(1, len(rows) // most)
        rows = rows[stride // 2 :: stride]
        counted[score, rows] = stride * curvature[score, rows]
    return counted


def centred(values: Tensor) -> Tensor:
    """Return values (F, c, q + 1) without what is the same in all classes and only costs."""
    return values - values.mean(dim=1, keepdim=True) if values.shape[1] > 1 else values


def _label_covariance(weights: Tensor, scores: Tensor) -> Tensor:
    """Return the mean covariance (F, c, c) of the predicted labels, as indicators."""
    likely = probabilities(scores)
    weighted = likely * weights[:, None]
    return torch.diag_embed(weighted.sum(dim=2)) - weighted @ likely.mT
