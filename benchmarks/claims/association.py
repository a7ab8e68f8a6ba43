"""Size and power of the p-values of association, for fixed predictions on one test set."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.claims.designs import Design
from benchmarks.claims.rates import Rate, size_of
from probekit.amounts import LEVEL
from probekit.probes.score.exchange import LabelExchange
from probekit.probes.score.metric_table import association
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.permutation import p_values

EXCHANGES = 199
METRICS = ("accuracy", "balanced_accuracy", "auroc")
SIGNAL = 0.5  # planted difference of the class means, in standard deviations of the score


def rows(design: Design, draws: int) -> Iterator[dict[str, Any]]:
    """Yield size and power of each metric in a design."""
    for metric in METRICS:
        size = size_of(partial(_rate, design, metric, signal=0.0), draws)
        power = _rate(design, metric, max(draws // 10, 20), SIGNAL)
        facts = {"rate": size.rate, "error": size.error, "no_verdict": size.no_verdict}
        yield {"metric": metric, **facts, "draws": size.draws, "power": power.rate}


def _rate(design: Design, metric: str, draws: int, signal: float) -> Rate:
    generator = np.random.default_rng(1)
    return Rate.of([_rejects(design, metric, signal, generator) for _ in range(draws)])


def _rejects(
    design: Design, metric: str, signal: float, generator: np.random.Generator
) -> bool | None:
    truth, clusters = design.labels_and_clusters(generator)
    score = design.features(clusters, 1, generator)[:, 0] + signal * (truth - truth.mean())
    # A probe on unbalanced labels predicts the rare class rarely.
    guess = (score > np.quantile(score, 1 - max(design.positives, 0.1))).astype(np.int64)
    predictions = ClassPredictions(truth, guess, 2, np.column_stack([-score, score]))
    function = association(metric, "class")
    assert function is not None
    scores = function(predictions)
    one_fold, seed = np.zeros(len(truth), dtype=np.int64), int(generator.integers(2**31))
    exchange = LabelExchange(scores.labels, design.group_of_row, one_fold, EXCHANGES, seed)
    if not exchange.is_enough:
        return None
    null = exchange.null(scores)
    return bool(p_values(null[:1], null[None, 1:]).single[0] <= LEVEL)
