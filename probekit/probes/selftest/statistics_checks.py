"""Checks of the statistics: uniform p-values, interval coverage, metrics and reproducibility."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import numpy as np
from scipy.stats import binom, kstwo, spearmanr
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    r2_score,
    roc_auc_score,
)

from probekit.probes.score.contributions import of_accuracy
from probekit.probes.score.exchange import p_values
from probekit.probes.score.intervals import jackknife_interval
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import ClassPredictions, NumberPredictions
from probekit.probes.score.scored import Predictor, SiteResult
from probekit.probes.selftest import planted
from probekit.probes.selftest.checks import (
    ALARM,
    NOMINAL,
    ROUNDING,
    SPECS,
    SimulationSize,
    Tools,
    Verdict,
)
from probekit.probes.settings import ProbeSettings
from probekit.probes.solve.design import Codes, Floats


def uniform_p_values(tools: Tools, size: SimulationSize) -> Iterator[Verdict]:
    """Check that p-values are uniform under the null, for one site and for the best of five."""
    cases = {"correlated rows in a group": True, "independent rows": False}
    for name, by_group in cases.items():
        drawn = [_p_under_null(tools, seed, by_group) for seed in range(size.draws)]
        for index, sites in enumerate(("one site", "best of five")):
            gap = _gap([pair[index] for pair in drawn])
            bound = float(kstwo.ppf(1 - ALARM, size.draws))
            yield Verdict(
                "p-values uniform",
                f"{name}, {sites}",
                f"distance below {bound:.3f}",
                f"{gap:.3f}",
                gap < bound,
            )


def _p_under_null(tools: Tools, seed: int, by_group: bool) -> tuple[float, float]:
    """Return the p-values of one site and of the best of five, without any relation to labels."""
    generator = np.random.default_rng(seed)
    # Many rows in groups of different sizes avoid ties, which would make p-values too large.
    group = np.repeat(np.arange(240), generator.integers(1, 9, size=240))
    # Both labels and predictions are constant within groups, or neither.
    own = group if by_group else np.arange(len(group))
    truth = generator.integers(2, size=len(group))[own]
    guesses = generator.integers(2, size=(5, len(group)))[:, own]
    rows = [of_accuracy(ClassPredictions(truth, guess, 2)) for guess in guesses]
    null = np.stack([tools.exchange(one, group, 199, seed) for one in rows])
    found = p_values(null[:, 0], null[:, 1:])
    return float(found.single[0]), float(found.maximum.min())


def _gap(p: Sequence[float]) -> float:
    """Return the Kolmogorov-Smirnov distance of the p-values from the uniform distribution."""
    ranked, n = np.sort(p), len(p)
    return float(max(np.abs(ranked - (np.arange(n) + k) / n).max() for k in (0, 1)))


def interval_coverage(tools: Tools, size: SimulationSize) -> Iterator[Verdict]:
    """Check the coverage of confidence intervals when the rows of a group are correlated."""
    hits = np.array([_covered(tools, seed) for seed in range(size.draws)])
    low, high = (
        binom.ppf(tail, size.draws, rate) / size.draws
        for tail, rate in zip((ALARM, 1 - ALARM), NOMINAL, strict=True)
    )
    for name, rate in zip(("accuracy", "difference"), hits.mean(axis=0), strict=True):
        yield Verdict(
            "interval coverage",
            name,
            f"{low:.3f} to {high:.3f} of {size.draws}",
            f"{rate:.3f}",
            bool(low <= rate <= high),
        )


def _covered(tools: Tools, seed: int) -> tuple[bool, bool]:
    """Return whether the intervals of an accuracy and of a difference contain the true values.

    The rows of a group are mostly all correct or all wrong.
    """
    generator = np.random.default_rng(seed)
    sizes = generator.integers(1, 8, size=150)
    group = np.repeat(np.arange(150), sizes)
    resamples = tools.resample(group)
    truth = np.ones(len(group), dtype=np.int64)

    def score(rate: float) -> Floats:
        own = generator.random(len(group)) < rate
        shared = (generator.random(150) < rate)[group]
        correct = np.where(generator.random(len(group)) < 0.8, shared, own)
        return tools.metrics["accuracy"](
            ClassPredictions(truth, correct.astype(np.int64), 2), resamples
        )

    first, second = score(0.8), score(0.7)
    found = (
        jackknife_interval(first, resamples, METRICS["accuracy"].range),
        jackknife_interval(first - second, resamples),
    )
    within = [one.low <= true <= one.high for one, true in zip(found, (0.8, 0.1), strict=True)]
    return within[0], within[1]


def metrics_agree(tools: Tools, size: SimulationSize) -> Iterator[Verdict]:
    """Check that metrics agree with scikit-learn and SciPy, on scores with many ties."""
    worst: dict[str, float] = {}
    for seed in range(size.fits):
        for name, ours, theirs in _metric_pairs(tools, seed):
            worst[name] = max(worst.get(name, 0.0), abs(ours - theirs))
    for name, gap in worst.items():
        yield Verdict("metrics agree", name, f"within {ROUNDING}", f"{gap:.1g}", gap < ROUNDING)


def _metric_pairs(tools: Tools, seed: int) -> Iterator[tuple[str, float, float]]:
    """Yield the name of each metric that scikit-learn or SciPy has, our value, and theirs."""
    generator = np.random.default_rng(seed)
    n_classes = 2 + seed % 3
    truth = np.concatenate([np.arange(n_classes), generator.integers(n_classes, size=80)])
    scores = generator.integers(4, size=(len(truth), n_classes)).astype(np.float64)
    # scikit-learn requires rows that sum to 1.
    shares = (scores + 1) / (scores + 1).sum(axis=1, keepdims=True)
    shares = shares.round(1)
    shares[:, -1] = 1 - shares[:, :-1].sum(axis=1)
    guess = shares.argmax(axis=1)
    resamples = tools.resample(np.arange(len(truth)))
    answers = ClassPredictions(truth, guess, n_classes, shares)
    area = (
        roc_auc_score(truth, shares[:, 1] - shares[:, 0])
        if n_classes == 2
        else roc_auc_score(truth, shares, multi_class="ovr")
    )
    theirs = {
        "accuracy": accuracy_score(truth, guess),
        "balanced_accuracy": balanced_accuracy_score(truth, guess),
        "macro_f1": f1_score(truth, guess, average="macro"),
        "auroc": area,
        "auprc": _mean_precision(truth, shares),
    }
    for name, value in theirs.items():
        yield name, float(tools.metrics[name](answers, resamples)[0]), float(value)
    y, predicted = generator.integers(6, size=(2, len(truth))).astype(np.float64)
    numbers = {"r2": r2_score(y, predicted), "spearman": spearmanr(y, predicted).statistic}
    for name, value in numbers.items():
        ours = tools.number_metrics[name](NumberPredictions(y, predicted), resamples)
        yield name, float(ours[0]), float(value)


def _mean_precision(truth: Codes, shares: Floats) -> float:
    """Return scikit-learn's average precision of each class against all others, averaged."""
    is_binary = shares.shape[1] == 2
    ranked = shares - shares[:, ::-1] if is_binary else shares
    codes = range(shares.shape[1])
    return float(np.mean([average_precision_score(truth == c, ranked[:, c]) for c in codes]))


def same_for_all(tools: Tools, _: SimulationSize) -> Iterator[Verdict]:
    """Check that results of a site are reproducible and independent of sites probed before it."""
    first, second = planted.class_direction(300, seed=0), planted.noise(300, seed=1)
    settings = ProbeSettings(
        kinds=tuple(SPECS.values()),
        C=(1e-2, 1.0),
        folds=3,
        control_draws=1,
        description=False,
    )
    alone = tools.probe(first.data, settings, [first.X])[0]
    again = tools.probe(first.data, settings, [first.X])[0]
    after = tools.probe(first.data, settings, [second.X, first.X])[1]
    for kind in SPECS:
        for check, other in (("same seed", again), ("after another site", after)):
            ok = _bytes(alone, kind) == _bytes(other, kind)
            yield Verdict(check, kind, "same bytes", "same" if ok else "different", ok)


def _bytes(result: SiteResult, kind: str) -> tuple[str, bytes]:
    """Return the exact measurements and predictions of one kind of probe."""
    predictions = result.predictions[Predictor(kind, "task")]
    assert isinstance(predictions, ClassPredictions)
    scores = b"" if predictions.scores is None else predictions.scores.tobytes()
    measurements = repr([asdict(m) for m in result.of_kind(kind)])
    return measurements, predictions.guess.tobytes() + scores
