"""Linear models of text features: feature extraction, selection of the penalty, predictions.

word_counts  n_gram_counts  word_indicators  decile_features   training inputs -> extractor
classify     regress                                           -> predictions for other inputs
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
from sklearn.preprocessing import OneHotEncoder

from probekit.errors import DataError
from probekit.probes.solve.design import Floats
from probekit.probes.solve.fits import Judge
from probekit.probes.solve.solver import Codes
from probekit.probes.targets import BASELINE_GRIDS

# Maps inputs to a sparse or dense feature matrix, with parameters fitted on training inputs.
FeatureExtractor = Callable[[NDArray[Any]], Any]

C_GRID = BASELINE_GRIDS["class"][1]
PENALTIES = BASELINE_GRIDS["number"][1]
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


@dataclass(frozen=True, eq=False)
class BaselineNumbers:
    """Numbers (n_samples,) predicted by a baseline, and the selected penalty `alpha`."""

    guess: Floats
    alpha: float


@dataclass(frozen=True)
class BaselineTuning:
    """How a baseline is fitted.

    Attributes:
        judge: rates the held-out outputs of each penalty, log probabilities of the classes or
            numbers; None for the accuracy, or the negative squared error.
        balanced: whether all classes have the same total weight.
    """

    judge: Judge | None = None
    balanced: bool = False


BY_DEFAULT = BaselineTuning()


def word_counts(train: NDArray[Any]) -> FeatureExtractor:
    """Return a function that counts the words of the training vocabulary in texts."""
    return _counts(train, longest=1)


def n_gram_counts(train: NDArray[Any]) -> FeatureExtractor:
    """Return a function that counts the words and adjacent pairs of words of the training texts."""
    return _counts(train, longest=2)


def _counts(train: NDArray[Any], longest: int) -> FeatureExtractor:
    vectorizer = CountVectorizer(
        token_pattern=WORD, ngram_range=(1, longest), dtype=np.float64
    ).fit(train)
    features: FeatureExtractor = vectorizer.transform
    return features


def word_indicators(train: NDArray[Any]) -> FeatureExtractor:
    """Return a function that one-hot encodes columns of words; words not in `train` are zeros."""
    features: FeatureExtractor = OneHotEncoder(handle_unknown="ignore").fit(train).transform
    return features


def decile_features(train: NDArray[Any]) -> FeatureExtractor:
    """Return a function that maps lengths to standardised lengths and training deciles."""
    mean, spread = train.mean(axis=0), train.std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    inner = np.quantile(train, np.linspace(0, 1, LENGTH_BINS + 1)[1:-1], axis=0)

    def features(lengths: NDArray[Any]) -> Floats:
        above = [lengths > edge for edge in inner]
        return np.hstack([(lengths - mean) / scale, *above])

    return features


def check_several(codes: Codes) -> None:
    """Raise DataError if the training rows have only one label.

    Raises:
        DataError: All codes are equal.
    """
    if len(np.unique(codes)) < 2:
        raise DataError("The training rows have only one label. Give train at least two labels.")


def classify(
    fit_features: Callable[[NDArray[Any]], FeatureExtractor],
    inputs: tuple[NDArray[Any], NDArray[Any]],
    codes: Codes,
    fold_of_row: Codes,
    n_classes: int,
    tuning: BaselineTuning = BY_DEFAULT,
) -> BaselinePredictions:
    """Return the predictions of a logistic regression for the second of `inputs`.

    It is fitted on the first of `inputs`, with C selected by cross-validation. With balanced class
    weights the log probabilities are those of equally frequent classes.
    """
    check_several(codes)

    def outputs(model: Any, X: Any) -> Floats:
        log_probabilities = np.full((X.shape[0], n_classes), -np.inf)
        with np.errstate(divide="ignore"):  # a probability may be 0 in float64
            log_probabilities[:, model.classes_] = model.predict_log_proba(X)
        return log_probabilities

    weight = "balanced" if tuning.balanced else None
    models = [LogisticRegression(C=C, max_iter=MAX_ITER, class_weight=weight) for C in C_GRID]
    judge = tuning.judge or _accuracy
    model, X = _best(fit_features, models, inputs, codes, fold_of_row, outputs, judge)
    return BaselinePredictions(
        guess=model.predict(X),
        log_probabilities=outputs(model, X),
        C=float(model.C),
        converged=bool(model.n_iter_.max() < MAX_ITER),
    )


def quick_word_guess(train: NDArray[Any], codes: Codes, others: NDArray[Any]) -> Codes:
    """Return labels of other texts by a bag of words with C = 1, which is not selected.

    >>> texts, codes = np.array(["so good", "so bad"]), np.array([1, 0])
    >>> quick_word_guess(texts, codes, np.array(["a good day"])).tolist()
    [1]
    """
    features = word_counts(train)
    model = _fitted(LogisticRegression(class_weight="balanced"), features(train), codes)
    guesses: Codes = model.predict(features(others))
    return guesses


def _accuracy(truth: Codes, outputs: Floats, _: Codes) -> float:
    return float(np.mean(outputs.argmax(axis=1) == truth))


def regress(
    fit_features: Callable[[NDArray[Any]], FeatureExtractor],
    inputs: tuple[NDArray[Any], NDArray[Any]],
    y: Floats,
    fold_of_row: Codes,
    tuning: BaselineTuning = BY_DEFAULT,
) -> BaselineNumbers:
    """Return the predictions of a ridge regression for the second of `inputs`; see `classify`."""

    def outputs(model: Any, X: Any) -> Floats:
        numbers: Floats = model.predict(X)
        return numbers

    models = [Ridge(alpha=penalty) for penalty in PENALTIES]
    judge = tuning.judge or _negative_error
    model, X = _best(fit_features, models, inputs, y, fold_of_row, outputs, judge)
    return BaselineNumbers(outputs(model, X), float(model.alpha))


def _negative_error(truth: Floats, outputs: Floats, _: Codes) -> float:
    return -float(np.sum((outputs - truth) ** 2))


def _best(
    fit_features: Callable[[NDArray[Any]], FeatureExtractor],
    models: Sequence[Any],
    inputs: tuple[NDArray[Any], NDArray[Any]],
    y: NDArray[Any],
    fold_of_row: Codes,
    outputs: Callable[[Any, Any], Floats],
    judge: Judge,
) -> tuple[Any, Any]:
    """Return the model that is rated best on held-out rows, and the features of the second inputs.

    The model is refitted on all training inputs, the first of `inputs`. Ties go to the first model.
    """
    train, others = inputs
    held_out: list[list[Floats]] = []
    rows = []
    for fold in np.unique(fold_of_row):
        outside = fold_of_row == fold
        if len(np.unique(y[~outside])) > 1:  # with a rare label, a fold may have a single class
            features = fit_features(train[~outside])
            inside, X = features(train[~outside]), features(train[outside])
            held_out.append([outputs(_fitted(model, inside, y[~outside]), X) for model in models])
            rows.append(np.flatnonzero(outside))
    best = 0
    if rows:
        known = np.concatenate(rows)
        of_models = [np.concatenate(parts) for parts in zip(*held_out, strict=True)]
        ratings = [judge(y[known], own, fold_of_row[known]) for own in of_models]
        best = int(np.argmax(np.nan_to_num(ratings, nan=-np.inf)))
    features = fit_features(train)
    return _fitted(models[best], features(train), y), features(others)


def _fitted(model: Any, X: Any, y: NDArray[Any]) -> Any:
    with warnings.catch_warnings():
        # `BaselinePredictions.converged` reports it for the selected model.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return clone(model).fit(X, y)
