"""Batched L-BFGS for many logistic objectives, in preconditioned coordinates.

Shapes: F fits, c scores per fit (one for two classes, else one per class), n rows, q coordinates
plus one for the intercept.

Source: Nocedal and Wright (2006), Numerical Optimization, chapters 3 and 7.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probekit.probes.solve.coordinates import Coordinates, centred
from probekit.probes.solve.design import Objectives, dot

MEMORY = 10  # (step, gradient change) pairs that L-BFGS stores
TRIALS = 10  # maximum number of step lengths tried in a line search
CURVATURE = 0.9  # constant of the curvature condition: largest remaining fraction of the slope
REFRESH = (10, 30, 90)  # iterations after which the coordinates are recomputed
PATIENCE = 20  # iterations without progress after which a fit stops: only rounding error is left
BEYOND = 10  # maximum number of iterations between tolerance and aim


@dataclass(eq=False)
class _State:
    """State of the fits that have not stopped yet."""

    number: Tensor  # (F,), index of each fit in the batch
    beyond: Tensor  # (F,), iterations since the fit reached its tolerance, from 1; 0 before
    idle: Tensor  # (F,), consecutive iterations without a new minimum of value or excess
    least_value: Tensor  # (F,), smallest value so far
    least_excess: Tensor  # (F,), smallest excess so far
    point: Tensor  # (F, c, q + 1)
    value: Tensor  # (F,), of the objective
    raw: Tensor  # (F, c, q + 1), gradient in the original coordinates
    gradient: Tensor  # (F, c, q + 1), gradient in the preconditioned coordinates
    # The last steps (F, c, q + 1), the changes of the gradient, and 1 / (step . change), (F,).
    pairs: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    def select(self, fits: Tensor) -> _State:
        """Return the state of some of the fits."""
        return _State(*(_selected(getattr(self, one.name), fits) for one in fields(self)))

    @cached_property
    def direction(self) -> Tensor:
        """The L-BFGS search direction (F, c, q + 1), in preconditioned coordinates."""
        # The product of the L-BFGS inverse Hessian and the gradient (two-loop recursion). The names
        # alpha and beta are those of Nocedal and Wright, algorithm 7.4.
        product, alphas = self.gradient.clone(), []
        for step, change, inverse in reversed(self.pairs):
            alpha = (inverse * dot(step, product))[:, None, None]
            product -= alpha * change
            alphas.append(alpha)
        if self.pairs:
            _, change, inverse = self.pairs[-1]
            scale = 1 / (inverse * dot(change, change))
            product *= torch.where(inverse > 0, scale, 1.0)[:, None, None]
        for (step, change, inverse), alpha in zip(self.pairs, reversed(alphas), strict=True):
            beta = (inverse * dot(change, product))[:, None, None]
            product += (alpha - beta) * step
        return -product

    @cached_property
    def slope(self) -> Tensor:
        """The directional derivative (F,) of the objective along the search direction."""
        return dot(self.gradient, self.direction)

    @cached_property
    def excess(self) -> Tensor:
        """Estimate of (value - minimum) / value of each objective (F,).

        Half the squared Newton decrement, with the L-BFGS estimate of the inverse Hessian or the
        identity, whichever gives the larger value.
        """
        decrement = torch.maximum(-self.slope, dot(self.gradient, self.gradient))
        return 0.5 * decrement / self.value

    def track_progress(self) -> None:
        """Update the smallest value and excess; `idle` is 0 for fits with a new smallest one."""
        is_idle = (self.value >= self.least_value) & (self.excess >= self.least_excess)
        self.idle = torch.where(is_idle, self.idle + 1, 0)
        self.least_value = torch.minimum(self.value, self.least_value)
        self.least_excess = torch.minimum(self.excess, self.least_excess)


def _selected(value: Any, fits: Tensor) -> Any:
    """Return a tensor (F, ...) of some fits; of tuples and lists, that of each item."""
    if isinstance(value, Tensor):
        return value[fits]
    return type(value)(_selected(item, fits) for item in value)


@dataclass(frozen=True)
class StoppingRule:
    """Stopping rule of a fit, in terms of the relative excess (value - minimum) / value.

    Attributes:
        tolerance: Largest relative excess at which a fit counts as converged.
        max_iter: Maximum number of iterations.
        aim: Relative excess at which a fit stops, if it is smaller than the tolerance and reached
            within a few more iterations. The error of the weights is about its square root.
    """

    tolerance: float = 1e-8
    max_iter: int = 2000
    aim: float = 1e-10


@dataclass(frozen=True, eq=False)
class Minimum:
    """Result of one fit: `point` (c, q + 1), value, final gradient norm and convergence."""

    point: Tensor
    value: float
    gradient_norm: float
    n_iter: int
    converged: bool


def descend(
    objectives: Objectives, start: Tensor, stopping: StoppingRule
) -> Iterator[tuple[int, Minimum]]:
    """Yield index and result of each fit when it stops.

    A fit stops when its excess is below `stopping.aim`, `BEYOND` iterations after it reached its
    tolerance, when rounding errors prevent further progress, or after `max_iter` iterations.

    Args:
        objectives: the F objectives to minimise.
        start: initial parameters (F, c, q + 1) of the fits; the last one is the intercept.
        stopping: aim, tolerance and maximum number of iterations.
    """
    aim, max_iter = min(stopping.aim, stopping.tolerance), stopping.max_iter
    numbers, start = torch.arange(len(start), device=start.device), centred(start)
    coordinates = Coordinates.at(objectives, start)
    value, raw = objectives.at(start)
    inf, gradient = torch.full_like(value, torch.inf), coordinates.of_gradient(raw)
    beyond, idle = torch.zeros_like(numbers), torch.zeros_like(numbers)
    state = _State(numbers, beyond, idle, inf, inf, start, value, raw, gradient)
    for n_iter in range(max_iter + 1):
        excess, norms = state.excess, state.gradient.flatten(1).norm(dim=1)
        stopped = (state.idle == PATIENCE) | (state.beyond == BEYOND) | (n_iter == max_iter)
        state.beyond += state.beyond > 0
        # An accelerator is waited for here, and where a line search ends.
        if ((excess <= stopping.tolerance) | stopped).any():
            # Shared coordinates can underestimate the excess of a fit, so its own are checked too.
            norms = torch.maximum(norms, coordinates.own_norms(state.raw))
            excess = torch.maximum(excess, 0.5 * norms**2 / state.value)
            state.beyond += (excess <= stopping.tolerance) & (state.beyond == 0)
            ended, converged = (excess <= aim) | stopped, state.beyond > 0
            for fit in torch.nonzero(ended).flatten().tolist():
                point, norm = state.point[fit].clone(), float(norms[fit])
                of_fit = float(state.value[fit]), norm, n_iter, bool(converged[fit])
                yield int(state.number[fit]), Minimum(point, *of_fit)
            if ended.all():
                break
            if ended.any():
                running = torch.nonzero(~ended).flatten()
                objectives, coordinates = objectives.select(running), coordinates.select(running)
                state = state.select(running)
        if n_iter in REFRESH:
            del coordinates  # free their memory before the new ones are computed
            coordinates = Coordinates.at(objectives, state.point, n_iter)
            state = replace(
                state,
                gradient=coordinates.of_gradient(state.raw),
                pairs=[],
                idle=torch.zeros_like(state.idle),
                least_excess=torch.full_like(state.value, torch.inf),
            )
        state = _step(objectives, coordinates, state)


def _step(objectives: Objectives, coordinates: Coordinates, state: _State) -> _State:
    """Return the state after one iteration."""
    length, trial = _line_search(objectives, state, coordinates.to_point(state.direction))
    gradient = coordinates.of_gradient(trial.raw)
    step, change = length[:, None, None] * state.direction, gradient - state.gradient
    product = dot(step, change)
    # A pair without positive curvature gets 0, so that the search direction does not use it.
    inverse = torch.where(product > torch.finfo(product.dtype).tiny, 1 / product, 0.0)
    pairs = [*state.pairs, (step, change, inverse)][-MEMORY:]
    after = replace(
        state, point=trial.point, value=trial.value, raw=trial.raw, gradient=gradient, pairs=pairs
    )
    after.track_progress()
    return after


class _Trial(NamedTuple):
    """Values at a trial step length of each fit.

    Attributes:
        point: Coefficients and intercepts (F, c, q + 1) at this step length.
        value: Values (F,) of the objectives.
        raw: Gradients (F, c, q + 1) of the objectives.
        slope: Derivative (F,) of the objective along the search direction.
    """

    point: Tensor
    value: Tensor
    raw: Tensor
    slope: Tensor


def _line_search(objectives: Objectives, state: _State, direction: Tensor) -> tuple[Tensor, _Trial]:
    """Return the step length (F,) of each fit along a direction, and the values at its end.

    The objective is convex along a line, so the root of its derivative is bracketed and approached
    by secants.
    """
    slope = state.slope

    def evaluate(length: Tensor, fits: Tensor | slice) -> _Trial:
        """Return the values of some fits at the step lengths (F,) of all."""
        point = state.point[fits] + length[fits, None, None] * direction[fits]
        value, raw = objectives.select(fits).at(point)
        return _Trial(point, value, raw, dot(raw, direction[fits]))

    # The ends of the bracket of the root, with their slopes. As long as the upper end is infinite,
    # the secant through it is not used.
    length, low = torch.ones_like(slope), torch.zeros_like(slope)
    high, low_slope, high_slope = torch.full_like(slope, torch.inf), slope, slope
    trial = evaluate(length, slice(None))
    for _ in range(TRIALS - 1):
        accepted = trial.slope.abs() <= CURVATURE * slope.abs()
        if accepted.all():
            break
        below = trial.slope < 0
        low, low_slope = torch.where(below, length, low), torch.where(below, trial.slope, low_slope)
        high = torch.where(below, high, length)
        high_slope = torch.where(below, high_slope, trial.slope)
        secant = low - low_slope * (high - low) / (high_slope - low_slope)
        # As long as the root has no upper bound, the length grows fourfold.
        length = torch.where(accepted, length, torch.where(high.isinf(), 4 * low, secant))
        others = torch.nonzero(~accepted).flatten()
        for whole, retried in zip(trial, evaluate(length, others), strict=True):
            whole[others] = retried
    return length, trial
