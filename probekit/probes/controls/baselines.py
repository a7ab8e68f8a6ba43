"""Baselines without activations: bag of words, text length, mean, and mean per word.

A regularised linear model is fitted on word counts or on text lengths. Vocabulary, scaling and
regularisation strength are estimated on training rows only, the strength by group-disjoint
cross-validation. A probe that does not beat these baselines shows nothing about the network.

    bag_of_words_guess     length_guess       for class labels; see also `control_labels`
    bag_of_words_numbers   length_numbers     for numbers
    mean_numbers           word_mean_numbers  for numbers
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from probekit.errors import DataError
from probekit.probes.solve.design import Floats
from probekit.probes.solve.fits import fit_columns
from probekit.probes.solve.solver import Codes

Texts = Sequence[str] | NDArray[np.str_] | NDArray[np.object_]
# Maps inputs to a sparse or dense feature matrix, with parameters fitted on training inputs.
FeatureExtractor = Callable[[NDArray[Any]], Any]

C_GRID = (0.01, 0.1, 1.0)
PENALTIES = (1000.0, 100.0, 10.0, 1.0, 0.1)
MAX_ITER = 1000
# Words, and every other symbol as a token of its own. Case is ignored.
WORD = r"\w+|[^\w\s]"
LENGTH_BINS = 10


@dataclass(frozen=True, eq=False)
class BaselinePredictions:
    """Label codes (n_samples,) and log probabilities (n_samples, n_classes) of a baseline.

    Classes without training rows have -inf. `C` is the selected inverse regularisation strength;
    `converged` is False if the solver reached its iteration limit.
    """

    guess: Codes
    log_probabilities: Floats
    C: float
    converged: bool


def bag_of_words_guess(
    train_texts: Texts, train_codes: Codes, fold_of_row: Codes, texts: Texts, n_classes: int
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
    return _classify(inputs, train_codes, fold_of_row, n_classes)


def length_guess(
    train_lengths: Floats, train_codes: Codes, fold_of_row: Codes, lengths: Floats, n_classes: int
) -> BaselinePredictions:
    """Return the predictions of a logistic regression on `lengths` (n_samples, n_lengths).

    Features are the length itself and its decile among the training rows, so that non-monotonic
    relations are fitted too. `fold_of_row` (n_train,) is as in `bag_of_words_guess`.

    Raises:
        DataError: The training rows have only one label.

    >>> train, folds = np.array([[1.0], [2.0], [8.0], [9.0]]), np.array([0, 1, 0, 1])
    >>> length_guess(train, np.array([0, 0, 1, 1]), folds, np.array([[7.0]]), 2).guess.tolist()
    [1]
    """
    _check_several(train_codes)
    features = _decile_features(train_lengths)
    (column,) = fit_columns(features(train_lengths), [train_codes], fold_of_row, C_GRID)
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
    train_texts: Texts, train_y: Floats, fold_of_row: Codes, texts: Texts
) -> Floats:
    """Return the numbers (n_samples,) that a ridge regression on word counts predicts for `texts`.

    >>> train, y = ["two two", "one", "two", "one one"], np.array([4.0, 1.0, 2.0, 2.0])
    >>> guess = bag_of_words_numbers(train, y, np.array([0, 0, 1, 1]), ["two", "two two two"])
    >>> bool(guess[1] > guess[0])
    True
    """
    return _regress(_word_counts, (_array(train_texts), _array(texts)), train_y, fold_of_row)


def length_numbers(
    train_lengths: Floats, train_y: Floats, fold_of_row: Codes, lengths: Floats
) -> Floats:
    """Return the numbers (n_samples,) that a ridge regression on `lengths` predicts.

    >>> train, folds = np.array([[1.0], [2.0], [8.0], [9.0]]), np.array([0, 1, 0, 1])
    >>> guess = length_numbers(train, np.array([1.0, 2.0, 8.0, 9.0]), folds, np.array([[7.0]]))
    >>> bool(6 < guess[0] < 9)
    True
    """
    return _regress(_decile_features, (train_lengths, lengths), train_y, fold_of_row)


def mean_numbers(train_y: Floats, n_rows: int) -> Floats:
    """Return the mean of the training labels, repeated `n_rows` times.

    >>> mean_numbers(np.array([1.0, 2.0]), n_rows=3).tolist()
    [1.5, 1.5, 1.5]
    """
    return np.full(n_rows, train_y.mean())


def word_mean_numbers(
    train_types: NDArray[np.str_], train_y: Floats, types: NDArray[np.str_]
) -> Floats:
    """Return the mean training label of each of `types`; unseen types get the overall mean.

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


def _word_counts(train: NDArray[Any]) -> FeatureExtractor:
    """Return a function that counts the words of the training vocabulary in texts."""
    features: FeatureExtractor = (
        CountVectorizer(token_pattern=WORD, dtype=np.float64).fit(train).transform
    )
    return features


def _decile_features(train: NDArray[Any]) -> FeatureExtractor:
    """Return a function that maps lengths to standardised lengths and training deciles."""
    mean, spread = train.mean(axis=0), train.std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    inner = np.quantile(train, np.linspace(0, 1, LENGTH_BINS + 1)[1:-1], axis=0)

    def features(lengths: NDArray[Any]) -> Floats:
        above = [lengths > edge for edge in inner]
        return np.hstack([(lengths - mean) / scale, *above])

    return features


def _check_several(codes: Codes) -> None:
    if len(np.unique(codes)) < 2:
        raise DataError("The training rows have only one label. Give train at least two labels.")


def _classify(
    inputs: tuple[NDArray[Any], NDArray[Any]],
    codes: Codes,
    fold_of_row: Codes,
    n_classes: int,
) -> BaselinePredictions:
    """Return the predictions for the second texts by a model fitted on the first."""
    _check_several(codes)

    def n_correct(guess: Codes, truth: Codes) -> float:
        return float((guess == truth).sum())

    models = [LogisticRegression(C=C, max_iter=MAX_ITER) for C in C_GRID]
    model, X = _best(_word_counts, models, inputs, codes, fold_of_row, n_correct)
    log_probabilities = np.full((len(inputs[1]), n_classes), -np.inf)
    log_probabilities[:, model.classes_] = model.predict_log_proba(X)
    return BaselinePredictions(
        guess=model.predict(X),
        log_probabilities=log_probabilities,
        C=float(model.C),
        converged=bool(model.n_iter_.max() < MAX_ITER),
    )


def _regress(
    fit_features: Callable[[NDArray[Any]], FeatureExtractor],
    inputs: tuple[NDArray[Any], NDArray[Any]],
    y: Floats,
    fold_of_row: Codes,
) -> Floats:
    """Return the predicted numbers for the second inputs by a model fitted on the first."""

    def negative_error(guess: Floats, truth: Floats) -> float:
        return -float(np.sum((guess - truth) ** 2))

    models = [Ridge(alpha=penalty) for penalty in PENALTIES]
    model, X = _best(fit_features, models, inputs, y, fold_of_row, negative_error)
    numbers: Floats = model.predict(X)
    return numbers


def _best(
    fit_features: Callable[[NDArray[Any]], FeatureExtractor],
    models: Sequence[Any],
    inputs: tuple[NDArray[Any], NDArray[Any]],
    y: NDArray[Any],
    fold_of_row: Codes,
    score: Callable[[Any, Any], float],
) -> tuple[Any, Any]:
    """Return the model with the highest held-out score, and the features of the second inputs.

    The model is refitted on all training inputs, the first of `inputs`. Ties go to the first model.
    """
    train, others = inputs
    scores = np.zeros(len(models))
    for fold in np.unique(fold_of_row):
        outside = fold_of_row == fold
        if len(np.unique(y[~outside])) > 1:  # with a rare label, a fold may have a single class
            features = fit_features(train[~outside])
            inside, held_out = features(train[~outside]), features(train[outside])
            fits = [_fitted(model, inside, y[~outside]) for model in models]
            scores += [score(fit.predict(held_out), y[outside]) for fit in fits]
    features = fit_features(train)
    return _fitted(models[int(scores.argmax())], features(train), y), features(others)


def _fitted(model: Any, X: Any, y: NDArray[Any]) -> Any:
    with warnings.catch_warnings():
        # `BaselinePredictions.converged` reports it for the selected model.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return clone(model).fit(X, y)
