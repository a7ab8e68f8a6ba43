"""The score of a probe within strata: size and power of t over groups, and of exchanged labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from benchmarks.claims.designs import LARGEST, SMALLEST
from benchmarks.claims.rates import Rate
from probekit.amounts import LEVEL
from probekit.chosen.left.statistics import p_within
from probekit.probes.data import group_folds
from probekit.probes.score.exchange import LabelExchange
from probekit.probes.score.metric_table import association
from probekit.probes.score.metrics import WIDER_OVER_FOLDS, ClassPredictions

ROWS = 6  # of each group, if all have equally many
FEATURES = 16
FOLDS = 5
DRAWS = 999  # exchanges
LEVELS = np.array([0.2, 0.5, 0.8])  # share of the second label in each stratum
Data = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class Case:
    """A simulated data set, whose label depends on its stratum.

    Attributes:
        groups: number of groups.
        design: whether rows of a group have several labels and strata ("several"), several labels
            in one stratum ("labels"), one label in several strata ("strata"), or one of each.
        metric: the metric of the predictions.
        effect: strength of a direction of the label, in standard deviations; 0 for none.
        sizes: whether all groups have equally many rows, or from 2 to 40.
        is_nested: whether probes are fitted in five outer folds; otherwise predictions are drawn.
    """

    groups: int
    design: Literal["several", "labels", "strata", "one"]
    metric: Literal["accuracy", "auroc"]
    effect: float = 0.0
    sizes: Literal["equal", "1:20"] = "equal"
    is_nested: bool = False


def cases() -> Iterator[Case]:
    """Yield all simulated data sets."""
    for design in ("several", "labels", "strata", "one"):
        for metric in ("accuracy", "auroc"):
            for groups in (20, 40, 100):
                yield Case(groups, design, metric)
            yield Case(40, design, metric, sizes="1:20")
            for groups in (20, 40):
                yield Case(groups, design, metric, effect=1.0)
            for effect in (0.0, 1.0):
                yield Case(100, design, metric, effect, is_nested=True)


class OfOneFit(LabelExchange):
    """Exchanges within strata, which count as folds, of predictions by one fit."""

    _widening = 1.0


def drawn(case: Case, seed: int) -> Data:
    """Return features, labels, strata and groups of one data set.

    The first feature is 1.5 times the stratum, and shares a part of its noise in a group, as does
    the label. The second has the direction of the label.
    """
    rng = np.random.default_rng([case.groups, seed])
    sizes = np.full(case.groups, ROWS)
    if case.sizes == "1:20":
        sizes = np.geomspace(SMALLEST, LARGEST, case.groups).round().astype(np.int64)
    groups = np.repeat(np.arange(case.groups), sizes)
    n = len(groups)
    of_group = rng.integers(3, size=case.groups)[groups]
    strata = np.where(rng.random(n) < 0.3, of_group, rng.integers(3, size=n))
    strata = of_group if case.design in ("labels", "one") else strata
    shared, own = rng.random(case.groups)[groups], rng.random(n)
    is_whole = case.design in ("strata", "one")
    within = shared if is_whole else np.where(rng.random(n) < 0.3, shared, own)
    y = (within < LEVELS[of_group if case.design == "strata" else strata]).astype(np.int64)
    noise = np.sqrt(0.3) * rng.normal(size=(case.groups, FEATURES))[groups]
    X = noise + np.sqrt(0.7) * rng.normal(size=(n, FEATURES))
    X[:, 0] += 1.5 * strata
    X[:, 1] += case.effect * (y - 0.5)
    return X, y, strata, groups


def p_values(case: Case, seed: int) -> tuple[float, float]:
    """Return p by t over groups, and by exchanged labels in groups of one stratum."""
    X, y, strata, groups = drawn(case, seed)
    scores, folds = X[:, 0] + X[:, 1], np.zeros(len(y), dtype=np.int64)
    if case.is_nested:
        folds = group_folds(y, groups, FOLDS, seed)
        for fold in range(FOLDS):
            train, test = folds != fold, folds == fold
            fitted = LogisticRegression(C=0.1).fit(X[train], y[train])
            scores[test] = fitted.decision_function(X[test])
    else:
        scores = scores - scores.mean()
    logits = np.stack([-scores / 2, scores / 2], axis=1)
    found = ClassPredictions.of_scores(y, logits, are_logits=True, folds=folds)
    of_rows = association(case.metric, "class")
    assert of_rows is not None
    rows, cells = of_rows(found), folds * 3 + strata
    widening = WIDER_OVER_FOLDS if case.is_nested else 1.0
    p = p_within(rows, groups, cells, widening)
    units = np.unique(np.stack([groups, strata]), axis=1, return_inverse=True)[1].ravel()
    exchanged = LabelExchange if case.is_nested else OfOneFit
    exchange = exchanged(rows.labels, units, cells, DRAWS, seed)
    return p, float(exchange.null([rows]).p.single[0]) if exchange.is_enough else np.nan


def rows(case: Case, draws: int) -> Iterator[dict[str, Any]]:
    """Yield how often p is below 0.05, by t over groups and by exchange, for one kind of data."""
    found = np.array([p_values(case, seed) for seed in range(draws)])
    rejected = [None if np.isnan(one) else bool(one < LEVEL) for one in found[:, 0]]
    yield asdict(Rate.of(rejected)) | {"exchange": float(np.mean(found[:, 1] < LEVEL))}
