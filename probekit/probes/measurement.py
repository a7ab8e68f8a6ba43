"""From answers to numbers that can be judged: value, interval, chance, and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from probekit.probes.design import Floats
from probekit.probes.fits import Column
from probekit.probes.metrics import METRICS, Answers, Resamples, percentile_interval

Target = Literal["task", "control", "random_weights", "majority", "word_identity"]
Split = Literal["test", "validation"]


@dataclass(frozen=True)
class Measurement:
    """One number with all that is needed to judge it.

    `split` is "test", or "validation" for the cross-validated accuracy on training rows, by which
    a layer may be chosen without a look at the test rows. `ci_low` and `ci_high` end the 95 %
    interval. `chance` is what always guessing the most frequent training label scores on the same
    rows; for selectivity it is 0. `n_train` counts the rows fitted (for "validation"
    those of the smallest fit), `n_test` the rows scored, `n_groups` their groups. Baselines have
    no fit: their C, n_iter, converged and gradient_norm are None. The control is the mean over its
    draws: C is None where they differ, n_iter and gradient_norm are the largest, and converged
    holds when every draw converged.
    """

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
    """Whose answers are measured: the target, its training rows, and its fits if there are any."""

    target: Target
    seed: int
    n_train: int
    C: float | None = None
    n_iter: int | None = None
    converged: bool | None = None
    gradient_norm: float | None = None

    @classmethod
    def fitted(cls, target: Target, seed: int, columns: Sequence[Column]) -> Origin:
        """Return the origin of one or more fits on the same rows, told by their worst."""
        chosen = {column.C for column in columns}
        return cls(
            target=target,
            seed=seed,
            n_train=len(columns[0].held_out),
            C=chosen.pop() if len(chosen) == 1 else None,
            n_iter=max(column.fit.n_iter for column in columns),
            converged=all(column.fit.converged for column in columns),
            gradient_norm=max(column.fit.gradient_norm for column in columns),
        )

    def of_search(self, columns: Sequence[Column], n_train: int) -> Origin:
        """Return the origin of the held-out guesses, told by the worst of the folds' fits."""
        fits = [fit for column in columns for fit in column.search]
        return replace(
            self,
            n_train=n_train,
            n_iter=max(fit.n_iter for fit in fits),
            converged=all(fit.converged for fit in fits),
            gradient_norm=max(fit.gradient_norm for fit in fits),
        )


@dataclass(frozen=True, eq=False)
class Reading:
    """Answers on some rows, those of always guessing the majority, and the rows' resamples."""

    answers: Answers
    majority: Answers
    resamples: Resamples

    def score(self, metric: str) -> Floats:
        """Return the metric (1 + n_draws,): its value, then its bootstrap draws."""
        return METRICS[metric](self.answers, self.resamples)

    def chance(self, metric: str) -> float:
        """Return what the majority guess scores."""
        return float(METRICS[metric](self.majority, self.resamples.undrawn)[0])


def measure_test(origin: Origin, readings: Sequence[Reading]) -> list[Measurement]:
    """Return the mean over the readings of every metric that is defined for them.

    AUROC is left out for guesses without scores, and where the test rows have one label only.
    """
    scored = readings[0].answers.scores is not None
    draws = {name: _mean_score(name, readings) for name in METRICS if scored or name != "auroc"}
    return [
        _measurement(origin, "test", name, values, _mean_chance(name, readings), readings[0])
        for name, values in draws.items()
        if not np.isnan(values[0])
    ]


def measure_validation(origin: Origin, readings: Sequence[Reading]) -> Measurement:
    """Return the mean held-out accuracy of the chosen C."""
    draws, chance = _mean_score("accuracy", readings), _mean_chance("accuracy", readings)
    return _measurement(origin, "validation", "accuracy", draws, chance, readings[0])


def measure_selectivity(origin: Origin, task: Reading, controls: Sequence[Reading]) -> Measurement:
    """Return the task's test accuracy less the mean of its controls, with a paired interval.

    Source: Hewitt and Liang (2019), Designing and interpreting probes with control tasks.
    """
    draws = task.score("accuracy") - _mean_score("accuracy", controls)
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
        target=origin.target,
        split=split,
        metric=metric,
        value=interval.value,
        ci_low=interval.low,
        ci_high=interval.high,
        chance=chance,
        n_train=origin.n_train,
        n_test=len(reading.answers.truth),
        n_groups=reading.resamples.n_groups,
        C=origin.C,
        n_iter=origin.n_iter,
        converged=origin.converged,
        gradient_norm=origin.gradient_norm,
        seed=origin.seed,
    )
