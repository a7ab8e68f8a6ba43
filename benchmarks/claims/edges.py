"""Tests and intervals at the edges: few unlike groups, agreement, skew, perfect scores.

Each design draws predictions of a probe and of seven rivals with the same true score, unless there
is a gain.

    giant label    8 groups have the label, one of them most of its rows; n: their effective number
    agree          all groups agree by chance: each has a cluster of a rare label (n = 6, 12),
                   or 60 groups of 30 rows have a label and 8 of 2 rows each other one (n labels)
    few            8 of n groups have the positive label
    bursts         a tenth of the groups has half of its rows positive, the others 2 %
    skew           rivals fail in a tenth of the groups, and are better in the others
    giant          a group has three quarters of the rows
    perfect        accuracies near 1; rows of a group share a rate (beta-binomial)
    absent         the probe fails in a tenth of the groups
    ordinary       equal groups
    mixed, whole   equal groups, each with both labels or with one; "both" has both sorts
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from benchmarks.claims.rates import Rate
from probekit.amounts import LEVEL
from probekit.probes.score.exchange import LabelExchange
from probekit.probes.score.metric_table import association
from probekit.probes.score.metrics import ClassPredictions, Resamples
from probekit.probes.score.scored import differences_of, metrics_of, with_interval

RIVALS = 7
EXCHANGES = 399
POPULATION = 4000  # groups from which a true score is computed
Array = NDArray[Any]
Drawn = tuple[
    list[ClassPredictions], Array, Array
]  # predictions, groups, rivals whose sort is there


@dataclass(frozen=True)
class Edge:
    """A claim on a metric in a design.

    Attributes:
        claim: "coverage", "coverage of a difference" (from a constant guess), "differences" or
            "association".
        design: the name of the design.
        metric: the metric.
        n: its size: groups, or the effective number of groups of the label.
        level: another number of the design, such as the accuracy.
        correlation: share of the variance that the rows of a group share.
        folds: number of outer folds.
        gain: planted lead of the probe, for power.
    """

    claim: str
    design: str
    metric: str
    n: float
    level: float = 1.0
    correlation: float = 0.3
    folds: int = 1
    gain: float = 0.0


def cases() -> Iterator[Edge]:
    """Yield all cases."""
    weighted = ("balanced_accuracy", "auroc", "auprc")
    for metric, n in product(weighted, (1.2, 1.5, 2.0, 3.5, 6.0)):
        yield from (Edge(claim, "giant label", metric, n) for claim in ("coverage", "differences"))
    for metric in ("accuracy", "macro_f1", *weighted):
        yield from (Edge("association", "agree", metric, n) for n in (6, 12, 2, 3))
        yield Edge("association", "agree", metric, 12, folds=3)
        for labels, n, level in product(("mixed", "whole", "both"), (12, 30), (0.0, 0.7)):
            yield Edge("association", labels, metric, n, level)
    for metric, (design, n) in product(
        ("auroc", "auprc"), (("few", 24), ("few", 60), ("bursts", 60))
    ):
        yield Edge("coverage", design, metric, n)
        yield from (Edge("differences", design, metric, n, gain=gain) for gain in (0.0, 0.7))
    for metric, n, folds in product(("accuracy", "auprc"), (12, 20, 40), (1, 4)):
        yield Edge("differences", "skew", metric, n, 0.8, folds=folds)
    designs = (("giant", 12), ("ordinary", 12), ("ordinary", 30), ("ordinary", 100))
    for gain, (design, n) in product((0.0, 0.1, 0.2), designs):
        yield Edge("differences", design, "accuracy", n, 0.7, gain=gain)
    for gain in (0.0, 0.1, 0.2):
        yield Edge("differences", "ordinary", "auprc", 30, 0.7, gain=gain)
    for metric, n in product(("accuracy", "auroc"), (12, 30, 100)):
        for level, correlation in product((0.9, 0.95, 0.98, 0.99), (0.0, 0.3, 0.6, 1.0)):
            yield Edge("coverage", "perfect", metric, n, level, correlation)
            yield Edge("coverage of a difference", "perfect", metric, n, level, correlation)
    for n in (12, 20, 40, 100):
        yield Edge("coverage", "absent", "accuracy", n, 0.72)
        yield Edge("coverage", "absent", "auroc", n, 0.9)  # all right in the other groups


def rows(case: Edge, draws: int) -> Iterator[dict[str, Any]]:
    """Yield the rate of a case: coverage of the interval, or rejections of a test at 5 %."""
    generator = np.random.default_rng(11)
    yield _CLAIMS[case.claim](case, [draw(case, generator) for _ in range(draws)])


def _coverage(case: Edge, drawn: Sequence[Drawn]) -> dict[str, Any]:
    true, found = true_score(case), []
    for (one, *_), groups, _ in drawn:
        resamples = _resamples(case, groups)
        interval = with_interval(case.metric, [one], resamples)
        found.append((interval.low, interval.high))
        if case.claim == "coverage of a difference":
            constant = _constant(case, one)
            (difference,) = differences_of(case.metric, [([one], [constant])], resamples)
            found[-1] = (difference.ci_low + difference.b, difference.ci_high + difference.b)
    low, high = np.array(found).T
    rate = Rate.of([None if np.isnan(a) else bool(a <= true <= b) for a, b in found])
    return {
        "rate": rate.rate / max(1 - rate.no_verdict, 1e-9),
        "error": rate.error,
        "no_verdict": rate.no_verdict,
        "draws": rate.draws,
        "width": float(np.nanmean(high - low)),
    }


def _differences(case: Edge, drawn: Sequence[Drawn]) -> dict[str, Any]:
    single, several, there, agrees, widths = [], [], [], [], []
    for (own, *others), groups, is_there in drawn:
        pairs = [([own], [other]) for other in others]
        found = differences_of(case.metric, pairs, _resamples(case, groups))
        p, adjusted = np.array([(one.p, one.p_adjusted) for one in found]).T
        is_known = not np.isnan(p).any()
        single.append(bool(p[0] < LEVEL) if is_known else None)
        several.append(bool(adjusted.min() < LEVEL) if is_known else None)
        there.append(bool((adjusted[is_there] < LEVEL).any()) if is_known else None)
        agrees += [_agrees(one) for one in found] if is_known else []
        widths += [one.ci_high - one.ci_low for one in found]
    rate = Rate.of(single)
    return {
        "rate": rate.rate,
        "error": rate.error,
        "no_verdict": rate.no_verdict,
        "draws": rate.draws,
        "family": Rate.of(several).rate,
        "there": Rate.of(there).rate,
        "agrees": float(np.mean(agrees)) if agrees else np.nan,
        "width": float(np.nanmean(widths)),
    }


def _association(case: Edge, drawn: Sequence[Drawn]) -> dict[str, Any]:
    found = []
    for number, ((one, *_), groups, _) in enumerate(drawn):
        function = association(case.metric, "class")
        assert function is not None
        scores = function(one)
        folds = np.zeros(len(groups), np.int64) if one.folds is None else one.folds
        exchange = LabelExchange(scores.labels, groups, folds, EXCHANGES, number)
        is_enough = exchange.is_enough
        p = exchange.null([scores]).p.single[0] if is_enough else np.nan
        found.append(bool(p < LEVEL) if is_enough else None)
    rate = Rate.of(found)
    return {
        "rate": rate.rate,
        "error": rate.error,
        "no_verdict": rate.no_verdict,
        "draws": rate.draws,
    }


_CLAIMS: dict[str, Callable[[Edge, Sequence[Drawn]], dict[str, Any]]] = {
    "coverage": _coverage,
    "coverage of a difference": _coverage,
    "differences": _differences,
    "association": _association,
}


def _resamples(case: Edge, groups: Array) -> Resamples:
    return Resamples.leave_one_out(groups, widening=2**0.5 if case.folds > 1 else 1.0)


def _agrees(one: Any) -> bool:
    """Return whether both intervals exclude 0 exactly if their p-values are below 0.05."""
    pairs = (
        (one.ci_low, one.ci_high, one.p),
        (one.adjusted_low, one.adjusted_high, one.p_adjusted),
    )
    return all((low > 0 or high < 0) == (p < LEVEL) for low, high, p in pairs)


@cache
def true_score(case: Edge) -> float:
    """Return the score of very many groups."""
    if case.metric == "accuracy" or case.design in ("perfect", "absent"):
        return case.level
    (one, *_), _, _ = draw(case, np.random.default_rng(4), POPULATION)
    return float(metrics_of(one)[case.metric](one, Resamples.whole(len(one.truth)))[0])


def draw(case: Edge, generator: np.random.Generator, many: int = 1) -> Drawn:
    """Return a data set, or one with `many` times as many groups."""
    found = _DESIGNS[case.design](case, generator, many)
    if case.folds > 1:
        probes, groups, there = found
        of_group = generator.permutation(np.arange(groups.max() + 1) % case.folds)
        probes = [_with_folds(one, of_group[groups]) for one in probes]
        return probes, groups, there
    return found


def _with_folds(one: ClassPredictions, folds: Array) -> ClassPredictions:
    return ClassPredictions(
        one.truth, one.guess, one.n_classes, one.scores, folds=folds, positive=one.positive
    )


def _ranked(truth: Array, scores: Array) -> ClassPredictions:
    columns = np.column_stack([-scores, scores])
    return ClassPredictions(truth, (scores > 0).astype(np.int64), 2, columns, positive=1)


def _normal(case: Edge, groups: Array, truth: Array, gain: float, generator: Any) -> Array:
    """Return scores (n_rows,) with a part of each group, higher for positive rows."""
    shared = generator.normal(size=groups.max() + 1)[groups]
    own = generator.normal(size=len(groups))
    noise = np.sqrt(case.correlation) * shared + np.sqrt(1 - case.correlation) * own
    scores: Array = noise + (case.level + gain) * (truth - 0.5)
    return scores


def _rivals(case: Edge, groups: Array, truth: Array, generator: Any) -> Drawn:
    gains = [case.gain, *[0.0] * RIVALS]
    drawn = [_normal(case, groups, truth, gain, generator) for gain in gains]
    return [_ranked(truth, one) for one in drawn], groups, np.ones(RIVALS, bool)


def _giant_label(case: Edge, generator: np.random.Generator, many: int) -> Drawn:
    giant = {1.2: 300, 1.5: 120, 2.0: 60, 3.5: 28, 6.0: 12}[case.n]
    # In the population all groups are alike; the true score does not depend on their sizes.
    sizes = [giant, *[4] * 7, *[10] * 40] if many == 1 else [10] * (5 * many)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    few = 8 if many == 1 else many
    if many > 1:  # the share of positive rows, which AUPRC depends on
        few = round(5 * many * (giant + 28) / (giant + 428))
    return _rivals(case, groups, (groups < few).astype(np.int64), generator)


def _few(case: Edge, generator: np.random.Generator, many: int) -> Drawn:
    groups = np.repeat(np.arange(int(case.n) * many), 10)
    return _rivals(case, groups, (groups < 8 * many).astype(np.int64), generator)


def _bursts(case: Edge, generator: np.random.Generator, many: int) -> Drawn:
    groups = np.repeat(np.arange(int(case.n) * many), 10)
    is_burst = generator.random(int(case.n) * many) < 0.1
    truth = (generator.random(len(groups)) < np.where(is_burst, 0.5, 0.02)[groups]).astype(int)
    truth[generator.integers(len(truth))] = 1
    return _rivals(case, groups, truth, generator)


def _agree(case: Edge, generator: np.random.Generator, _: int) -> Drawn:
    if case.n < 5:  # small groups of each further label
        n_labels = int(case.n)
        groups = np.repeat(np.arange(60 + 8 * (n_labels - 1)), [30] * 60 + [2] * 8 * (n_labels - 1))
        truth = np.where(groups < 60, 0, 1 + (groups - 60) % (n_labels - 1))
        likely = generator.random(len(groups)) < 0.93  # of the last label
        guess = np.where(likely, n_labels - 1, 0)
    else:  # 10 clusters of 6 rows; one has the rare label
        n_labels, clusters = 2, np.repeat(np.arange(10 * int(case.n)), 6)
        groups, truth = clusters // 10, (clusters % 10 == 0).astype(np.int64)
        guess = (generator.random(10 * int(case.n)) < 0.9)[clusters].astype(np.int64)
    scores = np.eye(n_labels)[guess] + 0.01 * generator.normal(size=(len(guess), n_labels))
    positive = 1 if n_labels == 2 else None
    one = ClassPredictions(truth, guess, n_labels, scores, positive=positive)
    return [one], groups, np.ones(0, bool)


def _labelled(case: Edge, generator: np.random.Generator, _: int) -> Drawn:
    groups = np.repeat(np.arange(int(case.n)), 10)
    is_whole = {"mixed": 0.0, "whole": 1.0, "both": groups % 2}[case.design]
    truth = np.where(is_whole, groups // 2 % 2, generator.integers(2, size=len(groups)))
    return [_ranked(truth, _normal(case, groups, truth, 0.0, generator))], groups, np.ones(0, bool)


def _hits(rates: Array, groups: Array, generator: np.random.Generator) -> ClassPredictions:
    hits = (generator.random(len(groups)) < rates[groups]).astype(np.int64)
    return ClassPredictions(np.ones_like(hits), hits, 2)


def _scored(case: Edge, hits: ClassPredictions, generator: np.random.Generator) -> ClassPredictions:
    """Return the hits, or for AUROC scores of rows of two labels, so that its value is their rate.

    The score of a hit is higher for positive rows, that of another row is lower.
    """
    if case.metric == "accuracy":
        return hits
    truth = generator.integers(2, size=len(hits.guess))
    sign = (2 * truth - 1) * (2 * hits.guess - 1)
    return _ranked(truth, sign + 0.01 * generator.normal(size=len(truth)))


def _constant(case: Edge, probe: ClassPredictions) -> ClassPredictions:
    """Return predictions that are always wrong or, for AUROC, that rank nothing."""
    if case.metric == "accuracy":
        return replace(probe, guess=1 - probe.truth)
    return _ranked(probe.truth, np.zeros(len(probe.truth)))


def _skew(case: Edge, generator: np.random.Generator, _: int) -> Drawn:
    n = int(case.n)
    groups = np.repeat(np.arange(n), 10)
    fails = generator.random((RIVALS, n)) < 0.1
    if case.metric == "accuracy":
        own = _hits(np.full(n, case.level), groups, generator)
        others = [_hits(np.where(one, 0.0, case.level / 0.9), groups, generator) for one in fails]
        return [own, *others], groups, fails.any(axis=1)
    truth = (generator.random(len(groups)) < 0.3).astype(np.int64)
    better, probes = _better(), []
    for fail in (np.zeros(n, bool), *fails):
        level = np.where(fail, -1.0, better if len(probes) else 1.5)[groups]
        probes.append(_ranked(truth, generator.normal(size=len(groups)) + level * (truth - 0.5)))
    return probes, groups, fails.any(axis=1)


@cache
def _better() -> float:
    """Return the level of a rival that fails in a tenth of the groups and has the AUPRC of 1.5."""

    def score(better: float, share: float) -> float:
        generator = np.random.default_rng(5)
        truth = (generator.random(200_000) < 0.3).astype(np.int64)
        fails = np.arange(len(truth)) < share * len(truth)
        level = np.where(fails, -1.0, better)
        one = _ranked(truth, generator.normal(size=len(truth)) + level * (truth - 0.5))
        return float(metrics_of(one)["auprc"](one, Resamples.whole(len(truth)))[0])

    aim = score(1.5, 0.0)
    return float(brentq(lambda better: score(better, 0.1) - aim, 1.5, 6.0, xtol=1e-3))


def _beta_hits(case: Edge, groups: Array, level: float, generator: Any) -> ClassPredictions:
    n = groups.max() + 1
    if case.correlation == 1:
        return _hits((generator.random(n) < level).astype(float), groups, generator)
    rates = np.full(n, level)
    if case.correlation:
        total = (1 - case.correlation) / case.correlation
        rates = generator.beta(level * total, (1 - level) * total, n)
    return _hits(rates, groups, generator)


def _giant(case: Edge, generator: np.random.Generator, _: int) -> Drawn:
    groups = np.repeat(np.arange(int(case.n)), [300] + [10] * (int(case.n) - 1))
    return _of_level(case, groups, generator)


def _ordinary(case: Edge, generator: np.random.Generator, _: int) -> Drawn:
    groups = np.repeat(np.arange(int(case.n)), 10)
    if case.metric == "auprc":
        truth = (generator.random(len(groups)) < 0.3).astype(np.int64)
        probes = [
            _ranked(truth, _normal(case, groups, truth, 4 * gain, generator))
            for gain in (case.gain, *[0.0] * RIVALS)
        ]
        return probes, groups, np.ones(RIVALS, bool)
    return _of_level(case, groups, generator)


def _of_level(case: Edge, groups: Array, generator: Any) -> Drawn:
    levels = [case.level + case.gain, *[case.level] * RIVALS]
    probes = [_beta_hits(case, groups, level, generator) for level in levels]
    return probes, groups, np.ones(RIVALS, bool)


def _perfect(case: Edge, generator: np.random.Generator, _: int) -> Drawn:
    groups = np.repeat(np.arange(int(case.n)), 10)
    hits = _beta_hits(case, groups, case.level, generator)
    return [_scored(case, hits, generator)], groups, np.ones(0, bool)


def _absent(case: Edge, generator: np.random.Generator, _: int) -> Drawn:
    n = int(case.n)
    groups = np.repeat(np.arange(n), 10)
    rates = np.where(generator.random(n) < 0.1, 0.0, case.level / 0.9)
    return [_scored(case, _hits(rates, groups, generator), generator)], groups, np.ones(0, bool)


_DESIGNS = {
    "giant label": _giant_label,
    "few": _few,
    "bursts": _bursts,
    "agree": _agree,
    **dict.fromkeys(("mixed", "whole", "both"), _labelled),
    "skew": _skew,
    "giant": _giant,
    "ordinary": _ordinary,
    "perfect": _perfect,
    "absent": _absent,
}
