"""Measure sites against one another: the task, its controls and baselines, each with an interval.

A `Prober` holds what all sites share: folds, control labels, resampled groups. So two sites differ
by their activations alone, and their bootstrap draws are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from probekit.errors import DataError
from probekit.probes.company import (
    Sample,
    draw_controls,
    label_baselines,
    number_baselines,
    uninformed,
)
from probekit.probes.data import ProbeData, ProbeSettings, ProbeSpec, check_known, numbers
from probekit.probes.description import blocks
from probekit.probes.design import Features
from probekit.probes.folds import group_folds, sample_groups
from probekit.probes.kinds.layers import Solution
from probekit.probes.learning import learning_sizes, subsets
from probekit.probes.machines import Column, Ground, Machine, Tuned, machine_of, number_guess
from probekit.probes.measurement import (
    Measurement,
    Origin,
    Reading,
    Said,
    Target,
    measure,
    measure_one,
    measure_selectivity,
)
from probekit.probes.metrics import Answers, Resamples
from probekit.probes.online import OnlineCoding
from probekit.probes.regression import NumberAnswers
from probekit.probes.solver import Codes, OnFit
from probekit.probes.whole_kinds import WholeReader
from probekit.probes.wholes import first_rows

# With a smaller share of typical rows, their spread would say little of that of all.
LEAST_TYPICAL = 0.5


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows that are scored together: their numbers, and the resamples of their groups."""

    numbers: Codes
    resamples: Resamples


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """What one kind of probe found at a site.

    Attributes:
        spec: the kind.
        measurements: the numbers.
        said: the task's answers on the test rows.
        solution: the fitted probe of the task, None for kinds that are no stack of layers.
    """

    spec: ProbeSpec
    measurements: tuple[Measurement, ...]
    said: Said
    solution: Solution | None = None


class Prober:
    """Measures any number of sites of the same rows under the same folds, controls and resamples.

    Raises:
        ConfigError: A control task is asked for, but all training rows have the same word type.
        DataError: There are fewer groups of training rows than folds, or labels that the kinds of
            probe cannot read.

    >>> y = np.array(["no", "yes"] * 40)
    >>> row = np.arange(80).astype(str)
    >>> data = ProbeData(y, row, row, train=np.arange(60), test=np.arange(60, 80))
    >>> prober = Prober(data, ProbeSettings(folds=2, control_draws=1, bootstrap=100))
    >>> X = np.random.default_rng(0).normal(size=(80, 3)) + 9 * (y == "yes")[:, None]
    >>> first = prober.site(X)[0].measurements[0]
    >>> first.target, first.split, first.metric, first.value
    ('task', 'test', 'accuracy', 1.0)
    """

    def __init__(self, data: ProbeData, settings: ProbeSettings | None = None) -> None:
        self.data = data
        self.settings = settings or ProbeSettings()
        tasks = {spec.task for spec in self.settings.kinds}
        if self.settings.reads == "classes":
            check_known(data)
        # Where only texts are read, a text counts once whatever the number of its tokens.
        self._judged = first_rows(data) if tasks == {"text"} else data
        self._task = self._column(data.y)
        self._test = self._rows(self._judged.test)
        self._train = self._rows(self._sample_training_rows())
        fitted = self._train.numbers
        self._wholes = WholeReader.of(data, self.settings, fitted)
        if self.settings.reads == "trees":
            self._wholes.check_trees()
        wants_control = self.settings.reads != "trees"
        drawn = draw_controls(data, self.settings, fitted) if wants_control else []
        self._controls = [self._column(labels) for labels in drawn]
        is_class = self.settings.reads == "classes"
        stratify = data.y[fitted] if is_class else np.zeros(len(fitted))
        self._folds = group_folds(
            stratify, data.groups[fitted], self.settings.folds, self.settings.seed
        )

    @property
    def seen_types(self) -> float:
        """The share of test rows whose word type stands in the rows that are fitted, 0 to 1."""
        types = self.data.types
        return float(np.isin(types[self._test.numbers], types[self._train.numbers]).mean())

    @property
    def test_resamples(self) -> Resamples:
        """The resamples of the groups of the rows that are scored."""
        return self._test.resamples

    @property
    def test_rows(self) -> Codes:
        """The numbers (n_test,) of the rows that are scored."""
        return self._test.numbers

    def rows_of(self, probe: str) -> Codes:
        """Return the numbers of the rows that a kind is scored on; of a text, its first token."""
        texts = {spec.text for spec in self.settings.kinds if spec.task == "text"}
        return self._wholes.test.first if probe in texts else self._test.numbers

    def truth_of(self, probe: str) -> Column:
        """Return the label codes, or numbers, of the rows that a kind is scored on."""
        return self._task[self.rows_of(probe)]

    def site(
        self, X: Features, *, random: bool = False, on_fit: OnFit | None = None
    ) -> tuple[ProbeResult, ...]:
        """Return what each kind finds at one site with activations X (n_rows, n_features).

        With `random`, X comes from a model with random weights: it gets the task alone, under the
        target "random_weights". `on_fit(done, total)` is called after each fit.

        Raises:
            DataError: X has other rows than the data, or values that are not finite.
        """
        self._check(X)
        kinds = self.settings.kinds
        return tuple(
            self._readers[spec.task](spec, X, random, _part(on_fit, number, len(kinds)))
            for number, spec in enumerate(kinds)
        )

    @property
    def _readers(self) -> dict[str, Callable[[ProbeSpec, Features, bool, OnFit], ProbeResult]]:
        return {
            "classification": self._by_row,
            "regression": self._by_row,
            "text": self._by_text,
            "tree": self._by_tree,
        }

    def baselines(self) -> dict[Target, tuple[tuple[Measurement, ...], Said]]:
        """Return measurements and test answers of each guess made without activations."""
        settings = self.settings
        if settings.reads == "trees":
            return {}
        sample = Sample.of(self._judged, self._train.numbers, self._folds, settings.seed)
        guesses = number_baselines if settings.reads_numbers else label_baselines
        found: dict[Target, tuple[tuple[Measurement, ...], Said]] = {}
        for target, answers, n_train in guesses(
            self._judged, self._task, sample, settings.baselines
        ):
            reading = self._reading(self._task, self._test, answers)
            origin = Origin("none", target, settings.seed, n_train)
            found[target] = tuple(measure(origin, "test", [reading])), answers
        return found

    def _column(self, labels: NDArray[np.str_]) -> Column:
        """Return the labels as codes, or as numbers (n_rows,)."""
        if self.settings.reads_numbers:
            return numbers(replace(self.data, y=labels))
        classes = self.data.classes
        return np.searchsorted(classes, labels).clip(max=len(classes) - 1)

    def _sample_training_rows(self) -> Codes:
        train, limit = self._judged.train, self.settings.fit_rows
        if limit is None:
            return train
        kept = train[sample_groups(self.data.groups[train], limit, self.settings.seed)]
        lost = sorted(set(self.data.classes) - set(self.data.y[kept]))
        if lost and self.settings.reads == "classes":
            raise DataError(
                f"fit_rows is {limit}, which leaves no training row of the label {str(lost[0])!r} "
                f"({len(lost)} labels in all are lost). Raise `fit_rows`, or take another `seed`."
            )
        return kept

    def _rows(self, numbers: Codes) -> _Rows:
        groups = self.data.groups[numbers]
        return _Rows(numbers, Resamples.draw(groups, self.settings.bootstrap, self.settings.seed))

    def _check(self, X: Features) -> None:
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

    @cached_property
    def _ground(self) -> Ground:
        groups = self.data.groups[self._train.numbers]
        return Ground(self._folds, groups, self._typical(), self.settings)

    def _typical(self) -> NDArray[np.bool_] | None:
        """Return which fitted rows features are scaled by; all, where the typical ones are few."""
        if self.data.typical is None:
            return None
        typical = self.data.typical[self._train.numbers]
        return typical if typical.mean() >= LEAST_TYPICAL else None

    def _by_row(self, spec: ProbeSpec, X: Features, random: bool, on_fit: OnFit) -> ProbeResult:
        machine, fitted = machine_of(spec, self._ground), self._train.numbers
        columns = [self._task, *([] if random else self._controls)]
        own = [column[fitted] for column in columns]
        inside, outside = X[fitted], X[self._test.numbers].astype(np.float64)
        tuned = machine.tune(inside, own, on_fit)
        tests = [
            self._reading(column, self._test, self._said(spec, one.solution, outside, column))
            for column, one in zip(columns, tuned, strict=True)
        ]
        target = _target(random)
        measured = self._measure(spec, target, columns[:1], tuned[:1], tests[:1])
        if len(columns) > 1:
            measured += self._measure(spec, "control", columns[1:], tuned[1:], tests[1:])
            measured.append(self._selectivity(spec, tuned[0], tests))
        if self.settings.description and not self.settings.reads_numbers:
            measured += self._coding.lengths(spec, machine, inside, own, tuned, target)
        if self.settings.learning_steps and not random:
            measured += self._learning(spec, machine, inside, outside, tuned[0])
        return ProbeResult(spec, tuple(measured), tests[0].answers, tuned[0].solution)

    def _said(self, spec: ProbeSpec, solution: Solution, X: Features, column: Column) -> Said:
        """Return what a fit says of the test rows X."""
        truth = column[self._test.numbers]
        if self.settings.reads_numbers:
            return NumberAnswers(truth, number_guess(solution, X))
        n_classes = len(self.data.classes)
        scores = solution.class_scores(X, n_classes)
        if spec.logits:
            scores = log_softmax(scores, axis=1)
        return Answers(truth, scores.argmax(axis=1), n_classes, scores, spec.logits)

    def _reading(self, column: Column, rows: _Rows, said: Said) -> Reading:
        return Reading(said, uninformed(column[self._judged.train], said), rows.resamples)

    def _measure(
        self,
        spec: ProbeSpec,
        target: Target,
        columns: Sequence[Column],
        tuned: Sequence[Tuned],
        tests: Sequence[Reading],
    ) -> list[Measurement]:
        origin = Origin(spec.text, target, self.settings.seed, len(self._folds))
        n_searched = len(self._folds) - int(np.bincount(self._folds).max())
        held_out = [
            self._reading(column, self._train, self._held_out(column, one))
            for column, one in zip(columns, tuned, strict=True)
        ]
        return [
            *measure(origin.of_columns(tuned), "test", tests),
            measure_one(
                origin.of_columns(tuned).of_search(tuned, n_searched),
                "validation", self._main_metric, held_out,
            ),
        ]  # fmt: skip

    @property
    def _main_metric(self) -> str:
        """The metric by which sites are chosen, and whose lead over the control is selectivity."""
        return "r2" if self.settings.reads_numbers else "accuracy"

    def _held_out(self, column: Column, tuned: Tuned) -> Said:
        truth = column[self._train.numbers]
        if self.settings.reads_numbers:
            return NumberAnswers(truth, tuned.held_out)
        return Answers(truth, tuned.held_out, len(self.data.classes))

    def _selectivity(self, spec: ProbeSpec, tuned: Tuned, tests: Sequence[Reading]) -> Measurement:
        origin = Origin(spec.text, "task", self.settings.seed, len(self._folds))
        task, *controls = tests
        return measure_selectivity(origin.of_columns([tuned]), self._main_metric, task, controls)

    @cached_property
    def _coding(self) -> OnlineCoding:
        groups, n_classes = self.data.groups[self._train.numbers], len(self.data.classes)
        coded = blocks(groups, n_classes, self.settings.seed)
        return OnlineCoding(coded, self._train.resamples, n_classes, self.settings.seed)

    def _learning(
        self, spec: ProbeSpec, machine: Machine, X: Features, outside: Features, tuned: Tuned
    ) -> list[Measurement]:
        """Return the test score after training on fewer rows, at the penalty of all."""
        groups = self.data.groups[self._train.numbers]
        sizes = learning_sizes(len(X), self.settings.learning_steps)
        shares = list(subsets(groups, sizes, self.settings.seed))
        (path,) = machine.refit(X, [self._task[self._train.numbers]], [tuned], shares)
        measured = []
        for share, solution in zip(shares, path, strict=True):
            origin = Origin(spec.text, "task", self.settings.seed, int(share.sum()), tuned.penalty)
            said = self._said(spec, solution, outside, self._task)
            reading = self._reading(self._task, self._test, said)
            fitted = origin.of_fits([solution])
            measured.append(measure_one(fitted, "learning", self._main_metric, [reading]))
        return measured

    def _by_text(self, spec: ProbeSpec, X: Features, random: bool, on_fit: OnFit) -> ProbeResult:
        # A label of chance for each word would give one text several.
        has_control = self.settings.control_by == "group" and not random
        columns = [self._task, *(self._controls if has_control else [])]
        measured, said = self._wholes.texts(spec, X, columns, _target(random))
        on_fit(1, 1)
        return ProbeResult(spec, measured, said)

    def _by_tree(self, spec: ProbeSpec, X: Features, random: bool, on_fit: OnFit) -> ProbeResult:
        measured, said = self._wholes.trees(spec, X, _target(random))
        on_fit(1, 1)
        return ProbeResult(spec, measured, said)


def _target(random: bool) -> Target:
    return "random_weights" if random else "task"


def _part(on_fit: OnFit | None, number: int, n_parts: int) -> OnFit:
    """Return what hears of the fits of one of several parts."""

    def tell(done: int, total: int) -> None:
        if on_fit is not None:
            on_fit(number * total + done, n_parts * total)

    return tell
