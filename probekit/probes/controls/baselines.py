"""Baselines without activations: words, n-grams, neighbouring words, text length and means.

A regularised linear model is fitted on word counts, counts of words and pairs of adjacent words,
the word of a row with the words next to it, or text lengths. Vocabulary, scaling and regularisation
strength are estimated on training rows only, the strength by group-disjoint cross-validation with
the metric and the class weights that the probes use. A
probe that does not beat these baselines shows nothing about the network.

    bag_of_words_guess        bag_of_words_numbers        word counts of a text
    n_gram_guess              n_gram_numbers              counts of words and of pairs of words
    neighbouring_words_guess  neighbouring_words_numbers  word, previous word, next word
    length_guess              length_numbers              characters and words of a text
    mean_numbers              word_mean_numbers           means of numbers

Functions named `guess` predict class labels, those named `numbers` predict numbers; see
`control_labels` for the majority class and the most frequent class of each word.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from probekit.probes.controls.text_models import (
    BY_DEFAULT,
    C_GRID,
    BaselineNumbers,
    BaselinePredictions,
    BaselineTuning,
    check_several,
    classify,
    decile_features,
    n_gram_counts,
    regress,
    word_counts,
    word_indicators,
)
from probekit.probes.solve.design import Floats
from probekit.probes.solve.fits import Tuning, fit_columns
from probekit.probes.solve.solver import Codes

Texts = Sequence[str] | NDArray[np.str_] | NDArray[np.object_]


def bag_of_words_guess(
    train_texts: Texts,
    train_codes: Codes,
    fold_of_row: Codes,
    texts: Texts,
    n_classes: int,
    tuning: BaselineTuning = BY_DEFAULT,
) -> BaselinePredictions:
    """Return the predictions of a logistic regression on word counts for `texts` (n_samples,).

    `fold_of_row` (n_train,) holds the cross-validation folds of the training rows that select C.

    Raises:
        DataError: The training rows have only one label.

    >>> train = ["so good", "so bad", "good, good", "bad day"]
    >>> folds = np.array([0, 0, 1, 1])
    >>> bag_of_words_guess(train, np.array([1, 0, 1, 0]), folds, ["a good day"], 2).guess.tolist()
    [1]
    """
    inputs = _array(train_texts), _array(texts)
    return classify(word_counts, inputs, train_codes, fold_of_row, n_classes, tuning)


def n_gram_guess(
    train_texts: Texts,
    train_codes: Codes,
    fold_of_row: Codes,
    texts: Texts,
    n_classes: int,
    tuning: BaselineTuning = BY_DEFAULT,
) -> BaselinePredictions:
    """Return the predictions of a logistic regression on counts of words and word pairs.

    Pairs are of adjacent words, so that word order counts. Otherwise as `bag_of_words_guess`.

    Raises:
        DataError: The training rows have only one label.

    >>> train, folds = ["not bad but good", "not good but bad"] * 4, np.array([0, 0, 1, 1] * 2)
    >>> n_gram_guess(train, np.array([1, 0] * 4), folds, ["good, not bad"], 2).guess.tolist()
    [1]
    """
    inputs = _array(train_texts), _array(texts)
    return classify(n_gram_counts, inputs, train_codes, fold_of_row, n_classes, tuning)


def neighbouring_words_guess(
    train_words: NDArray[np.object_],
    train_codes: Codes,
    fold_of_row: Codes,
    words: NDArray[np.object_],
    n_classes: int,
    tuning: BaselineTuning = BY_DEFAULT,
) -> BaselinePredictions:
    """Return the predictions of a logistic regression on each row's word and its neighbours.

    The columns of `words` (n_samples, 3) are the word of the row, the previous and the next word.
    Each column is encoded by one indicator for every word that it has in the training rows.
    `fold_of_row` (n_train,) is as in `bag_of_words_guess`.

    Raises:
        DataError: The training rows have only one label.

    >>> words = np.array([["run", "to", ""], ["run", "a", ""]] * 2, dtype=object)
    >>> codes, folds = np.array([1, 0, 1, 0]), np.array([0, 0, 1, 1])
    >>> other = np.array([["walk", "to", "work"]], dtype=object)
    >>> neighbouring_words_guess(words, codes, folds, other, 2).guess.tolist()
    [1]
    """
    inputs = train_words, words
    return classify(word_indicators, inputs, train_codes, fold_of_row, n_classes, tuning)


def length_guess(
    train_lengths: Floats,
    train_codes: Codes,
    fold_of_row: Codes,
    lengths: Floats,
    n_classes: int,
    tuning: BaselineTuning = BY_DEFAULT,
) -> BaselinePredictions:
    """Return the predictions of a logistic regression on text lengths.

    The features of each column of `lengths` (n_samples, n_lengths) are the length itself and its
    decile among the training rows, so that non-monotonic relations are fitted too. `fold_of_row`
    (n_train,) is as in `bag_of_words_guess`.

    Raises:
        DataError: The training rows have only one label.

    >>> train, folds = np.array([[1.0], [2.0], [8.0], [9.0]]), np.array([0, 1, 0, 1])
    >>> length_guess(train, np.array([0, 0, 1, 1]), folds, np.array([[7.0]]), 2).guess.tolist()
    [1]
    """
    check_several(train_codes)
    features = decile_features(train_lengths)
    (column,) = fit_columns(
        features(train_lengths),
        [train_codes],
        fold_of_row,
        C_GRID,
        tuning=Tuning(judge=tuning.judge, balanced=tuning.balanced),
    )
    logs = column.solution.log_probabilities(features(lengths), n_classes)
    return BaselinePredictions(
        logs.argmax(axis=1), logs, column.solved_at, column.solution.converged
    )


def text_lengths(texts: Texts, n_tokens: NDArray[np.integer] | None = None) -> Floats:
    """Return the number of characters, words and, if given, tokens of each text.

    The shape is (n_samples, 2 or 3).

    >>> text_lengths(["so good", "bad"], n_tokens=np.array([3, 1])).tolist()
    [[7.0, 2.0, 3.0], [3.0, 1.0, 1.0]]
    """
    lengths = [[len(text), len(text.split())] for text in texts]
    columns = [] if n_tokens is None else [n_tokens]
    return np.column_stack([np.array(lengths, dtype=np.float64), *columns])


def bag_of_words_numbers(
    train_texts: Texts,
    train_y: Floats,
    fold_of_row: Codes,
    texts: Texts,
    tuning: BaselineTuning = BY_DEFAULT,
) -> BaselineNumbers:
    """Return the predictions of a ridge regression on word counts for `texts` (n_samples,).

    >>> train, y = ["two two", "one", "two", "one one"], np.array([4.0, 1.0, 2.0, 2.0])
    >>> guess = bag_of_words_numbers(train, y, np.array([0, 0, 1, 1]), ["two", "two two two"]).guess
    >>> bool(guess[1] > guess[0])
    True
    """
    return regress(word_counts, (_array(train_texts), _array(texts)), train_y, fold_of_row, tuning)


def n_gram_numbers(
    train_texts: Texts,
    train_y: Floats,
    fold_of_row: Codes,
    texts: Texts,
    tuning: BaselineTuning = BY_DEFAULT,
) -> BaselineNumbers:
    """Return the predictions of a ridge regression on counts of words and adjacent word pairs.

    >>> train, y = ["up down", "down up", "up down", "down up"], np.array([4.0, 1.0, 4.0, 1.0])
    >>> guess = n_gram_numbers(train, y, np.array([0, 0, 1, 1]), ["up down", "down up"]).guess
    >>> bool(guess[0] > guess[1])
    True
    """
    return regress(
        n_gram_counts, (_array(train_texts), _array(texts)), train_y, fold_of_row, tuning
    )


def neighbouring_words_numbers(
    train_words: NDArray[np.object_],
    train_y: Floats,
    fold_of_row: Codes,
    words: NDArray[np.object_],
    tuning: BaselineTuning = BY_DEFAULT,
) -> BaselineNumbers:
    """Return the predictions of a ridge regression on each row's word and its neighbours.

    The inputs are those of `neighbouring_words_guess`, but with numeric labels.

    >>> words = np.array([["run", "to", ""], ["run", "a", ""]] * 2, dtype=object)
    >>> y, folds = np.array([4.0, 1.0, 4.0, 1.0]), np.array([0, 0, 1, 1])
    >>> guess = neighbouring_words_numbers(words, y, folds, words[:2]).guess
    >>> bool(guess[0] > guess[1])
    True
    """
    return regress(word_indicators, (train_words, words), train_y, fold_of_row, tuning)


def length_numbers(
    train_lengths: Floats,
    train_y: Floats,
    fold_of_row: Codes,
    lengths: Floats,
    tuning: BaselineTuning = BY_DEFAULT,
) -> BaselineNumbers:
    """Return the predictions of a ridge regression on text lengths; see `length_guess`.

    >>> train, folds = np.array([[1.0], [2.0], [8.0], [9.0]]), np.array([0, 1, 0, 1])
    >>> y = np.array([1.0, 2.0, 8.0, 9.0])
    >>> guess = length_numbers(train, y, folds, np.array([[7.0]])).guess
    >>> bool(6 < guess[0] < 9)
    True
    """
    return regress(decile_features, (train_lengths, lengths), train_y, fold_of_row, tuning)


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


def _array(texts: Texts) -> NDArray[np.object_]:
    # In a fixed-width string array, every text would take the memory of the longest one.
    return np.array(list(texts), dtype=object)
