"""Designs at the edge of a claim: scores without cues, and metrics whose estimates were biased.

A case yields the share of draws in which a test rejects or an interval contains the true value, the
mean error of the estimate, and the mean width of the interval. True values are those of many new
groups, predicted by the same fits where probes are fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.claims.cues import p_value
from benchmarks.claims.rates import Rate
from probekit.probes.score.intervals import Interval
from probekit.probes.score.metrics import (
    WIDER_OVER_FOLDS,
    ClassPredictions,
    Resamples,
    auprc,
)
from probekit.probes.score.scored import with_interval

Array = NDArray[Any]

NEW = 20_000  # rows of the true value
RIDGE = 10.0


@dataclass(frozen=True)
class Edge:
    """A design.

    Attributes:
        claim: what is simulated.
        metric: name of the metric.
        groups: number of groups.
        rows: rows of a group.
        share: share of positive rows, or of texts with cues.
        level: the signal, or how far probabilities are from calibrated ones.
        folds: number of outer folds; 1 for a single test set.
    """

    claim: str
    metric: str
    groups: int
    rows: int
    share: float
    level: float
    folds: int = 1


def cases() -> Iterator[Edge]:
    """Yield all designs."""
    texts = ((100, 1, 0.03), (100, 1, 0.05), (100, 1, 0.3), (30, 4, 0.3), (12, 8, 1.0))
    for metric, (groups, rows, share) in product(("accuracy", "auroc"), texts):
        yield Edge("cues", metric, groups, rows, share, 1.0)
    sizes = ((300, 1), (60, 5))
    for (groups, rows), share, level, folds in product(sizes, (0.1, 0.2), (0.0, 1.5), (5, 30)):
        yield Edge("over folds", "auprc", groups, rows, share, level, folds)


def rows(case: Edge, draws: int) -> Iterator[dict[str, Any]]:
    """Yield the rates and the mean error of a case."""
    generator = np.random.default_rng(11)
    if case.claim == "cues":
        size, power = (
            Rate.of([_cues(case, signal, generator) for _ in range(draws)]) for signal in (1.0, 0.0)
        )
        yield {**vars(size), "power": power.rate}
        return
    found = [DRAWN[case.claim](case, generator) for _ in range(draws)]
    rate = Rate.of([_covers(*one) for one in found])
    defined = 1 - rate.no_verdict
    errors, widths = zip(
        *((one.value - true, one.high - one.low) for one, true in found), strict=True
    )
    yield {
        **vars(rate),
        "rate": rate.rate / defined if defined else np.nan,
        "bias": np.nanmean(errors),
        "width": np.nanmean(widths) if defined else np.nan,
    }


def _covers(interval: Interval, true: float) -> bool | None:
    return None if np.isnan(interval.low) else bool(interval.low <= true <= interval.high)


def _cues(case: Edge, signal: float, generator: np.random.Generator) -> bool:
    p = p_value(case.metric, case.groups, case.rows, case.share, signal, generator)
    return p < 0.05


def _over_folds(case: Edge, generator: np.random.Generator) -> tuple[Interval, float]:
    """Return the interval of a score over folds of ridge probes, and its true value."""
    groups = np.repeat(np.arange(case.groups), case.rows)
    truth, X = _features(case, groups, generator)
    new_truth, new_X = _features(case, np.repeat(np.arange(NEW // case.rows), case.rows), generator)
    fold = _stratified(truth, groups, case.folds, generator)
    parts, true = [], 0.0
    for number in range(case.folds):
        tested = fold == number
        weights = _ridge(X[~tested], truth[~tested])
        own, training, new = (
            _predictions(labels, rows @ weights)
            for labels, rows in (
                (truth[tested], X[tested]),
                (truth[~tested], X[~tested]),
                (new_truth, new_X),
            )
        )
        if hasattr(own, "scaled_by"):
            own = own.scaled_by(training)
        parts.append(own)
        if number < 5:
            true += float(auprc(new, Resamples.whole(len(new_truth)))[0]) / min(5, case.folds)
    order = np.argsort(fold, kind="stable")
    resamples = Resamples.leave_one_out(groups[order], widening=WIDER_OVER_FOLDS)
    from probekit.probes.score.scored import joined

    return with_interval(case.metric, joined(parts), resamples), true


def _features(case: Edge, groups: Array, generator: np.random.Generator) -> tuple[Array, Array]:
    truth = (generator.random(len(groups)) < case.share).astype(np.int64)
    shared = 0.5 * generator.normal(size=(int(groups[-1]) + 1, 20))[groups]
    X = shared + generator.normal(size=(len(groups), 20))
    X[:, 0] += case.level * truth
    return truth, X


def _stratified(truth: Array, groups: Array, folds: int, generator: np.random.Generator) -> Array:
    from probekit.probes.data import group_folds

    return group_folds(truth, groups, folds, int(generator.integers(1000)))


def _ridge(X: Array, truth: Array) -> Array:
    centred = X - X.mean(0)
    matrix = centred.T @ centred + RIDGE * np.eye(X.shape[1])
    return np.linalg.solve(matrix, centred.T @ (truth - truth.mean()))


def _predictions(truth: Array, score: Array) -> ClassPredictions:
    of_classes = np.column_stack([np.zeros(len(score)), score])
    return ClassPredictions(truth, of_classes.argmax(1), 2, of_classes, positive=1)


DRAWN: dict[str, Callable[[Edge, np.random.Generator], tuple[Interval, float]]] = {
    "over folds": _over_folds,
}
