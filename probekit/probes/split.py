"""Fitting of probes on the training rows of one split, and scoring on its test rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from probekit.lazy_rows import Codes, Floats, LazyRows, Mask
from probekit.probes import fitters
from probekit.probes.aggregation import GroupedTokens, first_rows, scores_of_texts
from probekit.probes.controls import comparable_rows, draw_controls, predict_baselines
from probekit.probes.data import ProbeData, check_known, fittable_insides
from probekit.probes.kinds.trees import read_trees
from probekit.probes.score import description_length as coding
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import ClassPredictions, fixed_thresholds, take, with_alarms
from probekit.probes.score.scored import FitFacts, Predictions, Scored, uninformed
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.fits import TunedProbeFit, held_out_scores
from probekit.probes.solve.layers import FittedLayers

S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class TunedColumn:
    """One label column at one site, with its tuned fit.

    Attributes:
        fitter: fits this kind of probe.
        X: the fitted rows (n_fitted, n_features).
        labels: the label (n_rows,) of each row of the data.
        codes: the label (n_fitted,) of each fitted row.
        tuned: the fit.
        facts: facts of the score on the test rows.
    """

    fitter: fitters.Fitter
    X: LazyRows
    labels: fitters.LabelColumn
    codes: fitters.LabelColumn
    tuned: TunedProbeFit[FittedLayers]
    facts: FitFacts


class SplitProber:
    """Fits and scores probes on one split, with folds and control labels shared by all sites.

    Attributes:
        data: labels, groups and split of all rows.
        settings: the settings of the probes.
        scored: the data whose test rows are scored; if all kinds read texts, each text counts once,
            whatever its number of tokens.
        task: the label code or number (n_rows,) of each row.
        fitted: the training rows that probes are fitted on.
        sizes: the sizes of the samples of the learning curve; empty for none.
        is_joined: whether the predictions of several splits are joined. They are then also on the
            scale of the training rows.

    Raises:
        ConfigError: The main metric needs a threshold that cannot be fixed, or there are too few
            rows for a learning curve.
        DataError: There are fewer groups of training rows than folds, or the kinds of probe cannot
            use the labels.
    """

    def __init__(self, data: ProbeData, settings: ProbeSettings, is_joined: bool = False) -> None:
        self.data = data
        self.settings = settings
        self.is_joined = is_joined and settings.reads == "classes"
        is_class = settings.reads == "classes"
        if is_class:
            check_known(data)
        self.scored = (
            first_rows(data) if all(one.traits.scores_texts for one in settings.specs) else data
        )
        self.task = fitters.label_column(data, data.y, settings)
        rows = fitters.training_rows(self.scored, settings)
        self.fitted = fitters.FittedRows.of(data, settings, rows)
        if settings.reads == "trees":  # raise an error if the labels are not trees
            for tokens in (self.train_tokens, self.test_tokens):
                read_trees(data.y[tokens.rows], tokens.example_of_row)
        if is_class:
            self.fitted.check_metric_is_defined()
            # This raises an error if no fold can be fitted.
            fittable_insides(data.y[rows], self.fitted.fold_of_row)
        # The labels of each draw of the control task; empty before `draw_controls`.
        self._controls: list[fitters.LabelColumn] = []
        self._test_groups = data.groups[self.scored.test]
        steps = settings.learning_steps
        self.sizes = coding.learning_sizes(len(rows), steps) if steps else ()

    @cached_property
    def train_tokens(self) -> GroupedTokens:
        """The tokens of the texts or sentences that probes are fitted on."""
        return self.fitted.texts(self.data.train)

    @cached_property
    def test_tokens(self) -> GroupedTokens:
        """The tokens of the texts or sentences that are scored."""
        return GroupedTokens.of(np.sort(self.data.test), self.data.examples)

    @cached_property
    def blocks(self) -> list[coding.CodedBlock]:
        """The blocks of the online code."""
        return coding.blocks(self.fitted.groups, len(self.data.classes), self.settings.seed)

    @cached_property
    def comparable(self) -> Mask:
        """Mask (n_test,) of the test rows that the control task is scored on."""
        return comparable_rows(self.data, self.settings, self.fitted.rows)

    def draw_controls(self) -> None:
        """Draw the labels of the control task, so that `read` scores it, too.

        Raises:
            ConfigError: A control task cannot be drawn; see the function in `controls`.
        """
        drawn = draw_controls(self.data, self.settings, self.fitted.rows)
        self._controls = [fitters.label_column(self.data, one, self.settings) for one in drawn]

    def chance(self, predictions: Predictions, draw: int | None = None) -> Predictions:
        """Return the chance level predictions for the same test rows.

        Args:
            predictions: predictions of the task, or of one draw of the control task.
            draw: the number of that draw; None for the task.
        """
        column = self.task if draw is None else self._controls[draw]
        return uninformed(column[self.scored.train], predictions)

    def baselines(self, outputs: Floats | None = None) -> list[Scored]:
        """Return the test score of each requested baseline; there are none for trees.

        For `outputs` see `ProbeData`.
        """
        if self.settings.reads == "trees":
            return []
        scores, seed = [], self.settings.seed
        # To scale the scores, those of the training rows are predicted, too.
        rows = np.concatenate([self.scored.test, *[self.scored.train] * self.is_joined])
        places = np.split(np.arange(len(rows)), [len(self.scored.test)])
        data = replace(self.scored, outputs=outputs)
        predicted = predict_baselines(self.fitted, data, self.task, rows)
        for target, both, n_train, penalty in predicted:
            predictions = self.of_test(partial(take, both), *places)
            facts = FitFacts(probe="none", target=target, n_train=n_train, C=penalty, seed=seed)
            scores.append(self.with_chance(predictions, self.task, facts))
        return scores

    def with_chance(
        self, predictions: Predictions, column: fitters.LabelColumn, facts: FitFacts, **changes: Any
    ) -> Scored:
        """Return predictions for the test rows with those of the chance level of a column."""
        chance = uninformed(column[self.scored.train], predictions)
        return Scored((predictions,), (chance,), self._test_groups, facts, **changes)

    def labels(self, random: bool) -> list[fitters.LabelColumn]:
        """Return the labels (n_rows,) of the task and, except for random weights, its controls."""
        return [self.task] if random else [self.task, *self._controls]

    def read(
        self,
        spec: ProbeSpec,
        X: LazyRows,
        random: bool,
        tuned: Sequence[TunedProbeFit[FittedLayers]],
        coding_fits: Sequence[Sequence[FittedLayers]] = (),
    ) -> list[Scored]:
        """Return the scores of one kind of probe at one site.

        The first is the score of the task on the test rows. For kinds that predict each row by
        itself, and for aggregated probes, the validation score of the task follows. Then, if
        requested, follow test score, validation score and selectivity of the control task,
        description lengths (not for numbers or a single block of rows) and the learning curve.

        Args:
            spec: the kind of probe.
            X: the activations (n_rows, n_features) at the site.
            random: whether they are those of a network with random weights, for which only the
                task is scored, without a learning curve.
            tuned: the tuned fits of the `labels`; empty for kinds that read texts or trees.
            coding_fits: those of `coding_fits`, of each of the labels.
        """
        target = "random_weights" if random else "task"
        if not spec.traits.scores_rows:
            return scores_of_texts(self, spec, X, target)
        rows, fitter = self.fitted.rows, self.fitted.fitter(spec)
        inside, labels, columns = X.select(rows), self.labels(random), []
        for number, one in enumerate(tuned):
            facts = FitFacts(
                probe=spec.text,
                target="control" if number else target,  # the first column is the task
                n_train=len(rows),
                C=one.penalty,
                close_choices=None if one.is_close is None else int(one.is_close),
                seed=self.settings.seed,
            ).of_fits([one.solution])
            of_rows = labels[number], labels[number][rows]
            columns.append(TunedColumn(fitter, inside, *of_rows, one, facts))
        task, *controls = columns
        outside = X.select(self.data.test)
        test, validation = self._test_and_validation(task, outside)
        scores = [replace(test, fit=task.tuned.solution), validation]
        if controls:
            pairs = [self._test_and_validation(column, outside) for column in controls]
            tests, validations = zip(*pairs, strict=True)
            control = Scored.of_draws(tests).take(self.comparable)
            # Selectivity is the score of the task minus that of the control task on the same rows.
            comparable, metric = test.take(self.comparable), self.settings.main_metric
            selectivity = replace(comparable, metric=metric, against=control.predictions)
            scores += [control, Scored.of_draws(validations), selectivity]
        if any(coding_fits):
            scores += coding.description_lengths(self, [task, *controls], coding_fits)
        if self.settings.learning_steps and not random:
            scores += coding.learning_curve(self, task, outside)
        return scores

    def _test_and_validation(self, column: TunedColumn, outside: LazyRows) -> tuple[Scored, Scored]:
        """Return the score on the test rows X `outside` and the cross-validation score."""
        fitted, tuned = self.fitted, column.tuned
        held_out = self._held_out(column)
        predictions: Any = self.predict(column, tuned.solution, outside, fitted.rows)
        if isinstance(held_out, ClassPredictions) and held_out.alarms is not None:
            # The thresholds of the final fit need its predictions without the group of each row. If
            # these have no closed form, or there are too few rows, held-out ones take their place.
            without: Any = held_out
            is_known = not np.isnan(held_out.alarms).all()
            given = column.X, column.codes, tuned.solution, tuned.penalty
            scores = column.fitter.left_out(*given) if is_known else None
            if scores is not None:
                outputs = tuned.solution.by_class(scores, fitted.n_classes)
                spec, codes = column.fitter.spec, column.codes
                without = fitted.predictions(spec, codes, outputs, codes)
            predictions = with_alarms(predictions, fixed_thresholds(without))
        fewest_fitted = len(fitted.rows) - int(np.bincount(fitted.fold_of_row).max())
        facts = column.facts.of_fits(tuned.search, n_train=fewest_fitted, split="validation")
        chance = uninformed(column.codes, held_out)
        validation = Scored((held_out,), (chance,), fitted.groups, facts, self.settings.main_metric)
        return self.with_chance(predictions, column.labels, column.facts), validation

    def predict(
        self, column: TunedColumn, solution: FittedLayers, X: LazyRows, fitted: Codes
    ) -> fitters.RowPredictions:
        """Return the predictions for the test rows X, by a fit on the training rows `fitted`."""
        n_classes = None if self.settings.reads_numbers else self.fitted.n_classes
        spec, labels = column.fitter.spec, column.labels

        def predict(side: tuple[LazyRows, Codes]) -> fitters.RowPredictions:
            """Return the predictions for some rows, given with their numbers."""
            outputs = solution.outputs(side[0], n_classes)
            return self.fitted.predictions(spec, labels[side[1]], outputs, labels[fitted])

        own = column.X.select(np.isin(self.fitted.rows, fitted))
        found: fitters.RowPredictions = self.of_test(predict, (X, self.data.test), (own, fitted))
        return found

    def _held_out(self, column: TunedColumn) -> fitters.RowPredictions:
        """Return the cross-validated predictions of the training rows, with scores if needed."""
        folds, n_classes = self.fitted.fold_of_row, self.fitted.n_classes
        # `outputs` are numbers, or label codes, which class scores replace if they are needed.
        codes, outputs = column.codes, column.tuned.held_out
        if not self.settings.reads_numbers:
            if self.fitted.positive is None and not METRICS[self.settings.main_metric].needs:
                return ClassPredictions(codes, outputs, n_classes, folds=folds)
            paths = np.array([column.tuned.search], dtype=object)  # (1, n_folds): a single penalty
            (outputs,) = held_out_scores(column.X, paths, folds, n_classes)
        return self.fitted.held_out(column.fitter.spec, codes, outputs, folds)

    def of_test(self, predict: Callable[[S], Any], test: S, train: S) -> Any:
        """Return the predictions of test rows; those of several fits on the scale of `train`."""
        predictions = predict(test)
        return predictions.scaled_by(predict(train)) if self.is_joined else predictions
