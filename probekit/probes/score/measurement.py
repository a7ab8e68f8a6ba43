"""From answers to numbers that can be judged: value, interval, chance, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from probekit.probes.fitters import TunedProbeFit
from probekit.probes.kinds.layers import FittedLayers
from probekit.probes.kinds.structural.scores import SentenceScores
from probekit.probes.score.description_length import OnlineCode
from probekit.probes.score.metric_table import MetricFunction, metric_functions
from probekit.probes.score.metrics import ClassPredictions, Resamples, percentile_interval
from probekit.probes.score.regression import NumberPredictions
from probekit.probes.solve.design import Floats
from probekit.probes.text_and_tree import TreePredictions
from probekit.provenance import digest

RowsScored = Literal["test", "validation", "online", "learning"]
Predictions = ClassPredictions | NumberPredictions | OnlineCode | TreePredictions
N = TypeVar("N", int, float)


@dataclass(frozen=True)
class Measurement:
    """One number with all that is needed to judge it.

    `probe` is the kind of probe, "none" for baselines. `split` is "test", or "validation" for the
    cross-validated score on training rows, by which a layer may be chosen without a look at the
    test rows, "online" for the training rows coded one block after the other, "learning" for the
    test rows after training on fewer. `ci_low` and `ci_high` end the 95 % interval. `chance` is
    what always guessing the most frequent training label scores on the same rows; for selectivity
    it is 0. `n_train` counts the rows fitted (for "validation" those of the smallest fit), `n_test`
    the rows scored, `n_groups` their groups. `C` is the penalty chosen, whatever the kind calls it.
    Baselines have no fit: their C, n_iter, converged and gradient_norm are None. The control is the
    mean over its draws: C is None where they differ, n_iter and gradient_norm are the largest, and
    converged holds when every draw converged.
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


@dataclass(frozen=True)
class Origin:
    """Whose answers are measured: probe, target, training rows, and the fits if there are any."""

    probe: str
    target: str
    seed: int
    n_train: int
    C: float | None = None
    n_iter: int | None = None
    converged: bool | None = None
    gradient_norm: float | None = None

    def of_fits(self, solutions: Sequence[FittedLayers]) -> Origin:
        """Return the origin told by the worst of some fits."""
        return replace(
            self,
            n_iter=max(solution.n_iter for solution in solutions),
            converged=all(solution.converged for solution in solutions),
            gradient_norm=_largest([solution.gradient_norm for solution in solutions]),
        )

    def of_columns(self, columns: Sequence[TunedProbeFit]) -> Origin:
        """Return the origin of the fits on all rows."""
        C = _common([column.penalty for column in columns])
        return replace(self, C=C).of_fits([column.solution for column in columns])

    def of_search(self, columns: Sequence[TunedProbeFit], n_train: int) -> Origin:
        """Return the origin of the held-out guesses."""
        fits = [fit for column in columns for fit in column.search]
        return replace(self, n_train=n_train).of_fits(fits)

    @classmethod
    def of_all(cls, origins: Sequence[Origin]) -> Origin:
        """Return one origin of the same probe on several splits, told by the worst."""
        converged = [one.converged for one in origins if one.converged is not None]
        return replace(
            origins[0],
            n_train=min(one.n_train for one in origins),
            C=_common([one.C for one in origins]),
            n_iter=_largest([one.n_iter for one in origins]),
            converged=all(converged) if converged else None,
            gradient_norm=_largest([one.gradient_norm for one in origins]),
        )


def _common(values: Sequence[float | None]) -> float | None:
    """Return what all values are; None where they differ."""
    return values[0] if len(set(values)) == 1 else None


def _largest(values: Sequence[N | None]) -> N | None:
    """Return the largest of the values that are known; None where none is."""
    return max((value for value in values if value is not None), default=None)


@dataclass(frozen=True, eq=False)
class Estimate:
    """Answers on some rows, those of one who knows the training labels alone, and the groups."""

    answers: Predictions
    uninformed: Predictions
    groups: NDArray[np.str_]

    @classmethod
    def of_all(cls, readings: Sequence[Estimate]) -> Estimate:
        """Return one reading of rows that were answered on several splits."""
        if len(readings) == 1:
            return readings[0]
        return cls(
            joined([one.answers for one in readings]),
            joined([one.uninformed for one in readings]),
            np.concatenate([one.groups for one in readings]),
        )


def joined(parts: Sequence[Predictions]) -> Predictions:
    """Return answers on several parts of the rows as one, part after part.

    >>> both = joined([NumberPredictions(np.array([1.0]), np.array([2.0]))] * 2)
    >>> both.guess.tolist()
    [2.0, 2.0]
    """
    first = parts[0]
    if isinstance(first, TreePredictions):
        sentences = [part.sentences for part in parts if isinstance(part, TreePredictions)]
        return replace(first, sentences=SentenceScores.joined(sentences))
    n_codes = {"n_codes": len(parts)} if isinstance(first, OnlineCode) else {}
    arrays: dict[str, Any] = n_codes | {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(first)
        if isinstance(getattr(first, field.name), np.ndarray)
    }
    return replace(first, **arrays)


@dataclass(frozen=True, eq=False)
class Score:
    """What is to be measured: the mean over the readings of a metric, or of all that are defined.

    With `against` it is how far the mean is ahead of the mean over those.
    """

    origin: Origin
    split: RowsScored
    readings: tuple[Estimate, ...]
    metric: str | None = None
    against: tuple[Estimate, ...] = ()

    @classmethod
    def of_all(cls, claims: Sequence[Score]) -> Score:
        """Return one claim of the same probe on several splits."""
        return replace(
            claims[0],
            origin=Origin.of_all([one.origin for one in claims]),
            readings=_merged([one.readings for one in claims]),
            against=_merged([one.against for one in claims]),
        )


def _merged(of_splits: Sequence[tuple[Estimate, ...]]) -> tuple[Estimate, ...]:
    return tuple(Estimate.of_all(same) for same in zip(*of_splits, strict=True))


def metrics_of(answers: Predictions) -> Mapping[str, MetricFunction]:
    """Return the metrics that are defined for some answers, by name.

    AUROC needs scores, calibration probabilities.

    >>> list(metrics_of(NumberPredictions(np.zeros(2), np.zeros(2))))
    ['r2', 'spearman']
    """
    return metric_functions(answers.family, answers.offers)


class Resampler:
    """Draws the same resamples for the same groups, so that all differences are paired."""

    def __init__(self, draws: int, seed: int) -> None:
        self._draws = draws
        self._seed = seed
        self._known: dict[str, Resamples] = {}

    def of(self, groups: NDArray[np.str_]) -> Resamples:
        """Return the resamples of the groups (n_samples,)."""
        key = digest([np.ascontiguousarray(groups).tobytes()])
        if key not in self._known:
            self._known[key] = Resamples.draw(groups, self._draws, self._seed)
        return self._known[key]


def measure(claim: Score, resampler: Resampler) -> list[Measurement]:
    """Return the numbers of a claim.

    AUROC is left out where the rows have one label only.
    """
    first = claim.readings[0]
    resamples = resampler.of(first.groups)
    found = []
    for name in metrics_of(first.answers) if claim.metric is None else [claim.metric]:
        draws = _mean_score(name, claim.readings, resamples)
        chance = float(np.mean([_chance(name, one, resamples) for one in claim.readings]))
        if claim.against:
            draws, chance = draws - _mean_score(name, claim.against, resamples), 0.0
        if not np.isnan(draws[0]):
            shown = "selectivity" if claim.against else name
            found.append(_measurement(claim, shown, draws, chance, resamples))
    return found


def _mean_score(metric: str, readings: Sequence[Estimate], resamples: Resamples) -> Floats:
    scores = [metrics_of(one.answers)[metric](one.answers, resamples) for one in readings]
    mean: Floats = np.mean(scores, axis=0)
    return mean


def _chance(metric: str, reading: Estimate, resamples: Resamples) -> float:
    """Return what the uninformed answers score; 0 where a constant has no score."""
    score = metrics_of(reading.uninformed)[metric]
    chance = float(score(reading.uninformed, resamples.undrawn)[0])
    return 0.0 if np.isnan(chance) else chance


def _measurement(
    claim: Score, metric: str, draws: Floats, chance: float, resamples: Resamples
) -> Measurement:
    interval = percentile_interval(draws)
    return Measurement(
        **vars(claim.origin),
        split=claim.split,
        metric=metric,
        value=interval.value,
        ci_low=interval.low,
        ci_high=interval.high,
        chance=chance,
        n_test=len(resamples.group_of_row),
        n_groups=resamples.n_groups,
    )
