"""One split of the rows: what is fitted on its training rows, and asked on its test rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from probekit.amounts import counted
from probekit.errors import DataError
from probekit.probes.controls.control_labels import majority_guess
from probekit.probes.controls.controls import (
    BaselineSample,
    draw_controls,
    label_baselines,
    number_baselines,
    uninformed,
)
from probekit.probes.data import ProbeData, check_known, numbers, typical_rows
from probekit.probes.fitters import (
    FitContext,
    Fitter,
    LabelColumn,
    TunedProbeFit,
    make_fitter,
    number_guess,
)
from probekit.probes.folds import fittable_insides, group_folds, sample_groups
from probekit.probes.kinds.k_sparse import explained_shares
from probekit.probes.kinds.layers import FittedLayers
from probekit.probes.score.description_length import OnlineCode, blocks, tempered
from probekit.probes.score.learning_curve import learning_sizes, subsets
from probekit.probes.score.measurement import Estimate, Origin, Predictions, Score, Target
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.regression import NumberPredictions
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.design import Features, Floats
from probekit.probes.solve.solver import Codes, OnFit
from probekit.probes.text_and_tree import first_rows
from probekit.probes.text_and_tree_kinds import GroupedTokenProber


@dataclass(frozen=True, eq=False)
class SplitResult:
    """What one kind of probe came to: what may be claimed, what it said of the test rows, the fit.

    `solution` is None for kinds that are no stack of layers.
    """

    claims: tuple[Score, ...]
    said: Predictions
    solution: FittedLayers | None = None


@dataclass(frozen=True, eq=False)
class _Site:
    """The rows of one site, parted, with the machine of a kind and what it tuned on them."""

    spec: ProbeSpec
    machine: Fitter
    fitted: Features
    tested: Features
    columns: Sequence[LabelColumn]
    tuned: Sequence[TunedProbeFit]


class SplitProber:
    """Folds, control labels and samples of one split, which all sites share.

    Raises:
        ConfigError: A control task is asked for, but all training rows have the same word type.
        DataError: There are fewer groups of training rows than folds, or labels that the kinds of
            probe cannot read.
    """

    def __init__(self, data: ProbeData, settings: ProbeSettings) -> None:
        self.data = data
        self.settings = settings
        tasks = {spec.task for spec in settings.kinds}
        if settings.reads == "classes":
            check_known(data)
        # Where only texts are read, a text counts once whatever the number of its tokens.
        self.judged = first_rows(data) if tasks == {"text"} else data
        self.task = self._column(data.y)
        self.fitted = self._sample_training_rows()
        self.groups = data.groups[self.fitted]
        self.wholes = GroupedTokenProber.of(data, settings, self.fitted)
        if settings.reads == "trees":
            self.wholes.check_trees()
        drawn = [] if settings.reads == "trees" else draw_controls(data, settings, self.fitted)
        self._controls = [self._column(labels) for labels in drawn]
        is_class = settings.reads == "classes"
        stratify = data.y[self.fitted] if is_class else np.zeros(len(self.fitted))
        self._folds = group_folds(stratify, self.groups, settings.folds, settings.seed)
        if is_class:
            fittable_insides(stratify, self._folds)
        self._test_groups = data.groups[self.judged.test]
        self._blocks = blocks(self.groups, len(data.classes), settings.seed)
        steps = settings.learning_steps
        self._sizes = learning_sizes(len(self.fitted), steps) if steps else ()

    def read(self, spec: ProbeSpec, X: Features, random: bool, on_fit: OnFit) -> SplitResult:
        """Return what a kind finds in X (n_rows, n_features); of a random model the task alone."""
        readers: dict[str, Callable[[ProbeSpec, Features, bool, OnFit], SplitResult]] = {
            "classification": self._by_row,
            "regression": self._by_row,
            "text": self._by_text,
            "tree": self._by_tree,
        }
        return readers[spec.task](spec, X, random, on_fit)

    def baselines(self) -> dict[Target, SplitResult]:
        """Return what each guess comes to that is made without activations."""
        settings, found = self.settings, {}
        if settings.reads == "trees":
            return {}
        sample = BaselineSample.of(self.judged, self.fitted, self._folds, settings.seed)
        guesses = number_baselines if settings.reads_numbers else label_baselines
        for target, said, n_train in guesses(self.judged, self.task, sample, settings.baselines):
            origin = Origin("none", target, settings.seed, n_train)
            claim = Score(origin, "test", (self._reading(self.task, said, self._test_groups),))
            found[target] = SplitResult((claim,), said)
        return found

    def explained(self, X: Features) -> Floats:
        """Return the share (n_features,) of the variance of each feature that the labels explain.

        It ranks the features of k-sparse probes, on the rows that these are fitted on.
        """
        return explained_shares(X[self.fitted], self.task[self.fitted], self._ground.typical)

    def _column(self, labels: NDArray[np.str_]) -> LabelColumn:
        """Return the labels as codes, or as numbers (n_rows,)."""
        if self.settings.reads_numbers:
            return numbers(replace(self.data, y=labels))
        classes = self.data.classes
        return np.searchsorted(classes, labels).clip(max=len(classes) - 1)

    def _sample_training_rows(self) -> Codes:
        train, limit = self.judged.train, self.settings.fit_rows
        if limit is None:
            return train
        kept = train[sample_groups(self.data.groups[train], limit, self.settings.seed)]
        lost = sorted(set(self.data.classes) - set(self.data.y[kept]))
        if lost and self.settings.reads == "classes":
            raise DataError(
                f"fit_rows is {limit}, which leaves no training row of the label {str(lost[0])!r} "
                f"({counted(len(lost), 'label')} lost in all). Raise `fit_rows`, or take "
                "another `seed`."
            )
        return kept

    @cached_property
    def _ground(self) -> FitContext:
        typical = typical_rows(self.data, self.fitted)
        return FitContext(self._folds, self.groups, typical, self.settings)

    def _by_row(self, spec: ProbeSpec, X: Features, random: bool, on_fit: OnFit) -> SplitResult:
        columns = [self.task, *([] if random else self._controls)]
        own = [column[self.fitted] for column in columns]
        inside, outside = X[self.fitted], X[self.data.test].astype(np.float64)
        machine = make_fitter(spec, self._ground)
        site = _Site(spec, machine, inside, outside, own, machine.tune(inside, own, on_fit))
        tests = tuple(
            self._reading(
                column, self._said(spec, one.solution, outside, column), self._test_groups
            )
            for column, one in zip(columns, site.tuned, strict=True)
        )
        target = _target(random)
        claims = self._scores(site, target, slice(0, 1), tests)
        if len(columns) > 1:
            claims += self._scores(site, "control", slice(1, None), tests)
            origin = self._origin(spec, "task").of_columns(site.tuned[:1])
            claims.append(Score(origin, "test", tests[:1], self.main_metric, against=tests[1:]))
        if self.codes_online:
            claims += self._description(site, target)
        if self.settings.learning_steps and not random:
            claims += self._learning(site)
        return SplitResult(tuple(claims), tests[0].answers, site.tuned[0].solution)

    @property
    def codes_online(self) -> bool:
        """Whether labels are coded online: it is asked for, and rows are enough for two blocks."""
        wanted = self.settings.description and self.settings.reads == "classes"
        return wanted and len(self._blocks) > 1

    @property
    def main_metric(self) -> str:
        """The metric by which sites are chosen, and whose lead over the control is selectivity."""
        return "r2" if self.settings.reads_numbers else "accuracy"

    def _origin(self, spec: ProbeSpec, target: Target) -> Origin:
        return Origin(spec.text, target, self.settings.seed, len(self.fitted))

    def _said(
        self, spec: ProbeSpec, solution: FittedLayers, X: Features, column: LabelColumn
    ) -> Predictions:
        """Return what a fit says of the test rows X."""
        truth = column[self.data.test]
        if self.settings.reads_numbers:
            return NumberPredictions(truth, number_guess(solution, X))
        n_classes = len(self.data.classes)
        scores = solution.class_scores(X, n_classes)
        if spec.logits:
            scores = log_softmax(scores, axis=1)
        return ClassPredictions(truth, scores.argmax(axis=1), n_classes, scores, spec.logits)

    def _reading(
        self, column: LabelColumn, said: Predictions, groups: NDArray[np.str_]
    ) -> Estimate:
        return Estimate(said, uninformed(column[self.judged.train], said), groups)

    def _scores(
        self, site: _Site, target: Target, which: slice, tests: tuple[Estimate, ...]
    ) -> list[Score]:
        """Return the claims on test rows and on held-out training rows of some of the columns."""
        origin, tuned = self._origin(site.spec, target).of_columns(site.tuned[which]), site.tuned
        n_searched = len(self._folds) - int(np.bincount(self._folds).max())
        held_out = tuple(
            self._held_out(column, one)
            for column, one in zip(site.columns[which], tuned[which], strict=True)
        )
        searched = origin.of_search(tuned[which], n_searched)
        return [
            Score(origin, "test", tests[which]),
            Score(searched, "validation", held_out, self.main_metric),
        ]

    def _held_out(self, truth: LabelColumn, tuned: TunedProbeFit) -> Estimate:
        if self.settings.reads_numbers:
            mean = np.full(len(truth), truth.mean())
            return Estimate(
                NumberPredictions(truth, tuned.held_out),
                NumberPredictions(truth, mean),
                self.groups,
            )
        n_classes = len(self.data.classes)
        said = ClassPredictions(truth, tuned.held_out, n_classes)
        return Estimate(
            said, ClassPredictions(truth, majority_guess(truth, len(truth)), n_classes), self.groups
        )

    def _description(self, site: _Site, target: Target) -> list[Score]:
        """Return the lengths of the labels, coded online, and of the control labels."""
        coded = self._blocks
        shares = [np.isin(np.arange(len(site.fitted)), block.fitted) for block in coded[1:]]
        paths = site.machine.refit(site.fitted, site.columns, site.tuned, shares)
        readings = []
        for column, path in zip(site.columns, paths, strict=True):
            tables = [
                self._foretold(site, column, solution, block.fitted, block.coded)
                for block, solution in zip(coded[1:], path, strict=True)
            ]
            code = OnlineCode.of_blocks(coded, tables, column)
            readings.append(Estimate(code, code.uniform, self.groups))
        parts: list[tuple[Target, slice]] = [(target, slice(0, 1)), ("control", slice(1, None))]
        return [
            Score(
                self._origin(site.spec, whose)
                .of_columns(site.tuned[which])
                .of_fits([fit for path in paths[which] for fit in path]),
                "online",
                tuple(readings[which]),
            )
            for whose, which in parts
            if readings[which]
        ]

    def _foretold(
        self, site: _Site, column: LabelColumn, solution: FittedLayers, fitted: Codes, coded: Codes
    ) -> Floats:
        """Return log probabilities (n_coded, n_classes) by a probe fitted on the rows before."""
        n_classes = len(self.data.classes)
        scores = solution.class_scores(site.fitted[coded], n_classes)
        if not site.spec.logits:
            known = solution.class_scores(site.fitted[fitted], n_classes)
            scores = scores * tempered(known, column[fitted])
        logs: Floats = log_softmax(scores, axis=1)
        return logs

    def _learning(self, site: _Site) -> list[Score]:
        """Return the test score after training on fewer rows, at the penalty of all."""
        shares = list(subsets(self.groups, self._sizes, self.settings.seed))
        (path,) = site.machine.refit(site.fitted, site.columns[:1], site.tuned[:1], shares)
        claims = []
        for share, solution in zip(shares, path, strict=True):
            origin = replace(self._origin(site.spec, "task"), n_train=int(share.sum()))
            origin = replace(origin, C=site.tuned[0].penalty).of_fits([solution])
            said = self._said(site.spec, solution, site.tested, self.task)
            reading = self._reading(self.task, said, self._test_groups)
            claims.append(Score(origin, "learning", (reading,), self.main_metric))
        return claims

    def _by_text(self, spec: ProbeSpec, X: Features, random: bool, on_fit: OnFit) -> SplitResult:
        # A label of chance for each word would give one text several.
        has_control = self.settings.control_by == "group" and not random
        columns = [self.task, *(self._controls if has_control else [])]
        claims, said = self.wholes.texts(spec, X, columns, _target(random))
        on_fit(1, 1)
        return SplitResult(claims, said)

    def _by_tree(self, spec: ProbeSpec, X: Features, random: bool, on_fit: OnFit) -> SplitResult:
        claim, said = self.wholes.trees(spec, X, _target(random))
        on_fit(1, 1)
        return SplitResult((claim,), said)


def _target(random: bool) -> Target:
    return "random_weights" if random else "task"
