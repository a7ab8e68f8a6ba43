"""Checks that probes recover planted structure, and stay at chance level without structure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.stats import binom, norm

from probekit.errors import DataError
from probekit.probes.score.measurement import Measurement
from probekit.probes.selftest import planted
from probekit.probes.selftest.checks import (
    ALARM,
    NOMINAL,
    SPECS,
    CheckResult,
    SimulationSize,
    Tools,
    covers,
    interval_text,
    pick,
)
from probekit.probes.selftest.planted import Planted
from probekit.probes.settings import ProbeSpec
from probekit.probes.solve.layers import FittedLayers

FOUR_ERRORS = 0.045  # four standard errors of an accuracy near 0.85 on a thousand rows


def planted_direction(tools: Tools, _: SimulationSize) -> Iterator[CheckResult]:
    """Check that each kind recovers the direction and reaches the best possible accuracy."""
    data = planted.class_direction(3000, seed=0)
    for kind, spec in SPECS.items():
        result = tools.one(spec, data)
        if spec.kind != "mlp":  # an MLP has no single direction
            yield _along("planted direction", kind, result.fits[kind], data)
        # The class means are two standard deviations apart.
        accuracy, best = pick(result, "accuracy"), float(norm.cdf(1))
        ok = abs(accuracy.value - best) < FOUR_ERRORS
        expected = f"accuracy within {FOUR_ERRORS} of {best:.3f}"
        yield CheckResult("planted direction", kind, expected, interval_text(accuracy), ok)
    numbers = planted.number(3000, seed=0)
    result = tools.one(ProbeSpec("ridge_regression"), numbers)
    fit = result.fits["ridge_regression"]
    yield _along("planted number", "ridge_regression", fit, numbers)


def _along(check: str, kind: str, fit: FittedLayers, data: Planted) -> CheckResult:
    assert data.direction is not None
    weight = fit.layers[0].weight[0]
    cosine = float(weight @ data.direction / np.linalg.norm(weight))
    return CheckResult(check, kind, "cosine over 0.99", f"{cosine:.4f}", cosine > 0.99)


def planted_exclusive_or(tools: Tools, _: SimulationSize) -> Iterator[CheckResult]:
    """Check that linear kinds stay at chance level, and that the MLP solves the task."""
    data = planted.exclusive_or(900, seed=0)
    for kind, spec in SPECS.items():
        found = pick(tools.one(spec, data), "accuracy")
        if spec.kind == "mlp":
            yield CheckResult(
                "planted XOR", kind, "over 0.95", interval_text(found), found.value > 0.95
            )
        else:
            yield _at_chance("planted XOR", kind, found, 0.5)


def _at_chance(check: str, kind: str, found: Measurement, chance: float) -> CheckResult:
    ok = covers(found, chance)
    return CheckResult(check, kind, f"{chance:.3g} in interval", interval_text(found), ok)


def pure_noise(tools: Tools, size: SimulationSize) -> Iterator[CheckResult]:
    """Check that the confidence intervals of each kind contain chance level in most samples."""
    for kind, spec in SPECS.items():
        found = [
            pick(tools.one(spec, planted.noise(450, seed)), "accuracy") for seed in range(size.fits)
        ]
        n_covered = sum(covers(one, 0.5) for one in found)
        least = int(binom.ppf(ALARM, size.fits, NOMINAL[0]))
        yield CheckResult(
            "pure noise",
            kind,
            f"at least {least} of {size.fits} intervals contain 0.5",
            f"{n_covered}, mean {np.mean([one.value for one in found]):.3f}",
            n_covered >= least,
        )


def labels_looked_up(tools: Tools, _: SimulationSize) -> Iterator[CheckResult]:
    """Check that labels of words are decoded with high accuracy, but with zero selectivity."""
    data = planted.looked_up(900, seed=0)
    for kind in ("logistic", "ridge", "lda", "nearest_mean", "svm"):
        result = tools.one(SPECS[kind], data, control_draws=2, C=(0.1, 10.0))
        task, lead = pick(result, "accuracy"), pick(result, "selectivity")
        ok = task.value > 0.95 and abs(lead.value) < 0.05
        expected = "accuracy over 0.95, selectivity within 0.05 of 0"
        yield CheckResult("looked up", kind, expected, f"{task.value:.3f}, {lead.value:+.3f}", ok)


def signal_is_selective(tools: Tools, _: SimulationSize) -> Iterator[CheckResult]:
    """Check that a direction which is independent of the words gives high selectivity."""
    found = pick(tools.one(SPECS["logistic"], _repeated_words(), control_draws=2), "selectivity")
    yield CheckResult("selective", "logistic", "over 0.2", interval_text(found), found.ci_low > 0.2)


def _repeated_words() -> Planted:
    data = planted.class_direction(900, seed=0)
    words = np.random.default_rng(1).integers(40, size=900).astype(str)
    return Planted(data.X, planted.rows_apart(data.data.y, types=words), data.direction)


def imbalanced_labels(tools: Tools, _: SimulationSize) -> Iterator[CheckResult]:
    """Check that a rare class is at chance level in noise, and decoded if it is planted."""
    rare = 0.08
    for kind in ("logistic", "ridge", "lda", "svm"):
        in_noise = tools.one(SPECS[kind], planted.noise(900, seed=0, share=rare))
        yield _at_chance("imbalanced noise", kind, pick(in_noise, "balanced_accuracy"), 0.5)
        data = planted.class_direction(3000, 0, share=rare)
        auroc = pick(tools.one(SPECS[kind], data), "auroc")
        best = float(norm.cdf(np.sqrt(2)))
        yield CheckResult(
            "imbalanced direction",
            kind,
            f"auroc {best:.3f} in interval",
            interval_text(auroc),
            covers(auroc, best),
        )


def copied_groups_checks(tools: Tools, _: SimulationSize) -> Iterator[CheckResult]:
    """Check that copies of rows within a group never leak between training and held-out rows."""
    data = planted.copied_groups(90, copies=6, seed=0)
    for kind in ("logistic", "ridge", "nearest_mean", "svm"):
        result = tools.one(SPECS[kind], data)
        for split in ("validation", "test"):
            yield _at_chance(f"copied groups, {split}", kind, pick(result, "accuracy", split), 0.5)
    folds = tools.folds(data.data.y, data.data.groups, 5, 0)
    pairs = set(zip(folds.tolist(), data.data.groups.tolist(), strict=True))
    yield CheckResult(
        "copied groups",
        "folds",
        "90 groups in one fold each",
        f"{len(pairs)} pairs of fold and group",
        len(pairs) == 90,
    )


def description_length(tools: Tools, _: SimulationSize) -> Iterator[CheckResult]:
    """Check that random labels cannot be compressed, and that planted ones can."""
    for kind, spec in SPECS.items():
        if spec.kind == "mlp":
            continue
        in_noise, in_signal = (
            pick(tools.one(spec, data, description=True), "compression", "online").value
            for data in (planted.noise(450, 0), planted.class_direction(3000, 0))
        )
        ok = in_noise < 1.02 and in_signal > 1.3
        found = f"{in_noise:.3f}, {in_signal:.3f}"
        yield CheckResult(
            "description length", kind, "noise below 1.02, signal above 1.3", found, ok
        )


def texts_and_trees(tools: Tools, _: SimulationSize) -> Iterator[CheckResult]:
    """Check that the kinds for texts and trees recover planted labels and trees."""
    accuracy = pick(tools.one(ProbeSpec("attention_pooled"), planted.texts(300, 0)), "accuracy")
    yield CheckResult(
        "planted texts",
        "attention_pooled",
        "over 0.95",
        interval_text(accuracy),
        accuracy.value > 0.95,
    )
    rank = (("rank", planted.WIDTH),)
    for kind, metric in (("structural_distance", "uuas"), ("structural_depth", "spearman")):
        found = pick(tools.one(ProbeSpec(kind, rank), planted.trees(150, 0)), metric)
        expected = f"{metric} over 0.9"
        yield CheckResult("planted trees", kind, expected, interval_text(found), found.value > 0.9)


def bad_rows(tools: Tools, _: SimulationSize) -> Iterator[CheckResult]:
    """Check that non-finite rows raise DataError, and that constant columns are harmless."""
    data = planted.class_direction(300, seed=0)
    constant = np.column_stack([data.X, np.full(300, 1e6), np.zeros(300)])
    for kind, spec in SPECS.items():
        accuracy = pick(tools.one(spec, Planted(constant, data.data)), "accuracy")
        ok = bool(accuracy.value > 0.75)
        yield CheckResult("constant columns", kind, "over 0.75", interval_text(accuracy), ok)
    for value in (np.nan, np.inf):
        broken = data.X.copy()
        broken[7, 3] = value
        rejected = _is_rejected(tools, Planted(broken, data.data))
        found = "rejected" if rejected else "accepted"
        yield CheckResult("not finite", str(value), "rejected", found, rejected)


def _is_rejected(tools: Tools, data: Planted) -> bool:
    try:
        tools.one(SPECS["logistic"], data)
    except DataError:
        return True
    return False
