"""Conversion of the outputs of fits, which are numbers or class scores, to predictions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import ConfigError
from probekit.probes.controls.controls import BaselineFitting, log_frequencies
from probekit.probes.controls.text_models import BaselineTuning
from probekit.probes.fitters import LabelColumn
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import (
    LEAST_ALARMS,
    RATES,
    ClassPredictions,
    NumberPredictions,
    fixed_thresholds,
    with_alarms,
)
from probekit.probes.score.scored import Predictions, judge_of, rating
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.design import Floats
from probekit.probes.solve.solver import Codes

LOGISTIC = ProbeSpec()  # kind of the baselines that are fitted


@dataclass(frozen=True)
class PredictionMaker:
    """Converts the outputs of fits to predictions.

    Attributes:
        settings: the settings of the probes.
        n_classes: the number of classes.
        positive: the code of the positive class; None for none.
    """

    settings: ProbeSettings
    n_classes: int
    positive: int | None = None

    def of_test(
        self, spec: ProbeSpec, truth: LabelColumn, outputs: NDArray[Any], fitted: LabelColumn
    ) -> Predictions:
        """Return the predictions of one fit for the test rows.

        Args:
            spec: the kind of probe.
            truth: the labels (n_test,) of the test rows.
            outputs: the numbers (n_test,) or class scores (n_test, n_classes) of the test rows.
            fitted: the labels (n_fitted,) of the training rows.
        """
        if self.settings.reads_numbers:
            return NumberPredictions(truth, outputs)
        prior = self.removed_prior(fitted)
        made = ClassPredictions.of_scores(truth, outputs, spec.logits, log_prior=prior)
        return self.with_positive(made)

    def of_held_out(
        self, spec: ProbeSpec, truth: LabelColumn, outputs: NDArray[Any], fold_of_row: Codes
    ) -> Predictions:
        """Return cross-validated predictions: `outputs` are those of the fit that held out the row.

        If there is a positive class, alarms are added, at thresholds fixed on the same rows.
        """
        if self.settings.reads_numbers:
            return NumberPredictions(truth, outputs, folds=fold_of_row)
        outputs = self._of_all_classes(outputs, spec)
        prior = None
        if self.settings.class_weight is not None:
            folds = range(int(fold_of_row.max()) + 1)
            outside = [truth[fold_of_row != fold] for fold in folds]
            logs = [log_frequencies(codes, 1, outputs.shape[1])[0] for codes in outside]
            prior = np.stack(logs)[fold_of_row]
        made = ClassPredictions.of_scores(truth, outputs, spec.logits, fold_of_row, prior)
        made = replace(made, positive=self.positive)
        return made if self.positive is None else with_alarms(made, fixed_thresholds(made))

    def _of_all_classes(self, outputs: Floats, spec: ProbeSpec) -> Floats:
        """Return outputs (n_samples, n_classes); classes that were not fitted get the lowest one.

        A draw of the control task may lack the last classes.
        """
        lowest = -np.inf if spec.logits else outputs.min() - 1
        missing = self.n_classes - outputs.shape[1]
        return np.pad(outputs, ((0, 0), (0, missing)), constant_values=lowest)

    def baseline_fitting(self) -> BaselineFitting:
        """Return how baselines are fitted: with the metric and the class weights of the probes."""
        judge = judge_of(self.settings.main_metric, partial(self.of_held_out, LOGISTIC))
        return BaselineFitting(
            BaselineTuning(judge, balanced=self.settings.class_weight is not None),
            self._of_log_probabilities,
            with_scores=bool(METRICS[self.settings.main_metric].needs),
        )

    def _of_log_probabilities(self, truth: Codes, logs: Floats, fitted: Codes) -> ClassPredictions:
        prior = self.removed_prior(fitted)
        return ClassPredictions.of_scores(truth, logs, LOGISTIC.logits, log_prior=prior)

    def with_positive(self, predictions: Predictions) -> Predictions:
        """Return class predictions with `positive` set; other predictions are unchanged."""
        if not isinstance(predictions, ClassPredictions):
            return predictions
        return replace(predictions, positive=self.positive)

    def with_alarms(self, predictions: Predictions, held_out: Predictions) -> Predictions:
        """Return predictions with alarms, at thresholds fixed on the `held_out` predictions.

        These are predictions of the training rows by a fit without the group of the row. Without a
        positive class, the predictions are returned unchanged.
        """
        if not isinstance(predictions, ClassPredictions) or self.positive is None:
            return predictions
        assert isinstance(held_out, ClassPredictions)
        return with_alarms(predictions, fixed_thresholds(held_out))

    def check_metric_is_defined(self, codes: Codes) -> None:
        """Raise ConfigError if the main metric needs a threshold that cannot be fixed.

        `codes` (n_fitted,) are the labels of the training rows, which thresholds are fixed on.

        Raises:
            ConfigError: There is no positive class, or there are too few other rows.
        """
        metric = self.settings.main_metric
        if METRICS[metric].needs != "alarms":
            return
        scores = np.zeros((len(codes), self.n_classes))
        one = ClassPredictions(codes, codes, self.n_classes, scores, positive=self.positive)
        n_negative = 0 if self.positive is None else int(np.sum(codes != self.positive))
        if not n_negative or np.isnan(rating(metric, with_alarms(one, fixed_thresholds(one)))):
            raise ConfigError(
                f"metric is {metric}, whose threshold needs at least "
                f"{LEAST_ALARMS / min(RATES):,.0f} (at 1 %) or {LEAST_ALARMS / max(RATES):,.0f} "
                f"(at 5 %) training rows that are not of the positive class, but there are "
                f"{n_negative:,}. "
                + (
                    "Set `data.positive`."
                    if self.positive is None
                    else "Choose another metric, such as auprc."
                )
            )

    def removed_prior(self, fitted: LabelColumn) -> Floats | None:
        """Return the log class frequencies (n_classes,) of the training rows of a weighted fit.

        Class weights remove them from the scores, so they are added before probabilities are
        computed. None without class weights. `fitted` (n_fitted,) are the training labels.
        """
        if self.settings.class_weight is None:
            return None
        logs: Floats = log_frequencies(fitted, 1, self.n_classes)[0]
        return logs
