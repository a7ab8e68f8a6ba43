"""Fitters: each kind of probe fitted to many label columns of one site, with the same folds.

A fitter tunes label columns, selecting the penalty by cross-validation, and refits columns on
subsets of the rows. The fitter of the logistic probe does all of this in two batches; the others
make one fit at a time.
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
        """Return the tuned fit of each label column (n_samples,); calls `on_fit(done, total)`."""

    def refit(
        self,
        X: Features,
        columns: Sequence[LabelColumn],
        tuned: Sequence[TunedProbeFit[FittedLayers]],
        shares: Sequence[Mask],
    ) -> list[list[FittedLayers]]:
        """Return, for each column, fits at its penalty on the given row masks (n_samples,)."""


@dataclass(frozen=True, eq=False)
class FitContext:
    """Folds, groups and typical rows, each (n_samples,), and settings shared by all fits."""

    fold_of_row: Codes
    groups: NDArray[np.str_]
    typical: Mask | None
    settings: ProbeSettings


def make_fitter(spec: ProbeSpec, context: FitContext) -> Fitter:
    """Return the fitter of a kind for classification or regression."""
    if spec.kind == "logistic":
        return _Logistic(context)
    if spec.task == "regression":
        return _Numbers(spec, context)
    return _Layered(spec, context)


@dataclass(frozen=True, eq=False)
class _Logistic:
    context: FitContext

    @property
    def _stopping(self) -> StoppingRule:
        return StoppingRule(max_iter=self.context.settings.max_iter)

    def tune(
        self, X: Features, columns: Sequence[LabelColumn], on_fit: OnFit
    ) -> list[TunedProbeFit[FittedLayers]]:
        tuned = fit_columns(
            X,
            columns,
            self.context.fold_of_row,
            self.context.settings.C,
            stopping=self._stopping,
            typical=self.context.typical,
            device=self.context.settings.device,
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
        context = self.context
        weights = [share.astype(np.float32) for share in shares]
        solver = Solver(X, weights, typical=context.typical, device=context.settings.device)
        problems = [
            Problem(codes, column.solved_at, share)
            for codes, column in zip(columns, tuned, strict=True)
            for share in range(len(shares))
        ]
        fits = solver.solve(problems, self._stopping)
        return [list(fits[at : at + len(shares)]) for at in range(0, len(fits), len(shares))]


@dataclass(frozen=True, eq=False)
class _ByFit(ABC):
    """Base class of fitters that make one fit at a time."""

    spec: ProbeSpec
    context: FitContext

    def tune(
        self, X: Features, columns: Sequence[LabelColumn], on_fit: OnFit
    ) -> list[TunedProbeFit[FittedLayers]]:
        folds = range(int(self.context.fold_of_row.max()) + 1)
        total = len(columns) * (len(folds) + 1)
        tuned = []
        for number, column in enumerate(columns):
            done = number * (len(folds) + 1)
            paths, held_out = [], np.zeros((len(self._grid), len(X)), dtype=column.dtype)
            for fold in folds:
                inside = self.context.fold_of_row != fold
                paths.append(self._path(self._grid, X, column, inside))
                held_out[:, ~inside] = [self._predict(fit, X[~inside]) for fit in paths[-1]]
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
        """The candidate penalties, strongest regularisation first."""
        values = self.spec.penalties(self.context.settings)
        if values is None:
            return [None]
        return [*sorted(values, reverse=self.spec.grid_name == "alpha")]

    @abstractmethod
    def _path(
        self, penalties: Sequence[float | None], X: Features, column: LabelColumn, inside: Mask
    ) -> list[FittedLayers]:
        """Return the fit at each penalty on the rows selected by `inside`."""

    @abstractmethod
    def _predict(self, solution: FittedLayers, X: Features) -> LabelColumn:
        """Return the prediction (n_samples,) of a fit for each row."""

    @abstractmethod
    def _loss(self, column: LabelColumn, guess: LabelColumn) -> float:
        """Return the total loss of the predictions."""


class _Layered(_ByFit):
    def _path(
        self, penalties: Sequence[float | None], X: Features, column: LabelColumn, inside: Mask
    ) -> list[FittedLayers]:
        codes = np.asarray(column[inside], dtype=np.int64)
        classes = np.unique(codes)
        if len(classes) == 1:
            return [_constant(classes, X.shape[1])] * len(penalties)
        probe: LayeredProbe = self.spec.build(self.context.settings)
        own = np.searchsorted(classes, codes)
        typical = _masked(self.context.typical, inside)
        data = TrainingRows(X[inside], own, self.context.groups[inside], typical)
        if not isinstance(probe, TunedProbe):
            return [_renamed(probe.solve(data), classes)]
        path = probe.path(np.array(penalties, dtype=np.float64), data)
        return [_renamed(solution, classes) for solution in path]

    def _predict(self, solution: FittedLayers, X: Features) -> LabelColumn:
        return solution.guess(X)

    def _loss(self, column: LabelColumn, guess: LabelColumn) -> float:
        return float(np.sum(column != guess))


class _Numbers(_ByFit):
    def _path(
        self, penalties: Sequence[float | None], X: Features, column: LabelColumn, inside: Mask
    ) -> list[FittedLayers]:
        alphas = np.array(penalties, dtype=np.float64)
        y, typical = column[inside, None].astype(np.float64), _masked(self.context.typical, inside)
        layers = ridge_path(X[inside], y, alphas, typical)
        return [FittedLayers(np.empty(0, dtype=np.int64), (layer,)) for layer in layers]

    def _predict(self, solution: FittedLayers, X: Features) -> LabelColumn:
        return number_guess(solution, X)

    def _loss(self, column: LabelColumn, guess: LabelColumn) -> float:
        return float(np.sum((column - guess) ** 2))


def _masked(typical: Mask | None, inside: Mask) -> Mask | None:
    return None if typical is None else typical[inside]


def number_guess(solution: FittedLayers, X: Features) -> Floats:
    """Return the number (n_samples,) that a regression fit predicts for each row."""
    return apply_layers(solution.layers, X)[:, 0]


def _renamed(solution: FittedLayers, classes: Codes) -> FittedLayers:
    """Return a solution with its consecutive codes replaced by the codes in `classes`."""
    return FittedLayers(
        classes[solution.classes], solution.layers, solution.n_iter, solution.converged
    )


def _constant(classes: Codes, n_features: int) -> FittedLayers:
    """Return the fit for rows of a single class, which always predicts it."""
    return FittedLayers(classes, (AffineLayer(np.zeros((1, n_features)), np.zeros(1)),))
