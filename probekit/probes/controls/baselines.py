"""Baselines without activations: words, n-grams, neighbouring words, text length and means.

A regularised linear model is fitted on features of the text; `TEXT_BASELINES` has a row for each.
Vocabulary, scaling and regularisation strength are estimated on training rows only, the strength by
group-disjoint cross-validation with the metric and the class weights that the probes use. A probe
that does not beat these baselines shows nothing about the network.

See `control_labels` for the majority class and the most frequent class of each word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.probes.controls.text_models import (
    BY_DEFAULT,
    BaselineNumbers,
    BaselinePredictions,
    BaselineTuning,
    FeatureExtractor,
    classify,
    decile_features,
    n_gram_counts,
    regress,
    word_counts,
    word_indicators,
)
from probekit.probes.data import ProbeData
from probekit.probes.solve.design import Floats
from probekit.probes.solve.solver import Codes

Texts = Sequence[str] | NDArray[np.str_] | NDArray[np.object_]


@dataclass(frozen=True)
class TextBaseline:
    """A regularised linear model of features of the text.

    Attributes:
        inputs: returns the inputs (n_rows, ...) of some rows; None if the data lack them.
        features: returns the feature extractor of training inputs.

    >>> train, test = np.array(["so good", "so bad"] * 2), np.array(["a good day"])
    >>> folds = np.array([0, 0, 1, 1])
    >>> words = TEXT_BASELINES["bag_of_words"]
    >>> words.guess(train, np.array([1, 0, 1, 0]), folds, test, n_classes=2).guess.tolist()
    [1]
    >>> lengths = TEXT_BASELINES["length"]
    >>> y, new = np.array([1.0, 2.0, 8.0, 9.0]), np.array([[7.0]])
    >>> bool(6 < lengths.numbers(y[:, None], y, np.array([0, 1, 0, 1]), new).guess[0] < 9)
    True
    """

    inputs: Callable[[ProbeData, Codes], NDArray[Any] | None]
    features: Callable[[NDArray[Any]], FeatureExtractor]

    def guess(
        self,
        train: NDArray[Any],
        train_codes: Codes,
        fold_of_row: Codes,
        others: NDArray[Any],
        n_classes: int,
        tuning: BaselineTuning = BY_DEFAULT,
    ) -> BaselinePredictions:
        """Return the labels predicted by a logistic regression.

        Args:
            train: training inputs (n_train, ...).
            train_codes: label codes (n_train,).
            fold_of_row: cross-validation fold (n_train,) of each training row, to select C.
            others: inputs (n_samples, ...) to predict.
            n_classes: number of classes.
            tuning: rating that selects C, and class weights.

        Raises:
            DataError: The training rows have only one label.
        """
        inputs = train, others
        return classify(self.features, inputs, train_codes, fold_of_row, n_classes, tuning)

    def numbers(
        self,
        train: NDArray[Any],
        train_y: Floats,
        fold_of_row: Codes,
        others: NDArray[Any],
        tuning: BaselineTuning = BY_DEFAULT,
    ) -> BaselineNumbers:
        """Return the numbers predicted by a ridge regression; arguments as of `guess`."""
        return regress(self.features, (train, others), train_y, fold_of_row, tuning)


def _texts(data: ProbeData, rows: Codes) -> NDArray[Any] | None:
    return None if data.texts is None else data.texts[rows]


def _lengths(data: ProbeData, rows: Codes) -> NDArray[Any] | None:
    return None if data.texts is None else text_lengths(data.texts[rows])


def _words(data: ProbeData, rows: Codes) -> NDArray[Any] | None:
    """Return the word of each row, the previous word and the next word, (n_rows, 3)."""
    if data.neighbours is None:
        return None
    return np.column_stack([data.types[rows].astype(object), data.neighbours[rows]])


TEXT_BASELINES = {
    "bag_of_words": TextBaseline(_texts, word_counts),
    "n_grams": TextBaseline(_texts, n_gram_counts),
    "neighbouring_words": TextBaseline(_words, word_indicators),
    "length": TextBaseline(_lengths, decile_features),
}


def text_lengths(texts: Texts, n_tokens: NDArray[np.integer] | None = None) -> Floats:
    """Return the number of characters, words and, if given, tokens of each text.

    The shape is (n_samples, 2 or 3).

    >>> text_lengths(["so good", "bad"], n_tokens=np.array([3, 1])).tolist()
    [[7.0, 2.0, 3.0], [3.0, 1.0, 1.0]]
    """
    lengths = [[len(text), len(text.split())] for text in texts]
    columns = [] if n_tokens is None else [n_tokens]
    return np.column_stack([np.array(lengths, dtype=np.float64), *columns])


def mean_numbers(train_y: Floats, n_rows: int) -> Floats:
    """Return the mean of the training labels, repeated `n_rows` times.

    >>> mean_numbers(np.array([1.0, 2.0]), n_rows=3).tolist()
    [1.5, 1.5, 1.5]
    """
    return np.full(n_rows, train_y.mean())


def word_mean_numbers(
    train_types: NDArray[np.str_], train_y: Floats, types: NDArray[np.str_]
) -> Floats:
    """Return the mean training label of each word type; unseen types get the overall mean.

    >>> words, y = np.array(["run", "run", "cat"]), np.array([1.0, 2.0, 6.0])
    >>> word_mean_numbers(words, y, np.array(["run", "bird"])).tolist()
    [1.5, 3.0]
    """
    names, type_of_row = np.unique(train_types, return_inverse=True)
    means = np.bincount(type_of_row, weights=train_y) / np.bincount(type_of_row)
    place = np.searchsorted(names, types).clip(max=len(names) - 1)
    numbers: Floats = np.where(names[place] == types, means[place], train_y.mean())
    return numbers
