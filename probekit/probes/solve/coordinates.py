"""Preconditioning: coordinates in which the Hessians of many logistic fits are near the identity.

The Hessian of a fit is close to a Kronecker product of two small matrices: the covariance of the
predicted labels and the correlations of the features. Their eigenvectors are cheap, and sufficient
if all rows are predicted with similar confidence.

If a fit predicts most rows with certainty, only the remaining rows determine its Hessian. The
Hessian is then computed, once for all fits with about the same Hessian, and a Cholesky factor is
used for each score.

Shapes: F fits, c scores per fit, n rows, q coordinates plus one for the intercept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from probekit.lazy_rows import Sum
from probekit.memory import is_accelerator
from probekit.probes.solve.design import Objectives, enough_rows
from probekit.products import eigh, gram, linear

LEAST_CURVATURE = 1e-4  # lower bound, for classes that are nearly always certain
# Rows are omitted from a Hessian if their total curvature is below this fraction of the penalty.
LEFT_OUT = 0.1
# With more coordinates, a Hessian takes too much memory and time.
MOST_COORDINATES = 2048
# Rows beyond this number are thinned before those of a Hessian are chosen.
MOST_ROWS = 1 << 18
# A Hessian is computed once the iterations so far have cost this fraction of it.
WORTH = 0.1
# Products with fewer columns take as long as with this many: reading the rows dominates.
LEAST_COLUMNS = 4


@dataclass(frozen=True, eq=False)
class Product:
    """Coordinates for Hessians approximated by a Kronecker product of classes and features.

    Attributes:
        axes: Principal axes (q, q) of the rows.
        classes: Eigenvectors (F, c, c) of the covariance of the predicted labels.
        scaling: Inverse square root (F, c, q + 1) of the curvature along each pair of axes.
    """

    axes: Tensor
    classes: Tensor
    scaling: Tensor

    @classmethod
    def at(cls, objectives: Objectives, point: Tensor) -> Product:
        """Return the coordinates at a point (F, c, q + 1)."""
        # The mean covariance (F, c, c) of the predicted labels, as indicators.
        covariance = Sum(objectives.rows.device)
        for block in objectives.blocks(point):
            predicted = block.probabilities()
            weighted = predicted * block.weights[:, None]
            covariance.add(torch.diag_embed(weighted.sum(dim=2)) - weighted @ predicted.mT)
        curvature, classes = eigh(covariance.total.to(point.dtype))
        curvature = curvature.clamp_min(0)[..., None]
        along_axes = curvature * objectives.variances + objectives.penalty[:, None, None]
        # The intercepts have no curvature along (1, ..., 1). The lower bound does no harm there: no
        # step uses this direction, because it does not change the predictions.
        intercept = curvature.clamp_min(LEAST_CURVATURE)
        scaling = torch.cat([along_axes, intercept], dim=2).rsqrt()
        return cls(objectives.axes, classes, scaling)

    def select(self, fits: Tensor) -> Product:
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
    """Coordinates by the Cholesky factor `lower` (c, q + 1, q + 1) of the Hessian of each score.

    Off-diagonal blocks, between two scores, are left to the L-BFGS pairs.
    """

    lower: Tensor

    @classmethod
    def at(cls, objectives: Objectives, point: Tensor) -> Factor | None:
        """Return the coordinates of all fits at a point (F, c, q + 1).

        None if rounding errors make a Hessian that is not positive definite.
        """
        factors = _hessians(objectives, point)
        # Each Hessian is replaced by its factor, one at a time, to save memory.
        for score in range(len(factors)):
            factors[score], failed = torch.linalg.cholesky_ex(factors[score])
            if failed:
                return None
        return cls(factors)

    def select(self, fits: Tensor) -> Factor:
        """Return the same coordinates, because all fits share their Hessians."""
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


_Part = Product | Factor  # coordinates of a subset of the fits


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Coordinates of F fits, in parts, each with the indices (F_part,) of its fits.

    A shared Hessian can be much larger than that of one of its fits, which would then seem to have
    converged. Each fit therefore also has its `own` product coordinates, for the stopping rule.
    """

    parts: tuple[tuple[Tensor, _Part], ...]
    own: Product

    @classmethod
    def at(cls, objectives: Objectives, point: Tensor, n_steps: int = 0) -> Coordinates:
        """Return the coordinates at a point (F, c, q + 1), after `n_steps` steps."""
        product = Product.at(objectives, point)
        parts: list[tuple[Tensor, _Part]] = []
        rest = []
        for group in torch.unique(objectives.group):
            places = torch.nonzero(objectives.group == group).flatten()
            of_group = objectives.select(places)
            is_worth_it = _is_worth_it(of_group, n_steps)
            factor = Factor.at(of_group, point[places]) if is_worth_it else None
            if factor is None:
                rest.append(places)
            else:
                parts.append((places, factor))
        if rest:
            places = torch.cat(rest)
            parts.append((places, product.select(places)))
        return cls(tuple(parts), product)

    def select(self, fits: Tensor) -> Coordinates:
        """Return the coordinates of some of the fits."""
        parts = []
        for places, part in self.parts:
            # The indices of the fits of this part: among `fits`, and within the part.
            new_places, in_part = torch.nonzero(fits[:, None] == places).T
            if len(new_places):
                parts.append((new_places, part.select(in_part)))
        return Coordinates(tuple(parts), self.own.select(fits))

    def to_point(self, step: Tensor) -> Tensor:
        """Return coefficients and intercepts (F, c, q + 1) for a step in these coordinates."""
        return centred(self._each(step, lambda part, steps: part.to_point(steps)))

    def of_gradient(self, gradient: Tensor) -> Tensor:
        """Return a gradient (F, c, q + 1) in these coordinates."""
        return self._each(centred(gradient), lambda part, gradients: part.of_gradient(gradients))

    def own_norms(self, gradient: Tensor) -> Tensor:
        """Return the norms (F,) of gradients (F, c, q + 1) in each fit's own coordinates."""
        found: Tensor = self.own.of_gradient(centred(gradient)).flatten(1).norm(dim=1)
        return found

    def _each(self, tensor: Tensor, convert: Callable[[_Part, Tensor], Tensor]) -> Tensor:
        """Return a tensor (F, ...) of all fits, converted part by part."""
        converted = torch.empty_like(tensor)
        for places, part in self.parts:
            converted[places] = convert(part, tensor[places])
        return converted


def hessian_size(n_coordinates: int) -> int:
    """Return the number of entries of the Hessian of one score; 0 if it is never computed.

    >>> hessian_size(768), hessian_size(4096)
    (591361, 0)
    """
    return (n_coordinates + 1) ** 2 if n_coordinates <= MOST_COORDINATES else 0


def _is_worth_it(objectives: Objectives, n_steps: int) -> bool:
    """Return whether the steps so far have cost enough, in multiplications, for a Hessian.

    It is never worth it with more than `MOST_COORDINATES` coordinates.
    """
    n, q = len(objectives.rows), len(objectives.variances)
    cost_of_step = 2 * n * q * max(len(objectives.group), LEAST_COLUMNS)
    cost_of_hessian = min(n, enough_rows(q)) * q**2 + q**3
    return hessian_size(q) > 0 and n_steps * cost_of_step >= WORTH * cost_of_hessian


def _hessians(objectives: Objectives, point: Tensor) -> Tensor:
    """Return the approximate mean Hessian (c, q + 1, q + 1) of the fits, for each score.

    The last column is not filled in: a Cholesky factorisation reads the lower triangle only.
    """
    penalty, units = objectives.penalty.mean(), objectives.units.mean(dim=0)
    c, q = point.shape[1], len(units)
    # The mean curvature (c, n) of every k-th row over the fits.
    every = max(1, len(objectives.rows) // MOST_ROWS)
    parts = []
    for block in objectives.blocks(point, every):
        predicted = block.probabilities()
        parts.append(((predicted - predicted**2) * block.weights[:, None]).mean(dim=0))
    curvature = torch.cat(parts, dim=1).mul_(every)
    # The rows of smallest curvature are left out; the rest is thinned at equal strides, weighted by
    # the stride.
    ascending, order = curvature.sort(dim=1)
    precise = torch.float32 if is_accelerator(objectives.rows.device) else torch.float64
    n_left_out = (ascending.cumsum(dim=1, dtype=precise) <= LEFT_OUT * penalty).sum(dim=1)
    hessians = curvature.new_zeros(c, q + 1, q + 1)
    for score in range(c):
        numbers = order[score, n_left_out[score] :]
        stride = max(1, len(numbers) // enough_rows(q))
        numbers = numbers[stride // 2 :: stride].sort().values
        # `numbers` are those of every k-th row, `part` those of all rows.
        for part, rows in objectives.rows.take(numbers * every):
            root = (stride * curvature[score, part // every]).sqrt()
            weighted = rows * root[:, None]
            hessians[score, :-1, :-1] += gram(weighted)
            hessians[score, -1, :-1] += root @ weighted
    hessians[:, -1, :-1] *= units
    hessians[:, :-1, :-1] *= units * units[:, None]
    diagonal = hessians.diagonal(dim1=1, dim2=2)  # a view
    rounding = torch.finfo(hessians.dtype).eps * diagonal.sum(dim=1, keepdim=True)
    diagonal[:, :-1] += penalty
    diagonal[:, -1] = curvature.sum(dim=1).clamp_min(LEAST_CURVATURE)
    diagonal += rounding  # so that rounding errors do not make it indefinite
    return hessians


def centred(values: Tensor) -> Tensor:
    """Return values (F, c, q + 1) minus their mean over the classes.

    The mean does not affect the predictions, but increases the penalty. The single score of two
    classes is unchanged.
    """
    return values - values.mean(dim=1, keepdim=True) if values.shape[1] > 1 else values
