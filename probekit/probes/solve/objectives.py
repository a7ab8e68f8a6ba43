"""Objectives of many logistic fits on the same rows, with their gradients.

Shapes: F fits, c scores per fit (one for two classes, else one per class), n rows, q coordinates
plus one for the intercept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import softplus

from probekit.probes.solve.design import DesignRows


@dataclass(frozen=True, eq=False)
class Objectives:
    """Objectives of F fits on the same rows: mean cross-entropy plus L2 penalty.

    Attributes:
        rows: The standardised rows (n, q).
        axes: Principal axes (q, q) of the rows.
        variances: Variances (q,) of the rows along the axes.
        codes: Label codes (F, n).
        weights: Row weights (F, n), which sum to 1 in each fit.
        units: Factors (F, q) that convert the coefficients of a fit to coefficients on the rows.
        penalty: Regularisation strength (F,): the factor of half the squared coefficients.
        group: Group number (F,); fits of a group have about the same Hessian.
    """

    rows: DesignRows
    axes: Tensor
    variances: Tensor
    codes: Tensor
    weights: Tensor
    units: Tensor
    penalty: Tensor
    group: Tensor

    def select(self, fits: Tensor | slice) -> Objectives:
        """Return the objectives of some of the fits."""
        per_fit = ("codes", "weights", "units", "penalty", "group")
        return replace(self, **{name: getattr(self, name)[fits] for name in per_fit})

    def scores(self, point: Tensor) -> Tensor:
        """Return the scores (F, c, n) for coefficients and intercepts (F, c, q + 1)."""
        coef = point[..., :-1] * self.units[:, None]
        products = self.rows.times(coef.flatten(0, 1))
        return products.view(*point.shape[:2], -1).add_(point[..., -1:])

    def losses(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy (F,) in float64, and its gradient (F, c, n) in scores."""
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
        """Return the second derivative (F, c, n) of the loss in each score."""
        predicted = probabilities(scores)
        return (predicted - predicted**2).mul_(self.weights[:, None])

    def gradient(self, slopes: Tensor, point: Tensor) -> Tensor:
        """Return the gradient (F, c, q + 1) at a point, given the loss gradient in the scores."""
        product = self.rows.sum_of(slopes.flatten(0, 1)).view(*slopes.shape[:2], -1)
        product *= self.units[:, None]
        product += self.penalty[:, None, None] * point[..., :-1]
        return torch.cat([product, slopes.sum(dim=2, keepdim=True)], dim=2)

    def penalties(self, first: Tensor, second: Tensor) -> Tensor:
        """Return penalty times inner product of the coefficients of two points (F,)."""
        return self.penalty * dot(first[..., :-1], second[..., :-1])


def probabilities(scores: Tensor) -> Tensor:
    """Return the probabilities (F, c, n) of the second of two classes, or of each class."""
    return torch.sigmoid(scores) if scores.shape[1] == 1 else scores.softmax(dim=1)


def dot(first: Tensor, second: Tensor) -> Tensor:
    """Return the inner product (F,) of each fit."""
    found: Tensor = torch.linalg.vecdot(first.flatten(1), second.flatten(1))
    return found
