"""What many logistic fits on the same rows minimise, with its slopes.

Shapes: F fits, c scores a fit (one for two classes, else one a class), n rows, q coordinates and
one more for the intercept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from probekit.probes.solve.design import Rows


@dataclass(frozen=True, eq=False)
class Objectives:
    """What F fits on the same rows minimise: mean cross-entropy and penalty.

    `codes` (F, n) are numbers of classes; `weights` (F, n) sum to one in each fit; `units` (F, q)
    turn the coefficients of a fit to those on the rows; `penalty` (F,) is what half the square of
    each coefficient costs; `group` (F,) is the same for fits with about the same Hessian.
    """

    rows: Rows
    axes: Tensor
    variances: Tensor
    codes: Tensor
    weights: Tensor
    units: Tensor
    penalty: Tensor
    group: Tensor

    def keep(self, fits: Tensor | slice) -> Objectives:
        """Return the objectives of some of the fits."""
        return Objectives(
            self.rows,
            self.axes,
            self.variances,
            self.codes[fits],
            self.weights[fits],
            self.units[fits],
            self.penalty[fits],
            self.group[fits],
        )

    def scores(self, point: Tensor) -> Tensor:
        """Return the scores (F, c, n) at coefficients and intercepts (F, c, q + 1)."""
        coef = point[..., :-1] * self.units[:, None]
        products = self.rows.times(coef.flatten(0, 1))
        return products.view(*point.shape[:2], -1).add_(point[..., -1:])

    def losses(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy (F,) in float64, and its slopes (F, c, n) in the scores."""
        if scores.shape[1] == 1:
            score, is_second = scores[:, 0], self.codes
            loss = softplus(score, threshold=40) - score * is_second
            slopes = (torch.sigmoid(score) - is_second)[:, None]
        else:
            slopes = scores.softmax(dim=1)
            own = slopes.gather(1, self.codes[:, None])
            loss = -own[:, 0].clamp_min(torch.finfo(own.dtype).tiny).log()
            slopes.scatter_add_(1, self.codes[:, None], torch.full_like(own, -1))
        slopes.mul_(self.weights[:, None])
        return (loss * self.weights).sum(dim=1, dtype=torch.float64), slopes

    def curvature(self, scores: Tensor) -> Tensor:
        """Return how fast the slopes (F, c, n) change with their scores."""
        likely = probabilities(scores)
        return (likely - likely**2).mul_(self.weights[:, None])

    def gradient(self, slopes: Tensor, point: Tensor) -> Tensor:
        """Return the gradient (F, c, q + 1) at a point with these slopes in the scores."""
        product = self.rows.sum_of(slopes.flatten(0, 1)).view(*slopes.shape[:2], -1)
        product *= self.units[:, None]
        product += self.penalty[:, None, None] * point[..., :-1]
        return torch.cat([product, slopes.sum(dim=2, keepdim=True)], dim=2)

    def penalties(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the penalty's bilinear form (F,) of two points."""
        return self.penalty * dot(first[..., :-1], second[..., :-1])


def probabilities(scores: Tensor) -> Tensor:
    """Return those (F, c, n) that scores stand for: of the second class, or of each."""
    return torch.sigmoid(scores) if scores.shape[1] == 1 else scores.softmax(dim=1)


def dot(first: Tensor, second: Tensor) -> Tensor:
    """Return the inner product (F,) of each fit."""
    product: Tensor = torch.linalg.vecdot(first.flatten(1), second.flatten(1))
    return product
