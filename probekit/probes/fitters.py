"""Fitters, which fit one kind of probe to several label columns at one site.

A label column holds the labels of the task or of one draw of the control task. A fitter tunes
columns, which includes selecting the penalty by cross-validation, and refits columns on subsets of
the rows. The fitter of the logistic probe computes many fits in one batch; the others compute one
fit at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from probekit.probes.kinds.base import LayeredProbe, TrainingRows, TunedProbe, balanced_weights
from probekit.probes.kinds.left_out import logistic_left_out
from probekit.probes.kinds.ridge import RidgeProbe, ridge_path
from probekit.probes.score.metric_table import METRICS
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.descent import StoppingRule
from probekit.probes.solve.design import Features, Floats
from probekit.probes.solve.fits import Judge, TunedProbeFit, Tuning, best_rated, fit_columns
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
        """Return, for each column, the fit on each row mask (n_samples,) of `shares`.

        The penalty is that of the tuned column.
        """

    def left_out(
        self, X: Features, column: LabelColumn, tuned: TunedProbeFit[FittedLayers]
    ) -> Floats | None:
        """Return the scores (n_samples, n_out) of the final fit without the group of each row.

        None if they have no closed form: for kinds other than logistic and ridge, and for logistic
        fits of more than two classes.
        """


@dataclass(frozen=True, eq=False)
class FitContext:
    """Folds, groups and typical rows, each (n_samples,), and settings shared by all fits."""

    fold_of_row: Codes
    groups: NDArray[np.str_]
    typical: Mask | None
    settings: ProbeSettings


def make_fitter(spec: ProbeSpec, context: FitContext, judge: Judge) -> Fitter:
    """Return the fitter of a kind for classification or regression.

    `judge` rates the held-out outputs at each penalty. Outputs are class scores or numbers.
    """
    if spec.kind == "logistic":
        return _Logistic(context, judge)
    if spec.task == "regression":
        return _Numbers(spec, context, judge)
    return _Layered(spec, context, judge)


@dataclass(frozen=True, eq=False)
class _Logistic:
    context: FitContext
    judge: Judge

    @property
    def _stopping(self) -> StoppingRule:
        return StoppingRule(max_iter=self.context.settings.max_iter)

    @property
    def _balanced(self) -> bool:
        return self.context.settings.class_weight == "balanced"

    def tune(
        self, X: Features, columns: Sequence[LabelColumn], on_fit: OnFit
    ) -> list[TunedProbeFit[FittedLayers]]:
        # By accuracy, the solver selects faster by itself.
        is_default = METRICS[self.context.settings.main_metric].is_main
        tuned = fit_columns(
            X,
            columns,
            self.context.fold_of_row,
            self.context.settings.C,
            tuning=Tuning(self._stopping, None if is_default else self.judge, self._balanced),
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
            Problem(codes, column.solved_at, share, balanced=self._balanced)
            for codes, column in zip(columns, tuned, strict=True)
            for share in range(len(shares))
        ]
        fits = solver.solve(problems, self._stopping)
        return [list(fits[at : at + len(shares)]) for at in range(0, len(fits), len(shares))]

    def left_out(
        self, X: Features, column: LabelColumn, tuned: TunedProbeFit[FittedLayers]
    ) -> Floats | None:
        if len(tuned.solution.classes) != 2:
            return None
        (layer,), context = tuned.solution.layers, self.context
        is_second = column == tuned.solution.classes[1]
        weights = balanced_weights(column) if self._balanced else None
        return logistic_left_out(
            X, is_second, layer, context.groups, tuned.solved_at, context.typical, weights
        )


@dataclass(frozen=True, eq=False)
class _ByFit(ABC):
    """Base class of fitters that make one fit at a time."""

    spec: ProbeSpec
    context: FitContext
    judge: Judge

    def tune(
        self, X: Features, columns: Sequence[LabelColumn], on_fit: OnFit
    ) -> list[TunedProbeFit[FittedLayers]]:
        folds = range(int(self.context.fold_of_row.max()) + 1)
        total = len(columns) * (len(folds) + 1)
        tuned = []
        for number, column in enumerate(columns):
            done = number * (len(folds) + 1)
            paths = []
            for fold in folds:
                inside = self.context.fold_of_row != fold
                paths.append(self._path(self._grid, X, column, inside))
                on_fit(done + fold + 1, total)
            outputs = self._held_out(paths, X, column)
            best = best_rated(self.judge, column, outputs, self.context.fold_of_row)
            everything = np.ones(len(X), dtype=bool)
            (last,) = self._path(self._grid[best : best + 1], X, column, everything)
            on_fit(done + len(folds) + 1, total)
            search = tuple(path[best] for path in paths)
            guess = self._guess(outputs[best])
            tuned.append(TunedProbeFit(self._grid[best], last, guess, search))
        return tuned

    def _held_out(
        self, paths: Sequence[Sequence[FittedLayers]], X: Features, column: LabelColumn
    ) -> Floats:
        """Return the held-out outputs (n_grid, n_samples, ...) of all rows at each penalty."""
        fold_of_row = self.context.fold_of_row
        order = np.argsort(fold_of_row, kind="stable")
        parts = [
            np.stack([self._output(fit, X[fold_of_row == fold], column) for fit in path])
            for fold, path in enumerate(paths)
        ]
        outputs: Floats = np.concatenate(parts, axis=1)[:, np.argsort(order)]
        return outputs

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

    def left_out(
        self, X: Features, column: LabelColumn, tuned: TunedProbeFit[FittedLayers]
    ) -> Floats | None:
        probe, classes = self.spec.build(self.context.settings), tuned.solution.classes
        if not isinstance(probe, RidgeProbe) or len(classes) == 1:
            return None
        codes = np.searchsorted(classes, column)
        data = TrainingRows(X, codes, self.context.groups, self.context.typical)
        return probe.left_out(tuned.solved_at, tuned.solution, data)

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
    def _output(self, solution: FittedLayers, X: Features, _column: LabelColumn) -> Floats:
        """Return the outputs of a fit for rows X: numbers, or scores of the column's classes."""

    @abstractmethod
    def _guess(self, output: Floats) -> LabelColumn:
        """Return the predictions (n_samples,) that correspond to the outputs of a fit."""


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

    def _output(self, solution: FittedLayers, X: Features, _column: LabelColumn) -> Floats:
        return solution.class_scores(X, int(_column.max()) + 1)

    def _guess(self, output: Floats) -> LabelColumn:
        guess: LabelColumn = output.argmax(axis=1)
        return guess


class _Numbers(_ByFit):
    def _path(
        self, penalties: Sequence[float | None], X: Features, column: LabelColumn, inside: Mask
    ) -> list[FittedLayers]:
        alphas = np.array(penalties, dtype=np.float64)
        y, typical = column[inside, None].astype(np.float64), _masked(self.context.typical, inside)
        layers = ridge_path(X[inside], y, alphas, typical)
        return [FittedLayers(np.empty(0, dtype=np.int64), (layer,)) for layer in layers]

    def _output(self, solution: FittedLayers, X: Features, _column: LabelColumn) -> Floats:
        return number_guess(solution, X)

    def _guess(self, output: Floats) -> LabelColumn:
        return output


def _masked(typical: Mask | None, inside: Mask) -> Mask | None:
    return None if typical is None else typical[inside]


def number_guess(solution: FittedLayers, X: Features) -> Floats:
    """Return the predictions (n_samples,) of a regression fit."""
    return apply_layers(solution.layers, X)[:, 0]


def _renamed(solution: FittedLayers, classes: Codes) -> FittedLayers:
    """Return a solution with its consecutive codes replaced by the codes in `classes`."""
    return FittedLayers(
        classes[solution.classes], solution.layers, solution.n_iter, solution.converged
    )


def _constant(classes: Codes, n_features: int) -> FittedLayers:
    """Return the fit for training rows of a single class: it always predicts that class."""
    return FittedLayers(classes, (AffineLayer(np.zeros((1, n_features)), np.zeros(1)),))
