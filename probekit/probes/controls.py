"""Controls of a probe: random labels, and baselines that do not use activations.

Control tasks (Hewitt and Liang 2019). A probe can score well on random labels only at control types
(words at the probed position) that occur in the training rows. On the task it can memorise a row
only if the words that the label depends on occur there, too. Selectivity therefore compares the
scores on test rows that meet both conditions. On other rows, one of the two tasks requires
generalisation to new words and the other does not.

Baselines: label frequencies, words, n-grams, neighbours, text length, and the confidence of the
network in its next token. The majority class and the most frequent class of each word are counted.
For the others, a regularised linear model is fitted on features; `TEXT_BASELINES` has a row for
each. Vocabulary, scaling and regularisation strength are estimated on training rows only, the
strength by group-disjoint cross-validation with the metric and the class weights that the probes
use. A probe that does not beat the baselines of the text shows nothing about the network.

scikit-learn is imported inside functions: it takes a second, and is not needed to check data.
"""

import hashlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.amounts import counted
from probekit.data.examples import WORD
from probekit.errors import ConfigError, DataError
from probekit.lazy_rows import Codes, Floats, Mask
from probekit.probes.data import ProbeData, names_of, sample_groups
from probekit.probes.fitters import FittedRows, LabelColumn, RowPredictions
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import ClassPredictions, NumberPredictions
from probekit.probes.score.scored import log_frequencies, majority_guess
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.fits import Judge, rate_numbers, rate_scores, search
from probekit.probes.targets import BASELINE_GRIDS, NO_CONTROL_TASK

HASH_BYTES = 8
# Additional draws that replace those in which all types get the same label.
SPARE_DRAWS = 100
WORD_OF_TEXT = re.compile(r"\w+")
FEWEST_ROWS = 30  # test rows that the control task can be scored on; with fewer there is none
FEWEST_TYPES = 10  # random labels of fewer types are too easy to learn
FEWEST_GROUPS = 6  # with fewer there are no p-values


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
    drawn = (control_labels(types, labels, settings.seed, n) for n in range(wanted + SPARE_DRAWS))
    # With few types, a draw can give all of them the same label; such draws are skipped.
    usable = (one for one in drawn if len(np.unique(one[fitted])) > 1)
    controls = list(islice(usable, wanted))
    if len(controls) < wanted:
        raise ConfigError(
            f"control_draws is {wanted}, but with {n_types} different {settings.control_by}s too "
            "few draws give different labels. Set `control_draws` to 0."
        )
    return controls


def control_labels(
    types: NDArray[np.str_], train_labels: NDArray[np.str_], seed: int, draw: int
) -> NDArray[np.str_]:
    """Return control labels (n_samples,): one random label per control type.

    Labels are drawn with the frequencies of `train_labels`, from a hash of (seed, draw, type), so
    that they do not depend on the order of the rows or on the other types.

    >>> words = np.array(["bank", "river", "bank"])
    >>> labels = control_labels(words, np.array(["noun", "verb"]), seed=0, draw=0)
    >>> bool(labels[0] == labels[2])
    True

    Source: Hewitt and Liang (2019), Designing and interpreting probes with control tasks.
    """
    labels, counts = np.unique(train_labels, return_counts=True)
    edges = np.cumsum(counts) / counts.sum()
    names, type_of_row = np.unique(types, return_inverse=True)
    uniform = []
    for name in names:
        hashed = hashlib.blake2b(
            f"{seed}\0{draw}\0{name}".encode(), digest_size=HASH_BYTES
        ).digest()
        # A float64 holds 53 bits exactly; all 64 could round up to 1.
        uniform.append((int.from_bytes(hashed, "big") >> 11) / 2**53)
    return labels[np.searchsorted(edges, uniform, side="right")][type_of_row]


def control_types(data: ProbeData, settings: ProbeSettings) -> NDArray[np.str_]:
    """Return the control type (n_rows,) of each row: its word type or its group.

    All rows of a control type get the same control label.
    """
    if settings.control_by == "word":
        return data.types
    return np.array(names_of(data.groups, data.group_names))  # labels are drawn by name


def comparable_rows(data: ProbeData, settings: ProbeSettings, fitted: Codes) -> Mask:
    """Return a mask (n_test,) of test rows with a control type and task words seen in training.

    The task word is the labelled word of a row; without one, all words of its text are task words.
    If the data have neither, only the control type counts.

    Args:
        data: the rows and their split.
        settings: whether the control type is a word or a group.
        fitted: the row numbers (n_fitted,) of the rows that probes are fitted on.
    """
    types = control_types(data, settings)
    seen: Mask = np.isin(types[data.test], types[fitted])
    if data.words is not None:
        return seen & np.isin(data.words[data.test], data.words[fitted])
    if data.texts is not None:
        texts, known_texts = data.texts[data.test], set(data.texts[fitted])
        # The words of each text; case is ignored.
        words = {text: set(WORD_OF_TEXT.findall(text.lower())) for text in {*texts, *known_texts}}
        known = set().union(*(words[text] for text in known_texts))
        seen &= np.array([words[text] <= known for text in texts], dtype=bool)
    return seen


def why_no_control(
    data: ProbeData, settings: ProbeSettings, fitted: Sequence[Codes], test: Codes, comparable: Mask
) -> str:
    """Return why there can be no control task; "" if there can.

    Args:
        data: the rows.
        settings: whether the control type is a word or a group.
        fitted: the row numbers (n_fitted,) of the fitted rows of each split.
        test: the row numbers (n_test,) of the test rows of all splits.
        comparable: a mask (n_test,) of the test rows that the control task is scored on.
    """
    by, types = settings.control_by, control_types(data, settings)
    n_types = min(len(np.unique(types[rows])) for rows in fitted)
    if n_types < FEWEST_TYPES:
        return (
            f"{NO_CONTROL_TASK}only {counted(n_types, f'different probed {by}')}; random labels "
            f"of fewer than {FEWEST_TYPES} {by}s in the training rows are too easy to learn."
        )
    n_rows, n_groups = int(comparable.sum()), len(np.unique(data.groups[test[comparable]]))
    if n_rows >= FEWEST_ROWS and n_groups >= FEWEST_GROUPS:
        return ""
    groups = counted(n_groups, "group")
    needed = f"at least {FEWEST_ROWS} rows in {FEWEST_GROUPS} groups are needed."
    if n_rows == len(test):
        return f"{NO_CONTROL_TASK}the {n_rows:,} test rows are in {groups}; {needed}"
    return (
        f"{NO_CONTROL_TASK}too few test rows have a probed {by}, and words that the task depends "
        f"on, that all occur in the training rows: {n_rows:,} of {len(test):,}, in {groups}; "
        f"{needed}"
    )


# Maps inputs, an array or a sparse matrix, to features, with parameters fitted on training inputs.
FeatureExtractor = Callable[[Any], Any]
FitFeatures = Callable[[Any], FeatureExtractor]
FoldOutputs = tuple[Mask, Floats, Floats]

TEXT_C = BASELINE_GRIDS["class"][1]
PENALTIES = BASELINE_GRIDS["number"][1]
MAX_ITER = 1000
# Maximum number of rows that the baselines of the text are fitted on.
MOST_TEXTS = 20_000
LENGTH_BINS = 10
LOGISTIC = ProbeSpec(kind="logistic")  # kind of the baselines that are fitted


def predict_baselines(
    fitted: FittedRows, data: ProbeData, task: LabelColumn, predicted: Codes
) -> Iterator[tuple[str, RowPredictions, int, float | None]]:
    """Yield name, predictions, number of fitted rows and penalty of each requested baseline.

    The penalty is C or alpha; None for a baseline without one. Baselines of the text are omitted if
    the data have no texts, and others likewise.

    Args:
        fitted: the rows that probes are fitted on.
        data: the split.
        task: the label code or number (n_rows,) of each row.
        predicted: the numbers of the rows to predict, such as its test rows.

    Raises:
        DataError: a sample of the rows for baselines of the text contains no group, or one class.
    """
    settings = fitted.settings
    by_counting = _mean_numbers if settings.reads_numbers else _frequencies
    for name, predictions in by_counting(fitted, data, task, predicted):
        yield name, predictions, len(data.train), None
    has_none = data.texts is None and data.neighbours is None and data.outputs is None
    if has_none or not TEXT_BASELINES.keys() & settings.baselines:
        return  # before a sample of large groups is refused
    for name in filter(settings.baselines.__contains__, TEXT_BASELINES):
        found = text_outputs(fitted, data, task, name, predicted)
        if found is not None:
            rows, outputs, penalty, _ = found
            predictions = fitted.predictions(LOGISTIC, task[predicted], outputs, task[rows])
            yield name, predictions, len(rows), penalty


def text_outputs(
    fitted: FittedRows, data: ProbeData, task: LabelColumn, name: str, predicted: Codes
) -> tuple[Codes, Floats, float, list[FoldOutputs]] | None:
    """Return the fitted rows of a baseline of the text, and the values of its `text_model`.

    The other inputs of the model are those of the predicted rows. None if the data lack the inputs.
    The arguments are those of `predict_baselines`.

    Raises:
        DataError: a sample of the rows contains no group, or one class.
    """
    inputs_of, fit_features = TEXT_BASELINES[name]
    settings, rows, fold_of_row = fitted.settings, fitted.rows, fitted.fold_of_row
    if len(rows) > MOST_TEXTS:
        sampled = sample_groups(data.groups[rows], MOST_TEXTS, settings.seed, data.group_names)
        rows, fold_of_row = rows[sampled], fold_of_row[sampled]
    inputs = inputs_of(data, np.concatenate([rows, predicted]))
    if inputs is None:
        return None
    own, others = inputs[: len(rows)], inputs[len(rows) :]
    n_classes = None if settings.reads_numbers else fitted.n_classes
    judge, balanced = fitted.judge(LOGISTIC), settings.class_weight is not None
    return rows, *text_model(
        fit_features, own, task[rows], fold_of_row, others, n_classes, judge, balanced
    )


def _mean_numbers(
    fitted: FittedRows, data: ProbeData, y: Floats, predicted: Codes
) -> Iterator[tuple[str, NumberPredictions]]:
    """Yield the predictions of the mean training label, overall and of each word type.

    Only the requested ones of these two baselines are computed.
    """
    truth, train_y = y[predicted], y[data.train]
    if "majority" in fitted.settings.baselines:
        yield "majority", NumberPredictions(truth, np.full(len(truth), train_y.mean()))
    if "word_identity" in fitted.settings.baselines:
        guess = word_mean_numbers(data.types[data.train], train_y, data.types[predicted])
        yield "word_identity", NumberPredictions(truth, guess)


def _frequencies(
    fitted: FittedRows, data: ProbeData, codes: Codes, predicted: Codes
) -> Iterator[tuple[str, RowPredictions]]:
    """Yield the predictions of the most frequent training label, overall and of each word type.

    Only the requested ones of these two baselines are computed. Their scores, if the main metric
    needs any, are log frequencies of the training labels. With class weights, the prediction of a
    word type does not count the frequencies of the labels, and always has scores.
    """
    settings, n_classes = fitted.settings, fitted.n_classes
    truth, train_codes = codes[predicted], codes[data.train]

    def with_scores(guess: Codes, logs: Floats) -> ClassPredictions:
        """Return the predictions, with scores if the main metric needs any."""
        predictions = ClassPredictions(truth, guess, n_classes, positive=fitted.positive)
        if not METRICS[settings.main_metric].needs:
            return predictions
        return replace(predictions, scores=logs, scores_are_log_probabilities=True)

    if "majority" in settings.baselines:
        logs = log_frequencies(train_codes, len(truth), n_classes)
        yield "majority", with_scores(majority_guess(train_codes, len(truth)), logs)
    if "word_identity" in settings.baselines:
        train_types, types = data.types[data.train], data.types[predicted]
        logs = word_identity_log_frequencies(train_types, train_codes, types, n_classes)
        if settings.class_weight is None:
            yield "word_identity", with_scores(logs.argmax(axis=1), logs)
        else:
            # With class weights, the predicted class ignores the frequencies of the labels; its
            # log probabilities contain them again.
            balanced = logs - log_frequencies(train_codes, n_rows=1, n_classes=n_classes)
            predictions = fitted.predictions(LOGISTIC, truth, balanced, train_codes)
            yield "word_identity", predictions


def word_identity_log_frequencies(
    train_types: NDArray[np.str_], train_codes: Codes, types: NDArray[np.str_], n_classes: int
) -> Floats:
    """Return log frequencies (n_samples, n_classes) of the training labels of each row's word type.

    Frequencies are smoothed: the label frequencies of all training rows are added to the counts of
    each type, with the weight of one row. A type that was seen once therefore does not get a
    frequency of 1, unseen types get the frequencies of all training rows, and the most frequent
    label of a type is the more frequent one of all rows if two are equally frequent.

    >>> words, codes = np.array(["run", "run", "cat", "dog"]), np.array([1, 1, 0, 0])
    >>> np.exp(word_identity_log_frequencies(words, codes, np.array(["run", "bird"]), 2)).round(2)
    array([[0.17, 0.83],
           [0.5 , 0.5 ]])
    """
    type_of_row, places, n_types = _numbered(train_types, types)
    overall = np.bincount(train_codes, minlength=n_classes) / len(train_codes)
    counts = np.tile(overall, (n_types + 1, 1))  # the last row is for unseen types
    np.add.at(counts, (type_of_row, train_codes), 1)
    counts_of_row = counts[places]
    with np.errstate(divide="ignore"):
        logs: Floats = np.log(counts_of_row / counts_of_row.sum(axis=1, keepdims=True))
    return logs


def word_mean_numbers(
    train_types: NDArray[np.str_], train_y: Floats, types: NDArray[np.str_]
) -> Floats:
    """Return the mean training label of each word type; unseen types get the overall mean.

    >>> words, y = np.array(["run", "run", "cat"]), np.array([1.0, 2.0, 6.0])
    >>> word_mean_numbers(words, y, np.array(["run", "bird"])).tolist()
    [1.5, 3.0]
    """
    type_of_row, places, _ = _numbered(train_types, types)
    means = np.bincount(type_of_row, weights=train_y) / np.bincount(type_of_row)
    return np.append(means, train_y.mean())[places]


def _numbered(train_types: NDArray[np.str_], types: NDArray[np.str_]) -> tuple[Codes, Codes, int]:
    """Return the number of each row's type, of training rows and of others, and that of types.

    Types that are not in the training rows get the last number.
    """
    names, type_of_row = np.unique(train_types, return_inverse=True)
    # An unseen type gets the place of some other name, so the names are compared.
    place = np.searchsorted(names, types).clip(max=len(names) - 1)
    return type_of_row, np.where(names[place] == types, place, len(names)), len(names)


def known_words(train: Any) -> FeatureExtractor:
    """Return a function that keeps the columns of word counts whose word occurs in `train`."""
    known = np.flatnonzero(train.getnnz(axis=0))
    return lambda counts: counts[:, known]


def word_indicators(train: NDArray[Any]) -> FeatureExtractor:
    """Return a function that one-hot encodes columns of words; words not in `train` are zeros."""
    from sklearn.preprocessing import OneHotEncoder

    found: FeatureExtractor = OneHotEncoder(handle_unknown="ignore").fit(train).transform
    return found


def decile_features(train: NDArray[Any]) -> FeatureExtractor:
    """Return a function that maps numbers to standardised numbers and training deciles."""
    mean, spread = train.mean(axis=0), train.std(axis=0)
    scale = np.where(spread > 0, spread, 1.0)
    inner = np.quantile(train, np.linspace(0, 1, LENGTH_BINS + 1)[1:-1], axis=0)

    def features(numbers: NDArray[Any]) -> Floats:
        """Return standardised numbers, and whether each number is above each decile."""
        above = [numbers > edge for edge in inner]
        return np.hstack([(numbers - mean) / scale, *above])

    return features


def word_counts(texts: Sequence[str] | NDArray[Any], longest: int = 1) -> Any:
    """Return how often each word occurs in each text, as a sparse matrix (n_texts, n_words).

    Sequences of up to `longest` adjacent words are counted, too. The columns are the words of all
    texts, in alphabetical order; `known_words` keeps those of training texts.

    >>> word_counts(["To be", "or not to be"]).toarray().tolist()
    [[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]]
    """
    from sklearn.feature_extraction.text import CountVectorizer

    counter = CountVectorizer(token_pattern=WORD, ngram_range=(1, longest), dtype=np.float64)
    # Rows of a data set of words share their text.
    distinct, number = np.unique(np.asarray(texts, dtype=object), return_inverse=True)
    # `transform` sorts the words of a row, on whose order the last bits of a fit depend.
    return counter.fit(distinct).transform(distinct)[number]


def _words_of_texts(data: ProbeData, rows: Codes, longest: int = 1) -> Any:
    """Return the `word_counts` of the text of each row; None if there are no texts."""
    return None if data.texts is None else word_counts(data.texts[rows], longest)


def _lengths(data: ProbeData, rows: Codes) -> NDArray[Any] | None:
    """Return the number of characters and words of each reply or text, (n_rows, 2).

    None without texts.
    """
    texts = data.texts if data.replies is None else data.replies
    if texts is None:
        return None
    return np.array([[len(text), len(text.split())] for text in texts[rows]], dtype=np.float64)


def _outputs(data: ProbeData, rows: Codes) -> Floats | None:
    """Return the numbers (n_rows, n_outputs) of the network's output of rows; None without them."""
    return None if data.outputs is None else data.outputs[rows]


def _words(data: ProbeData, rows: Codes) -> NDArray[Any] | None:
    """Return the word of each row, the previous and the next word, (n_rows, 3); None if unknown."""
    if data.neighbours is None:
        return None
    return np.column_stack([data.types[rows].astype(object), data.neighbours[rows]])


# For each baseline, a function that returns the inputs (n_rows, ...) of some rows, None if the data
# lack them, and one that returns the feature extractor of training inputs.
TEXT_BASELINES: dict[str, tuple[Callable[[ProbeData, Codes], Any], FitFeatures]] = {
    "bag_of_words": (_words_of_texts, known_words),
    "n_grams": (partial(_words_of_texts, longest=2), known_words),
    "neighbouring_words": (_words, word_indicators),
    "length": (_lengths, decile_features),
    "output": (_outputs, decile_features),
}


def text_model(
    fit_features: FitFeatures,
    train: Any,
    y: LabelColumn,
    fold_of_row: Codes,
    others: Any,
    n_classes: int | None,
    judge: Judge | None = None,
    balanced: bool = False,
) -> tuple[Floats, float, list[FoldOutputs]]:
    """Return the outputs of a linear model for other inputs, and its selected penalty.

    The third value has, for the fit without each fold at that penalty, the mask (n_train,) of the
    fold, the outputs of its rows and those of the other inputs. Folds whose other rows have a
    single label are left out.

    Of classes, these are log probabilities (n_samples, n_classes) by a logistic regression, -inf
    for classes without training rows; with balanced class weights, those of equally frequent
    classes. Of numbers, they are predictions (n_samples,) by a ridge regression.

    Args:
        fit_features: returns the feature extractor of training inputs.
        train: training inputs (n_train, ...).
        y: label codes or numbers (n_train,).
        fold_of_row: cross-validation fold (n_train,) of each training row, to select the penalty.
        others: inputs (n_samples, ...) to predict.
        n_classes: number of classes; None for numbers.
        judge: rates the held-out outputs of each penalty; None for the accuracy, or the negative
            squared error. Ties go to the first penalty.
        balanced: whether all classes have the same total weight.

    Raises:
        DataError: Labels are classes, and the training rows have only one.

    >>> counts = word_counts(["so good", "so bad", "so good", "so bad", "a good day"])
    >>> y, folds = np.array([1, 0, 1, 0]), np.array([0, 0, 1, 1])
    >>> logs, _, _ = text_model(known_words, counts[:4], y, folds, counts[4:], n_classes=2)
    >>> logs.argmax(axis=1).tolist()
    [1]
    >>> y, new = np.array([1.0, 2.0, 8.0, 9.0]), np.array([[7.0]])
    >>> folds = np.array([0, 1, 0, 1])
    >>> numbers, _, _ = text_model(decile_features, y[:, None], y, folds, new, n_classes=None)
    >>> bool(6 < numbers[0] < 9)
    True
    """
    from sklearn.base import clone
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge

    rate = judge or (rate_numbers if n_classes is None else rate_scores)
    if n_classes is None:
        penalties, models = PENALTIES, [Ridge(alpha=alpha) for alpha in PENALTIES]
    elif len(np.unique(y)) < 2:
        raise DataError("The training rows have only one label. Give train at least two labels.")
    else:
        penalties, weight = TEXT_C, "balanced" if balanced else None
        models = [LogisticRegression(C=C, max_iter=MAX_ITER, class_weight=weight) for C in TEXT_C]

    def outputs(model: Any, extract: FeatureExtractor, inputs: Any) -> Any:
        """Return log probabilities (n_samples, n_classes); without classes, predicted numbers."""
        X = extract(inputs)
        if n_classes is None:
            return model.predict(X)
        log_probabilities = np.full((X.shape[0], n_classes), -np.inf)
        with np.errstate(divide="ignore"):  # a probability may be 0 in float64
            log_probabilities[:, model.classes_] = model.predict_log_proba(X)
        return log_probabilities

    def fitted(inside: Any, some: Sequence[Any]) -> list[Callable[[Any], Floats]]:
        """Return the outputs of some models, fitted on some rows, as functions of inputs."""
        extract = fit_features(train[inside])
        X = extract(train[inside])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fits = [clone(model).fit(X, y[inside]) for model in some]
        return [partial(outputs, fit, extract) for fit in fits]

    of_folds: list[tuple[Mask, list[Callable[[Any], Floats]]]] = []

    def held_out(outside: Mask) -> list[Floats]:
        """Return the outputs of each penalty for held-out rows, with features of the other rows."""
        of_folds.append((outside, fitted(~outside, models)))
        return [predict(train[outside]) for predict in of_folds[-1][1]]

    best = search(rate, y, fold_of_row, held_out)
    (final,) = fitted(slice(None), [models[best]])
    by_fold = [(fold, fits[best](train[fold]), fits[best](others)) for fold, fits in of_folds]
    return final(others), penalties[best], by_fold
