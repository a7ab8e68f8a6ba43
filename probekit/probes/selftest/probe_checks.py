"""Checks that probes find what was planted, and find nothing where nothing was."""

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
    SimulationSize,
    Tools,
    Verdict,
    covers,
    interval_text,
    pick,
)
from probekit.probes.selftest.planted import Planted
from probekit.probes.settings import ProbeSpec
from probekit.probes.solve.layers import FittedLayers

FOUR_ERRORS = 0.045  # standard errors of an accuracy near 0.85 on a thousand rows


def planted_direction(tools: Tools, _: SimulationSize) -> Iterator[Verdict]:
    """Yield whether each kind finds the direction, and is right as often as can be."""
    data = planted.class_direction(3000, seed=0)
    for kind, spec in SPECS.items():
        result = tools.one(spec, data)
        if spec.kind != "mlp":  # its direction is another for each row
            yield _along("planted direction", kind, result.solution, data)
        accuracy, best = pick(result, "accuracy"), float(norm.cdf(1))  # means two deviations apart
        ok = abs(accuracy.value - best) < FOUR_ERRORS
        expected = f"accuracy within {FOUR_ERRORS} of {best:.3f}"
        yield Verdict("planted direction", kind, expected, interval_text(accuracy), ok)
    numbers = planted.number(3000, seed=0)
    result = tools.one(ProbeSpec("ridge_regression"), numbers)
    yield _along("planted number", "ridge_regression", result.solution, numbers)


def _along(check: str, kind: str, solution: FittedLayers | None, data: Planted) -> Verdict:
    assert solution is not None
    assert data.direction is not None
    weight = solution.layers[0].weight[0]
    cosine = float(weight @ data.direction / np.linalg.norm(weight))
    return Verdict(check, kind, "cosine over 0.99", f"{cosine:.4f}", cosine > 0.99)


def planted_exclusive_or(tools: Tools, _: SimulationSize) -> Iterator[Verdict]:
    """Yield whether linear kinds find nothing, and the MLP all."""
    data = planted.exclusive_or(900, seed=0)
    for kind, spec in SPECS.items():
        found = pick(tools.one(spec, data), "accuracy")
        if spec.kind == "mlp":
            yield Verdict(
                "planted XOR", kind, "over 0.95", interval_text(found), found.value > 0.95
            )
        else:
            yield _nothing("planted XOR", kind, found, 0.5)


def _nothing(check: str, kind: str, found: Measurement, chance: float) -> Verdict:
    ok = covers(found, chance)
    return Verdict(check, kind, f"{chance:.3g} in interval", interval_text(found), ok)


def pure_noise(tools: Tools, size: SimulationSize) -> Iterator[Verdict]:
    """Yield whether the intervals of each kind hold chance, in most of several drawings."""
    for kind, spec in SPECS.items():
        found = [
            pick(tools.one(spec, planted.noise(450, seed)), "accuracy") for seed in range(size.fits)
        ]
        n_covered = sum(covers(one, 0.5) for one in found)
        least = int(binom.ppf(ALARM, size.fits, NOMINAL[0]))
        yield Verdict(
            "pure noise",
            kind,
            f"{least} or more of {size.fits} intervals hold 0.5",
            f"{n_covered}, mean {np.mean([one.value for one in found]):.3f}",
            n_covered >= least,
        )


def labels_looked_up(tools: Tools, _: SimulationSize) -> Iterator[Verdict]:
    """Yield whether labels that belong to words are found, and found not to be selective."""
    data = planted.looked_up(900, seed=0)
    for kind in ("logistic", "ridge", "lda", "nearest_mean", "svm"):
        result = tools.one(SPECS[kind], data, control_draws=2, C=(0.1, 10.0))
        task, lead = pick(result, "accuracy"), pick(result, "selectivity")
        ok = task.value > 0.95 and abs(lead.value) < 0.05
        expected = "accuracy over 0.95, selectivity within 0.05 of 0"
        yield Verdict("looked up", kind, expected, f"{task.value:.3f}, {lead.value:+.3f}", ok)


def signal_is_selective(tools: Tools, _: SimulationSize) -> Iterator[Verdict]:
    """Yield whether a direction that no word tells is found to be selective."""
    found = pick(tools.one(SPECS["logistic"], _repeated_words(), control_draws=2), "selectivity")
    yield Verdict("selective", "logistic", "over 0.2", interval_text(found), found.ci_low > 0.2)


def _repeated_words() -> Planted:
    data = planted.class_direction(900, seed=0)
    words = np.random.default_rng(1).integers(40, size=900).astype(str)
    return Planted(data.X, planted.rows_apart(data.data.y, types=words), data.direction)


def imbalanced_labels(tools: Tools, _: SimulationSize) -> Iterator[Verdict]:
    """Yield whether a rare class is not taken for found, and is found if it is there."""
    rare = 0.08
    for kind in ("logistic", "ridge", "lda", "svm"):
        nothing = tools.one(SPECS[kind], planted.noise(900, seed=0, share=rare))
        yield _nothing("imbalanced noise", kind, pick(nothing, "balanced_accuracy"), 0.5)
        there = pick(tools.one(SPECS[kind], planted.class_direction(3000, 0, share=rare)), "auroc")
        best = float(norm.cdf(np.sqrt(2)))
        yield Verdict(
            "imbalanced direction",
            kind,
            f"auroc {best:.3f} in interval",
            interval_text(there),
            covers(there, best),
        )


def copied_groups_checks(tools: Tools, _: SimulationSize) -> Iterator[Verdict]:
    """Yield whether rows that repeat within groups are learnt by heart nowhere."""
    data = planted.copied_groups(90, copies=6, seed=0)
    for kind in ("logistic", "ridge", "nearest_mean", "svm"):
        result = tools.one(SPECS[kind], data)
        for split in ("validation", "test"):
            yield _nothing(f"copied groups, {split}", kind, pick(result, "accuracy", split), 0.5)
    folds = tools.folds(data.data.y, data.data.groups, 5, 0)
    pairs = set(zip(folds.tolist(), data.data.groups.tolist(), strict=True))
    yield Verdict(
        "copied groups",
        "folds",
        "90 groups in one fold each",
        f"{len(pairs)} places",
        len(pairs) == 90,
    )


def description_length(tools: Tools, _: SimulationSize) -> Iterator[Verdict]:
    """Yield whether labels of chance cannot be compressed, and told ones can."""
    for kind, spec in SPECS.items():
        if spec.kind == "mlp":
            continue
        nothing, there = (
            pick(tools.one(spec, data, description=True), "compression", "online").value
            for data in (planted.noise(450, 0), planted.class_direction(3000, 0))
        )
        ok = nothing < 1.02 and there > 1.3
        found = f"{nothing:.3f}, {there:.3f}"
        yield Verdict("description length", kind, "noise below 1.02, told above 1.3", found, ok)


def wholes(tools: Tools, _: SimulationSize) -> Iterator[Verdict]:
    """Yield whether kinds that read texts and trees find planted ones."""
    told = pick(tools.one(ProbeSpec("attention_pooled"), planted.texts(300, 0)), "accuracy")
    yield Verdict(
        "planted texts", "attention_pooled", "over 0.95", interval_text(told), told.value > 0.95
    )
    rank = (("rank", planted.WIDTH),)
    for kind, metric in (("structural_distance", "uuas"), ("structural_depth", "spearman")):
        found = pick(tools.one(ProbeSpec(kind, rank), planted.trees(150, 0)), metric)
        expected = f"{metric} over 0.9"
        yield Verdict("planted trees", kind, expected, interval_text(found), found.value > 0.9)


def bad_rows(tools: Tools, _: SimulationSize) -> Iterator[Verdict]:
    """Yield whether rows that are not finite are refused, and constant columns survived."""
    data = planted.class_direction(300, seed=0)
    constant = np.column_stack([data.X, np.full(300, 1e6), np.zeros(300)])
    for kind, spec in SPECS.items():
        found = pick(tools.one(spec, Planted(constant, data.data)), "accuracy")
        ok = bool(found.value > 0.75)
        yield Verdict("constant columns", kind, "over 0.75", interval_text(found), ok)
    for value in (np.nan, np.inf):
        broken = data.X.copy()
        broken[7, 3] = value
        refused = _is_refused(tools, Planted(broken, data.data))
        said = "refused" if refused else "taken"
        yield Verdict("not finite", str(value), "refused", said, refused)


def _is_refused(tools: Tools, data: Planted) -> bool:
    try:
        tools.one(SPECS["logistic"], data)
    except DataError:
        return True
    return False
