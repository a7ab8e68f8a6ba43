"""Size and power of the p-values of association, for fixed predictions on one test set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.claims.designs import Design
from benchmarks.claims.rates import DOUBTFUL, MORE_DRAWS, Rate
from probekit.amounts import LEVEL
from probekit.probes.score.exchange import LabelExchange
from probekit.probes.score.metric_table import association
from probekit.probes.score.metrics import ClassPredictions

EXCHANGES = 199
METRICS = ("accuracy", "balanced_accuracy", "auroc")
Rejected = Mapping[str, bool | None]
SIGNAL = 0.5  # planted difference of the class means, in standard deviations of the score


def rows(design: Design, draws: int) -> Iterator[dict[str, Any]]:
    """Yield size and power of each metric in a design; doubtful sizes with more draws."""
    yield from rows_of_metrics(partial(_rejected, design), draws)


def rows_of_metrics(
    rejected: Callable[[float, np.random.Generator], Rejected], draws: int
) -> Iterator[dict[str, Any]]:
    """Yield size and power of each metric.

    Args:
        rejected: returns which metrics reject in a data set with this signal.
        draws: number of data sets.
    """
    null = _rates(rejected, draws, 0.0)
    if any(size.rate > DOUBTFUL for size in null.values()):
        null = _rates(rejected, MORE_DRAWS * draws, 0.0)
    planted = _rates(rejected, max(draws // 10, 20), SIGNAL)
    for metric, size in null.items():
        facts = {"rate": size.rate, "error": size.error, "no_verdict": size.no_verdict}
        yield {"metric": metric, **facts, "draws": size.draws, "power": planted[metric].rate}


def _rates(
    rejected: Callable[[float, np.random.Generator], Rejected], draws: int, signal: float
) -> dict[str, Rate]:
    generator = np.random.default_rng(1)
    drawn = [rejected(signal, generator) for _ in range(draws)]
    return {metric: Rate.of([one[metric] for one in drawn]) for metric in METRICS}


def _rejected(design: Design, signal: float, generator: np.random.Generator) -> Rejected:
    truth, clusters = design.labels_and_clusters(generator)
    score = design.features(clusters, 1, generator)[:, 0] + signal * (truth - truth.mean())
    # A probe on unbalanced labels predicts the rare class rarely.
    guess = (score > np.quantile(score, 1 - max(design.positives, 0.1))).astype(np.int64)
    predictions = ClassPredictions(truth, guess, 2, np.column_stack([-score, score]))
    return verdicts(predictions, design.group_of_row, int(generator.integers(2**31)))


def verdicts(predictions: ClassPredictions, groups: NDArray[Any], seed: int) -> Rejected:
    """Return whether the test of association rejects, by metric; None without a verdict."""
    functions = [association(metric, "class") for metric in METRICS]
    scores = [function(predictions) for function in functions if function is not None]
    folds = np.zeros(len(groups), np.int64) if predictions.folds is None else predictions.folds
    exchange = LabelExchange(scores[0].labels, groups, folds, EXCHANGES, seed)
    if not exchange.is_enough:
        return dict.fromkeys(METRICS)
    rejected = exchange.null(scores).p.single <= LEVEL
    return dict(zip(METRICS, rejected.tolist(), strict=True))
