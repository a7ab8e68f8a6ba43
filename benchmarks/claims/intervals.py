"""Coverage of the 95 % intervals of metrics and of differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.claims.comparisons import Comparison, hits
from benchmarks.claims.designs import GROUPS, ROWS, Design, Sizes
from benchmarks.claims.rates import Rate
from probekit.probes.score.differences import paired_differences
from probekit.probes.score.intervals import Interval, score_interval
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import ClassPredictions, NumberPredictions, Resamples, accuracy
from probekit.probes.score.scored import Predictions, metrics_of, parts_of

POPULATION = 20_000  # groups from which the true value of a metric is computed
CORRELATIONS = (0.0, 0.05, 0.1, 0.3)
OTHERS = ("balanced_accuracy", "macro_f1", "auroc", "brier", "ece", "r2", "spearman")


@dataclass(frozen=True)
class Coverage:
    """A metric on groups of correlated rows, at an accuracy or strength of the score `level`."""

    metric: str
    groups: int
    sizes: Sizes
    correlation: float
    level: float


def cases() -> Iterator[Coverage]:
    """Yield all cases: accuracies at three levels, differences, and the other metrics at two."""
    designs = list(product(GROUPS, ("equal", "1:20"), CORRELATIONS))
    for metric, levels in {"accuracy": (0.5, 0.8, 0.95), "difference": (0.8,)}.items():
        for design, level in product(designs, levels):
            yield Coverage(metric, *design, level)
    for metric, design, level in product(OTHERS, designs, (0.5, 1.5)):
        yield Coverage(metric, *design, level)


def rows(case: Coverage, draws: int) -> Iterator[dict[str, Any]]:
    """Yield coverage and mean width of the interval."""
    generator, covered, widths = np.random.default_rng(3), [], []
    for _ in range(draws):
        interval, true = _DRAWN.get(case.metric, _metric)(case, generator)
        covered.append(None if np.isnan(interval.low) else interval.low <= true <= interval.high)
        widths.append(interval.high - interval.low)
    rate = Rate.of([None if one is None else bool(one) for one in covered])
    defined = 1 - rate.no_verdict
    facts = {"error": rate.error, "no_verdict": rate.no_verdict, "draws": rate.draws}
    yield {"rate": rate.rate / defined if defined else np.nan, **facts, "width": np.nanmean(widths)}


def _accuracy(case: Coverage, generator: np.random.Generator) -> tuple[Any, float]:
    resamples = Resamples.leave_one_out(_design(case).group_of_row)
    own = hits(_comparison(case), case.level, generator)
    values = accuracy(ClassPredictions(np.ones_like(own), own, 2), resamples)
    return score_interval(values, resamples, METRICS["accuracy"].range, None), case.level


def _difference(case: Coverage, generator: np.random.Generator) -> tuple[Any, float]:
    resamples = Resamples.leave_one_out(_design(case).group_of_row)
    a, b = (hits(_comparison(case), share, generator) for share in (case.level, case.level - 0.1))
    values = [accuracy(ClassPredictions(np.ones_like(one), one, 2), resamples) for one in (a, b)]
    (found,) = paired_differences([(values[0], values[1])], resamples)
    return Interval(found.value, found.ci_low, found.ci_high), 0.1


def _metric(case: Coverage, generator: np.random.Generator) -> tuple[Any, float]:
    group = _design(case).group_of_row
    resamples = Resamples.leave_one_out(group)
    predictions = _predictions(case, group, generator)
    values, parts = _values(case, predictions, resamples), parts_of(case.metric, [predictions])
    interval = score_interval(values, resamples, METRICS[case.metric].range, parts)
    return interval, _population(case.metric, case.sizes, case.correlation, case.level)


_DRAWN: dict[str, Callable[[Coverage, np.random.Generator], tuple[Any, float]]] = {
    "accuracy": _accuracy,
    "difference": _difference,
}


def _values(case: Coverage, predictions: Predictions, resamples: Resamples) -> Any:
    return metrics_of(predictions)[case.metric](predictions, resamples)


def _predictions(
    case: Coverage, group: NDArray[np.int64], generator: np.random.Generator
) -> Predictions:
    """Return predictions whose score has a shift of `level` by label and a common part by group."""
    n_groups = int(group[-1]) + 1
    shared = np.sqrt(case.correlation) * generator.normal(size=n_groups)[group]
    noise = shared + np.sqrt(1 - case.correlation) * generator.normal(size=len(group))
    if "number" in METRICS[case.metric].families:
        truth = generator.normal(size=len(group))
        share = case.level**2 / (1 + case.level**2)
        return NumberPredictions(truth, share * (truth + noise / case.level))
    truth = generator.integers(2, size=len(group))
    score = case.level * (2 * truth - 1) + noise
    logit = 2 * case.level * score  # calibrated if the rows of a group are independent
    logs = -np.logaddexp(0, np.column_stack([logit, -logit]))
    return ClassPredictions(truth, (score > 0).astype(np.int64), 2, logs, True)


@cache
def _population(metric: str, sizes: Sizes, correlation: float, level: float) -> float:
    """Return the true value of a metric: that of very many groups."""
    case = Coverage(metric, POPULATION, sizes, correlation, level)
    group = np.repeat(np.arange(POPULATION), ROWS)
    predictions = _predictions(case, group, np.random.default_rng(4))
    return float(_values(case, predictions, Resamples.whole(len(group)))[0])


def _design(case: Coverage) -> Design:
    return Design(case.groups, case.sizes, "mixed", 0.5, 0.0, 0.0)


def _comparison(case: Coverage) -> Comparison:
    return Comparison(case.groups, case.sizes, case.level, case.correlation, "paired")
