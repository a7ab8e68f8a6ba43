"""From answers to numbers that can be judged: value, interval, chance, and where they come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from probekit.probes.calibration import CALIBRATION_METRICS
from probekit.probes.description import DESCRIPTION_METRICS, OnlineCode
from probekit.probes.design import Floats
from probekit.probes.kinds.layers import Solution
from probekit.probes.machines import Tuned
from probekit.probes.metrics import METRICS, Answers, Resamples, percentile_interval
from probekit.probes.regression import REGRESSION_METRICS, NumberAnswers
from probekit.probes.wholes import TreeAnswers, tree_metrics

Target = Literal[
    "task", "control", "random_weights", "majority", "word_identity", "bag_of_words", "length"
]
Split = Literal["test", "validation", "online", "learning"]
Said = Answers | NumberAnswers | OnlineCode | TreeAnswers
Metric = Callable[[Any, Resamples], Floats]


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
    target: Target
    split: Split
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
    target: Target
    seed: int
    n_train: int
    C: float | None = None
    n_iter: int | None = None
    converged: bool | None = None
    gradient_norm: float | None = None

    def of_fits(self, solutions: Sequence[Solution]) -> Origin:
        """Return the origin told by the worst of some fits."""
        norms = [s.gradient_norm for s in solutions if s.gradient_norm is not None]
        return replace(
            self,
            n_iter=max(solution.n_iter for solution in solutions),
            converged=all(solution.converged for solution in solutions),
            gradient_norm=max(norms, default=None),
        )

    def of_columns(self, columns: Sequence[Tuned]) -> Origin:
        """Return the origin of the fits on all rows."""
        chosen = {column.penalty for column in columns}
        C = chosen.pop() if len(chosen) == 1 else None
        return replace(self, C=C).of_fits([column.solution for column in columns])

    def of_search(self, columns: Sequence[Tuned], n_train: int) -> Origin:
        """Return the origin of the held-out guesses."""
        fits = [fit for column in columns for fit in column.search]
        return replace(self, n_train=n_train).of_fits(fits)


@dataclass(frozen=True, eq=False)
class Reading:
    """Answers on some rows, those of one who knows the training labels alone, and the resamples."""

    answers: Said
    uninformed: Said
    resamples: Resamples

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """The metrics that are defined for such answers."""
        return metrics_of(self.answers)

    def score(self, metric: str) -> Floats:
        """Return the metric (1 + n_draws,): its value, then its bootstrap draws."""
        return self.metrics[metric](self.answers, self.resamples)

    def chance(self, metric: str) -> float:
        """Return what the uninformed answers score; 0 where a constant has no score."""
        chance = float(self.metrics[metric](self.uninformed, self.resamples.undrawn)[0])
        return 0.0 if np.isnan(chance) else chance


def metrics_of(answers: Said) -> Mapping[str, Metric]:
    """Return the metrics that are defined for some answers, by name.

    AUROC needs scores, calibration probabilities.

    >>> list(metrics_of(NumberAnswers(np.zeros(2), np.zeros(2))))
    ['r2', 'spearman']
    """
    if isinstance(answers, NumberAnswers):
        return REGRESSION_METRICS
    if isinstance(answers, OnlineCode):
        return DESCRIPTION_METRICS
    if isinstance(answers, TreeAnswers):
        return tree_metrics(answers.hit)
    if answers.scores is None:
        return {name: metric for name, metric in METRICS.items() if name != "auroc"}
    return {**METRICS, **(CALIBRATION_METRICS if answers.scores_are_log_probabilities else {})}


def measure(origin: Origin, split: Split, readings: Sequence[Reading]) -> list[Measurement]:
    """Return the mean over the readings of every metric that is defined for them.

    AUROC is left out where the rows have one label only.
    """
    draws = {name: _mean_score(name, readings) for name in readings[0].metrics}
    return [
        _measurement(origin, split, name, values, _mean_chance(name, readings), readings[0])
        for name, values in draws.items()
        if not np.isnan(values[0])
    ]


def measure_one(
    origin: Origin, split: Split, metric: str, readings: Sequence[Reading]
) -> Measurement:
    """Return the mean of one metric over the readings."""
    draws, chance = _mean_score(metric, readings), _mean_chance(metric, readings)
    return _measurement(origin, split, metric, draws, chance, readings[0])


def measure_selectivity(
    origin: Origin, metric: str, task: Reading, controls: Sequence[Reading]
) -> Measurement:
    """Return the task's test score less the mean of its controls, with a paired interval.

    Source: Hewitt and Liang (2019), Designing and interpreting probes with control tasks.
    """
    draws = task.score(metric) - _mean_score(metric, controls)
    return _measurement(origin, "test", "selectivity", draws, 0.0, task)


def _mean_score(metric: str, readings: Sequence[Reading]) -> Floats:
    scores: Floats = np.mean([reading.score(metric) for reading in readings], axis=0)
    return scores


def _mean_chance(metric: str, readings: Sequence[Reading]) -> float:
    return float(np.mean([reading.chance(metric) for reading in readings]))


def _measurement(
    origin: Origin, split: Split, metric: str, draws: Floats, chance: float, reading: Reading
) -> Measurement:
    interval = percentile_interval(draws)
    return Measurement(
        probe=origin.probe,
        target=origin.target,
        split=split,
        metric=metric,
        value=interval.value,
        ci_low=interval.low,
        ci_high=interval.high,
        chance=chance,
        n_train=origin.n_train,
        n_test=len(reading.resamples.group_of_row),
        n_groups=reading.resamples.n_groups,
        C=origin.C,
        n_iter=origin.n_iter,
        converged=origin.converged,
        gradient_norm=origin.gradient_norm,
        seed=origin.seed,
    )
