"""Measure sites against one another: the task, its controls and baselines, each with an interval.

A `Prober` holds what all sites share: folds, control labels, resampled groups. So two sites differ
by their activations alone, and their bootstrap draws are paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from probekit.errors import ConfigError, DataError
from probekit.probes.controls import control_labels, majority_guess, word_identity_guess
from probekit.probes.data import ProbeData, ProbeSettings
from probekit.probes.design import Floats
from probekit.probes.fits import Column, fit_columns
from probekit.probes.folds import group_folds, sample_groups
from probekit.probes.measurement import (
    Measurement,
    Origin,
    Reading,
    Target,
    measure_selectivity,
    measure_test,
    measure_validation,
)
from probekit.probes.metrics import Answers, Resamples
from probekit.probes.solver import Codes, Effort, OnFit

# Draws beyond those wanted, in search of some that hold two labels.
SPARE_DRAWS = 100
# With a smaller share of typical rows, their spread would say little of that of all.
LEAST_TYPICAL = 0.5


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows that are scored together: their numbers, and the resamples of their groups."""

    numbers: NDArray[np.int64]
    resamples: Resamples


@dataclass(frozen=True, eq=False)
class _Probe:
    """A fitted label column with its answers on test rows and on held-out training rows."""

    column: Column
    test: Reading
    validation: Reading


class Prober:
    """Measures any number of sites of the same rows under the same folds, controls and resamples.

    Raises:
        ConfigError: A control task is asked for, but all training rows have the same word type.
        DataError: There are fewer groups of training rows than folds.

    >>> y = np.array(["no", "yes"] * 40)
    >>> row = np.arange(80).astype(str)
    >>> data = ProbeData(y, row, row, train=np.arange(60), test=np.arange(60, 80))
    >>> prober = Prober(data, ProbeSettings(folds=2, control_draws=1, bootstrap=100))
    >>> X = np.random.default_rng(0).normal(size=(80, 3)) + 9 * (y == "yes")[:, None]
    >>> first = prober.site(X)[0]
    >>> first.target, first.split, first.metric, first.value
    ('task', 'test', 'accuracy', 1.0)
    """

    def __init__(self, data: ProbeData, settings: ProbeSettings | None = None) -> None:
        self.data = data
        self.settings = settings or ProbeSettings()
        self._task = self._codes(data.y)
        self._test = self._rows(data.test)
        self._train = self._rows(self._sample_training_rows())
        self._controls = self._draw_controls()
        numbers = self._train.numbers
        self._folds = group_folds(
            data.y[numbers], data.groups[numbers], self.settings.folds, self.settings.seed
        )

    @property
    def seen_types(self) -> float:
        """The share of test rows whose word type stands in the rows that are fitted, 0 to 1."""
        types = self.data.types
        return float(np.isin(types[self._test.numbers], types[self._train.numbers]).mean())

    def site(
        self, X: NDArray[np.floating], *, random: bool = False, on_fit: OnFit | None = None
    ) -> tuple[Measurement, ...]:
        """Return the measurements of one site with activations X (n_rows, n_features).

        With `random`, X comes from a model with random weights: it gets the task alone, under the
        target "random_weights". `on_fit(done, total)` is called after each fit, from its thread.

        Raises:
            DataError: X has other rows than the data, or values that are not finite.
        """
        self._check(X)
        if random:
            probes = self._fit(X, [self._task], on_fit)
            return tuple(self._measure("random_weights", probes))
        task, *controls = self._fit(X, [self._task, *self._controls], on_fit)
        measured = self._measure("task", [task])
        if controls:
            measured += self._measure("control", controls)
            measured.append(self._measure_selectivity(task, controls))
        return tuple(measured)

    def baselines(self) -> tuple[Measurement, ...]:
        """Return the measurements of the guesses from all training rows without activations."""
        train, test = self.data.train, self.data.test
        types, codes = self.data.types, self._task
        guesses: dict[Target, Codes] = {
            "majority": majority_guess(codes[train], len(test)),
            "word_identity": word_identity_guess(types[train], codes[train], types[test]),
        }
        return tuple(
            measurement
            for target, guess in guesses.items()
            for measurement in measure_test(
                Origin(target, self.settings.seed, n_train=len(train)),
                [self._read(codes, self._test, guess)],
            )
        )

    def _codes(self, labels: NDArray[np.str_]) -> Codes:
        """Return label codes (n_rows,); that of a label outside the split means nothing."""
        classes = self.data.classes
        return np.searchsorted(classes, labels).clip(max=len(classes) - 1)

    def _draw_controls(self) -> list[Codes]:
        types, draws, seed = self.data.types, self.settings.control_draws, self.settings.seed
        fitted = self._train.numbers
        if draws and len(np.unique(types[fitted])) == 1:
            raise ConfigError(
                f"control_draws is {draws}, but all training rows have the word type "
                f"{str(types[fitted][0])!r}: one random label for all of them controls nothing. "
                "Set `control_draws` to 0."
            )
        labels = self.data.y[self.data.train]
        drawn = (
            self._codes(control_labels(types, labels, seed, draw))
            for draw in range(draws + SPARE_DRAWS)
        )
        # Few types may all draw one label by chance: there is nothing to learn in such a draw.
        usable = (codes for codes in drawn if len(np.unique(codes[fitted])) > 1)
        controls = list(islice(usable, draws))
        if len(controls) < draws:
            raise ConfigError(
                f"control_draws is {draws}, but {len(np.unique(types[fitted]))} word types draw "
                "labels that differ too seldom. Set `control_draws` to 0."
            )
        return controls

    def _sample_training_rows(self) -> NDArray[np.int64]:
        train, limit = self.data.train, self.settings.fit_rows
        if limit is None:
            return train
        kept = train[sample_groups(self.data.groups[train], limit, self.settings.seed)]
        lost = sorted(set(self.data.classes) - set(self.data.y[kept]))
        if lost:
            raise DataError(
                f"fit_rows is {limit}, which leaves no training row of the label {str(lost[0])!r} "
                f"({len(lost)} labels in all are lost). Raise `fit_rows`, or take another `seed`."
            )
        return kept

    def _rows(self, numbers: NDArray[np.int64]) -> _Rows:
        groups = self.data.groups[numbers]
        return _Rows(numbers, Resamples.draw(groups, self.settings.bootstrap, self.settings.seed))

    def _check(self, X: NDArray[np.floating]) -> None:
        if X.ndim != 2 or len(X) != len(self.data.y):
            raise DataError(
                f"X has shape {X.shape}, but the data need ({len(self.data.y)}, n_features): one "
                "row of activations for each label."
            )
        wrong = np.flatnonzero(~np.isfinite(X).all(axis=1))
        if len(wrong):
            raise DataError(
                f"{len(wrong)} of {len(X)} rows of X hold NaN or infinity, first row {wrong[0]}. "
                "Capture them again, in float32 if they were stored as float16."
            )

    def _fit(
        self, X: NDArray[np.floating], labels: Sequence[Codes], on_fit: OnFit | None
    ) -> list[_Probe]:
        numbers, settings = self._train.numbers, self.settings
        typical = self._typical()
        columns = fit_columns(
            X[numbers],
            [codes[numbers] for codes in labels],
            self._folds,
            settings.C,
            effort=Effort(max_iter=settings.max_iter),
            typical=typical,
            on_fit=on_fit,
        )
        test_rows = X[self._test.numbers].astype(np.float64)
        return [
            self._probe(codes, column, test_rows)
            for codes, column in zip(labels, columns, strict=True)
        ]

    def _typical(self) -> NDArray[np.bool_] | None:
        """Return which fitted rows features are scaled by; all, where the typical ones are few."""
        if self.data.typical is None:
            return None
        typical = self.data.typical[self._train.numbers]
        return typical if typical.mean() >= LEAST_TYPICAL else None

    def _probe(self, codes: Codes, column: Column, test_rows: NDArray[np.floating]) -> _Probe:
        scores = column.fit.log_probabilities(test_rows, len(self.data.classes))
        return _Probe(
            column,
            test=self._read(codes, self._test, scores.argmax(axis=1), scores),
            validation=self._read(codes, self._train, column.held_out),
        )

    def _read(
        self, codes: Codes, rows: _Rows, guess: Codes, scores: Floats | None = None
    ) -> Reading:
        truth, n_classes = codes[rows.numbers], len(self.data.classes)
        majority = majority_guess(codes[self.data.train], len(truth))
        constant = None if scores is None else np.zeros_like(scores)
        return Reading(
            answers=Answers(truth, guess, n_classes, scores),
            majority=Answers(truth, majority, n_classes, constant),
            resamples=rows.resamples,
        )

    def _measure(self, target: Target, probes: Sequence[_Probe]) -> list[Measurement]:
        origin = Origin.fitted(target, self.settings.seed, [probe.column for probe in probes])
        n_searched = len(self._folds) - int(np.bincount(self._folds).max())
        searched = origin.of_search([probe.column for probe in probes], n_searched)
        return [
            *measure_test(origin, [probe.test for probe in probes]),
            measure_validation(searched, [probe.validation for probe in probes]),
        ]

    def _measure_selectivity(self, task: _Probe, controls: Sequence[_Probe]) -> Measurement:
        origin = Origin.fitted("task", self.settings.seed, [task.column])
        return measure_selectivity(origin, task.test, [probe.test for probe in controls])
