"""Control tasks (Hewitt and Liang 2019), chance level predictions, and baselines of a split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from probekit.errors import ConfigError
from probekit.probes.controls.baselines import (
    BaselinePredictions,
    bag_of_words_guess,
    bag_of_words_numbers,
    length_guess,
    length_numbers,
    mean_numbers,
    text_lengths,
    word_mean_numbers,
)
from probekit.probes.controls.control_labels import (
    control_labels,
    majority_guess,
    word_identity_guess,
)
from probekit.probes.data import ProbeData
from probekit.probes.fitters import LabelColumn
from probekit.probes.folds import sample_groups
from probekit.probes.score.measurement import Predictions
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.regression import NumberPredictions
from probekit.probes.settings import ProbeSettings
from probekit.probes.solve.design import Floats
from probekit.probes.solve.solver import Codes
from probekit.probes.targets import Baseline

# Additional draws that replace those in which all types get the same label.
SPARE_DRAWS = 100
# Maximum number of rows that the bag-of-words and length baselines are fitted on.
MOST_TEXTS = 20_000


def control_types(data: ProbeData, settings: ProbeSettings) -> NDArray[np.str_]:
    """Return the unit (n_rows,) that gets one control label: the word type or group of each row."""
    return data.types if settings.control_by == "word" else data.groups


def draw_controls(
    data: ProbeData, settings: ProbeSettings, fitted: Codes
) -> list[NDArray[np.str_]]:
    """Return the control labels (n_rows,) of each draw.

    Raises:
        ConfigError: All fitted rows have the same word type or group, each row is a group of its
            own, or too few draws assign different labels.
    """
    types = control_types(data, settings)
    wanted = settings.control_draws
    n_types = len(np.unique(types[fitted]))
    if wanted and n_types == 1:
        n_groups = len(np.unique(data.groups[fitted]))
        groups_possible = settings.control_by == "word" and 1 < n_groups < len(fitted)
        raise ConfigError(
            f"control_draws is {wanted}, but all training rows have the {settings.control_by} type "
            f"{str(types[fitted][0])!r}, so the control task would have a single label. Set "
            f"{'`control_by` to group or ' if groups_possible else ''}`control_draws` to 0."
        )
    if wanted and settings.control_by == "group" and n_types == len(fitted):
        raise ConfigError(
            "control_by is `group`, but each training row is a group of its own. A random label "
            "for each row cannot be learned, which would inflate selectivity. Set a column of "
            "groups, or set `control_by` to word or `control_draws` to 0."
        )
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
    (n_train,).

    >>> predictions = ClassPredictions(np.array([0, 1]), np.array([0, 1]), n_classes=2)
    >>> uninformed(np.array([1, 1, 0]), predictions).guess.tolist()
    [1, 1]
    """
    if isinstance(predictions, NumberPredictions):
        mean = np.full(len(predictions.truth), train_labels.mean())
        return NumberPredictions(predictions.truth, mean)
    assert isinstance(predictions, ClassPredictions)
    truth = predictions.truth
    guess, n_classes = majority_guess(train_labels, len(truth)), predictions.n_classes
    if predictions.scores is None:
        return ClassPredictions(truth, guess, n_classes)
    with np.errstate(divide="ignore"):
        frequencies = np.bincount(train_labels, minlength=n_classes) / len(train_labels)
        scores = np.tile(np.log(frequencies), (len(truth), 1))
    return ClassPredictions(
        truth, guess, n_classes, scores, predictions.scores_are_log_probabilities
    )


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


def label_baselines(
    data: ProbeData, codes: Codes, sample: BaselineSample, names: tuple[Baseline, ...]
) -> Iterator[tuple[str, ClassPredictions, int]]:
    """Yield the name, test predictions and number of training rows of each baseline in `names`.

    The bag-of-words and length baselines are omitted if the data have no texts.
    """
    train, test, n_classes = data.train, data.test, len(data.classes)
    truth = codes[test]
    if "majority" in names:
        yield (
            "majority",
            ClassPredictions(truth, majority_guess(codes[train], len(test)), n_classes),
            len(train),
        )
    if "word_identity" in names:
        guess = word_identity_guess(data.types[train], codes[train], data.types[test])
        yield "word_identity", ClassPredictions(truth, guess, n_classes), len(train)
    if data.texts is None:
        return
    y, folds = codes[sample.rows], sample.fold_of_row
    texts, test_texts = data.texts[sample.rows], data.texts[test]
    if "bag_of_words" in names:
        baseline = bag_of_words_guess(texts, y, folds, test_texts, n_classes)
        yield "bag_of_words", _predictions(truth, baseline, n_classes), len(sample.rows)
    if "length" in names:
        lengths, test_lengths = text_lengths(texts), text_lengths(test_texts)
        baseline = length_guess(lengths, y, folds, test_lengths, n_classes)
        yield "length", _predictions(truth, baseline, n_classes), len(sample.rows)


def _predictions(truth: Codes, baseline: BaselinePredictions, n_classes: int) -> ClassPredictions:
    return ClassPredictions(truth, baseline.guess, n_classes, baseline.log_probabilities, True)


def number_baselines(
    data: ProbeData, y: Floats, sample: BaselineSample, names: tuple[Baseline, ...]
) -> Iterator[tuple[str, NumberPredictions, int]]:
    """Yield the same as `label_baselines` for numeric labels y (n_rows,); majority is the mean."""
    train, test = data.train, data.test
    if "majority" in names:
        yield "majority", NumberPredictions(y[test], mean_numbers(y[train], len(test))), len(train)
    if "word_identity" in names:
        guess = word_mean_numbers(data.types[train], y[train], data.types[test])
        yield "word_identity", NumberPredictions(y[test], guess), len(train)
    if data.texts is None:
        return
    train_y, folds = y[sample.rows], sample.fold_of_row
    texts, test_texts = data.texts[sample.rows], data.texts[test]
    if "bag_of_words" in names:
        guess = bag_of_words_numbers(texts, train_y, folds, test_texts)
        yield "bag_of_words", NumberPredictions(y[test], guess), len(sample.rows)
    if "length" in names:
        guess = length_numbers(text_lengths(texts), train_y, folds, text_lengths(test_texts))
        yield "length", NumberPredictions(y[test], guess), len(sample.rows)
