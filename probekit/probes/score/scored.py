"""Predictions with the facts of their fits, and the rows of results.csv measured from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from probekit.probes.kinds.structural import TreePredictions
from probekit.probes.kinds.trees import SentenceScores
from probekit.probes.score.contributions import ClassParts, mean_parts
from probekit.probes.score.description_length import OnlineCode
from probekit.probes.score.intervals import Interval, score_interval
from probekit.probes.score.metric_table import (
    METRICS,
    MetricFunction,
    class_parts,
    metric_functions,
)
from probekit.probes.score.metrics import (
    ClassPredictions,
    NumberPredictions,
    Resamples,
    joined_folds,
    take,
)
from probekit.probes.solve.design import Floats
from probekit.probes.solve.fits import Judge, TunedProbeFit
from probekit.probes.solve.layers import FittedLayers
from probekit.probes.solve.solver import Codes
from probekit.provenance import digest

RowsScored = Literal["test", "validation", "online", "learning"]
Predictions = ClassPredictions | NumberPredictions | OnlineCode | TreePredictions
N = TypeVar("N", int, float)


@dataclass(frozen=True)
class Measurement:
    """One score with its confidence interval, its chance level, and properties of its fits.

    Baselines have no fit of activations: their `n_iter`, `converged` and `gradient_norm` are None,
    and so is `C` unless the baseline is tuned; see `Target.is_tuned`. The score of the control task
    is the mean over its draws.

    Attributes:
        probe: the kind of probe; "none" for baselines.
        target: what was predicted; see `TARGETS`.
        split: the rows scored. "test": the test rows. "validation": the held-out folds of the
            training rows, for selecting sites without using the test rows. "online": the training
            rows, coded block by block. "learning": the test rows, after training on fewer rows.
        metric: the name of the metric.
        value: the score.
        ci_low: the lower limit of the 95 % confidence interval.
        ci_high: the upper limit.
        chance: the score of chance level predictions on the same rows, such as always predicting
            the most frequent training label; 0 for selectivity.
        n_train: number of rows fitted; for "validation" those of the smallest fit.
        n_test: number of rows scored.
        n_groups: number of groups of the rows scored.
        C: the selected penalty, whether it is named C or alpha; None if there is none, or if it
            differs between the fits.
        n_iter: number of solver iterations, the largest of all fits.
        converged: whether all fits converged.
        gradient_norm: the final gradient norm, the largest of all fits.
        seed: the random seed.
        fold: the number of the outer fold, if only the rows of one outer fold of a nested
            cross-validation are scored; None for a score of all rows.
    """

    probe: str
    target: str
    split: RowsScored
    metric: str
    value: float
    ci_low: float
    ci_high: float
    chance: float
    n_train: int
    n_test: int
    n_groups: int
    C: float | None
    n_iter: int | None
    converged: bool | None
    gradient_norm: float | None
    seed: int
    fold: int | None = None  # older releases did not write it


def _common(values: Sequence[float | None]) -> float | None:
    """Return the value that all entries share; None if they differ."""
    return values[0] if len(set(values)) == 1 else None


def _largest(values: Sequence[N | None]) -> N | None:
    """Return the largest value that is not None; None if all are."""
    return max((value for value in values if value is not None), default=None)


def joined(parts: Sequence[Predictions]) -> Predictions:
    """Return the concatenated predictions for several sets of rows, each with fits of its own.

    >>> both = joined([NumberPredictions(np.array([1.0]), np.array([2.0]))] * 2)
    >>> both.guess.tolist()
    [2.0, 2.0]
    """
    first = parts[0]
    if isinstance(first, TreePredictions):
        sentences = [part.sentences for part in parts if isinstance(part, TreePredictions)]
        return replace(first, sentences=SentenceScores.joined(sentences))
    changed: dict[str, Any] = {"n_codes": len(parts)} if isinstance(first, OnlineCode) else {}
    if isinstance(first, ClassPredictions | NumberPredictions):
        pooled = [part for part in parts if isinstance(part, type(first))]
        changed["folds"] = joined_folds([p.folds for p in pooled], [len(p.truth) for p in pooled])
    if isinstance(first, ClassPredictions):  # folds may have chosen kinds with other scores
        are_logs = [p.scores_are_log_probabilities for p in parts if isinstance(p, type(first))]
        changed["scores_are_log_probabilities"] = all(are_logs)
    for own in fields(first):
        values = [getattr(part, own.name) for part in parts]
        if isinstance(values[0], np.ndarray) and own.name != "folds":
            is_known = all(value is not None for value in values)
            changed[own.name] = np.concatenate(values) if is_known else None
    return replace(first, **changed)


# The predictions of a probe, and the chance level predictions for the same rows.
PredictionPair = tuple[Predictions, Predictions]


def taken(pair: PredictionPair, rows: NDArray[np.generic]) -> PredictionPair:
    """Return both predictions of a pair for some rows, given by a mask or by row numbers."""
    predictions, chance = pair
    return take(predictions, rows), take(chance, rows)


@dataclass(frozen=True, eq=False)
class Score:
    """Predictions to be scored, with properties of the fits that made them.

    Attributes:
        probe: the kind of probe, "none" for a baseline.
        target: what was predicted.
        seed: the random seed for folds, control labels and resamples.
        n_train: number of rows fitted.
        split: the rows that are scored; see `Measurement`.
        pairs: the predictions whose mean score is measured: one pair, or one per control draw.
        groups: the groups (n_samples,) of the rows that are scored.
        metric: the metric to compute; None for all that are defined.
        against: predictions whose mean score is subtracted; empty for none. The difference is
            positive if `pairs` score better.
        C: the penalty of the fits; None if they differ or there are none.
        n_iter: the largest number of iterations of the fits.
        converged: whether all fits converged.
        gradient_norm: the largest final gradient norm of the fits.
        fit: the fit of the task on all rows, to be saved; None if there is no single fit.
        fold: the number of the outer fold, if only one is scored; None for all rows.
    """

    probe: str
    target: str
    seed: int
    n_train: int
    split: RowsScored = "test"
    pairs: tuple[PredictionPair, ...] = ()
    groups: NDArray[np.str_] = field(default_factory=lambda: np.empty(0, dtype=str))
    metric: str | None = None
    against: tuple[PredictionPair, ...] = ()
    C: float | None = None
    n_iter: int | None = None
    converged: bool | None = None
    gradient_norm: float | None = None
    fit: FittedLayers | None = None
    fold: int | None = None

    def of_fits(self, fits: Sequence[FittedLayers]) -> Score:
        """Return the score with the iteration count, convergence and gradient norm of its fits."""
        return replace(
            self,
            n_iter=max(fit.n_iter for fit in fits),
            converged=all(fit.converged for fit in fits),
            gradient_norm=_largest([fit.gradient_norm for fit in fits]),
        )

    def of_columns(self, columns: Sequence[TunedProbeFit[FittedLayers]]) -> Score:
        """Return the score with the penalty and solver results of the final fits of the columns."""
        C = _common([column.penalty for column in columns])
        return replace(self, C=C).of_fits([column.solution for column in columns])

    def of_search(self, columns: Sequence[TunedProbeFit[FittedLayers]], n_train: int) -> Score:
        """Return the validation score with the solver results of the cross-validation fits."""
        fits = [fit for column in columns for fit in column.search]
        return replace(self, n_train=n_train, split="validation").of_fits(fits)

    @classmethod
    def of_networks(cls, scores: Sequence[Score]) -> Score:
        """Return the mean score of the same probe on several networks, on the same rows."""
        return replace(
            scores[0],
            pairs=tuple(pair for one in scores for pair in one.pairs),
            **_facts(scores),
        )

    @classmethod
    def of_all(cls, scores: Sequence[Score]) -> Score:
        """Return the combined score of the same probe on several splits."""
        if len(scores) == 1:
            return scores[0]
        return replace(
            scores[0],
            n_train=min(one.n_train for one in scores),
            pairs=_merged([one.pairs for one in scores]),
            groups=np.concatenate([one.groups for one in scores]),
            against=_merged([one.against for one in scores]),
            **_facts(scores),
        )


def _facts(scores: Sequence[Score]) -> dict[str, Any]:
    """Return the common penalty and the combined solver results of several scores."""
    converged = [one.converged for one in scores if one.converged is not None]
    return {
        "C": _common([one.C for one in scores]),
        "n_iter": _largest([one.n_iter for one in scores]),
        "converged": all(converged) if converged else None,
        "gradient_norm": _largest([one.gradient_norm for one in scores]),
        "fit": None,
    }


def _merged(of_splits: Sequence[tuple[PredictionPair, ...]]) -> tuple[PredictionPair, ...]:
    """Return each pair of predictions, concatenated over several splits."""
    return tuple(
        (joined([predictions for predictions, _ in same]), joined([chance for _, chance in same]))
        for same in zip(*of_splits, strict=True)
    )


def metrics_of(predictions: Predictions) -> Mapping[str, MetricFunction]:
    """Return the metric functions that are defined for the predictions, by name.

    AUROC needs scores; calibration metrics need probabilities.

    >>> list(metrics_of(NumberPredictions(np.zeros(2), np.zeros(2))))
    ['r2', 'spearman']
    """
    return metric_functions(predictions.family, predictions.offers)


class Resampler:
    """Cache of resamples: identical groups get identical ones, so that differences are paired.

    Args:
        widening: factor on standard errors; see `Resamples`.
    """

    def __init__(self, widening: float = 1.0) -> None:
        self._widening = widening
        self._resamples: dict[str, Resamples] = {}

    def of(self, groups: NDArray[np.str_]) -> Resamples:
        """Return the jackknife resamples of the groups (n_samples,)."""
        key = digest([np.ascontiguousarray(groups).tobytes()])
        if key not in self._resamples:
            self._resamples[key] = Resamples.leave_one_out(groups, widening=self._widening)
        return self._resamples[key]


def measure(score: Score, resampler: Resampler) -> list[Measurement]:
    """Return the measurements of a score.

    Undefined metrics are omitted, such as the AUROC of rows with a single label.
    """
    resamples = resampler.of(score.groups)
    measurements = []
    for name in _common_metrics(score.pairs) if score.metric is None else [score.metric]:
        values = _mean_score(name, score.pairs, resamples)
        chance = float(np.mean([_chance(name, constant, resamples) for _, constant in score.pairs]))
        if score.against:
            lead = values - _mean_score(name, score.against, resamples)
            values, chance = METRICS[name].sign * lead, 0.0
        if not np.isnan(values[0]):
            metric = "selectivity" if score.against else name
            parts = None if score.against else parts_of(name, [own for own, _ in score.pairs])
            interval = score_interval(values, resamples, METRICS[metric].range, parts)
            measurements.append(_measurement(score, metric, interval, chance, resamples))
    return measurements


def _common_metrics(pairs: Sequence[PredictionPair]) -> list[str]:
    """Return the metrics that are defined for all predictions, which may be of several kinds."""
    first, *others = [metrics_of(predictions) for predictions, _ in pairs]
    return [name for name in first if all(name in other for other in others)]


def _mean_score(metric: str, pairs: Sequence[PredictionPair], resamples: Resamples) -> Floats:
    scores = [metrics_of(predictions)[metric](predictions, resamples) for predictions, _ in pairs]
    mean: Floats = np.mean(scores, axis=0)
    return mean


def parts_of(metric: str, predictions: Sequence[Predictions]) -> ClassParts | None:
    """Return the parts by class of a mean score of predictions on the same rows.

    None if the metric has no parts, or if the true classes differ.
    """
    function = class_parts(metric)
    return None if function is None else mean_parts([function(one) for one in predictions])


def _chance(metric: str, uninformed: Predictions, resamples: Resamples) -> float:
    """Return the score of chance level predictions; 0 if it is undefined for constants."""
    chance = float(metrics_of(uninformed)[metric](uninformed, resamples.undrawn)[0])
    return 0.0 if np.isnan(chance) else chance


def _measurement(
    score: Score, metric: str, interval: Interval, chance: float, resamples: Resamples
) -> Measurement:
    return Measurement(
        probe=score.probe,
        target=score.target,
        split=score.split,
        metric=metric,
        value=interval.value,
        ci_low=interval.low,
        ci_high=interval.high,
        chance=chance,
        n_train=score.n_train,
        n_test=len(resamples.group_of_row),
        n_groups=resamples.n_groups,
        C=score.C,
        n_iter=score.n_iter,
        converged=score.converged,
        gradient_norm=score.gradient_norm,
        seed=score.seed,
        fold=score.fold,
    )


# Makes predictions. Arguments: true labels, held-out outputs, number of the fit of each row.
MakePredictions = Callable[[NDArray[Any], NDArray[Any], Codes], Predictions]


def judge_of(metric: str, predictions_of: MakePredictions) -> Judge:
    """Return a function that rates held-out outputs by a metric, so that higher is better."""

    def judge(truth: NDArray[Any], outputs: NDArray[Any], folds: Codes) -> float:
        return rating(metric, predictions_of(truth, outputs, folds))

    return judge


def rating(metric: str, predictions: Predictions) -> float:
    """Return the value of a metric for predictions, negated if lower values are better.

    >>> import numpy as np
    >>> rating("accuracy", ClassPredictions(np.array([0, 1]), np.array([0, 0]), n_classes=2))
    0.5
    """
    assert isinstance(predictions, ClassPredictions | NumberPredictions)
    whole = Resamples.whole(len(predictions.truth))
    return METRICS[metric].sign * float(metrics_of(predictions)[metric](predictions, whole)[0])


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
