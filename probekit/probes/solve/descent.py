"""L-BFGS on many logistic objectives at once, in coordinates that make their Hessians alike.

Shapes: F fits, c scores a fit (one for two classes, else one a class), n rows, q coordinates and
one more for the intercept.

Source: Nocedal and Wright (2006), Numerical Optimization, chapters 3 and 7.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from probekit.probes.solve.coordinates import Coordinates, centred
from probekit.probes.solve.objectives import Objectives, dot

MEMORY = 10  # pairs of steps and changes of the gradient that L-BFGS remembers
TRIALS = 10  # step lengths tried along one direction
CURVATURE = 0.9  # share of the slope that may be left at the end of a step
REFRESH = (10, 30, 90)  # steps after which the coordinates are made anew
RECOMPUTE = 25  # steps after which the scores are computed from scratch, against drift
PATIENCE = 20  # steps in a row that get no further, after which rounding is all that is left
BEYOND = 10  # most steps from the tolerance to the aim


@dataclass(eq=False)
class _State:
    """Where the fits that are still on their way stand."""

    number: Tensor  # (F,), of each fit in the batch
    beyond: Tensor  # (F,), steps since the fit came within its tolerance, from 1; 0 before
    idle: Tensor  # (F,), steps in a row after which neither value nor gradient was a new least
    least: tuple[Tensor, Tensor]  # (F,) each, the least value and the least excess so far
    point: Tensor  # (F, c, q + 1)
    scores: Tensor  # (F, c, n)
    value: Tensor  # (F,)
    raw: Tensor  # (F, c, q + 1), the gradient
    gradient: Tensor  # (F, c, q + 1), in the coordinates
    pairs: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    def keep(self, fits: Tensor) -> _State:
        """Return the state of some of the fits."""
        return _State(
            self.number[fits],
            self.beyond[fits],
            self.idle[fits],
            (self.least[0][fits], self.least[1][fits]),
            self.point[fits],
            self.scores[fits],
            self.value[fits],
            self.raw[fits],
            self.gradient[fits],
            [(step[fits], change[fits], inverse[fits]) for step, change, inverse in self.pairs],
        )

    @cached_property
    def direction(self) -> Tensor:
        """Where L-BFGS goes next (F, c, q + 1), in the coordinates."""
        return -_inverse_hessian_times(self.gradient, self.pairs)

    @cached_property
    def slope(self) -> Tensor:
        """The slope (F,) of the objective along the direction."""
        return dot(self.gradient, self.direction)

    @cached_property
    def excess(self) -> Tensor:
        """About how far each objective (F,) is above its minimum, as a share of its value.

        The inverse Hessian is that of L-BFGS or, if that says more, the identity.
        """
        decrement = torch.maximum(-self.slope, dot(self.gradient, self.gradient))
        return 0.5 * decrement / self.value

    def watch(self) -> None:
        """Take account of whether the fits have come further than before."""
        now = self.value, self.excess
        is_idle = (now[0] >= self.least[0]) & (now[1] >= self.least[1])
        self.idle = torch.where(is_idle, self.idle + 1, 0)
        self.least = torch.minimum(now[0], self.least[0]), torch.minimum(now[1], self.least[1])


@dataclass(frozen=True)
class StoppingRule:
    """When a fit ends, by how far its objective is above the minimum, as a share of its value.

    Attributes:
        tolerance: A fit that ends above it has not converged.
        max_iter: Most steps.
        aim: Where it ends, if less and if it gets there in a few steps more. Weights are off by
            about the root of it.
    """

    tolerance: float = 1e-8
    max_iter: int = 2000
    aim: float = 1e-10


@dataclass(frozen=True, eq=False)
class Minimum:
    """Where one fit ended, `point` (c, q + 1), and how it came there."""

    point: Tensor
    value: float
    gradient_norm: float
    n_iter: int
    converged: bool


def descend(
    objectives: Objectives, start: Tensor, effort: StoppingRule
) -> Iterator[tuple[int, Minimum]]:
    """Yield the number of each fit that ends, and where, setting out from `start` (F, c, q + 1).

    A fit ends where it aims at, where rounding lets it go no lower, or after the most steps.
    """
    aim, max_iter = min(effort.aim, effort.tolerance), effort.max_iter
    numbers, start = torch.arange(len(start), device=start.device), centred(start)
    scores = objectives.scores(start)
    coordinates = Coordinates.at(objectives, scores)
    value, raw = _evaluated(objectives, start, objectives.losses(scores))
    worst, none = torch.full_like(value, torch.inf), torch.zeros_like(numbers)
    state = _State(
        numbers,
        none,
        none.clone(),
        (worst, worst),
        start,
        scores,
        value,
        raw,
        coordinates.of_gradient(raw),
    )
    for n_iter in range(max_iter + 1):
        excess, norms = state.excess, state.gradient.flatten(1).norm(dim=1)
        stopped = (state.idle == PATIENCE) | (state.beyond == BEYOND) | (n_iter == max_iter)
        if ((excess <= effort.tolerance) | stopped).any():
            # What fits share may flatter one of them: it must hold in its own coordinates as well.
            norms = torch.maximum(norms, coordinates.own_norms(state.raw))
            excess = torch.maximum(excess, 0.5 * norms**2 / state.value)
        state.beyond += (excess <= effort.tolerance) | (state.beyond > 0)
        ended, converged = (excess <= aim) | stopped, state.beyond > 0
        for fit in torch.nonzero(ended).flatten().tolist():
            norm = float(norms[fit])
            yield int(state.number[fit]), _solution(state, fit, norm, n_iter, bool(converged[fit]))
        if ended.all():
            break
        if ended.any():
            going = torch.nonzero(~ended).flatten()
            objectives, coordinates = objectives.keep(going), coordinates.keep(going)
            state = state.keep(going)
        if n_iter in REFRESH:
            del coordinates  # their memory is needed for the new ones
            coordinates = Coordinates.at(objectives, state.scores, n_iter)
            state = replace(
                state,
                gradient=coordinates.of_gradient(state.raw),
                pairs=[],
                idle=torch.zeros_like(state.idle),
                least=(state.least[0], torch.full_like(state.value, torch.inf)),
            )
        state = _step(objectives, coordinates, state, recompute=n_iter % RECOMPUTE == 0)


def _evaluated(
    objectives: Objectives, point: Tensor, known: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return value (F,) and gradient (F, c, q + 1) at a point with these losses and slopes."""
    losses, slopes = known
    value = losses + 0.5 * objectives.penalties(point, point)
    return value, objectives.gradient(slopes, point)


def _solution(
    state: _State, fit: int, gradient_norm: float, n_iter: int, converged: bool
) -> Minimum:
    return Minimum(
        point=state.point[fit].clone(),
        value=float(state.value[fit]),
        gradient_norm=gradient_norm,
        n_iter=n_iter,
        converged=converged,
    )


def _step(
    objectives: Objectives, coordinates: Coordinates, state: _State, recompute: bool
) -> _State:
    """Return the state after one step."""
    way = coordinates.to_point(state.direction)
    length, scores, known = _line_search(objectives, state, way)
    point = state.point + length[:, None, None] * way
    if recompute:
        scores = objectives.scores(point)
        known = objectives.losses(scores)
    value, raw = _evaluated(objectives, point, known)
    gradient = coordinates.of_gradient(raw)
    step, change = length[:, None, None] * state.direction, gradient - state.gradient
    product = dot(step, change)
    inverse = torch.where(product > torch.finfo(product.dtype).tiny, 1 / product, 0.0)
    pairs = [*state.pairs, (step, change, inverse)][-MEMORY:]
    after = replace(
        state, point=point, scores=scores, value=value, raw=raw, gradient=gradient, pairs=pairs
    )
    after.watch()
    return after


def _inverse_hessian_times(gradient: Tensor, pairs: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Return L-BFGS's estimate of the inverse Hessian times the gradient."""
    answer, shares = gradient.clone(), []
    for step, change, inverse in reversed(pairs):
        share = (inverse * dot(step, answer))[:, None, None]
        answer -= share * change
        shares.append(share)
    if pairs:
        _, change, inverse = pairs[-1]
        scale = 1 / (inverse * dot(change, change))
        answer *= torch.where(inverse > 0, scale, 1.0)[:, None, None]
    for (step, change, inverse), share in zip(pairs, reversed(shares), strict=True):
        answer += (share - (inverse * dot(change, answer))[:, None, None]) * step
    return answer


class _Trial(NamedTuple):
    """What step lengths come to: scores (F, c, n), losses (F,), their slopes, and slopes (F,)."""

    scores: Tensor
    losses: Tensor
    slopes: Tensor
    slope: Tensor


def _line_search(
    objectives: Objectives, state: _State, way: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Return how far (F,) each fit goes along its way, and scores, losses and slopes there.

    The objective is convex along a line, so the root of its slope is bracketed and approached by
    secants. Scores change linearly on the way, so a trial costs no product with the rows.
    """
    along, slope = objectives.scores(way), state.slope
    linear, square = objectives.penalties(state.point, way), objectives.penalties(way, way)

    def tried(fits: Tensor | slice) -> _Trial:
        scores = torch.addcmul(state.scores[fits], along[fits], length[fits][:, None, None])
        losses, slopes = objectives.keep(fits).losses(scores)
        penalty = linear[fits] + length[fits] * square[fits]
        return _Trial(scores, losses, slopes, dot(slopes, along[fits]) + penalty)

    length, low = torch.ones_like(slope), torch.zeros_like(slope)
    high, low_slope, high_slope = torch.full_like(slope, torch.inf), slope, slope
    found = tried(slice(None))
    for _ in range(TRIALS - 1):
        good = found.slope.abs() <= CURVATURE * slope.abs()
        if good.all():
            break
        below = found.slope < 0
        low, low_slope = torch.where(below, length, low), torch.where(below, found.slope, low_slope)
        high = torch.where(below, high, length)
        high_slope = torch.where(below, high_slope, found.slope)
        secant = low - low_slope * (high - low) / (high_slope - low_slope)
        length = torch.where(good, length, torch.where(high.isinf(), 4 * low, secant))
        others = torch.nonzero(~good).flatten() if good.any() else slice(None)
        for known, new in zip(found, tried(others), strict=True):
            known[others] = new
    return length, found.scores, (found.losses, found.slopes)
