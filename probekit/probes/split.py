"""One split of the rows: probes fitted on its training rows and scored on its test rows."""

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
from probekit.probes.fitters import FitContext, Fitter, LabelColumn, make_fitter, number_guess
from probekit.probes.folds import fittable_insides, group_folds, sample_groups
from probekit.probes.kinds.k_sparse import explained_shares
from probekit.probes.score.description_length import CodedBlock, OnlineCode, blocks, tempered
from probekit.probes.score.learning_curve import learning_sizes, subsets
from probekit.probes.score.measurement import PredictionPair, Predictions, Score
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.regression import NumberPredictions
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.design import Features, Floats
from probekit.probes.solve.fits import TunedProbeFit
from probekit.probes.solve.layers import FittedLayers
from probekit.probes.solve.solver import Codes, OnFit
from probekit.probes.text_and_tree import first_rows
from probekit.probes.text_and_tree_kinds import GroupedTokenProber


@dataclass(frozen=True, eq=False)
class _Site:
    """Training and test rows of one site, with the fitter of a kind and its tuned fits."""

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
        self.fitted = self._sample_training_rows()
        self.groups = data.groups[self.fitted]
        self.token_prober = GroupedTokenProber.of(data, settings, self.fitted)
        if settings.reads == "trees":
            self.token_prober.check_trees()
        drawn = [] if settings.reads == "trees" else draw_controls(data, settings, self.fitted)
        self._controls = [self._column(labels) for labels in drawn]
        is_class = settings.reads == "classes"
        stratify = data.y[self.fitted] if is_class else np.zeros(len(self.fitted))
        self._folds = group_folds(stratify, self.groups, settings.folds, settings.seed)
        if is_class:
            fittable_insides(stratify, self._folds)
        self._test_groups = data.groups[self.scored.test]
        self._blocks = blocks(self.groups, len(data.classes), settings.seed)
        steps = settings.learning_steps
        self._sizes = learning_sizes(len(self.fitted), steps) if steps else ()

    def read(self, spec: ProbeSpec, X: Features, random: bool, on_fit: OnFit) -> list[Score]:
        """Return the scores of a kind on X (n_rows, n_features); the task on test rows is first.

        For a model with random weights only the task is scored.
        """
        readers: dict[str, Callable[[ProbeSpec, Features, bool, OnFit], list[Score]]] = {
            "classification": self._by_row,
            "regression": self._by_row,
            "text": self._by_text,
            "tree": self._by_tree,
        }
        return readers[spec.task](spec, X, random, on_fit)

    def baselines(self) -> dict[str, list[Score]]:
        """Return the scores of each baseline, by its target."""
        settings, scores = self.settings, {}
        if settings.reads == "trees":
            return {}
        sample = BaselineSample.of(self.scored, self.fitted, self._folds, settings.seed)
        predict = number_baselines if settings.reads_numbers else label_baselines
        for target, predictions, n_train in predict(
            self.scored, self.task, sample, settings.baselines
        ):
            pair = self._with_chance(self.task, predictions)
            score = Score("none", target, settings.seed, n_train)
            scores[target] = [replace(score, pairs=(pair,), groups=self._test_groups)]
        return scores

    def chance(self, predictions: Predictions, draw: int | None = None) -> Predictions:
        """Return the chance level predictions for the same test rows.

        Args:
            predictions: predictions of the task, or of one draw of the control task.
            draw: the number of that draw; None for the task.
        """
        column = self.task if draw is None else self._controls[draw]
        return self._with_chance(column, predictions)[1]

    def explained(self, X: Features) -> Floats:
        """Return the share (n_features,) of each feature's variance that the labels explain.

        This is the feature ranking of k-sparse probes, on the same training rows.
        """
        return explained_shares(X[self.fitted], self.task[self.fitted], self._context.typical)

    def _column(self, labels: NDArray[np.str_]) -> LabelColumn:
        """Return the labels (n_rows,) as codes or as numbers."""
        if self.settings.reads_numbers:
            return numbers(replace(self.data, y=labels))
        classes = self.data.classes
        return np.searchsorted(classes, labels).clip(max=len(classes) - 1)

    def _sample_training_rows(self) -> Codes:
        train, limit = self.scored.train, self.settings.fit_rows
        if limit is None:
            return train
        sampled = train[sample_groups(self.data.groups[train], limit, self.settings.seed)]
        lost = sorted(set(self.data.classes) - set(self.data.y[sampled]))
        if lost and self.settings.reads == "classes":
            raise DataError(
                f"fit_rows is {limit}, which leaves no training row with the label "
                f"{str(lost[0])!r} ({counted(len(lost), 'label')} lost in total). Increase "
                "`fit_rows` or change `seed`."
            )
        return sampled

    @cached_property
    def _context(self) -> FitContext:
        typical = typical_rows(self.data, self.fitted)
        return FitContext(self._folds, self.groups, typical, self.settings)

    def _by_row(self, spec: ProbeSpec, X: Features, random: bool, on_fit: OnFit) -> list[Score]:
        columns = [self.task, *([] if random else self._controls)]
        own = [column[self.fitted] for column in columns]
        inside, outside = X[self.fitted], X[self.data.test].astype(np.float64)
        fitter = make_fitter(spec, self._context)
        site = _Site(spec, fitter, inside, outside, own, fitter.tune(inside, own, on_fit))
        tests = tuple(
            self._with_chance(column, self._predict(spec, one.solution, outside, column))
            for column, one in zip(columns, site.tuned, strict=True)
        )
        target = _target(random)
        scores = self._scores(site, target, slice(0, 1), tests)
        if len(columns) > 1:
            scores += self._scores(site, "control", slice(1, None), tests)
            selectivity = replace(scores[0], metric=self.main_metric, against=tests[1:], fit=None)
            scores.append(selectivity)
        if self.codes_online:
            scores += self._description(site, target)
        if self.settings.learning_steps and not random:
            scores += self._learning(site)
        return [replace(scores[0], fit=site.tuned[0].solution), *scores[1:]]

    @property
    def codes_online(self) -> bool:
        """Whether labels are coded online: requested, and enough rows for two blocks."""
        requested = self.settings.description and self.settings.reads == "classes"
        return requested and len(self._blocks) > 1

    @property
    def main_metric(self) -> str:
        """The metric by which sites are selected, and from which selectivity is computed."""
        return "r2" if self.settings.reads_numbers else "accuracy"

    def _score(self, spec: ProbeSpec, target: str) -> Score:
        """Return a test score without predictions, which the caller adds."""
        seed, groups = self.settings.seed, self._test_groups
        return Score(spec.text, target, seed, len(self.fitted), groups=groups)

    def _predict(
        self, spec: ProbeSpec, solution: FittedLayers, X: Features, column: LabelColumn
    ) -> Predictions:
        """Return the predictions of a fit for the test rows X."""
        truth = column[self.data.test]
        if self.settings.reads_numbers:
            return NumberPredictions(truth, number_guess(solution, X))
        n_classes = len(self.data.classes)
        scores = solution.class_scores(X, n_classes)
        if spec.logits:
            scores = log_softmax(scores, axis=1)
        return ClassPredictions(truth, scores.argmax(axis=1), n_classes, scores, spec.logits)

    def _with_chance(self, column: LabelColumn, predictions: Predictions) -> PredictionPair:
        return predictions, uninformed(column[self.scored.train], predictions)

    def _scores(
        self, site: _Site, target: str, which: slice, tests: tuple[PredictionPair, ...]
    ) -> list[Score]:
        """Return the test score and the cross-validation score of the selected columns."""
        score, tuned = self._score(site.spec, target).of_columns(site.tuned[which]), site.tuned
        n_searched = len(self._folds) - int(np.bincount(self._folds).max())
        held_out = tuple(
            self._held_out(column, one)
            for column, one in zip(site.columns[which], tuned[which], strict=True)
        )
        searched = score.of_search(tuned[which], n_searched)
        return [
            replace(score, pairs=tests[which]),
            replace(searched, pairs=held_out, groups=self.groups, metric=self.main_metric),
        ]

    def _held_out(self, truth: LabelColumn, tuned: TunedProbeFit[FittedLayers]) -> PredictionPair:
        if self.settings.reads_numbers:
            mean = np.full(len(truth), truth.mean())
            held_out = NumberPredictions(truth, tuned.held_out, folds=self._folds)
            return held_out, NumberPredictions(truth, mean)
        n_classes = len(self.data.classes)
        predictions = ClassPredictions(truth, tuned.held_out, n_classes, folds=self._folds)
        return predictions, ClassPredictions(truth, majority_guess(truth, len(truth)), n_classes)

    def _description(self, site: _Site, target: str) -> list[Score]:
        """Return the scores of the online code of the labels and of the control labels."""
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
            pairs.append((code, code.uniform))
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
        """Return the log probabilities (n_coded, n_classes) of a fit for the coded rows."""
        n_classes = len(self.data.classes)
        scores = solution.class_scores(site.fitted[block.coded], n_classes)
        if not site.spec.logits:
            train_scores = solution.class_scores(site.fitted[block.fitted], n_classes)
            scores = scores * tempered(train_scores, column[block.fitted])
        logs: Floats = log_softmax(scores, axis=1)
        return logs

    def _learning(self, site: _Site) -> list[Score]:
        """Return the test scores after training on fewer rows, with the penalty of all rows."""
        shares = list(subsets(self.groups, self._sizes, self.settings.seed))
        (path,) = site.fitter.refit(site.fitted, site.columns[:1], site.tuned[:1], shares)
        scores = []
        for share, solution in zip(shares, path, strict=True):
            predictions = self._predict(site.spec, solution, site.tested, self.task)
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
        # A random label for each word would give several labels to one text.
        has_control = self.settings.control_by == "group" and not random
        columns = [self.task, *(self._controls if has_control else [])]
        scores = self.token_prober.texts(spec, X, columns, _target(random))
        on_fit(1, 1)
        return scores

    def _by_tree(self, spec: ProbeSpec, X: Features, random: bool, on_fit: OnFit) -> list[Score]:
        score = self.token_prober.trees(spec, X, _target(random))
        on_fit(1, 1)
        return [score]


def _target(random: bool) -> str:
    return "random_weights" if random else "task"
