"""Design matrices: the rows of one site, standardised once, and the objectives of fits on them.

Shapes of objectives: F fits, c scores per fit (one for two classes, else one per class), n rows, q
coordinates plus one for the intercept.

`shared` builds one matrix for many fits, each on its own share (weighted subset) of the rows;
`dual` builds one for a share of few rows, with at most as many coordinates as rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from probekit.probes.arrays import Features, Floats, Mask
from probekit.products import gram, linear

BLOCK_ROWS = 4096
# Matrices larger than this are not stored standardised, but standardised by block in each pass.
RESIDENT_BYTES = 4 << 30
# A variance below this fraction of the mean square is recomputed in two passes, for accuracy.
CANCELLED = 0.1


@dataclass(frozen=True, eq=False)
class DesignRows:
    """Standardised rows (n_samples, n_coordinates), stored or recomputed in each pass.

    Products are computed by blocks of rows; sums over blocks are accumulated in float64.
    """

    raw: Features  # (n_samples, n_coordinates)
    mean: Floats  # (n_coordinates,), to subtract
    scale: Floats  # (n_coordinates,), to divide by
    dtype: torch.dtype
    device: str = "cpu"

    def __len__(self) -> int:
        return len(self.raw)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield each block with the slice of its rows."""
        for start in range(0, len(self), BLOCK_ROWS):
            place = slice(start, start + BLOCK_ROWS)
            stored = self._resident
            yield place, (self._standardised(place) if stored is None else stored[place])

    def times(self, coef: Tensor) -> Tensor:
        """Return coef @ rows.T (k, n_samples), for coef (k, n_coordinates)."""
        product = coef.new_empty(len(coef), len(self))
        for place, block in self.blocks():
            product[:, place] = linear(coef, block)
        return product

    def sum_of(self, values: Tensor) -> Tensor:
        """Return values @ rows (k, n_coordinates), for values (k, n_samples)."""
        shape = len(values), self.raw.shape[1]
        total = torch.zeros(shape, dtype=torch.float64, device=self.device)
        for place, block in self.blocks():
            total += linear(values[:, place], block.T)
        return total.to(self.dtype)

    @cached_property
    def _resident(self) -> Tensor | None:
        """All standardised rows; None if they are too large to be stored."""
        n_bytes = self.raw.size * torch.finfo(self.dtype).bits // 8
        return self._standardised(slice(None)) if n_bytes <= RESIDENT_BYTES else None

    def _standardised(self, place: slice) -> Tensor:
        """Return the standardised rows of a slice."""
        block = torch.from_numpy(np.array(self.raw[place])).to(self.device, self.dtype)
        block -= torch.as_tensor(self.mean, dtype=self.dtype, device=self.device)
        block /= torch.as_tensor(self.scale, dtype=self.dtype, device=self.device)
        return block


@dataclass(frozen=True, eq=False)
class Design:
    """Standardised rows, and the conversion of their coefficients to raw features.

    Attributes:
        rows: the standardised features or, in the dual form, their coordinates.
        axes: (n_coordinates, n_coordinates), orthonormal columns: the principal axes of the rows.
        variances: (n_coordinates,), variances of the rows along the axes.
        weights: (n_shares, n_samples), weight of each row in the fits of each share.
        units: (n_shares, n_coordinates), reciprocal standard deviation of the rows within each
            share. It converts coefficients on features standardised within the share to
            coefficients on `rows`. It is 0 for a feature that is constant within the share, so that
            the feature is not used there.
        mean: (n_features,), mean of the raw features.
        back: (n_features, n_coordinates), or (n_features,) for a diagonal matrix: converts
            coefficients on `rows` to coefficients on raw features.
    """

    rows: DesignRows
    axes: Tensor
    variances: Tensor
    weights: Tensor
    units: Tensor
    mean: Floats
    back: Floats

    def fold(self, share: int, coef: Floats, intercept: Floats) -> tuple[Floats, Floats]:
        """Convert the coefficients and intercepts of a fit on a share to raw features.

        The fit used features that are standardised within the share. The intercept absorbs the
        mean: b' = b - sum(w * mean / scale).

        Args:
            share: the number of the share.
            coef: coefficients (n_out, n_coordinates) on standardised features.
            intercept: intercepts (n_out,) on standardised features.
        """
        coef = coef * self.units[share].cpu().numpy()
        raw = coef * self.back if self.back.ndim == 1 else coef @ self.back.T
        return raw, intercept - raw @ self.mean

    def unfold(self, share: int, raw: Floats, intercept: Floats) -> tuple[Floats, Floats]:
        """Convert coefficients and intercepts on raw features to those of a share; undoes `fold`.

        The design must not be dual: its coordinates are the features.
        """
        units = self.back * self.units[share].cpu().double().numpy()
        coef = np.divide(raw, units, out=np.zeros_like(raw), where=units > 0)
        return coef, intercept + raw @ self.mean


def shared(X: Features, weights: Sequence[Features], typical: Mask, device: str = "cpu") -> Design:
    """Return the design of rows X (n_samples, n_features) for fits on several shares of them.

    `weights` holds the row weights (n_samples,) of each share; feature scaling is estimated from
    the `typical` rows (n_samples,). Features are standardised once over the rows of all shares; the
    `units` of a share make its fits equivalent to fits on features standardised within it.

    >>> X = np.array([[1.0, 5.0], [3.0, 5.0], [8.0, 5.0]])
    >>> design = shared(X, [np.array([1.0, 1.0, 0.0]), np.ones(3)], np.ones(3, dtype=bool))
    >>> design.mean.tolist(), design.units.round(decimals=3).tolist()
    ([4.0, 5.0], [[2.944, 0.0], [1.0, 0.0]])
    """
    dtype = torch.float64 if X.dtype == np.float64 else torch.float32
    stacked = torch.as_tensor(np.stack(weights), dtype=dtype, device=device)
    counted = stacked.any(dim=0).cpu().numpy()  # the rows of at least one share
    # Mean and scale are rounded to the dtype, so that `fold` exactly undoes the standardisation.
    mean, scale = (
        torch.as_tensor(v).to(dtype).double().numpy() for v in moments(X, counted, typical)
    )
    rows = DesignRows(X, mean, scale, dtype, device)
    # Without typical rows, all rows of the shares are measured.
    is_measured = counted & typical if np.any(counted & typical) else counted
    correlations = _correlations(rows, torch.as_tensor(is_measured).to(device))
    variances, axes = torch.linalg.eigh(correlations)
    spread = _spread(rows, stacked, typical)
    return Design(
        rows=rows,
        axes=axes,
        variances=variances.clamp_min(0),
        weights=stacked,
        units=torch.where(spread > 0, 1 / spread, 0.0),
        mean=mean,
        back=1 / scale,
    )


def _correlations(rows: DesignRows, typical: Tensor) -> Tensor:
    """Return approximate correlations (n_features, n_features), from a sample of typical rows."""
    n_features = rows.raw.shape[1]
    # Every k-th typical row, so that at least enough rows are left, if there are as many.
    sample = torch.nonzero(typical).flatten()
    sample = sample[:: max(1, len(sample) // enough_rows(n_features))]
    is_sampled = torch.zeros_like(typical)
    is_sampled[sample] = True
    sums = torch.zeros(n_features, n_features, dtype=rows.dtype, device=rows.device)
    for place, block in rows.blocks():
        sums += gram(block[is_sampled[place]])
    return sums / len(sample)


def enough_rows(n_features: int) -> int:
    """Return the number of rows that suffices to estimate the covariance of the features.

    Curvature is computed from at most this many rows. It affects the speed of convergence, not the
    solution.

    >>> enough_rows(64), enough_rows(768)
    (2048, 3072)
    """
    return max(2048, 4 * n_features)


def dual(X: Features, weights: Features, typical: Mask, device: str = "cpu") -> Design:
    """Return the dual design of one share, with at most as many coordinates as rows.

    The solution of a penalised fit is a linear combination of its rows, so that the span of the
    standardised rows suffices. Rows with weight 0 are removed.

    >>> X = np.array([[1.0, 2.0, 3.0], [4.0, 0.0, 9.0], [9.0, 9.0, 9.0]])
    >>> design = dual(X, np.array([1.0, 1.0, 0.0]), typical=np.ones(3, dtype=bool))
    >>> len(design.rows), design.variances.shape, design.back.shape
    (2, torch.Size([1]), (3, 1))
    """
    counted = weights > 0
    mean, scale = moments(X[counted], weights[counted], typical[counted])
    Z = (X[counted] - mean) / scale
    squares, vectors = np.linalg.eigh(Z @ Z.T)
    spanned = squares > squares.max(initial=0) * len(Z) * np.finfo(np.float64).eps
    # Z = vectors diag(lengths) V^T (singular values). The coordinates of the rows are
    # Z V = vectors diag(lengths), and V = Z^T vectors diag(1 / lengths) leads back to features.
    lengths = np.sqrt(squares[spanned])
    coordinates = vectors[:, spanned] * lengths
    n = coordinates.shape[1]
    return Design(
        rows=DesignRows(coordinates, np.zeros(n), np.ones(n), torch.float64, device),
        axes=torch.eye(n, dtype=torch.float64, device=device),
        variances=torch.as_tensor(squares[spanned] / len(Z), device=device),
        weights=torch.as_tensor(weights[None, counted], dtype=torch.float64, device=device),
        units=torch.ones(1, n, dtype=torch.float64, device=device),
        mean=mean,
        back=(Z.T @ vectors[:, spanned]) / lengths / scale[:, None],
    )


def moments(X: Features, weights: Features, typical: Mask) -> tuple[Floats, Floats]:
    """Return weighted mean and standard deviation (n_features,) of the typical rows of X.

    All rows are used if fewer than two typical rows have a weight other than 0. A constant feature
    has an infinite standard deviation, so that dividing by it makes the feature 0.

    >>> mean, spread = moments(np.array([[1.0, 5.0], [3.0, 5.0]]), np.ones(2), np.ones(2, bool))
    >>> mean.tolist(), spread.tolist()
    ([2.0, 5.0], [1.0, inf])
    """
    share = weights * typical if np.count_nonzero(weights * typical) > 1 else weights
    share = share / share.sum(dtype=np.float64)  # weights that sum to 1
    places = [slice(start, start + BLOCK_ROWS) for start in range(0, len(X), BLOCK_ROWS)]
    mean = sum(share[place] @ X[place].astype(np.float64) for place in places)
    squares = sum(share[place] @ (X[place] - mean) ** 2 for place in places)
    spread = np.sqrt(squares)
    return mean, np.where(spread <= _rounding(X) * np.abs(mean), np.inf, spread)


def _rounding(X: Features) -> float:
    """Return the standard deviation, relative to the mean, below which a feature is constant.

    The sum of n numbers has a rounding error of up to n float64 epsilons, and the activation of
    the same token differs in its last bits between batches of different sizes.
    """
    return max(10 * float(np.finfo(X.dtype).eps), len(X) * float(np.finfo(np.float64).eps))


def _spread(rows: DesignRows, weights: Tensor, typical: Mask) -> Tensor:
    """Return the standard deviation (n_shares, n_features) of `rows` within each share.

    It is that of the typical rows, or of all rows of a share with fewer than two typical ones.
    """
    used = weights * torch.as_tensor(typical, device=weights.device)
    few = (used > 0).sum(dim=1, keepdim=True) < 2
    used = torch.where(few, weights, used)
    used = used / used.sum(dim=1, keepdim=True)  # weights that sum to 1 in each share
    squares = sum(used[:, place] @ block**2 for place, block in rows.blocks())
    variance = squares - rows.sum_of(used) ** 2
    spread = variance.clamp_min(0).sqrt()
    # If the two terms of a variance nearly cancel, rounding errors dominate it. This is rare.
    for share in torch.nonzero((variance < CANCELLED * squares).any(dim=1)).flatten():
        spread[share] = _exact_spread(rows, used[share]).to(spread)
    return spread


def _exact_spread(rows: DesignRows, weights: Tensor) -> Tensor:
    """Return the standard deviation (n_features,) in float64; 0 if it is only a rounding error.

    `weights` (n_samples,) sum to 1.
    """
    weights = weights.double()
    sums = [weights[place] @ block.double() for place, block in rows.blocks()]
    mean = torch.stack(sums).sum(dim=0)
    squares = [weights[place] @ (block.double() - mean) ** 2 for place, block in rows.blocks()]
    spread = torch.stack(squares).sum(dim=0).sqrt()
    raw_mean = mean + torch.as_tensor(rows.mean / rows.scale, device=mean.device)
    rounding = _rounding(rows.raw) * (mean.abs() + raw_mean.abs())
    return torch.where(spread > rounding, spread, 0.0)


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
            # Above 40, softplus(x) rounds to x in float64; the default threshold is too low for it.
            loss = softplus(score, threshold=40) - score * is_second
            slopes = (torch.sigmoid(score) - is_second)[:, None]
        else:
            slopes = scores.softmax(dim=1)  # minus 1 at the true class, subtracted in place below
            of_truth = slopes.gather(1, self.codes[:, None])
            loss = -of_truth[:, 0].clamp_min(torch.finfo(of_truth.dtype).tiny).log()
            slopes.scatter_add_(1, self.codes[:, None], torch.full_like(of_truth, -1))
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
