"""What stands beside a probe: control labels, and guesses made without activations."""

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

# Draws beyond those wanted, in search of some that hold two labels.
SPARE_DRAWS = 100
# Rows that the baselines of words and lengths are fitted on, at most.
MOST_TEXTS = 20_000


def control_types(data: ProbeData, settings: ProbeSettings) -> NDArray[np.str_]:
    """Return what gets one label in the control (n_rows,): the word type or group of each row."""
    return data.types if settings.control_by == "word" else data.groups


def draw_controls(
    data: ProbeData, settings: ProbeSettings, fitted: Codes
) -> list[NDArray[np.str_]]:
    """Return the control labels (n_rows,) of each draw.

    Raises:
        ConfigError: The fitted rows have one word type, or types whose labels never differ.
    """
    types = control_types(data, settings)
    wanted = settings.control_draws
    n_types = len(np.unique(types[fitted]))
    if wanted and n_types == 1:
        n_groups = len(np.unique(data.groups[fitted]))
        could = settings.control_by == "word" and 1 < n_groups < len(fitted)
        raise ConfigError(
            f"control_draws is {wanted}, but all training rows have the {settings.control_by} type "
            f"{str(types[fitted][0])!r}: one random label for all of them controls nothing. Set "
            f"{'`control_by` to group or ' if could else ''}`control_draws` to 0."
        )
    if wanted and settings.control_by == "group" and n_types == len(fitted):
        raise ConfigError(
            "control_by is `group`, but each training row is a group of its own: a random label "
            "for each row cannot be learnt, and flatters selectivity. Name a column of groups, "
            "or set `control_by` to word or `control_draws` to 0."
        )
    labels = data.y[data.train]
    drawn = (
        control_labels(types, labels, settings.seed, draw) for draw in range(wanted + SPARE_DRAWS)
    )
    # Few types may all draw one label by chance: there is nothing to learn in such a draw.
    usable = (one for one in drawn if len(np.unique(one[fitted])) > 1)
    controls = list(islice(usable, wanted))
    if len(controls) < wanted:
        raise ConfigError(
            f"control_draws is {wanted}, but {n_types} {settings.control_by} types draw labels "
            "that differ too seldom. Set `control_draws` to 0."
        )
    return controls


def uninformed(known: LabelColumn, said: Predictions) -> Predictions:
    """Return the answers of one who knows the training labels (n_known,), and nothing of the rows.

    >>> said = ClassPredictions(np.array([0, 1]), np.array([0, 1]), n_classes=2)
    >>> answers = uninformed(np.array([1, 1, 0]), said)
    >>> answers.guess.tolist()
    [1, 1]
    """
    if isinstance(said, NumberPredictions):
        return NumberPredictions(said.truth, np.full(len(said.truth), known.mean()))
    assert isinstance(said, ClassPredictions)
    guess = majority_guess(known, len(said.truth))
    if said.scores is None:
        return ClassPredictions(said.truth, guess, said.n_classes)
    with np.errstate(divide="ignore"):
        shares = np.log(np.bincount(known, minlength=said.n_classes) / len(known))
    scores = np.tile(shares, (len(said.truth), 1))
    return ClassPredictions(
        said.truth, guess, said.n_classes, scores, said.scores_are_log_probabilities
    )


@dataclass(frozen=True, eq=False)
class BaselineSample:
    """The training rows that baselines of texts are fitted on, and their folds."""

    rows: Codes
    fold_of_row: Codes

    @classmethod
    def of(cls, data: ProbeData, rows: Codes, fold_of_row: Codes, seed: int) -> BaselineSample:
        """Return all fitted rows, or whole groups of them as far as they are not too many."""
        if len(rows) <= MOST_TEXTS:
            return cls(rows, fold_of_row)
        kept = sample_groups(data.groups[rows], MOST_TEXTS, seed)
        return cls(rows[kept], fold_of_row[kept])


def label_baselines(
    data: ProbeData, codes: Codes, sample: BaselineSample, names: tuple[Baseline, ...]
) -> Iterator[tuple[str, ClassPredictions, int]]:
    """Yield each baseline's target, its answers on the test rows, and how many rows it knew.

    Those of words and lengths need texts; without texts they are left out.
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
    known, folds = codes[sample.rows], sample.fold_of_row
    texts, asked = data.texts[sample.rows], data.texts[test]
    if "bag_of_words" in names:
        told = bag_of_words_guess(texts, known, folds, asked, n_classes)
        yield "bag_of_words", _answers(truth, told, n_classes), len(sample.rows)
    if "length" in names:
        told = length_guess(text_lengths(texts), known, folds, text_lengths(asked), n_classes)
        yield "length", _answers(truth, told, n_classes), len(sample.rows)


def _answers(truth: Codes, told: BaselinePredictions, n_classes: int) -> ClassPredictions:
    return ClassPredictions(truth, told.guess, n_classes, told.log_probabilities, True)


def number_baselines(
    data: ProbeData, y: Floats, sample: BaselineSample, names: tuple[Baseline, ...]
) -> Iterator[tuple[str, NumberPredictions, int]]:
    """Yield as `label_baselines`, for labels that are numbers (n_rows,); majority is the mean."""
    train, test = data.train, data.test
    if "majority" in names:
        yield "majority", NumberPredictions(y[test], mean_numbers(y[train], len(test))), len(train)
    if "word_identity" in names:
        guess = word_mean_numbers(data.types[train], y[train], data.types[test])
        yield "word_identity", NumberPredictions(y[test], guess), len(train)
    if data.texts is None:
        return
    known, folds = y[sample.rows], sample.fold_of_row
    texts, asked = data.texts[sample.rows], data.texts[test]
    if "bag_of_words" in names:
        guess = bag_of_words_numbers(texts, known, folds, asked)
        yield "bag_of_words", NumberPredictions(y[test], guess), len(sample.rows)
    if "length" in names:
        guess = length_numbers(text_lengths(texts), known, folds, text_lengths(asked))
        yield "length", NumberPredictions(y[test], guess), len(sample.rows)
