"""Design matrices: the rows of one site, standardised once, and the objectives of fits on them.

Shapes of objectives: F fits, c scores per fit (one for two classes, else one per class), n rows, q
coordinates plus one for the intercept.

`shared` builds one matrix for many fits, each on its own share (weighted subset) of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from probekit.lazy_rows import (
    Codes,
    Features,
    Floats,
    LazyRows,
    Mask,
    Rows,
    Sum,
    fetched,
    rows_of_block,
)
from probekit.memory import available_memory, is_accelerator
from probekit.products import eigh, gram, linear, put, weighted_sums

# Size of the standardised rows that are stored; the others are standardised by block in each pass.
RESIDENT_BYTES = 4 << 30
MAPPED_BYTES = 1 << 28  # the same for rows in a file
# A variance below this fraction of the mean square is recomputed in two passes, for accuracy.
CANCELLED = 0.1


@dataclass(frozen=True, eq=False)
class DesignRows:
    """Standardised rows (n_samples, n_coordinates), which are read by blocks.

    The first blocks are stored, as many as fit into the memory allowed. The others are standardised
    again in each pass, to the same numbers.
    """

    raw: LazyRows  # (n_samples, n_coordinates)
    mean: Floats  # (n_coordinates,), to subtract
    scale: Floats  # (n_coordinates,), to divide by
    dtype: torch.dtype

    def __len__(self) -> int:
        return len(self.raw)

    @property
    def device(self) -> str:
        """The device of the rows."""
        return self.raw.device

    def blocks(self, every: int = 1) -> Iterator[tuple[slice, Tensor]]:
        """Yield each block of every k-th row, with the slice of its rows."""
        places = self._places(self._at_once * every, len(self), every)
        n_stored = sum(place.stop <= len(self._stored) for place in places)
        for place in places[:n_stored]:
            yield place, self._stored[place]
        others = places[n_stored:]
        yield from zip(others, self._standardised(others), strict=True)

    def take(self, numbers: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the rows of some row numbers by blocks, with the numbers of the block."""
        places = self._places(self._at_once, len(numbers))
        on_host = numbers.cpu().numpy()
        blocks = self._standardised([on_host[place] for place in places])
        yield from ((numbers[place], block) for place, block in zip(places, blocks, strict=True))

    @property
    def _at_once(self) -> int:
        """The number of rows of a block."""
        return rows_of_block(self.raw.shape[1], self.device)

    @cached_property
    def _stored(self) -> Tensor:
        """The rows of the first blocks."""
        most: float = MAPPED_BYTES if self.raw.is_mapped else RESIDENT_BYTES
        if self.raw.is_elsewhere:
            most = available_memory(self.device) / 2
        n_stored = int(most // (self.raw.shape[1] * torch.finfo(self.dtype).bits // 8 or 1))
        n_stored = len(self) if n_stored >= len(self) else n_stored - n_stored % self._at_once
        shape = n_stored, self.raw.shape[1]
        stored = torch.empty(shape, dtype=self.dtype, device=self.device)
        places = self._places(self._at_once, n_stored)
        for place, block in zip(places, self._standardised(places), strict=True):
            stored[place] = block
        return stored

    @staticmethod
    def _places(step: int, n_rows: int, every: int = 1) -> list[slice]:
        """Return the slices of every k-th row up to `n_rows`, `step` rows apart."""
        starts = range(0, n_rows, step)
        return [slice(start, min(start + step, n_rows), every) for start in starts]

    def _standardised(self, places: Sequence[slice | Codes]) -> Iterator[Tensor]:
        """Yield the rows of each slice or array of row numbers, in new memory."""
        if self.raw.is_elsewhere:
            yield from self.raw.scaled(self.mean, self.scale).tensors(places)
            return
        dtype = np.float64 if self.dtype == torch.float64 else np.float32
        mean, scale = self.mean.astype(dtype), self.scale.astype(dtype)
        for place in places:
            block = np.subtract(self.raw[place], mean)
            block /= scale
            yield torch.from_numpy(block)


@dataclass(frozen=True, eq=False)
class Design:
    """Standardised rows, and the conversion of their coefficients to raw features.

    Attributes:
        rows: the standardised features.
        axes: (n_coordinates, n_coordinates), orthonormal columns: the principal axes of the rows.
        variances: (n_coordinates,), variances of the rows along the axes.
        weights: (n_shares, n_samples), weight of each row in the fits of each share, or whether it
            belongs to the share.
        largest: number that the weights were divided by: the largest, so that float32 can hold
            them.
        units: (n_shares, n_coordinates), reciprocal standard deviation of the rows within each
            share. It converts coefficients on features standardised within the share to
            coefficients on `rows`. It is 0 for a feature that is constant within the share, so that
            the feature is not used there.
        mean: (n_features,), mean of the raw features.
        back: (n_features,), converts coefficients on `rows` to coefficients on raw features.
    """

    rows: DesignRows
    axes: Tensor
    variances: Tensor
    weights: Tensor
    largest: float
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
        coef = coef * fetched(self.units[share])
        raw = coef * self.back
        return raw, intercept - raw @ self.mean

    def unfold(self, share: int, raw: Floats, intercept: Floats) -> tuple[Floats, Floats]:
        """Convert coefficients and intercepts on raw features to a share's; undoes `fold`."""
        units = self.back * fetched(self.units[share])
        coef = np.divide(raw, units, out=np.zeros_like(raw), where=units > 0)
        return coef, intercept + raw @ self.mean


def shared(X: Rows, weights: Sequence[Features | Mask], typical: Mask) -> Design:
    """Return the design of rows X (n_samples, n_features) for fits on several shares of them.

    `weights` holds the row weights (n_samples,) of each share, or which rows belong to it; feature
    scaling is estimated from the `typical` rows (n_samples,). Features are standardised once over
    the rows of all shares; the `units` of a share make its fits equivalent to fits on features
    standardised within it.

    >>> X = np.array([[1.0, 5.0], [3.0, 5.0], [8.0, 5.0]])
    >>> design = shared(X, [np.array([1.0, 1.0, 0.0]), np.ones(3)], np.ones(3, dtype=bool))
    >>> design.mean.tolist(), design.units.round(decimals=3).tolist()
    ([4.0, 5.0], [[2.944, 0.0], [1.0, 0.0]])
    """
    kind = np.float64 if X.dtype == np.float64 else np.float32
    dtype = torch.float64 if X.dtype == np.float64 else torch.float32
    of_rows: NDArray[Any] = np.stack(weights)
    largest = float(of_rows.max())
    if of_rows.dtype != bool:
        of_rows = (of_rows / largest).astype(kind)
    counted: Mask = np.any(of_rows, axis=0)  # the rows of at least one share
    # Mean and scale are rounded to the dtype, so that `fold` exactly undoes the standardisation.
    mean, scale = (v.astype(kind).astype(np.float64) for v in moments(X, counted, typical))
    rows = DesignRows(LazyRows.of(X), mean, scale, dtype)
    # Without typical rows, all rows of the shares are measured.
    is_measured = counted & typical if np.any(counted & typical) else counted
    # Not kept in a variable: at 4096 features, correlations have 67 MB.
    variances, axes = eigh(_correlations(rows, is_measured))
    stacked = put(of_rows, rows.device)
    spread = _spread(rows, stacked, typical)
    return Design(
        rows=rows,
        axes=axes,
        variances=variances.clamp_min(0),
        weights=stacked,
        largest=largest,
        units=torch.where(spread > 0, 1 / spread, 0.0),
        mean=mean,
        back=1 / scale,
    )


def _correlations(rows: DesignRows, typical: Mask) -> Tensor:
    """Return approximate correlations (n_features, n_features), from a sample of typical rows."""
    n_features = rows.raw.shape[1]
    # Every k-th typical row, so that at least enough rows are left, if there are as many.
    numbers = np.flatnonzero(typical)
    sample = put(numbers[:: max(1, len(numbers) // enough_rows(n_features))], rows.device)
    sums = torch.zeros(n_features, n_features, dtype=rows.dtype, device=rows.device)
    for _, block in rows.take(sample):
        sums += gram(block)
    return sums / len(sample)


def enough_rows(n_features: int) -> int:
    """Return the number of rows that suffices to estimate the covariance of the features.

    Curvature is computed from at most this many rows. It affects the speed of convergence, not the
    solution.

    >>> enough_rows(64), enough_rows(768)
    (2048, 3072)
    """
    return max(2048, 4 * n_features)


def moments(X: Rows, weights: Features | Mask, typical: Mask) -> tuple[Floats, Floats]:
    """Return weighted mean and standard deviation (n_features,) of the typical rows of X.

    All rows are used if fewer than two typical rows have a weight other than 0. A constant feature
    has an infinite standard deviation, so that dividing by it makes the feature 0.

    >>> mean, spread = moments(np.array([[1.0, 5.0], [3.0, 5.0]]), np.ones(2), np.ones(2, bool))
    >>> mean.tolist(), spread.tolist()
    ([2.0, 5.0], [1.0, inf])
    """
    share = weights * typical if np.count_nonzero(weights * typical) > 1 else weights
    rows = LazyRows.of(X)
    if rows.is_elsewhere:
        return _moments_elsewhere(rows, share.astype(np.float32))
    # Mean and sum of squared deviations so far; those of each block are merged.
    total, mean, squares = 0.0, np.zeros(X.shape[1]), np.zeros(X.shape[1])
    for place, block in rows.blocks():
        of_block = share[place].astype(np.float64)
        n = of_block.sum()
        if n > 0:
            own = block.astype(np.float64)
            moved = of_block @ own / n - mean
            own -= mean + moved
            squares += of_block @ np.square(own, out=own) + moved**2 * (total * n / (total + n))
            mean += moved * (n / (total + n))
            total += n
    spread = np.sqrt(squares / total)
    return mean, np.where(spread <= _rounding(X) * np.abs(mean), np.inf, spread)


def _moments_elsewhere(rows: LazyRows, share: Features) -> tuple[Floats, Floats]:
    """Return the moments of rows on an accelerator; see `moments`."""
    used = rows.select(share > 0)  # their first block is centred, not that of rows without weight
    centre, total = used.centre(), float(share.sum(dtype=np.float64))
    there, sums, squares = rows.put(centre), Sum(rows.device), Sum(rows.device)
    for block, weights in used.parts(share[share > 0]):
        moved = block - there
        sums.add(weights @ moved)
        squares.add(weights @ moved**2)
    moved = sums.array() / total
    mean = centre + moved
    spread = np.sqrt(np.maximum(squares.array() / total - moved**2, 0))
    return mean, np.where(spread <= _rounding(rows) * np.abs(mean), np.inf, spread)


def _rounding(X: Rows) -> float:
    """Return the standard deviation, relative to the mean, below which a feature is constant.

    The sum of n numbers has a rounding error of up to n float64 epsilons, and the activation of
    the same token differs in its last bits between batches of different sizes.
    """
    return max(10 * float(np.finfo(X.dtype).eps), len(X) * float(np.finfo(np.float64).eps))


def _spread(rows: DesignRows, weights: Tensor, typical: Mask) -> Tensor:
    """Return the standard deviation (n_shares, n_features) of `rows` within each share.

    It is that of the typical rows, or of all rows of a share with fewer than two typical ones.
    """
    used = weights * torch.tensor(typical, device=weights.device)  # a copy: workers cannot write
    few = (used > 0).sum(dim=1, keepdim=True) < 2
    used = torch.where(few, weights, used)
    precise = torch.float32 if is_accelerator(rows.device) else torch.float64
    totals = used.sum(dim=1, keepdim=True, dtype=precise)
    sums, squares = Sum(rows.device), Sum(rows.device)
    for place, block in rows.blocks():
        of_block = used[:, place].to(rows.dtype)
        sums.add(weighted_sums(of_block, block))
        squares.add(weighted_sums(of_block, block**2))
    mean_squares = squares.total / totals
    variance = mean_squares - (sums.total / totals) ** 2
    spread = variance.clamp_min(0).sqrt()
    # If the two terms of a variance nearly cancel, rounding errors dominate it. This is rare.
    for share in torch.nonzero((variance < CANCELLED * mean_squares).any(dim=1)).flatten():
        spread[share] = _exact_spread(rows, used[share] / totals[share])
    found: Tensor = spread.to(rows.dtype)
    return found


def _exact_spread(rows: DesignRows, weights: Tensor) -> Tensor:
    """Return the standard deviation (n_features,) in two passes; 0 if it is only a rounding error.

    `weights` (n_samples,) sum to 1; sums are computed in their dtype.
    """
    sums = [weights[place] @ block.to(weights.dtype) for place, block in rows.blocks()]
    mean = torch.stack(sums).sum(dim=0)
    squares = [
        weights[place] @ (block.to(weights.dtype) - mean) ** 2 for place, block in rows.blocks()
    ]
    spread = torch.stack(squares).sum(dim=0).sqrt()
    raw_mean = mean + put(rows.mean / rows.scale, rows.device)
    rounding = _rounding(rows.raw) * (mean.abs() + raw_mean.abs())
    return torch.where(spread > rounding, spread, 0.0)


@dataclass(frozen=True, eq=False)
class Objectives:
    """Objectives of F fits on the same rows: mean cross-entropy plus L2 penalty.

    Label columns and shares are stored once, for all fits that have them.

    Attributes:
        rows: The standardised rows (n, q).
        axes: Principal axes (q, q) of the rows.
        variances: Variances (q,) of the rows along the axes.
        columns: Class (n_columns, n) of each row in each label column.
        shares: Row weights (n_shares, n) of each share, or which rows belong to it.
        column: Index (F,) of the label column of each fit.
        share: Index (F,) of the share of each fit.
        factor: Factor (F,) of the row weights of each fit.
        class_weights: Factor (F, n_classes) of the row weights of each class; None for equal ones.
            All three factors together sum to 1 in each fit.
        offsets: Known scores (F, c, n), which those of the fits are added to; None for none.
        units: Factors (F, q) that convert the coefficients of a fit to coefficients on the rows.
        penalty: Regularisation strength (F,): the factor of half the squared coefficients.
        group: Group number (F,); fits of a group have about the same Hessian.
    """

    rows: DesignRows
    axes: Tensor
    variances: Tensor
    columns: Tensor
    shares: Tensor
    column: Tensor
    share: Tensor
    factor: Tensor
    class_weights: Tensor | None
    offsets: Tensor | None
    units: Tensor
    penalty: Tensor
    group: Tensor

    def select(self, fits: Tensor | slice) -> Objectives:
        """Return the objectives of some of the fits."""
        per_fit = "column share factor class_weights offsets units penalty group"
        found = {name: getattr(self, name) for name in per_fit.split()}
        selected: dict[str, Any] = {
            name: None if one is None else one[fits] for name, one in found.items()
        }
        return replace(self, **selected)

    def blocks(self, point: Tensor, every: int = 1) -> Iterator[RowBlock]:
        """Yield every k-th row by blocks, at coefficients and intercepts (F, c, q + 1)."""
        coef = (point[..., :-1] * self.units[:, None]).flatten(0, 1)
        for place, rows in self.rows.blocks(every):
            codes = self.columns[:, place].index_select(0, self.column)
            weights = self.shares[:, place].index_select(0, self.share) * self.factor[:, None]
            if self.class_weights is not None:
                weights *= self.class_weights.gather(1, codes.long())
            scores = linear(coef, rows).view(*point.shape[:2], -1).add_(point[..., -1:])
            if self.offsets is not None:
                scores += self.offsets[..., place]
            yield RowBlock(rows, codes, weights, scores)

    def at(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """Return the objectives (F,) and their gradients (F, c, q + 1) at a point.

        A point has the coefficients and intercepts (F, c, q + 1) of all fits. The objectives are in
        float64, on an accelerator in float32.
        """
        coef, device = point[..., :-1], self.rows.device
        value, of_coef, of_intercept = Sum(device), Sum(device), Sum(device)
        value.add(0.5 * (self.penalty * dot(coef, coef)))
        for block in self.blocks(point):
            losses, slopes = block.losses()
            value.add(losses)
            of_coef.add(weighted_sums(slopes.flatten(0, 1), block.rows).view(coef.shape))
            of_intercept.add(slopes.sum(dim=2, keepdim=True))
        gradient = of_coef.total * self.units[:, None] + self.penalty[:, None, None] * coef
        return value.total, torch.cat([gradient, of_intercept.total], dim=2).to(point.dtype)


class RowBlock(NamedTuple):
    """A block of rows of `Objectives`, at a point.

    Attributes:
        rows: Standardised rows (b, q).
        codes: Class (F, b) of each row in each fit.
        weights: Weight (F, b) of each row in each fit.
        scores: Scores (F, c, b).
    """

    rows: Tensor
    codes: Tensor
    weights: Tensor
    scores: Tensor

    def losses(self) -> tuple[Tensor, Tensor]:
        """Return the sum of the losses (F,), and its gradient (F, c, b) in the scores.

        It overwrites the scores.
        """
        scores, codes, weights = self.scores, self.codes, self.weights
        if scores.shape[1] == 1:
            score = scores[:, 0]
            # Above 40, softplus(x) rounds to x in float64; the default threshold is too low for it.
            loss = softplus(score, threshold=40) - score * codes
            slopes = scores.sigmoid_().sub_(codes[:, None])
        else:
            slopes = scores.softmax(dim=1)  # minus 1 at the true class, subtracted in place below
            is_true = codes.long()[:, None]
            of_truth = slopes.gather(1, is_true)
            loss = -of_truth[:, 0].clamp_min(torch.finfo(of_truth.dtype).tiny).log()
            slopes.scatter_add_(1, is_true, torch.full_like(of_truth, -1))
        slopes.mul_(weights[:, None])
        return torch.linalg.vecdot(loss, weights), slopes

    def probabilities(self) -> Tensor:
        """Return the probabilities (F, c, b) of the second of two classes, or of each class."""
        scores = self.scores
        return torch.sigmoid(scores) if scores.shape[1] == 1 else scores.softmax(dim=1)


def dot(first: Tensor, second: Tensor) -> Tensor:
    """Return the inner product (F,) of each fit."""
    found: Tensor = torch.linalg.vecdot(first.flatten(1), second.flatten(1))
    return found
