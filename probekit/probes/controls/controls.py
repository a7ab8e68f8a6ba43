"""Control tasks (Hewitt and Liang 2019), chance level predictions, and baselines of a split."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.errors import ConfigError
from probekit.probes.controls.baselines import (
    TEXT_BASELINES,
    TextBaseline,
    mean_numbers,
    word_mean_numbers,
)
from probekit.probes.controls.comparable import control_types
from probekit.probes.controls.control_labels import (
    control_labels,
    majority_guess,
    word_identity_guess,
    word_identity_log_frequencies,
)
from probekit.probes.controls.text_models import BaselineTuning
from probekit.probes.data import ProbeData, sample_groups
from probekit.probes.fitters import LabelColumn
from probekit.probes.score.metrics import RATES, ClassPredictions, NumberPredictions
from probekit.probes.score.scored import Predictions
from probekit.probes.settings import ProbeSettings
from probekit.probes.solve.design import Floats
from probekit.probes.solve.solver import Codes
from probekit.probes.targets import Baseline

# Additional draws that replace those in which all types get the same label.
SPARE_DRAWS = 100
# Maximum number of rows that the bag-of-words and length baselines are fitted on.
MOST_TEXTS = 20_000


def draw_controls(
    data: ProbeData, settings: ProbeSettings, fitted: Codes
) -> list[NDArray[np.str_]]:
    """Return the control labels (n_rows,) of each draw.

    Raises:
        ConfigError: Too few draws assign different labels.
    """
    types = control_types(data, settings)
    wanted = settings.control_draws
    n_types = len(np.unique(types[fitted]))
    labels = data.y[data.train]
    drawn = (
        control_labels(types, labels, settings.seed, draw) for draw in range(wanted + SPARE_DRAWS)
    )
    # With few types, a draw can give all of them the same label; such draws are skipped.
    usable = (one for one in drawn if len(np.unique(one[fitted])) > 1)
    controls = list(islice(usable, wanted))
    if len(controls) < wanted:
        raise ConfigError(
            f"control_draws is {wanted}, but with {n_types} {settings.control_by} types too few "
            "draws give different labels. Set `control_draws` to 0."
        )
    return controls


def uninformed(train_labels: LabelColumn, predictions: Predictions) -> Predictions:
    """Return the chance level predictions for the same rows: the majority class or the mean.

    Scores, if the given predictions have any, are the log frequencies of the training labels
    (n_train,). The alarm of every row is the false positive rate that the threshold allows.

    >>> predictions = ClassPredictions(np.array([0, 1]), np.array([0, 1]), n_classes=2)
    >>> uninformed(np.array([1, 1, 0]), predictions).guess.tolist()
    [1, 1]
    """
    if isinstance(predictions, NumberPredictions):
        mean = np.full(len(predictions.truth), train_labels.mean())
        return NumberPredictions(predictions.truth, mean)
    assert isinstance(predictions, ClassPredictions)
    truth = predictions.truth
    if predictions.alarms is not None:
        allowed = np.where(np.isnan(predictions.alarms), np.nan, RATES)
        predictions = replace(predictions, alarms=allowed)
    guess, n_classes = majority_guess(train_labels, len(truth)), predictions.n_classes
    if predictions.scores is None:
        return replace(predictions, guess=guess)
    scores = log_frequencies(train_labels, len(truth), n_classes)
    return replace(predictions, guess=guess, scores=scores)


def log_frequencies(train_codes: Codes, n_rows: int, n_classes: int) -> Floats:
    """Return the log frequencies (n_rows, n_classes) of the training labels, equal in all rows.

    >>> log_frequencies(np.array([0, 1]), n_rows=1, n_classes=2).round(2).tolist()
    [[-0.69, -0.69]]
    """
    with np.errstate(divide="ignore"):
        frequencies = np.bincount(train_codes, minlength=n_classes) / len(train_codes)
        return np.tile(np.log(frequencies), (n_rows, 1))


@dataclass(frozen=True, eq=False)
class BaselineSample:
    """The training rows that the text baselines are fitted on, and their folds."""

    rows: Codes
    fold_of_row: Codes

    @classmethod
    def of(cls, data: ProbeData, rows: Codes, fold_of_row: Codes, seed: int) -> BaselineSample:
        """Return the fitted rows, or a sample of whole groups if there are too many."""
        if len(rows) <= MOST_TEXTS:
            return cls(rows, fold_of_row)
        sampled = sample_groups(data.groups[rows], MOST_TEXTS, seed)
        return cls(rows[sampled], fold_of_row[sampled])


@dataclass(frozen=True, eq=False)
class BaselineResult:
    """Predictions of a baseline for the test rows.

    Attributes:
        target: the name of the baseline.
        predictions: the predictions.
        n_train: number of rows fitted.
        penalty: the selected penalty, C or alpha; None for a baseline without one.
    """

    target: Baseline
    predictions: ClassPredictions | NumberPredictions
    n_train: int
    penalty: float | None = None


@dataclass(frozen=True)
class BaselineFitting:
    """How baselines are fitted, and how their outputs become predictions.

    Attributes:
        tuning: the rating that selects the penalty, and whether classes are weighted.
        predictions: returns the predictions for true labels (n_test,) from log probabilities
            (n_test, n_classes) of the weighted classes and the labels of the fitted rows.
        with_scores: whether the majority and word-identity baselines have scores.
    """

    tuning: BaselineTuning
    predictions: Callable[[Codes, Floats, Codes], ClassPredictions]
    with_scores: bool = False


def label_baselines(
    data: ProbeData,
    codes: Codes,
    sample: BaselineSample,
    names: tuple[Baseline, ...],
    fitting: BaselineFitting,
) -> Iterator[BaselineResult]:
    """Yield the result of each named baseline.

    The scores of the majority and word-identity baselines are log frequencies of the training
    labels. Baselines of the text are omitted if the data have no texts, and that of the
    neighbouring words if rows are not words of a text.
    """
    train, test, n_classes = data.train, data.test, len(data.classes)
    truth = codes[test]
    if "majority" in names:
        guess = majority_guess(codes[train], len(test))
        predictions = ClassPredictions(truth, guess, n_classes)
        if fitting.with_scores:
            logs = log_frequencies(codes[train], len(test), n_classes)
            predictions = replace(predictions, scores=logs, scores_are_log_probabilities=True)
        yield BaselineResult("majority", predictions, len(train))
    if "word_identity" in names:
        yield BaselineResult("word_identity", _word_identity(data, codes, fitting), len(train))
    for name, baseline, inputs, test_inputs in _fittable(data, sample, names):
        own = codes[sample.rows]
        result = baseline.guess(
            inputs, own, sample.fold_of_row, test_inputs, n_classes, fitting.tuning
        )
        predictions = fitting.predictions(truth, result.log_probabilities, own)
        yield BaselineResult(name, predictions, len(sample.rows), result.C)


def _word_identity(data: ProbeData, codes: Codes, fitting: BaselineFitting) -> ClassPredictions:
    train, test, n_classes = data.train, data.test, len(data.classes)
    words = data.types[train], codes[train], data.types[test]
    logs = word_identity_log_frequencies(*words, n_classes)
    if fitting.tuning.balanced:
        balanced = logs - log_frequencies(codes[train], 1, n_classes)
        return fitting.predictions(codes[test], balanced, codes[train])
    guess = ClassPredictions(codes[test], word_identity_guess(*words), n_classes)
    if not fitting.with_scores:
        return guess
    return replace(guess, scores=logs, scores_are_log_probabilities=True)


def number_baselines(
    data: ProbeData,
    y: Floats,
    sample: BaselineSample,
    names: tuple[Baseline, ...],
    fitting: BaselineFitting,
) -> Iterator[BaselineResult]:
    """Yield the result of each named baseline for numeric labels y (n_rows,).

    As in `label_baselines`, but "majority" and "word_identity" predict mean training labels.
    """
    train, test = data.train, data.test
    truth = y[test]
    if "majority" in names:
        guess = mean_numbers(y[train], len(test))
        yield BaselineResult("majority", NumberPredictions(truth, guess), len(train))
    if "word_identity" in names:
        guess = word_mean_numbers(data.types[train], y[train], data.types[test])
        yield BaselineResult("word_identity", NumberPredictions(truth, guess), len(train))
    for name, baseline, inputs, test_inputs in _fittable(data, sample, names):
        result = baseline.numbers(
            inputs, y[sample.rows], sample.fold_of_row, test_inputs, fitting.tuning
        )
        predictions = NumberPredictions(truth, result.guess)
        yield BaselineResult(name, predictions, len(sample.rows), result.alpha)


def _fittable(
    data: ProbeData, sample: BaselineSample, names: tuple[Baseline, ...]
) -> Iterator[tuple[Baseline, TextBaseline, NDArray[Any], NDArray[Any]]]:
    """Yield each named text baseline with its training and test inputs, if the data have them."""
    for name in (name for name in TEXT_BASELINES if name in names):
        baseline = TEXT_BASELINES[name]
        inputs, test_inputs = (baseline.inputs(data, rows) for rows in (sample.rows, data.test))
        if inputs is not None and test_inputs is not None:
            yield name, baseline, inputs, test_inputs
