"""Estimates that are biased in some designs: scores without cues, over folds, of rare classes.

A case yields the share of draws in which a test rejects or an interval contains the true value, the
share without an interval, the mean error of the estimate, and the mean width of the interval. True
values are those of many new groups, predicted by the same fits where probes are fitted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

import probekit
from benchmarks.claims.rates import Rate
from probekit.amounts import LEVEL
from probekit.chosen.leakage.measure import leakage_rows
from probekit.probes.data import group_folds
from probekit.probes.score.intervals import Interval
from probekit.probes.score.metrics import (
    WIDER_OVER_FOLDS,
    ClassPredictions,
    NumberPredictions,
    Resamples,
    auprc,
)
from probekit.probes.score.scored import FitFacts, Predictions, Scored, joined, measure, metrics_of

Array = NDArray[Any]
Draw = tuple[Interval, float]

NEW = 20_000  # rows of the true value
FEATURES, RIDGE = 20, 10.0
DRAWS_OF_WORDS = 5
MOST_RUNS = 20  # draws of whole runs


@dataclass(frozen=True)
class Case:
    """A design.

    Attributes:
        claim: what is simulated.
        metric: name of the metric.
        groups: number of groups.
        rows: rows of a group.
        share: share of positive rows, or of texts with cues; for macro F1 the number of groups with
            a third class.
        level: the signal; for the calibration error the factor on calibrated logits, for R2 the
            kurtosis of the labels.
        folds: number of outer folds; 1 for a single test set.
    """

    claim: str
    metric: str
    groups: int
    rows: int
    share: float
    level: float
    folds: int = 1


def cases() -> Iterator[Case]:
    """Yield all designs."""
    texts = ((100, 1, 0.03), (100, 1, 0.05), (100, 1, 0.3), (30, 4, 0.3), (12, 8, 1.0))
    for metric, (groups, rows, share) in product(("accuracy", "auroc"), texts):
        yield Case("p without cues", metric, groups, rows, share, 1.0)
    sizes = ((300, 1), (60, 5))
    for (groups, rows), share, level, folds in product(sizes, (0.1, 0.2), (0.0, 1.5), (5, 30)):
        yield Case("over folds", "auprc", groups, rows, share, level, folds)
    for share, folds in ((0.1, 5), (0.1, 10)):
        yield Case("over folds, probekit.probe", "auprc", 300, 1, share, 0.0, folds)
    for (groups, rows), share, level in product(
        ((12, 12), (40, 5), (100, 3)), (0.5, 0.05), (1.0, 1.3, 2.0)
    ):
        yield Case("calibration", "ece", groups, rows, share, level)
    for n_groups in (1, 2, 3, 4, 8):
        yield Case("rare class", "macro_f1", 20, 10, n_groups, 1.0)
    for groups, level in product((40, 200), (3.0, 6.0, 9.0, 114.0)):
        yield Case("heavy tails", "r2", groups, 1, 1.0, level)


def rows(case: Case, draws: int) -> Iterator[dict[str, Any]]:
    """Yield the rates, the mean error and the width of a case."""
    generator = np.random.default_rng(11)
    if case.claim == "p without cues":
        size, power = (
            Rate.of([_rejects(case, signal, generator) for _ in range(draws)])
            for signal in (1.0, 0.0)
        )
        yield {**vars(size), "power": power.rate}
        return
    n_draws = min(draws, MOST_RUNS) if "probekit" in case.claim else draws
    found = [DRAWN[case.claim](case, generator) for _ in range(n_draws)]
    covered = [None if np.isnan(one.low) else one.low <= true <= one.high for one, true in found]
    rate = Rate.of([None if one is None else bool(one) for one in covered])
    defined = 1 - rate.no_verdict
    errors, widths = np.array([(one.value - true, one.high - one.low) for one, true in found]).T
    yield {
        **vars(rate),
        "rate": rate.rate / defined if defined else np.nan,
        "bias": np.nanmean(errors),
        "width": np.nanmean(widths) if defined else np.nan,
    }


def _rejects(case: Case, signal: float, rng: np.random.Generator) -> bool:
    """Return whether p is below 0.05; without cues, this share of the signal is left."""
    groups = _groups(case)
    n, truth = len(groups), rng.integers(0, 2, len(groups))
    noise = rng.normal(size=n) + 0.5 * rng.normal(size=case.groups)[groups]
    has_cue = rng.random(n) < case.share

    def predictions(left: float) -> ClassPredictions:
        """Return predictions without some words of the texts with cues."""
        change = rng.normal(size=n) + 0.5 * rng.normal(size=case.groups)[groups]
        scores = 1.2 * (2 * truth - 1) * np.where(has_cue, left, 1) + noise + has_cue * change
        of_classes = np.stack([np.zeros(n), scores], axis=1)
        return ClassPredictions(truth, (scores > 0).astype(int), 2, of_classes)

    without, *random = (predictions(left) for left in (signal, *[1.0] * DRAWS_OF_WORDS))
    rows = leakage_rows(without, without, random, groups, case.metric)
    return bool(next(rows)["p"] < LEVEL)


def _interval(metric: str, predictions: Predictions, resamples: Resamples) -> Interval:
    """Return the score of predictions as a run measures it."""
    facts = FitFacts(probe="logistic", target="task", n_train=0, seed=0)
    groups = resamples.group_of_row
    (found,) = measure(Scored((predictions,), (predictions,), groups, facts, metric), resamples)
    return Interval(found.value, found.ci_low, found.ci_high)


def _groups(case: Case) -> Array:
    return np.repeat(np.arange(case.groups), case.rows)


def _over_folds(case: Case, generator: np.random.Generator) -> Draw:
    """Return the AUPRC over folds of ridge probes, and its true value."""
    groups = _groups(case)
    truth, X = _features(case, groups, generator)
    new_truth, new_X = _features(case, np.repeat(np.arange(NEW // case.rows), case.rows), generator)
    fold, parts, trues = _folds(truth, groups, case.folds, generator), [], []
    for number in range(case.folds):
        tested = fold == number
        weights = _ridge(X[~tested], truth[~tested])
        own = _scores(truth[tested], X[tested] @ weights)
        parts.append(own.scaled_by(_scores(truth[~tested], X[~tested] @ weights)))
        if number < 5:  # more would hardly change the mean
            new = _scores(new_truth, new_X @ weights)
            trues.append(float(auprc(new, Resamples.whole(len(new_truth)))[0]))
    in_folds = groups[np.argsort(fold, kind="stable")]
    resamples = Resamples.leave_one_out(in_folds, widening=WIDER_OVER_FOLDS)
    return _interval(case.metric, joined(parts), resamples), float(np.mean(trues))


def _features(case: Case, groups: Array, generator: np.random.Generator) -> tuple[Array, Array]:
    truth = (generator.random(len(groups)) < case.share).astype(np.int64)
    shared = 0.5 * generator.normal(size=(int(groups[-1]) + 1, FEATURES))[groups]
    X = shared + generator.normal(size=shared.shape)
    X[:, 0] += case.level * truth
    return truth, X


def _folds(truth: Array, groups: Array, folds: int, generator: np.random.Generator) -> Array:
    return group_folds(truth, groups, folds, int(generator.integers(1000)))


def _ridge(X: Array, truth: Array) -> Array:
    centred = X - X.mean(0)
    matrix = centred.T @ centred + RIDGE * np.eye(X.shape[1])
    weights: Array = np.linalg.solve(matrix, centred.T @ (truth - truth.mean()))
    return weights


def _scores(truth: Array, score: Array) -> ClassPredictions:
    of_classes = np.column_stack([np.zeros(len(score)), score])
    return ClassPredictions(truth, of_classes.argmax(1), 2, of_classes, positive=1)


def _run(case: Case, generator: np.random.Generator) -> Draw:
    """Return the AUPRC of a run over folds on noise, whose true value is the share of positives."""
    truth, X = _features(case, _groups(case), generator)
    with tempfile.TemporaryDirectory() as out:
        result = probekit.probe(
            {"layer": X.astype(np.float32)},
            truth,
            groups=_groups(case),
            positive="1",
            split={"folds": case.folds},
            probe={
                "metric": "auprc",
                "C": [0.01, 1.0],
                "description": False,
                "control_draws": 0,
                "permutations": 0,
                "folds": 2,
            },
            out=out,
            page=False,
            progress=False,
            workers=1,
        )
        table = result.table
    is_own = (table["metric"] == "auprc") & (table["split"] == "test") & (table["probe"] != "none")
    row = table[is_own & (table["target"] == "task")].iloc[0]
    return Interval(row["value"], row["ci_low"], row["ci_high"]), float(truth.mean())


def _forecasts(case: Case, groups: Array, generator: np.random.Generator) -> ClassPredictions:
    """Return probabilities that are calibrated, up to a factor on their logits and the groups."""
    truth = (generator.random(len(groups)) < case.share).astype(np.int64)
    shared = generator.normal(size=int(groups[-1]) + 1)[groups]
    noise = np.sqrt(0.1) * shared + np.sqrt(0.9) * generator.normal(size=len(groups))
    logit = 2 * case.level * (2 * truth - 1 + noise) + np.log(case.share / (1 - case.share))
    logs = -np.logaddexp(0, np.column_stack([logit, -logit]))
    return ClassPredictions(truth, logs.argmax(axis=1), 2, logs, True)


def _calibration(case: Case, generator: np.random.Generator) -> Draw:
    predictions = _forecasts(case, _groups(case), generator)
    return _interval("ece", predictions, Resamples.leave_one_out(_groups(case))), _true_error(case)


@cache
def _true_error(case: Case) -> float:
    """Return the calibration error of very many groups; with so many, its bias is nothing."""
    predictions = _forecasts(case, np.repeat(np.arange(60_000), 3), np.random.default_rng(4))
    confidence = np.exp(predictions.scores).max(axis=1)
    bins = np.clip(np.ceil(confidence * 15 - 1e-9).astype(int) - 1, 0, 14)
    off = (predictions.truth == predictions.guess) - confidence
    return float(np.abs(np.bincount(bins, weights=off)).sum() / len(off))


def _classes(case: Case, n_groups: int, generator: np.random.Generator) -> tuple[Array, Array]:
    """Return labels and guesses; some groups have a third class, and all their own error rate."""
    truth = generator.integers(2, size=(n_groups, case.rows))
    n_third = round(case.share * n_groups / case.groups)
    truth[:n_third] = 2
    right = generator.random(truth.shape) < generator.beta(2, 1, size=(n_groups, 1))
    guess = np.where(right, truth, generator.integers(3, size=truth.shape))
    return truth.ravel(), guess.ravel()


def _rare_class(case: Case, generator: np.random.Generator) -> Draw:
    predictions = ClassPredictions(*_classes(case, case.groups, generator), 3)
    found = _interval("macro_f1", predictions, Resamples.leave_one_out(_groups(case)))
    return found, _true_f1(case)


@cache
def _true_f1(case: Case) -> float:
    predictions = ClassPredictions(*_classes(case, 20_000, np.random.default_rng(4)), 3)
    resamples = Resamples.whole(len(predictions.truth))
    return float(metrics_of(predictions)["macro_f1"](predictions, resamples)[0])


def _numbers(case: Case, n: int, generator: np.random.Generator) -> NumberPredictions:
    """Return labels of a kurtosis, and predictions that shrink the tails."""
    draws: dict[float, Callable[[], Array]] = {
        3.0: lambda: generator.normal(size=n),
        6.0: lambda: generator.laplace(size=n) / np.sqrt(2),
        9.0: lambda: generator.exponential(size=n) - 1,
        114.0: lambda: (np.exp(generator.normal(size=n)) - np.exp(0.5)) / 2.16,
    }
    truth = draws[case.level]()
    return NumberPredictions(truth, 0.8 * np.tanh(truth) + 0.3 * generator.normal(size=n))


def _heavy_tails(case: Case, generator: np.random.Generator) -> Draw:
    predictions = _numbers(case, case.groups, generator)
    return _interval("r2", predictions, Resamples.leave_one_out(_groups(case))), _true_r2(case)


@cache
def _true_r2(case: Case) -> float:
    predictions = _numbers(case, 1_000_000, np.random.default_rng(4))
    residual = predictions.truth - predictions.guess
    return float(1 - np.square(residual).mean() / predictions.truth.var())


DRAWN: dict[str, Callable[[Case, np.random.Generator], Draw]] = {
    "over folds": _over_folds,
    "over folds, probekit.probe": _run,
    "calibration": _calibration,
    "rare class": _rare_class,
    "heavy tails": _heavy_tails,
}
