"""Intervals, differences and p-values where groups are few, unlike or skewed.

coverage     a class that lives in few of the groups, or in few rows of each
differences  the same, of seven rivals whose true scores are equal
association  groups whose size depends on the label, or with one outlier row each
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.claims.association import Rejected, rows_of_metrics, verdicts
from benchmarks.claims.rates import DOUBTFUL, MORE_DRAWS, Rate
from probekit.amounts import LEVEL
from probekit.probes.score.contributions import difference_of_parts
from probekit.probes.score.differences import Difference, paired_differences
from probekit.probes.score.intervals import score_interval
from probekit.probes.score.metric_table import METRICS as TABLE
from probekit.probes.score.metrics import ClassPredictions, Resamples, class_scores
from probekit.probes.score.scored import metrics_of, parts_of

RIVALS = 7
GAIN = 0.7  # planted lead of one probe over the rivals, in standard deviations of the score
POPULATION = 5000  # groups from which the true value of a metric is computed
WEIGHTED = ("balanced_accuracy", "auroc")


@dataclass(frozen=True)
class Unlike:
    """A test set of groups that are not alike.

    Attributes:
        groups: number of groups of each class; the groups of one tuple (n_groups,) have one label.
        sizes: number of rows of each of these groups, by class.
        mixed: number of further groups with rows of both of two classes.
        positives: share of the positive rows in these; one row each if it is 0.
        correlation: share of the variance of scores that the rows of a group share.
        level: distance of the class means in standard deviations.
        outliers: whether one random row of each mixed group has a very large score.
        folds: number of outer folds that groups are assigned to.
    """

    groups: tuple[int, ...] = (0, 0)
    sizes: tuple[int, ...] = (10, 10)
    mixed: int = 0
    positives: float = 0.0
    correlation: float = 0.3
    level: float = 1.0
    outliers: bool = False
    folds: int = 1

    def labels(self, generator: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the label and the group (n_rows,) of each row."""
        sizes = np.repeat((*self.sizes, 20), (*self.groups, self.mixed))
        groups = np.repeat(np.arange(len(sizes)), sizes)
        labels = np.repeat(
            np.repeat(range(len(self.groups) + 1), (*self.groups, self.mixed)), sizes
        )
        own = labels == len(self.groups)
        drawn = generator.random(self.mixed * 20) < self.positives
        if not self.positives and self.mixed:
            drawn = generator.permuted(np.tile(np.arange(20) == 0, (self.mixed, 1)), axis=1).ravel()
        labels[own] = drawn
        return labels, groups

    def predictions(
        self, labels: NDArray[Any], groups: NDArray[Any], generator: np.random.Generator
    ) -> ClassPredictions:
        """Return the predictions of one probe."""
        n_classes = len(self.groups)
        columns = n_classes if n_classes > 2 else 1
        shared = generator.normal(size=(groups[-1] + 1, columns))[groups]
        scores = np.sqrt(self.correlation) * shared
        scores += np.sqrt(1 - self.correlation) * generator.normal(size=scores.shape)
        if n_classes == 2:
            scores += self.level * (labels[:, None] - 0.5)
            if self.outliers:
                hit = generator.permuted(np.tile(np.arange(20) == 0, (self.mixed, 1)), axis=1)
                scores[-20 * self.mixed :, 0] += 20.0 * hit.ravel()
            scores = np.column_stack([-scores, scores])
        else:
            scores[np.arange(len(labels)), labels] += self.level
        folds = None
        if self.folds > 1:
            folds = generator.permutation(np.arange(groups[-1] + 1) % self.folds)[groups]
        return ClassPredictions(labels, scores.argmax(axis=1), n_classes, scores, folds=folds)


def _mixed_few(correlation: float, level: float) -> Unlike:
    return Unlike(mixed=20, positives=0.08, correlation=correlation, level=level)


COVERAGE = [
    *(
        Unlike((n - few, few), (10, 10), correlation=correlation)
        for few, n in ((4, 60), (8, 60), (8, 120), (12, 60))
        for correlation in (0.1, 0.3, 0.6)
    ),
    *(
        Unlike((20, 20, 20, 20, few), (8,) * 5, correlation=correlation)
        for few in (2, 8)
        for correlation in (0.1, 0.3)
    ),
    *(_mixed_few(correlation, level) for correlation in (0.1, 0.3) for level in (1.0, 2.4)),
]
DIFFERENCES = [
    *(
        Unlike((n - few, few), (8, 8), correlation=correlation)
        for few, n in ((6, 120), (8, 60), (10, 24), (20, 40))
        for correlation in (0.0, 0.3)
    ),
    *(_mixed_few(correlation, 1.0) for correlation in (0.0, 0.3)),
]
UNLIKE_SIZES = [
    Unlike((80, 8), (3, 60)),
    Unlike((80, 8), (3, 60), correlation=0.6),
    Unlike((8, 80), (60, 3)),
    Unlike((40, 3), (3, 60)),
    Unlike((40, 8), (3, 60)),
    Unlike((100, 15), (2, 30)),
    Unlike((20, 20), (2, 20)),
    Unlike((20, 20), (6, 6)),
    Unlike((80, 8), (3, 60), folds=3),
]
OUTLIERS = [
    Unlike(mixed=n, correlation=0.9, outliers=True, folds=folds)
    for n, folds in ((12, 1), (20, 1), (40, 1), (60, 1), (40, 4))
]


@dataclass(frozen=True)
class Case:
    """A design and the claim that it is simulated for."""

    claim: str
    design: Unlike


def cases() -> Iterator[Case]:
    """Yield all cases."""
    claims = {"coverage": COVERAGE, "differences": DIFFERENCES}
    claims["association"] = [replace(one, level=0.0) for one in (*UNLIKE_SIZES, *OUTLIERS)]
    for claim, designs in claims.items():
        yield from (Case(claim, design) for design in designs)


def rows(case: Case, draws: int) -> Iterator[dict[str, Any]]:
    """Yield the rates of a case, for each metric."""
    if case.claim == "association":
        yield from rows_of_metrics(partial(_rejected, case.design), draws)
        return
    for metric in WEIGHTED:
        if case.claim == "coverage":
            yield _covers(case.design, metric, draws)
            continue
        found = _differs(case.design, metric, draws)
        doubtful = found["rate"] > DOUBTFUL
        yield _differs(case.design, metric, MORE_DRAWS * draws) if doubtful else found


def _rejected(design: Unlike, signal: float, generator: np.random.Generator) -> Rejected:
    labels, groups = design.labels(generator)
    predictions = replace(design, level=2 * signal).predictions(labels, groups, generator)
    score = class_scores(predictions, 1)
    guess = (score > np.median(score)).astype(np.int64)
    seed = int(generator.integers(2**31))
    return verdicts(replace(predictions, guess=guess), groups, seed)


def _covers(design: Unlike, metric: str, draws: int) -> dict[str, Any]:
    generator, covered, widths = np.random.default_rng(6), [], []
    true = _true_value(design, metric)
    for _ in range(draws):
        labels, groups = design.labels(generator)
        predictions = design.predictions(labels, groups, generator)
        resamples = Resamples.leave_one_out(groups)
        values = metrics_of(predictions)[metric](predictions, resamples)
        parts = parts_of(metric, [predictions])
        found = score_interval(values, resamples, TABLE[metric].range, parts)
        covered.append(None if np.isnan(found.low) else bool(found.low <= true <= found.high))
        widths.append(found.high - found.low)
    rate = Rate.of(covered)
    facts = {"error": rate.error, "no_verdict": rate.no_verdict, "draws": rate.draws}
    share = rate.rate / max(1 - rate.no_verdict, 1e-9)
    return {"metric": metric, "rate": share, **facts, "width": np.nanmean(widths)}


@cache
def _true_value(design: Unlike, metric: str) -> float:
    n = len(design.groups)
    many = replace(design, groups=(POPULATION // n,) * n, sizes=(design.sizes[0],) * n)
    if design.mixed:
        many = replace(design, mixed=POPULATION)
    generator = np.random.default_rng(4)
    labels, groups = many.labels(generator)
    predictions = many.predictions(labels, groups, generator)
    return float(metrics_of(predictions)[metric](predictions, Resamples.whole(len(labels)))[0])


def _differs(design: Unlike, metric: str, draws: int) -> dict[str, Any]:
    """Return the size of one difference, that of any adjusted one, power, and agreement."""
    null = [_differences(design, metric, seed, 0.0) for seed in range(draws)]
    planted = [_differences(design, metric, seed, GAIN) for seed in range(max(20, draws // 10))]
    single = Rate.of([_significant(one[0].p) for one in null])
    several = Rate.of([_any(one) for one in null])
    return {
        "metric": metric,
        "rate": single.rate,
        "error": single.error,
        "no_verdict": single.no_verdict,
        "draws": draws,
        "family": several.rate,
        "power": float(np.mean([one[0].p <= LEVEL for one in planted])),
        "agrees": float(np.mean([_agrees(each) for one in null for each in one])),
    }


def _differences(design: Unlike, metric: str, seed: int, gain: float) -> list[Difference]:
    generator = np.random.default_rng([7, seed])
    labels, groups = design.labels(generator)
    resamples = Resamples.leave_one_out(groups)
    levels = [design.level + gain, *[design.level] * RIVALS]
    drawn = [replace(design, level=one).predictions(labels, groups, generator) for one in levels]
    values = [metrics_of(one)[metric](one, resamples) for one in drawn]
    own, *parts = [parts_of(metric, [one]) for one in drawn]
    return paired_differences(
        [(values[0], other) for other in values[1:]],
        resamples,
        [difference_of_parts(own, other) for other in parts],
    )


def _significant(p: float) -> bool | None:
    return None if np.isnan(p) else p <= LEVEL


def _any(found: list[Difference]) -> bool | None:
    adjusted = [one.p_adjusted for one in found]
    return None if np.isnan(adjusted).any() else min(adjusted) <= LEVEL


def _agrees(one: Difference) -> bool:
    """Return whether both intervals exclude 0 exactly if their p-values are below 0.05."""
    pairs = (
        (one.ci_low, one.ci_high, one.p),
        (one.adjusted_low, one.adjusted_high, one.p_adjusted),
    )
    return all((low > 0 or high < 0) == (p < LEVEL) for low, high, p in pairs)
