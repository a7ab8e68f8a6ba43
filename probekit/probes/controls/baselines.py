"""What may be told without a single activation: by the words of a text, by its length, by the mean.

Texts become counts of words, or lengths, and a penalised linear model reads these. Vocabulary,
scale and strength come from training rows alone, the strength by folds that keep groups whole. A
probe that does no better than these has found nothing that needs a network.

    bag_of_words_guess     length_guess       labels, beside those of `controls`
    bag_of_words_numbers   length_numbers     numbers
    mean_numbers           word_mean_numbers
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
# Fitted on training inputs, it turns any inputs into a feature matrix, sparse or dense.
FeatureExtractor = Callable[[NDArray[Any]], Any]

C_GRID = (0.01, 0.1, 1.0)
PENALTIES = (1000.0, 100.0, 10.0, 1.0, 0.1)
MAX_ITER = 1000
# Words, and each other mark by itself; upper and lower case are one.
WORD = r"\w+|[^\w\s]"
LENGTH_BINS = 10


@dataclass(frozen=True, eq=False)
class BaselinePredictions:
    """Label codes (n_samples,) and log probabilities (n_samples, n_classes) of a baseline.

    A class that no training row has is -inf. `C` is the strength that was chosen; `converged` is
    False where the solver gave up.
    """

    guess: Codes
    log_probabilities: Floats
    C: float
    converged: bool


def bag_of_words_guess(
    train_texts: Texts, train_codes: Codes, fold_of_row: Codes, texts: Texts, n_classes: int
) -> BaselinePredictions:
    """Return what a logistic regression on counts of words says of `texts` (n_samples,).

    `fold_of_row` (n_train,) numbers the folds of the training rows that choose C.

    Raises:
        DataError: The training rows have one label only.

    >>> train = ["so good", "so bad", "good, good", "bad day"]
    >>> folds = np.array([0, 0, 1, 1])
    >>> told = bag_of_words_guess(train, np.array([1, 0, 1, 0]), folds, ["a good day"], 2)
    >>> told.guess.tolist()
    [1]
    """
    inputs = _array(train_texts), _array(texts)
    return _classify(inputs, train_codes, fold_of_row, n_classes)


def length_guess(
    train_lengths: Floats, train_codes: Codes, fold_of_row: Codes, lengths: Floats, n_classes: int
) -> BaselinePredictions:
    """Return what a logistic regression on `lengths` (n_samples, n_lengths) says.

    A length is read as a number and as the tenth of the training rows that it falls in: so labels
    of middling lengths are found as well. `fold_of_row` (n_train,) is as for words.

    Raises:
        DataError: The training rows have one label only.

    >>> train, folds = np.array([[1.0], [2.0], [8.0], [9.0]]), np.array([0, 1, 0, 1])
    >>> length_guess(train, np.array([0, 0, 1, 1]), folds, np.array([[7.0]]), 2).guess.tolist()
    [1]
    """
    _check_several(train_codes)
    read = _tenths(train_lengths)
    (column,) = fit_columns(read(train_lengths), [train_codes], fold_of_row, C_GRID)
    logs = column.solution.log_probabilities(read(lengths), n_classes)
    return BaselinePredictions(
        logs.argmax(axis=1), logs, column.solved_at, column.solution.converged
    )


def text_lengths(texts: Texts, n_tokens: NDArray[np.integer] | None = None) -> Floats:
    """Return the numbers of characters and of words, and of tokens if given, (n_samples, 2 or 3).

    >>> text_lengths(["so good", "bad"], n_tokens=np.array([3, 1])).tolist()
    [[7.0, 2.0, 3.0], [3.0, 1.0, 1.0]]
    """
    lengths = [[len(text), len(text.split())] for text in texts]
    columns = [] if n_tokens is None else [n_tokens]
    return np.column_stack([np.array(lengths, dtype=np.float64), *columns])


def bag_of_words_numbers(
    train_texts: Texts, train_y: Floats, fold_of_row: Codes, texts: Texts
) -> Floats:
    """Return the numbers that a ridge regression on counts of words tells of `texts` (n_samples,).

    >>> train, y = ["two two", "one", "two", "one one"], np.array([4.0, 1.0, 2.0, 2.0])
    >>> told = bag_of_words_numbers(train, y, np.array([0, 0, 1, 1]), ["two", "two two two"])
    >>> bool(told[1] > told[0])
    True
    """
    return _regress(_word_counts, (_array(train_texts), _array(texts)), train_y, fold_of_row)


def length_numbers(
    train_lengths: Floats, train_y: Floats, fold_of_row: Codes, lengths: Floats
) -> Floats:
    """Return the numbers (n_samples,) that a ridge regression on `lengths` tells.

    >>> train, folds = np.array([[1.0], [2.0], [8.0], [9.0]]), np.array([0, 1, 0, 1])
    >>> told = length_numbers(train, np.array([1.0, 2.0, 8.0, 9.0]), folds, np.array([[7.0]]))
    >>> bool(6 < told[0] < 9)
    True
    """
    return _regress(_tenths, (train_lengths, lengths), train_y, fold_of_row)


def mean_numbers(train_y: Floats, n_rows: int) -> Floats:
    """Return the mean of the training rows, once for each of `n_rows`.

    >>> mean_numbers(np.array([1.0, 2.0]), n_rows=3).tolist()
    [1.5, 1.5, 1.5]
    """
    return np.full(n_rows, train_y.mean())


def word_mean_numbers(
    train_types: NDArray[np.str_], train_y: Floats, types: NDArray[np.str_]
) -> Floats:
    """Return for each of `types` its mean in the training rows, the mean of all for unseen ones.

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
    # Of fixed width, one long text would blow up all others.
    return np.array(list(texts), dtype=object)


def _word_counts(train: NDArray[Any]) -> FeatureExtractor:
    """Return what counts the words of the training texts in others."""
    reader: FeatureExtractor = (
        CountVectorizer(token_pattern=WORD, dtype=np.float64).fit(train).transform
    )
    return reader


def _tenths(train: NDArray[Any]) -> FeatureExtractor:
    """Return what standardises lengths by the training rows, and says which tenth they fall in."""
    mean, spread = train.mean(axis=0), train.std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    inner = np.quantile(train, np.linspace(0, 1, LENGTH_BINS + 1)[1:-1], axis=0)

    def read(lengths: NDArray[Any]) -> Floats:
        above = [lengths > edge for edge in inner]
        return np.hstack([(lengths - mean) / scale, *above])

    return read


def _check_several(codes: Codes) -> None:
    if len(np.unique(codes)) < 2:
        raise DataError("The training rows have one label only. Give train two labels or more.")


def _classify(
    inputs: tuple[NDArray[Any], NDArray[Any]],
    codes: Codes,
    fold_of_row: Codes,
    n_classes: int,
) -> BaselinePredictions:
    """Return the guesses for the second of the texts, learnt from the words of the first."""
    _check_several(codes)

    def n_right(guess: Codes, truth: Codes) -> float:
        return float((guess == truth).sum())

    models = [LogisticRegression(C=C, max_iter=MAX_ITER) for C in C_GRID]
    model, X = _best(_word_counts, models, inputs, codes, fold_of_row, n_right)
    log_probabilities = np.full((len(inputs[1]), n_classes), -np.inf)
    log_probabilities[:, model.classes_] = model.predict_log_proba(X)
    return BaselinePredictions(
        guess=model.predict(X),
        log_probabilities=log_probabilities,
        C=float(model.C),
        converged=bool(model.n_iter_.max() < MAX_ITER),
    )


def _regress(
    learn: Callable[[NDArray[Any]], FeatureExtractor],
    inputs: tuple[NDArray[Any], NDArray[Any]],
    y: Floats,
    fold_of_row: Codes,
) -> Floats:
    """Return the numbers for the second of the inputs, learnt from the first."""

    def nearness(guess: Floats, truth: Floats) -> float:
        return -float(np.sum((guess - truth) ** 2))

    models = [Ridge(alpha=penalty) for penalty in PENALTIES]
    model, X = _best(learn, models, inputs, y, fold_of_row, nearness)
    numbers: Floats = model.predict(X)
    return numbers


def _best(
    learn: Callable[[NDArray[Any]], FeatureExtractor],
    models: Sequence[Any],
    inputs: tuple[NDArray[Any], NDArray[Any]],
    y: NDArray[Any],
    fold_of_row: Codes,
    score: Callable[[Any, Any], float],
) -> tuple[Any, Any]:
    """Return the model of the best held-out score, of equals the first, and what it is to read.

    It is fitted on all training rows; the other features are those of the second of the inputs.
    """
    train, others = inputs
    scores = np.zeros(len(models))
    for fold in np.unique(fold_of_row):
        outside = fold_of_row == fold
        if len(np.unique(y[~outside])) > 1:  # a rare label may leave a fold nothing to learn
            read = learn(train[~outside])
            inside, held_out = read(train[~outside]), read(train[outside])
            fits = [_fitted(model, inside, y[~outside]) for model in models]
            scores += [score(fit.predict(held_out), y[outside]) for fit in fits]
    read = learn(train)
    return _fitted(models[int(scores.argmax())], read(train), y), read(others)


def _fitted(model: Any, X: Any, y: NDArray[Any]) -> Any:
    with warnings.catch_warnings():
        # `Guesses.converged` tells it of the model that counts.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return clone(model).fit(X, y)
