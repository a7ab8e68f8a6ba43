"""Size and power of p-values with refitted probes: a single split and cross-validation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.claims.association import METRICS, Rejected, rows_of_metrics, verdicts
from benchmarks.claims.designs import Design
from probekit.errors import ProbekitError
from probekit.probes.data import ProbeData, group_folds
from probekit.probes.prober import Prober
from probekit.probes.score.metrics import ClassPredictions
from probekit.probes.score.scored import Measurement, Predictor, Scored
from probekit.probes.settings import ProbeSettings

FEATURES = 30


@dataclass(frozen=True)
class Refitted:
    """A design whose probes are fitted again in each draw; `folds` is 1 for a single split."""

    design: Design
    folds: int
    C: float


class _UnmeasuredProber(Prober):
    """A prober that omits metrics and intervals: the test needs only the predictions."""

    def measure(self, _: Scored) -> list[Measurement]:
        return []


def cases() -> Iterator[Refitted]:
    """Yield designs of 12 and 20 groups with the weakest and the strongest C."""
    labels = (("mixed", 0.5, 0.0), ("mixed", 0.5, 1.0), ("constant", 0.5, 0.0), ("half", 0.5, 0.3))
    for label, sizes, folds, C in product(
        (*labels, ("mixed", 0.1, 0.0)), ("equal", "1:20"), (1, 3, 5), (1e-4, 1.0)
    ):
        name, positives, alignment = label
        # A single split tests only half of the groups.
        groups = 24 if folds == 1 else 12
        yield Refitted(Design(groups, sizes, name, positives, 0.3, alignment), folds, C)


def rows(case: Refitted, draws: int) -> Iterator[dict[str, Any]]:
    """Yield size and power of each metric; doubtful sizes are simulated with more draws."""
    yield from rows_of_metrics(partial(_rejected, case), draws)


def _rejected(case: Refitted, signal: float, generator: np.random.Generator) -> Rejected:
    """Return whether each metric rejects; no verdict if the data cannot be split."""
    labels, clusters = case.design.labels_and_clusters(generator)
    X = case.design.features(clusters, FEATURES, generator)
    X[:, 0] += signal * labels
    seed = int(generator.integers(2**31))
    try:
        prober = _prober(case, labels, seed)
        site = prober.site(X)
    except ProbekitError:
        return dict.fromkeys(METRICS)
    predictions = site.predictions[Predictor("logistic", "task")]
    assert isinstance(predictions, ClassPredictions)
    if predictions.folds is None and case.folds > 1:
        predictions = replace(predictions, folds=prober.fold_of("logistic"))
    groups = prober.data.groups[prober.rows_of("logistic")]
    return verdicts(predictions, groups, prober.settings.seed)


def _prober(case: Refitted, labels: NDArray[np.int64], seed: int) -> Prober:
    groups = case.design.group_of_row.astype(str)
    y = labels.astype(str)
    fold_of_row = (
        group_folds(y, groups, case.folds, seed)
        if case.folds > 1
        else _half(case.design.group_of_row, seed)
    )
    data = [
        ProbeData(
            y,
            groups,
            groups,
            train=np.flatnonzero(fold_of_row != fold),
            test=np.flatnonzero(fold_of_row == fold),
        )
        for fold in range(case.folds)
    ]
    settings = ProbeSettings(
        C=(case.C,), folds=2, control_draws=0, baselines=(), description=False, seed=seed % 1000
    )
    return _UnmeasuredProber(data, settings)


def _half(groups: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return 0 for test rows and 1 for training rows: every second group, in random order."""
    order = np.random.default_rng(seed).permutation(int(groups[-1]) + 1)
    side: NDArray[np.int64] = (order % 2)[groups]
    return side
