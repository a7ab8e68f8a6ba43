"""How each kind of probe fits many label columns on the rows of one site, under the same folds.

A machine tunes label columns, with the penalty chosen by held-out guesses, and fits a column again
on other shares of the rows. That of the logistic probe does all of it in two batches; the others
go fit by fit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from probekit.probes.kinds.base import LayeredProbe, TrainingRows, TunedProbe
from probekit.probes.kinds.ridge import ridge_path
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.descent import StoppingRule
from probekit.probes.solve.design import Features, Floats
from probekit.probes.solve.fits import TunedProbeFit, fit_columns
from probekit.probes.solve.layers import AffineLayer, FittedLayers, apply_layers
from probekit.probes.solve.solver import Codes, OnFit, Problem, Solver

LabelColumn = NDArray[Any]  # label codes, or numbers
Mask = NDArray[np.bool_]


class Fitter(Protocol):
    """Fits one kind of probe on rows X (n_samples, n_features)."""

    def tune(
        self, X: Features, columns: Sequence[LabelColumn], on_fit: OnFit
    ) -> list[TunedProbeFit[FittedLayers]]:
        """Return each label column (n_samples,), tuned; `on_fit(done, total)` hears of fits."""

    def refit(
        self,
        X: Features,
        columns: Sequence[LabelColumn],
        tuned: Sequence[TunedProbeFit[FittedLayers]],
        shares: Sequence[Mask],
    ) -> list[list[FittedLayers]]:
        """Return for each column its fits on shares (n_samples,) of the rows, at its penalty."""


@dataclass(frozen=True, eq=False)
class FitContext:
    """What all machines of a run stand on: folds, groups and typical rows, each (n_samples,)."""

    fold_of_row: Codes
    groups: NDArray[np.str_]
    typical: Mask | None
    settings: ProbeSettings


def make_fitter(spec: ProbeSpec, ground: FitContext) -> Fitter:
    """Return the machine of a kind that reads rows."""
    if spec.kind == "logistic":
        return _Logistic(ground)
    if spec.task == "regression":
        return _Numbers(spec, ground)
    return _Layered(spec, ground)


@dataclass(frozen=True, eq=False)
class _Logistic:
    ground: FitContext

    @property
    def _stopping(self) -> StoppingRule:
        return StoppingRule(max_iter=self.ground.settings.max_iter)

    def tune(
        self, X: Features, columns: Sequence[LabelColumn], on_fit: OnFit
    ) -> list[TunedProbeFit[FittedLayers]]:
        tuned = fit_columns(
            X,
            columns,
            self.ground.fold_of_row,
            self.ground.settings.C,
            stopping=self._stopping,
            typical=self.ground.typical,
            device=self.ground.settings.device,
            on_fit=on_fit,
        )
        return list(tuned)

    def refit(
        self,
        X: Features,
        columns: Sequence[LabelColumn],
        tuned: Sequence[TunedProbeFit[FittedLayers]],
        shares: Sequence[Mask],
    ) -> list[list[FittedLayers]]:
        ground = self.ground
        weights = [share.astype(np.float32) for share in shares]
        solver = Solver(X, weights, typical=ground.typical, device=ground.settings.device)
        problems = [
            Problem(codes, column.solved_at, share)
            for codes, column in zip(columns, tuned, strict=True)
            for share in range(len(shares))
        ]
        fits = solver.solve(problems, self._stopping)
        return [list(fits[at : at + len(shares)]) for at in range(0, len(fits), len(shares))]


@dataclass(frozen=True, eq=False)
class _ByFit(ABC):
    """The way of the kinds whose fits have nothing to share."""

    spec: ProbeSpec
    ground: FitContext

    def tune(
        self, X: Features, columns: Sequence[LabelColumn], on_fit: OnFit
    ) -> list[TunedProbeFit[FittedLayers]]:
        folds = range(int(self.ground.fold_of_row.max()) + 1)
        total = len(columns) * (len(folds) + 1)
        tuned = []
        for number, column in enumerate(columns):
            done = number * (len(folds) + 1)
            paths, held_out = [], np.zeros((len(self._grid), len(X)), dtype=column.dtype)
            for fold in folds:
                inside = self.ground.fold_of_row != fold
                paths.append(self._path(self._grid, X, column, inside))
                held_out[:, ~inside] = [self._guess(fit, X[~inside]) for fit in paths[-1]]
                on_fit(done + fold + 1, total)
            best = int(np.argmin([self._loss(column, guess) for guess in held_out]))
            everything = np.ones(len(X), dtype=bool)
            (last,) = self._path(self._grid[best : best + 1], X, column, everything)
            on_fit(done + len(folds) + 1, total)
            search = tuple(path[best] for path in paths)
            tuned.append(TunedProbeFit(self._grid[best], last, held_out[best], search))
        return tuned

    def refit(
        self,
        X: Features,
        columns: Sequence[LabelColumn],
        tuned: Sequence[TunedProbeFit[FittedLayers]],
        shares: Sequence[Mask],
    ) -> list[list[FittedLayers]]:
        return [
            [self._path([one.penalty], X, column, share)[0] for share in shares]
            for column, one in zip(columns, tuned, strict=True)
        ]

    @property
    def _grid(self) -> list[float | None]:
        """The penalties from the one that shrinks most."""
        values = self.spec.penalties(self.ground.settings)
        if values is None:
            return [None]
        return [*sorted(values, reverse=self.spec.grid_name == "alpha")]

    @abstractmethod
    def _path(
        self, penalties: Sequence[float | None], X: Features, column: LabelColumn, inside: Mask
    ) -> list[FittedLayers]:
        """Return the fit at each penalty on the rows inside."""

    @abstractmethod
    def _guess(self, solution: FittedLayers, X: Features) -> LabelColumn:
        """Return what a fit says of each row."""

    @abstractmethod
    def _loss(self, column: LabelColumn, guess: LabelColumn) -> float:
        """Return how much the guesses miss, all in all."""


class _Layered(_ByFit):
    def _path(
        self, penalties: Sequence[float | None], X: Features, column: LabelColumn, inside: Mask
    ) -> list[FittedLayers]:
        codes = np.asarray(column[inside], dtype=np.int64)
        classes = np.unique(codes)
        if len(classes) == 1:
            return [_always(classes, X.shape[1])] * len(penalties)
        probe: LayeredProbe = self.spec.build(self.ground.settings)
        own = np.searchsorted(classes, codes)
        typical = _taken(self.ground.typical, inside)
        data = TrainingRows(X[inside], own, self.ground.groups[inside], typical)
        if not isinstance(probe, TunedProbe):
            return [_renamed(probe.solve(data), classes)]
        path = probe.path(np.array(penalties, dtype=np.float64), data)
        return [_renamed(solution, classes) for solution in path]

    def _guess(self, solution: FittedLayers, X: Features) -> LabelColumn:
        return solution.guess(X)

    def _loss(self, column: LabelColumn, guess: LabelColumn) -> float:
        return float(np.sum(column != guess))


class _Numbers(_ByFit):
    def _path(
        self, penalties: Sequence[float | None], X: Features, column: LabelColumn, inside: Mask
    ) -> list[FittedLayers]:
        alphas = np.array(penalties, dtype=np.float64)
        y, typical = column[inside, None].astype(np.float64), _taken(self.ground.typical, inside)
        layers = ridge_path(X[inside], y, alphas, typical)
        return [FittedLayers(np.empty(0, dtype=np.int64), (layer,)) for layer in layers]

    def _guess(self, solution: FittedLayers, X: Features) -> LabelColumn:
        return number_guess(solution, X)

    def _loss(self, column: LabelColumn, guess: LabelColumn) -> float:
        return float(np.sum((column - guess) ** 2))


def _taken(typical: Mask | None, inside: Mask) -> Mask | None:
    return None if typical is None else typical[inside]


def number_guess(solution: FittedLayers, X: Features) -> Floats:
    """Return the number (n_samples,) that a fit on numbers says of each row."""
    return apply_layers(solution.layers, X)[:, 0]


def _renamed(solution: FittedLayers, classes: Codes) -> FittedLayers:
    """Return a solution whose codes count `classes` from 0 with their own codes."""
    return FittedLayers(
        classes[solution.classes], solution.layers, solution.n_iter, solution.converged
    )


def _always(classes: Codes, n_features: int) -> FittedLayers:
    """Return what can be learnt from rows of one class: to guess it."""
    return FittedLayers(classes, (AffineLayer(np.zeros((1, n_features)), np.zeros(1)),))
