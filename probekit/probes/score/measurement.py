"""From answers to numbers that can be judged: value, interval, chance, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from probekit.probes.kinds.structural.scores import SentenceScores
from probekit.probes.score.description_length import OnlineCode
from probekit.probes.score.metric_table import MetricFunction, metric_functions
from probekit.probes.score.metrics import ClassPredictions, Resamples, percentile_interval
from probekit.probes.score.regression import NumberPredictions
from probekit.probes.solve.design import Floats
from probekit.probes.solve.fits import TunedProbeFit
from probekit.probes.solve.layers import FittedLayers
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


def _common(values: Sequence[float | None]) -> float | None:
    """Return what all values are; None where they differ."""
    return values[0] if len(set(values)) == 1 else None


def _largest(values: Sequence[N | None]) -> N | None:
    """Return the largest of the values that are known; None where none is."""
    return max((value for value in values if value is not None), default=None)


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
        own.name: np.concatenate([getattr(part, own.name) for part in parts])
        for own in fields(first)
        if isinstance(getattr(first, own.name), np.ndarray)
    }
    return replace(first, **arrays)


# The predictions of a probe, and those of a guess that knows only the training labels.
Reading = tuple[Predictions, Predictions]


@dataclass(frozen=True, eq=False)
class Score:
    """Predictions to be scored, and the fits that made them.

    Attributes:
        probe: the kind of probe, "none" for a baseline.
        target: what was predicted.
        seed: of folds, control labels and resamples.
        n_train: number of rows fitted.
        split: the rows that are scored, see `Measurement`.
        readings: the predictions, whose mean score is measured: one, or one for each control draw.
        groups: (n_samples,) of the rows that are scored.
        metric: to be measured; None for all that are defined.
        against: predictions whose mean score is subtracted; empty for none.
        C: the penalty of the fits; None where they differ or there are none.
        n_iter: the largest number of iterations of the fits.
        converged: whether all fits converged.
        gradient_norm: the largest of the fits.
        fit: of the task on all rows, kept to be saved; None where there is no single one.
    """

    probe: str
    target: str
    seed: int
    n_train: int
    split: RowsScored = "test"
    readings: tuple[Reading, ...] = ()
    groups: NDArray[np.str_] = field(default_factory=lambda: np.empty(0, dtype=str))
    metric: str | None = None
    against: tuple[Reading, ...] = ()
    C: float | None = None
    n_iter: int | None = None
    converged: bool | None = None
    gradient_norm: float | None = None
    fit: FittedLayers | None = None

    def of_fits(self, fits: Sequence[FittedLayers]) -> Score:
        """Return the score with the number of iterations and convergence of its worst fit."""
        return replace(
            self,
            n_iter=max(fit.n_iter for fit in fits),
            converged=all(fit.converged for fit in fits),
            gradient_norm=_largest([fit.gradient_norm for fit in fits]),
        )

    def of_columns(self, columns: Sequence[TunedProbeFit[FittedLayers]]) -> Score:
        """Return the score of the fits on all rows."""
        C = _common([column.penalty for column in columns])
        return replace(self, C=C).of_fits([column.solution for column in columns])

    def of_search(self, columns: Sequence[TunedProbeFit[FittedLayers]], n_train: int) -> Score:
        """Return the score of the guesses for held-out folds."""
        fits = [fit for column in columns for fit in column.search]
        return replace(self, n_train=n_train, split="validation").of_fits(fits)

    @classmethod
    def of_all(cls, scores: Sequence[Score]) -> Score:
        """Return one score of the same probe on several splits, with the facts of the worst fit."""
        if len(scores) == 1:
            return scores[0]
        converged = [one.converged for one in scores if one.converged is not None]
        return replace(
            scores[0],
            n_train=min(one.n_train for one in scores),
            readings=_merged([one.readings for one in scores]),
            groups=np.concatenate([one.groups for one in scores]),
            against=_merged([one.against for one in scores]),
            C=_common([one.C for one in scores]),
            n_iter=_largest([one.n_iter for one in scores]),
            converged=all(converged) if converged else None,
            gradient_norm=_largest([one.gradient_norm for one in scores]),
            fit=None,
        )


def _merged(of_splits: Sequence[tuple[Reading, ...]]) -> tuple[Reading, ...]:
    """Return the readings of several splits, joined one by one."""
    return tuple(
        (joined([said for said, _ in same]), joined([plain for _, plain in same]))
        for same in zip(*of_splits, strict=True)
    )


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


def measure(score: Score, resampler: Resampler) -> list[Measurement]:
    """Return the numbers of a score.

    AUROC is left out where the rows have one label only.
    """
    resamples = resampler.of(score.groups)
    found = []
    for name in metrics_of(score.readings[0][0]) if score.metric is None else [score.metric]:
        draws = _mean_score(name, score.readings, resamples)
        chance = float(np.mean([_chance(name, plain, resamples) for _, plain in score.readings]))
        if score.against:
            draws, chance = draws - _mean_score(name, score.against, resamples), 0.0
        if not np.isnan(draws[0]):
            shown = "selectivity" if score.against else name
            found.append(_measurement(score, shown, draws, chance, resamples))
    return found


def _mean_score(metric: str, readings: Sequence[Reading], resamples: Resamples) -> Floats:
    scores = [metrics_of(said)[metric](said, resamples) for said, _ in readings]
    mean: Floats = np.mean(scores, axis=0)
    return mean


def _chance(metric: str, uninformed: Predictions, resamples: Resamples) -> float:
    """Return the score of uninformed predictions; 0 where a constant has no score."""
    chance = float(metrics_of(uninformed)[metric](uninformed, resamples.undrawn)[0])
    return 0.0 if np.isnan(chance) else chance


def _measurement(
    score: Score, metric: str, draws: Floats, chance: float, resamples: Resamples
) -> Measurement:
    interval = percentile_interval(draws)
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
    )
