"""Fitting of probes on the training rows of one split, and scoring on its test rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from probekit.probes.controls.comparable import comparable_rows
from probekit.probes.controls.controls import (
    BaselineSample,
    draw_controls,
    label_baselines,
    number_baselines,
    uninformed,
)
from probekit.probes.data import (
    ProbeData,
    check_known,
    first_rows,
    fittable_insides,
    group_folds,
    numbers,
    typical_rows,
)
from probekit.probes.fitted_rows import FittedRows, training_rows
from probekit.probes.fitters import FitContext, Fitter, LabelColumn, make_fitter, number_guess
from probekit.probes.grouped_prober import GroupedTokenProber
from probekit.probes.outputs import PredictionMaker
from probekit.probes.score.description_length import (
    CodedBlock,
    OnlineCode,
    blocks,
    learning_sizes,
    subsets,
    tempered,
)
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.scored import PredictionPair, Predictions, Score, judge_of, taken
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.design import Features, Floats
from probekit.probes.solve.fits import TunedProbeFit, held_out_scores
from probekit.probes.solve.layers import FittedLayers
from probekit.probes.solve.solver import Codes, OnFit


@dataclass(frozen=True, eq=False)
class _Site:
    """Training and test rows of one site, with the fitter and tuned fits of one kind of probe."""

    spec: ProbeSpec
    fitter: Fitter
    fitted: Features
    tested: Features
    columns: Sequence[LabelColumn]
    tuned: Sequence[TunedProbeFit[FittedLayers]]


class SplitProber:
    """Fits and scores probes on one split, with folds and control labels shared by all sites.

    Raises:
        ConfigError: A control task is requested that cannot be drawn; see `draw_controls`.
        DataError: There are fewer groups of training rows than folds, or the kinds of probe cannot
            use the labels.
    """

    def __init__(self, data: ProbeData, settings: ProbeSettings) -> None:
        self.data = data
        self.settings = settings
        tasks = {spec.task for spec in settings.kinds}
        if settings.reads == "classes":
            check_known(data)
        # If all kinds read texts, each text counts once, whatever its number of tokens.
        self.scored = first_rows(data) if tasks == {"text"} else data
        self.task = self._column(data.y)
        self._made = PredictionMaker(settings, len(data.classes), self._positive)
        self.fitted = training_rows(self.scored, settings)
        self.groups = data.groups[self.fitted]
        self.token_prober = GroupedTokenProber.of(data, settings, self.fitted)
        if settings.reads == "trees":
            self.token_prober.check_trees()
        self._controls: list[LabelColumn] = []
        is_class = settings.reads == "classes"
        stratify = data.y[self.fitted] if is_class else np.zeros(len(self.fitted))
        if is_class:
            self._made.check_metric_is_defined(self.task[self.fitted])
        self._folds = group_folds(stratify, self.groups, settings.folds, settings.seed)
        if is_class:
            fittable_insides(stratify, self._folds)
        self._test_groups = data.groups[self.scored.test]
        self._blocks = blocks(self.groups, len(data.classes), settings.seed)
        steps = settings.learning_steps
        self._sizes = learning_sizes(len(self.fitted), steps) if steps else ()

    @cached_property
    def comparable(self) -> NDArray[np.bool_]:
        """Mask (n_test,) of the test rows that the control task is scored on."""
        return comparable_rows(self.data, self.settings, self.fitted)

    def draw_controls(self) -> None:
        """Draw the labels of the control task, so that `read` scores it, too.

        Raises:
            ConfigError: A control task cannot be drawn; see `draw_controls`.
        """
        drawn = draw_controls(self.data, self.settings, self.fitted)
        self._controls = [self._column(labels) for labels in drawn]

    def read(self, spec: ProbeSpec, X: Features, random: bool, on_fit: OnFit) -> list[Score]:
        """Return the scores of one kind of probe at one site.

        The first is the score of the task on the test rows. X (n_rows, n_features) are the
        activations at the site. For a model with random weights only the task is scored.
        """
        readers: dict[str, Callable[[ProbeSpec, Features, bool, OnFit], list[Score]]] = {
            "classification": self._by_row,
            "regression": self._by_row,
            "text": self._by_text,
            "tree": self._by_tree,
        }
        return readers[spec.task](spec, X, random, on_fit)

    def baselines(self) -> dict[str, list[Score]]:
        """Return the test score of each baseline, as a list of one, by the name of the baseline."""
        settings, scores = self.settings, {}
        if settings.reads == "trees":
            return {}
        sample = BaselineSample.of(self.scored, self.fitted, self._folds, settings.seed)
        predict = number_baselines if settings.reads_numbers else label_baselines
        fitting = self._made.baseline_fitting()
        for result in predict(self.scored, self.task, sample, settings.baselines, fitting):
            pair = self._with_chance(self.task, self._made.with_positive(result.predictions))
            score = Score("none", result.target, settings.seed, result.n_train, C=result.penalty)
            scores[result.target] = [replace(score, pairs=(pair,), groups=self._test_groups)]
        return scores

    def chance(self, predictions: Predictions, draw: int | None = None) -> Predictions:
        """Return the chance level predictions for the same test rows.

        Args:
            predictions: predictions of the task, or of one draw of the control task.
            draw: the number of that draw; None for the task.
        """
        column = self.task if draw is None else self._controls[draw]
        return self._with_chance(column, predictions)[1]

    def _column(self, labels: NDArray[np.str_]) -> LabelColumn:
        """Return the labels (n_rows,) as codes or as numbers."""
        if self.settings.reads_numbers:
            return numbers(replace(self.data, y=labels))
        classes = self.data.classes
        return np.searchsorted(classes, labels).clip(max=len(classes) - 1)

    @property
    def _positive(self) -> int | None:
        return self.data.positive_code if self.settings.reads == "classes" else None

    @cached_property
    def fitted_rows(self) -> FittedRows:
        """The rows that are fitted, with their labels and folds."""
        typical = typical_rows(self.data, self.fitted)
        context = FitContext(self._folds, self.groups, typical, self.settings)
        return FittedRows(self.fitted, self.task[self.fitted], context)

    def _by_row(self, spec: ProbeSpec, X: Features, random: bool, on_fit: OnFit) -> list[Score]:
        columns = [self.task, *([] if random else self._controls)]
        own = [column[self.fitted] for column in columns]
        inside, outside = X[self.fitted], X[self.data.test].astype(np.float64)
        judge = judge_of(self.main_metric, partial(self._made.of_held_out, spec))
        fitter = make_fitter(spec, self.fitted_rows.context, judge)
        site = _Site(spec, fitter, inside, outside, own, fitter.tune(inside, own, on_fit))
        held_out = [
            self._held_out(site, codes, one) for codes, one in zip(own, site.tuned, strict=True)
        ]
        left_out = [
            self._left_out(site, *of_column)
            for of_column in zip(own, site.tuned, held_out, strict=True)
        ]
        predictions = [
            self._predict(spec, one.solution, outside, column, self.fitted)
            for column, one in zip(columns, site.tuned, strict=True)
        ]
        tests = tuple(
            self._with_chance(column, self._made.with_alarms(one, without))
            for column, one, without in zip(columns, predictions, left_out, strict=True)
        )
        validations = tuple(
            (one, uninformed(codes, one)) for codes, one in zip(own, held_out, strict=True)
        )
        target = _target(random)
        scores = self._scores(site, target, slice(0, 1), tests, validations)
        if len(columns) > 1:
            scores += self._of_control(site, tests, validations)
        if self.codes_online:
            scores += self._description(site, target)
        if self.settings.learning_steps and not random:
            scores += self._learning(site)
        return [replace(scores[0], fit=site.tuned[0].solution), *scores[1:]]

    @property
    def codes_online(self) -> bool:
        """Whether the description length is computed: requested, and at least two blocks."""
        requested = self.settings.description and self.settings.reads == "classes"
        return requested and len(self._blocks) > 1

    @property
    def main_metric(self) -> str:
        """The metric by which sites are selected, and from which selectivity is computed."""
        return self.settings.main_metric

    def _score(self, spec: ProbeSpec, target: str) -> Score:
        """Return a test score without predictions, which the caller adds."""
        seed, groups = self.settings.seed, self._test_groups
        return Score(spec.text, target, seed, len(self.fitted), groups=groups)

    def _predict(
        self,
        spec: ProbeSpec,
        solution: FittedLayers,
        X: Features,
        column: LabelColumn,
        fitted: Codes,
    ) -> Predictions:
        """Return the predictions for the test rows X, by a fit on the training rows `fitted`."""
        if self.settings.reads_numbers:
            outputs = number_guess(solution, X)
        else:
            outputs = solution.class_scores(X, len(self.data.classes))
        return self._made.of_test(spec, column[self.data.test], outputs, column[fitted])

    def _with_chance(self, column: LabelColumn, predictions: Predictions) -> PredictionPair:
        return predictions, uninformed(column[self.scored.train], predictions)

    def _scores(
        self,
        site: _Site,
        target: str,
        which: slice,
        tests: tuple[PredictionPair, ...],
        validations: tuple[PredictionPair, ...],
    ) -> list[Score]:
        """Return the test score and the cross-validation score of the selected columns."""
        score, tuned = self._score(site.spec, target).of_columns(site.tuned[which]), site.tuned
        n_searched = len(self._folds) - int(np.bincount(self._folds).max())
        searched = score.of_search(tuned[which], n_searched)
        return [
            replace(score, pairs=tests[which]),
            replace(
                searched, pairs=validations[which], groups=self.groups, metric=self.main_metric
            ),
        ]

    def _of_control(
        self,
        site: _Site,
        tests: tuple[PredictionPair, ...],
        validations: tuple[PredictionPair, ...],
    ) -> list[Score]:
        """Return test score and validation score of the control task, and selectivity.

        Test score and selectivity use only the comparable test rows.
        """
        task, *controls = (taken(pair, self.comparable) for pair in tests)
        groups = self._test_groups[self.comparable]
        test, validation = self._scores(site, "control", slice(1, None), tests, validations)
        score = self._score(site.spec, "task").of_columns(site.tuned[:1])
        selectivity = replace(
            score, metric=self.main_metric, pairs=(task,), against=tuple(controls), groups=groups
        )
        return [replace(test, pairs=tuple(controls), groups=groups), validation, selectivity]

    def _held_out(
        self, site: _Site, truth: LabelColumn, tuned: TunedProbeFit[FittedLayers]
    ) -> Predictions:
        """Return the cross-validated predictions of the training rows, with scores if needed."""
        n_classes = len(self.data.classes)
        if self.settings.reads_numbers:
            return self._made.of_held_out(site.spec, truth, tuned.held_out, self._folds)
        if self._positive is None and not METRICS[self.main_metric].needs:
            return ClassPredictions(truth, tuned.held_out, n_classes, folds=self._folds)
        path = np.array([tuned.search], dtype=object)
        (scores,) = held_out_scores(site.fitted, path, self._folds, n_classes)
        return self._made.of_held_out(site.spec, truth, scores, self._folds)

    def _left_out(
        self,
        site: _Site,
        truth: LabelColumn,
        tuned: TunedProbeFit[FittedLayers],
        held_out: Predictions,
    ) -> Predictions:
        """Return the predictions of the training rows that thresholds of the final fit need.

        These are predictions of the final fit without the group of each row. If they have no closed
        form, or there are too few rows for a threshold, they are the `held_out` predictions.
        """
        alarms = held_out.alarms if isinstance(held_out, ClassPredictions) else None
        if alarms is None or np.isnan(alarms).all():
            return held_out
        scores = site.fitter.left_out(site.fitted, truth, tuned)
        if scores is None:
            return held_out
        outputs = tuned.solution.by_class(scores, len(self.data.classes))
        return self._made.of_test(site.spec, truth, outputs, truth)

    def _description(self, site: _Site, target: str) -> list[Score]:
        """Return the description lengths of the training labels and of their control labels.

        Labels are coded block by block, with probabilities of a probe fitted on the previous
        blocks; see `probekit.probes.score.description_length`.
        """
        coded = self._blocks
        shares = [np.isin(np.arange(len(site.fitted)), block.fitted) for block in coded[1:]]
        paths = site.fitter.refit(site.fitted, site.columns, site.tuned, shares)
        pairs = []
        for column, path in zip(site.columns, paths, strict=True):
            tables = [
                self._block_log_probabilities(site, column, solution, block)
                for block, solution in zip(coded[1:], path, strict=True)
            ]
            code = OnlineCode.of_blocks(coded, tables, column)
            pairs.append((code, code.reference))
        parts: list[tuple[str, slice]] = [(target, slice(0, 1)), ("control", slice(1, None))]
        return [
            replace(
                self._score(site.spec, part_target)
                .of_columns(site.tuned[which])
                .of_fits([fit for path in paths[which] for fit in path]),
                split="online",
                pairs=tuple(pairs[which]),
                groups=self.groups,
            )
            for part_target, which in parts
            if pairs[which]
        ]

    def _block_log_probabilities(
        self, site: _Site, column: LabelColumn, solution: FittedLayers, block: CodedBlock
    ) -> Floats:
        """Return log probabilities (n_coded, n_classes), by a fit on the blocks before this one."""
        n_classes = len(self.data.classes)
        scores = solution.class_scores(site.fitted[block.coded], n_classes)
        removed = self._made.removed_prior(column[block.fitted])
        prior = 0.0 if removed is None else removed
        if not site.spec.logits:
            train_scores = solution.class_scores(site.fitted[block.fitted], n_classes)
            scores = scores * tempered(train_scores, column[block.fitted], prior)
        logs: Floats = log_softmax(scores + prior, axis=1)
        return logs

    def _learning(self, site: _Site) -> list[Score]:
        """Return the points of the learning curve: one test score per training set size.

        The penalty is not selected again: it is the one selected on all training rows.
        """
        shares = list(subsets(self.groups, self._sizes, self.settings.seed))
        (path,) = site.fitter.refit(site.fitted, site.columns[:1], site.tuned[:1], shares)
        scores = []
        for share, solution in zip(shares, path, strict=True):
            predictions = self._predict(
                site.spec, solution, site.tested, self.task, self.fitted[share]
            )
            score = replace(
                self._score(site.spec, "task"),
                n_train=int(share.sum()),
                split="learning",
                pairs=(self._with_chance(self.task, predictions),),
                metric=self.main_metric,
                C=site.tuned[0].penalty,
            )
            scores.append(score.of_fits([solution]))
        return scores

    def _by_text(self, spec: ProbeSpec, X: Features, random: bool, on_fit: OnFit) -> list[Score]:
        score = self.token_prober.texts(spec, X, self.task, _target(random))
        on_fit(1, 1)
        return [score]

    def _by_tree(self, spec: ProbeSpec, X: Features, random: bool, on_fit: OnFit) -> list[Score]:
        score = self.token_prober.trees(spec, X, _target(random))
        on_fit(1, 1)
        return [score]


def _target(random: bool) -> str:
    return "random_weights" if random else "task"
