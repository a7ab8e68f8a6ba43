"""Predictions with the facts of their fits, and the rows of results.csv measured from them.

Scored       the predictions of one predictor for one set of rows
measure      Scored -> a Measurement for each metric, with interval and chance level
SiteResult   measurements, predictions and fits of all kinds of probe at one site
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from functools import cached_property
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from probekit.lazy_rows import Codes, Floats
from probekit.probes.score import metric_table, metrics
from probekit.probes.score.contributions import ClassParts, difference_of_parts, mean_parts
from probekit.probes.score.differences import Difference, paired_differences
from probekit.probes.score.intervals import Interval, jackknife_interval, score_interval
from probekit.probes.score.metric_table import METRICS, MetricFunction
from probekit.probes.solve.layers import FittedLayers

if TYPE_CHECKING:  # features, which import this module
    from probekit.probes.kinds.trees import SentenceScores
    from probekit.probes.score.description_length import OnlineCode

RowsScored = Literal["test", "validation", "online", "learning"]
Predictions: TypeAlias = (
    "metrics.ClassPredictions | metrics.NumberPredictions | OnlineCode | SentenceScores"
)
N = TypeVar("N", int, float)


@dataclass(frozen=True, kw_only=True)
class FitFacts:
    """What a score is of, and properties of the fits that made the predictions.

    Baselines have no fit of activations: their `n_iter`, `converged` and `gradient_norm` are None,
    and so is `C` unless the baseline is tuned; see `Target.is_tuned`.

    Attributes:
        probe: the kind of probe; "none" for baselines.
        target: what was predicted; see `TARGETS`.
        split: the rows scored. "test": the test rows. "validation": the held-out folds of the
            training rows, for selecting sites without using the test rows. "online": the training
            rows, coded block by block. "learning": the test rows, after training on fewer rows.
        n_train: number of rows fitted, or of texts or sentences for kinds that read them; of
            several fits, such as those of "validation", the smallest number.
        C: the selected penalty, whether it is named C or alpha; None if there is none, or if it
            differs between the fits.
        close_choices: number of choices of C within one correct row; the held-out loss decided.
        n_iter: number of solver iterations, the largest of all fits.
        converged: whether all fits converged.
        gradient_norm: the final gradient norm, the largest of all fits.
        seed: the random seed; see `ProbeSettings`.
        fold: the number of the outer fold, if only the rows of one outer fold of a nested
            cross-validation are scored; None for a score of all rows.
    """

    probe: str
    target: str
    split: RowsScored = "test"
    n_train: int
    C: float | None = None
    close_choices: int | None = None
    n_iter: int | None = None
    converged: bool | None = None
    gradient_norm: float | None = None
    seed: int
    fold: int | None = None

    def of_fits(self, fits: Sequence[FittedLayers | FitFacts], **changes: Any) -> FitFacts:
        """Return these facts with changes, and with the worst convergence of several fits."""
        converged = [fit.converged for fit in fits if fit.converged is not None]
        return replace(
            self,
            n_iter=_largest([fit.n_iter for fit in fits]),
            converged=all(converged) if converged else None,
            gradient_norm=_largest([fit.gradient_norm for fit in fits]),
            **changes,
        )

    @classmethod
    def joined(cls, several: Sequence[FitFacts]) -> FitFacts:
        """Return the facts of a score that combines several.

        C is None if it differs between them, close choices are added, and `n_train` is the
        smallest; convergence is the worst, see `of_fits`. All else is that of the first.
        """
        C = several[0].C if len({one.C for one in several}) == 1 else None
        close = [one.close_choices for one in several if one.close_choices is not None]
        n_train, n_close = min(one.n_train for one in several), sum(close) if close else None
        return several[0].of_fits(several, n_train=n_train, C=C, close_choices=n_close)


@dataclass(frozen=True, kw_only=True)
class Measurement(FitFacts):
    """One score with its confidence interval and its chance level: a row of results.csv.

    The score of the control task is the mean over its draws.

    Attributes:
        metric: the name of the metric.
        value: the score.
        ci_low: the lower limit of the 95 % confidence interval.
        ci_high: the upper limit.
        chance: the score of chance level predictions on the same rows, such as always predicting
            the most frequent training label; 0 for selectivity.
        n_test: number of rows scored.
        n_groups: number of groups of the rows scored.
    """

    metric: str
    value: float
    ci_low: float
    ci_high: float
    chance: float
    n_test: int
    n_groups: int

    @property
    def facts(self) -> FitFacts:
        """What the score is of, and the properties of the fits, without the score."""
        return FitFacts(**{one.name: getattr(self, one.name) for one in fields(FitFacts)})


@dataclass(frozen=True, eq=False)
class Scored:
    """The predictions of one predictor for one set of rows, with the facts of its fits.

    Attributes:
        predictions: the predictions whose mean score is measured: one entry, or one per draw of the
            control task, or per network with random weights.
        chance: the chance level predictions for the same rows, one for each of `predictions`.
        groups: the groups (n_samples,) of the rows.
        facts: what is scored, and properties of the fits.
        metric: the metric to compute; None for all that are defined.
        against: predictions whose mean score is subtracted; empty for none. The difference is
            positive if `predictions` score better.
        fit: the fit of the task on all training rows, to be saved; None if there is no single fit.
    """

    predictions: tuple[Predictions, ...]
    chance: tuple[Predictions, ...]
    groups: NDArray[np.generic]
    facts: FitFacts
    metric: str | None = None
    against: tuple[Predictions, ...] = ()
    fit: FittedLayers | None = None

    def take(self, rows: NDArray[np.generic]) -> Scored:
        """Return the predictions for some rows, given by a mask or by row numbers.

        `against` must be for the same rows already: it is not changed.
        """
        predictions = tuple(metrics.take(one, rows) for one in self.predictions)
        chance = tuple(metrics.take(one, rows) for one in self.chance)
        return replace(self, predictions=predictions, chance=chance, groups=self.groups[rows])

    def with_facts(self, **changes: Any) -> Scored:
        """Return the same predictions with some facts changed."""
        return replace(self, facts=replace(self.facts, **changes))

    @classmethod
    def of_draws(cls, several: Sequence[Scored]) -> Scored:
        """Return one object with the predictions of all draws, for the same rows."""
        return replace(
            several[0],
            predictions=tuple(one for scored in several for one in scored.predictions),
            chance=tuple(one for scored in several for one in scored.chance),
            facts=FitFacts.joined([scored.facts for scored in several]),
            fit=None,
        )

    @classmethod
    def of_splits(cls, several: Sequence[Scored]) -> Scored:
        """Return the predictions of the same probe on several splits, one after the other."""
        if len(several) == 1:
            return several[0]

        def over_splits(draws: Sequence[tuple[Predictions, ...]]) -> tuple[Predictions, ...]:
            """Return each draw, joined over the splits, given the draws of each split."""
            return tuple(joined(of_draw) for of_draw in zip(*draws, strict=True))

        return replace(
            several[0],
            predictions=over_splits([scored.predictions for scored in several]),
            chance=over_splits([scored.chance for scored in several]),
            groups=np.concatenate([scored.groups for scored in several]),
            facts=FitFacts.joined([scored.facts for scored in several]),
            against=over_splits([scored.against for scored in several]),
            fit=None,
        )


def measure(scored: Scored, resamples: metrics.Resamples) -> list[Measurement]:
    """Return a measurement for each metric; those that are undefined are omitted.

    With `scored.against`, they are called selectivity: how much better the predictions score than
    those others, with a chance level of 0.

    The AUROC of rows with a single label, for example, is undefined. So is a metric that needs
    scores if one of the predictions has none. `resamples` are those of the groups of the rows.
    """
    measurements = []
    first, *others = map(metrics_of, scored.predictions)
    common = [name for name in first if all(name in other for other in others)]
    names = common if scored.metric is None else [scored.metric]
    for name in names:
        if scored.against:
            sides = scored.predictions, scored.against
            own, other = (mean_score(name, side, resamples) for side in sides)
            metric, chance = "selectivity", 0.0
            interval = jackknife_interval(METRICS[name].sign * (own - other), resamples)
        else:
            levels = [metrics_of(one)[name](one, resamples.undrawn)[0] for one in scored.chance]
            # Some metrics are undefined for constant predictions; their chance level counts as 0.
            chance = float(np.mean(np.nan_to_num(levels)))
            metric, interval = name, with_interval(name, scored.predictions, resamples)
        if np.isnan(interval.value):
            continue
        measured = Measurement(
            **vars(scored.facts),
            metric=metric,
            value=interval.value,
            ci_low=interval.low,
            ci_high=interval.high,
            chance=chance,
            n_test=len(resamples.group_of_row),
            n_groups=resamples.n_groups,
        )
        measurements.append(measured)
    return measurements


def metrics_of(predictions: Predictions) -> Mapping[str, MetricFunction]:
    """Return the metric functions that are defined for the predictions, by name.

    AUROC needs scores; calibration metrics need probabilities.

    >>> list(metrics_of(metrics.NumberPredictions(np.zeros(2), np.zeros(2))))
    ['r2', 'spearman']
    """
    return metric_table.metric_functions(predictions.family, predictions.offers)


def parts_of(metric: str, predictions: Sequence[Predictions]) -> ClassParts | None:
    """Return the parts by class of a mean score of predictions on the same rows.

    None if the metric has no parts, or if the true classes differ.
    """
    function = metric_table.class_parts(metric)
    return None if function is None else mean_parts([function(one) for one in predictions])


def with_interval(
    metric: str, several: Sequence[Predictions], resamples: metrics.Resamples
) -> Interval:
    """Return the mean of a metric over predictions of the same rows with its 95 % interval.

    The limits are NaN if the value is, or if all rows are in one group.
    """
    values = mean_score(metric, several, resamples)
    value, path = float(values[0]), METRICS[metric].interval
    if np.isnan(value) or resamples.n_units < 2:
        return Interval(value, np.nan, np.nan)
    if path:
        limits = [resolve_name(path)(one, resamples) for one in several]
        return Interval(value, *np.mean(limits, axis=0).tolist())
    return score_interval(values, resamples, METRICS[metric].range, parts_of(metric, several))


def lead_over(
    metric: str, a: Sequence[Predictions], b: Sequence[Predictions], resamples: metrics.Resamples
) -> Interval:
    """Return the mean score of a minus that of b, with its 95 % interval.

    Both are predictions of the same rows, those of b constant guesses. If the guesses score the
    same on any rows, their score is subtracted from the limits of `with_interval`. Otherwise the
    limits are t limits of the paired difference: where groups have one label, half of the
    differences are 0, and random signs have too few patterns. They are clipped to those that two
    scores can differ by. The limits are NaN if a has no interval. A metric that is undefined for
    constant guesses counts as 0.
    """
    score = with_interval(metric, a, resamples)
    guess = np.nan_to_num(mean_score(metric, b, resamples))
    if np.ptp(guess) < metrics.ROUNDING or np.isnan(score.low):
        return Interval(*(one - float(guess[0]) for one in astuple(score)))
    found = jackknife_interval(mean_score(metric, a, resamples) - guess, resamples)
    bottom, top = METRICS[metric].range
    return Interval(found.value, max(found.low, bottom - top), min(found.high, top - bottom))


def r2_limits(
    predictions: metrics.NumberPredictions, resamples: metrics.Resamples
) -> tuple[float, float]:
    """Return the limits of the 95 % confidence interval of R2, NaN if labels have heavy tails."""
    found = jackknife_interval(metrics.r2(predictions, resamples), resamples, METRICS["r2"].range)
    is_unknown = metrics.has_heavy_tails(predictions.truth)
    return (np.nan, np.nan) if is_unknown else (found.low, found.high)


def ece_limits(
    predictions: metrics.ClassPredictions, resamples: metrics.Resamples
) -> tuple[float, float]:
    """Return the limits of the 95 % confidence interval of the calibration error.

    They are the limits of the error with its bias, which is subtracted from the lower one as it is
    for calibrated predictions. In simulations they contain the true error in 96 % of draws or more
    from 5 groups on.
    """
    value, plug_in, bias = metrics.calibration_errors(predictions, resamples)
    found = jackknife_interval(plug_in, resamples)
    return min(found.low - bias, value), found.high


@dataclass(frozen=True)
class ReliabilityBin:
    """Mean confidence and accuracy of the rows whose confidence is in (low, high].

    The lowest bin also contains 0.

    `ci_low` and `ci_high` are the limits of the 95 % confidence interval of `accuracy`; NaN if all
    rows are in one group.
    """

    low: float
    high: float
    n_rows: int
    confidence: float
    accuracy: float
    ci_low: float
    ci_high: float


def reliability_bins(
    predictions: metrics.ClassPredictions, resamples: metrics.Resamples, bins: int = metrics.BINS
) -> list[ReliabilityBin]:
    """Return the reliability bins that contain rows, in ascending order of confidence.

    The bins have equal width.

    >>> scores = np.log([[0.75, 0.25], [0.75, 0.25]])
    >>> predictions = metrics.ClassPredictions(np.array([0, 1]), np.array([0, 0]), 2, scores, True)
    >>> (found,) = reliability_bins(predictions, metrics.Resamples.whole(2), bins=4)
    >>> found.low, found.high, found.n_rows, round(found.confidence, 6), found.accuracy
    (0.5, 0.75, 2, 0.75, 0.5)
    """
    confidence = metrics.confidence_of(predictions)
    correct = (predictions.truth == predictions.guess).astype(np.float64)
    bin_of_row, found = metrics.bin_of(confidence, bins), []
    for number in map(int, np.unique(bin_of_row)):
        rows = bin_of_row == number
        of_bin = metrics.Resamples.leave_one_out(
            resamples.group_of_row[rows], widening=resamples.widening
        )
        interval = jackknife_interval(metrics.mean_of_rows(correct[rows], of_bin), of_bin, (0, 1))
        own = (number / bins, (number + 1) / bins, int(rows.sum()), float(confidence[rows].mean()))
        found.append(ReliabilityBin(*own, *astuple(interval)))
    return found


def differences_of(
    metric: str,
    pairs: Sequence[tuple[Sequence[Predictions], Sequence[Predictions]]],
    resamples: metrics.Resamples,
) -> list[Difference]:
    """Return the differences a - b of the mean scores of pairs of predictions of the same rows.

    Their limits are clipped to those that two scores can differ by; see `paired_differences`.
    """
    means = [tuple(mean_score(metric, one, resamples) for one in pair) for pair in pairs]
    parts = [difference_of_parts(parts_of(metric, a), parts_of(metric, b)) for a, b in pairs]
    found = paired_differences([(a, b) for a, b in means], resamples, parts)
    return [one.within(METRICS[metric].range) for one in found]


def rating(metric: str, predictions: metrics.ClassPredictions | metrics.NumberPredictions) -> float:
    """Return the value of a metric for held-out predictions, so that higher is better.

    >>> rating("accuracy", metrics.ClassPredictions(np.array([0, 1]), np.array([0, 0]), 2))
    0.5
    """
    whole = metrics.Resamples.whole(len(predictions.truth))
    return METRICS[metric].sign * float(metrics_of(predictions)[metric](predictions, whole)[0])


def mean_score(metric: str, several: Sequence[Predictions], resamples: metrics.Resamples) -> Floats:
    """Return the mean (1 + n_units,) of a metric over several predictions of the same rows.

    The first value is that of all rows, the others are those of the resamples.
    """
    mean: Floats = np.mean([metrics_of(one)[metric](one, resamples) for one in several], axis=0)
    return mean


def _largest(values: Sequence[N | None]) -> N | None:
    """Return the largest value that is not None; None if all are."""
    return max((value for value in values if value is not None), default=None)


def joined(parts: Sequence[Predictions]) -> Predictions:
    """Return the concatenated predictions for several sets of rows, each with fits of its own.

    An array that one of the parts lacks is None. Single values, such as the number of classes, are
    those of the first part. Scores are log probabilities only if those of all parts are, and
    `n_codes` is the number of parts.

    >>> both = joined([metrics.NumberPredictions(np.array([1.0]), np.array([2.0]))] * 2)
    >>> both.guess.tolist()
    [2.0, 2.0]
    """
    first, changed = parts[0], dict[str, Any]()
    columns = {one.name: [getattr(part, one.name) for part in parts] for one in fields(first)}
    for name, values in columns.items():
        if name == "n_codes":
            changed[name] = len(parts)
        elif name == "folds":
            changed[name] = metrics.joined_folds(values, list(map(len, columns["truth"])))
        elif name == "scores_are_log_probabilities":
            # Outer folds may select different kinds, some of them without probabilities.
            changed[name] = all(values)
        elif any(isinstance(value, np.ndarray) for value in values):
            is_complete = all(value is not None for value in values)
            changed[name] = np.concatenate(values) if is_complete else None
    return replace(first, **changed)


def uninformed(train_labels: NDArray[Any], predictions: Predictions) -> Predictions:
    """Return the chance level predictions for the same rows: the majority class or the mean.

    The given predictions must be of classes or numbers.

    Scores, if the given predictions have any, are the log frequencies of the training labels
    (n_train,). The alarm of every row, if there are any, is the false positive rate that the
    threshold allows.

    >>> predictions = metrics.ClassPredictions(np.array([0, 1]), np.array([0, 1]), n_classes=2)
    >>> uninformed(np.array([1, 1, 0]), predictions).guess.tolist()
    [1, 1]
    """
    if isinstance(predictions, metrics.NumberPredictions):
        mean = np.full(len(predictions.truth), train_labels.mean())
        return metrics.NumberPredictions(predictions.truth, mean)
    assert isinstance(predictions, metrics.ClassPredictions)
    n_rows = len(predictions.truth)
    changed: dict[str, Any] = {"guess": majority_guess(train_labels, n_rows)}
    if predictions.alarms is not None:
        changed["alarms"] = np.where(np.isnan(predictions.alarms), np.nan, metrics.RATES)
    if predictions.scores is not None:
        changed["scores"] = log_frequencies(train_labels, n_rows, predictions.n_classes)
    if predictions.scaled is not None:
        changed["scaled"] = np.zeros_like(predictions.scaled)
    return replace(predictions, **changed)


def majority_guess(train_codes: Codes, n_rows: int) -> Codes:
    """Return the most frequent training label, repeated `n_rows` times; ties go to the first.

    >>> majority_guess(np.array([2, 1, 1]), n_rows=2).tolist()
    [1, 1]
    """
    return np.full(n_rows, np.bincount(train_codes).argmax())


def log_frequencies(train_codes: Codes, n_rows: int, n_classes: int) -> Floats:
    """Return the log frequencies (n_rows, n_classes) of the training labels, equal in all rows.

    >>> log_frequencies(np.array([0, 1]), n_rows=1, n_classes=2).round(2).tolist()
    [[-0.69, -0.69]]
    """
    with np.errstate(divide="ignore"):
        frequencies = np.bincount(train_codes, minlength=n_classes) / len(train_codes)
        return np.tile(np.log(frequencies), (n_rows, 1))


class Predictor(NamedTuple):
    """Origin of predictions: the kind of probe ("none" for a baseline) and the target."""

    probe: str
    target: str


def control_draw(number: int) -> str:
    """Return the target of the predictions of one draw of the control task.

    >>> control_draw(0)
    'control 0'
    """
    return f"control {number}"


@dataclass(frozen=True, eq=False)
class SiteResult:
    """The measurements of one site, or of the baselines, and the predictions on test rows.

    Attributes:
        measurements: the rows of results.csv, without the columns in `place`.
        predictions: the predictions of each probe on the test rows. With several splits there are
            also predictions of each draw of the control task; `control_draw` gives their target.
        fits: the fit of the task for each kind of probe. A single split is fitted on its training
            rows; with several splits, this is a further fit on all rows. Kinds that are not a
            stack of layers have none, and results read from disk have none.
        penalties: the penalty of each of `fits`, by kind; None for a kind without one.
        place: the columns of results.csv that identify run, site and position.
        probes: digests of the weights of the saved probes, by file name relative to the run's
            folder.
        files: digests of all files of the site, including its probes; empty before it is saved.
    """

    measurements: list[Measurement] = field(default_factory=list)
    predictions: dict[Predictor, Predictions] = field(default_factory=dict)
    fits: dict[str, FittedLayers] = field(default_factory=dict)
    penalties: dict[str, float | None] = field(default_factory=dict)
    place: Mapping[str, Any] = field(default_factory=dict)
    probes: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of results.csv."""
        return [{**self.place, **asdict(measurement)} for measurement in self.measurements]

    def of_kind(self, probe: str) -> list[Measurement]:
        """Return the measurements of one kind of probe, the task on test rows first."""
        return [one for one in self.measurements if one.probe == probe]
