"""The addition of a probe to known columns: size and power of its test, coverage of its bits.

`python -m benchmarks.claims.left` prints the share of runs of `probekit.probe` in which something
is left (p < 0.05). Then it prints the effect of columns that should not be declared: this share,
and the mean AUROC of the columns and with the probe. Last, it prints the AUROC of activations that
contain nothing but a column, after a regression on that column has been subtracted.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import probekit
from benchmarks.claims.designs import LARGEST, SMALLEST
from benchmarks.claims.rates import Rate
from probekit.amounts import LEVEL
from probekit.chosen.left import statistics
from probekit.probes.data import group_folds
from probekit.probes.score.metrics import WIDER_OVER_FOLDS, Resamples

Array = NDArray[np.float64]
ROWS = 6  # of each group, if all have equally many
STRENGTH = 2.0  # of z in the log odds of the label
GRID = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
FOLDS = 5
CORRELATION = 0.3  # share of the variance of features, z and u that rows of a group share
LABELS: tuple[Literal["constant", "mixed"], ...] = ("constant", "mixed")
SHAPES: tuple[Literal["none", "line", "U", "product", "category"], ...] = (
    "none",
    "line",
    "U",
    "product",
    "category",
)
NEW = 1000  # groups that the true gain is computed from


@dataclass(frozen=True)
class Case:
    """A simulated data set.

    Attributes:
        groups: number of groups.
        labels: whether each group has one label or several.
        shape: how the label depends on z: not at all, linearly, in a U-shape, on a product of two
            columns, or on a category as well.
        extra: strength of a direction of the activations that z does not contain, relative to z.
        features: number of features.
        classes: number of classes; 0 for numbers.
        sizes: whether all groups have equally many rows, or from 2 to 40.
        positives: share of rows with the second of two labels; about.
        is_nested: whether predictions of five outer folds are joined, or one test set of 30 %.
    """

    groups: int = 100
    labels: Literal["mixed", "constant"] = "constant"
    shape: Literal["none", "line", "U", "product", "category"] = "line"
    extra: float = 0.0
    features: int = 64
    classes: int = 2
    sizes: Literal["equal", "1:20"] = "equal"
    positives: float = 0.5
    is_nested: bool = True


def cases() -> Iterator[Case]:
    """Yield all simulated data sets."""
    for labels in LABELS:
        for shape in SHAPES:
            yield Case(labels=labels, shape=shape)
        for extra in (0.35, 1.0):
            yield Case(labels=labels, extra=extra)
        for extra in (0.0, 1.0):
            yield Case(labels=labels, extra=extra, is_nested=False)
        yield Case(40, labels)
        yield Case(20, labels)
    for groups in (40, 20):
        yield Case(groups, extra=1.0)
    others: tuple[dict[str, Any], ...] = (
        {"classes": 4},
        {"sizes": "1:20"},
        {"classes": 0},
        {"positives": 0.1},
        {"features": 768},
    )
    for labels in LABELS:
        for changes in others:
            yield Case(labels=labels, **changes)
        for changes in others[:3]:
            yield Case(labels=labels, shape="U", **changes)
    for changes in others:
        yield Case(extra=1.0, **changes)


@dataclass(frozen=True, eq=False)
class World:
    """Fixed directions of the features; draws rows."""

    case: Case
    directions: Array  # (4, n_features)

    def rows(self, groups: NDArray[np.int64], rng: np.random.Generator) -> tuple[Any, ...]:
        """Return activations, labels and columns of rows of these groups."""
        case, n, n_groups = self.case, len(groups), int(groups.max()) + 1
        is_whole = case.labels == "constant"

        def normal(size: int) -> Array:
            """Return numbers (n_rows, size); rows of a group share a part of each, or all."""
            own = rng.normal(size=(n_groups, size))[groups]
            share = 1.0 if is_whole else CORRELATION
            return np.sqrt(share) * own + np.sqrt(1 - share) * rng.normal(size=(n, size))

        z, other, u = normal(1)[:, 0], normal(1)[:, 0], normal(1)[:, 0]
        level = rng.integers(3, size=n_groups)[groups]
        if not is_whole:
            level = np.where(rng.random(n) < 0.5, level, rng.integers(3, size=n))
        parts = {"none": 0 * z, "line": z, "U": (z**2 - 1) / np.sqrt(2), "product": z * other}
        of_z = parts.get(case.shape, z + np.array([-1.0, 0.0, 1.0])[level])
        score = STRENGTH * (of_z + case.extra * u)
        share = CORRELATION
        noise = np.sqrt(share) * rng.normal(size=(n_groups, case.features))[groups]
        noise = noise + np.sqrt(1 - share) * rng.normal(size=(n, case.features))
        read = np.stack([of_z, z, u, other], axis=1)
        X = 2 * read @ self.directions + noise
        columns = statistics.Known({"z": z, "other": other}, {"level": level.astype(str)})
        within = rng.random(n) if not is_whole else rng.random(n_groups)[groups]
        if case.classes == 0:
            e = rng.normal(size=n_groups)[groups] if is_whole else rng.normal(size=n)
            return X, score + STRENGTH * e, columns
        K = case.classes
        slopes = np.linspace(-1, 1, K) if K > 2 else np.array([0.0, 1.0])
        shift = np.zeros(K)
        if case.positives != 0.5:
            shift[1] = np.log(case.positives / (1 - case.positives)) - 1.0
        p = np.exp(log_softmax(score[:, None] * slopes + shift, axis=1))
        codes = (within[:, None] > p.cumsum(axis=1)[:, :-1]).sum(axis=1)
        return X, codes, columns


def groups_of(case: Case) -> NDArray[np.int64]:
    """Return the group of each row."""
    sizes = np.full(case.groups, ROWS)
    if case.sizes == "1:20":
        sizes = np.geomspace(SMALLEST, LARGEST, case.groups).round().astype(np.int64)
    return np.repeat(np.arange(case.groups), sizes)


def draw(case: Case, seed: int) -> dict[str, float]:
    """Return p, the gain in bits with its interval, and the true gain, of one data set."""
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.normal(size=(case.features, 4)))[0].T
    groups = groups_of(case)
    n = len(groups)
    new = np.repeat(np.arange(NEW), ROWS) + case.groups
    X, y, columns = World(case, directions).rows(np.concatenate([groups, new]), rng)
    fresh = np.arange(n, len(y))
    strata = y[:n] if case.classes else np.zeros(n, dtype=int)
    outer = group_folds(strata, groups, FOLDS, seed)
    parts, true = [], []
    for fold in range(FOLDS if case.is_nested else 1):
        train, test = np.flatnonzero(outer != fold), np.flatnonzero(outer == fold)
        rows = train, group_folds(strata[train], groups[train], FOLDS, seed)
        terms, tested = columns.terms(train), np.concatenate([test, fresh])
        if case.classes:
            found = statistics.of_classes(X, y, terms, *rows, tested, GRID)
            own = np.arange(len(fresh)), y[fresh]
            gains = found.joint[len(test) :][own] - found.known[len(test) :][own]
            true.append(gains.mean() / np.log(2))
        else:
            found = statistics.of_numbers(X, y, terms, *rows, tested)
        of_arrays = (one[: len(test)] for one in (found.association, found.known, found.joint))
        parts.append(statistics.Left(test, *of_arrays, found.penalty))
    whole = statistics.over_splits(parts)
    widening = WIDER_OVER_FOLDS if case.is_nested else 1.0
    resamples = Resamples.leave_one_out(groups[whole.test], widening=widening)
    wider = replace(resamples, widening=WIDER_OVER_FOLDS)
    values = {"p": statistics.p_of_signs(whole.association, wider)}
    if case.classes:
        gain = statistics.gain_in_bits(whole, y[whole.test], resamples)
        values |= {"gain": gain.value, "low": gain.ci_low, "high": gain.ci_high}
        values["true"] = float(np.mean(true))
    return values


def rows(case: Case, draws: int) -> Iterator[dict[str, Any]]:
    """Yield rejections of "nothing is left", gains and their coverage, for one kind of data."""
    found = pd.DataFrame([draw(case, seed) for seed in range(draws)])
    p = [None if np.isnan(one) else bool(one < LEVEL) for one in found["p"]]
    row = asdict(Rate.of(p))
    if case.classes:
        is_covered = (found["low"] <= found["true"]) & (found["true"] <= found["high"])
        row |= {"gain": found["gain"].mean(), "true": found["true"].mean()}
        row |= {"bits_rate": (found["low"] > 0).mean(), "coverage": is_covered.mean()}
    yield row


def declared(trap: str, seed: int) -> list[float]:
    """Return whether something is left, and both AUROCs, for a column of one kind.

    The label depends on z, and the activations contain z; of a "consequence" they also contain the
    only cause of the label. Labels of a "collider" are not in the activations.
    """
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(100), ROWS)
    z, u, v, noise = rng.normal(size=(4, len(groups)))
    cause = {"consequence": u, "collider": 0 * u}.get(trap, z)
    y = (rng.logistic(size=len(groups)) < STRENGTH * cause).astype(int)
    X = rng.normal(size=(len(groups), 32))
    X[:, :3] += 2 * np.stack([z if trap != "collider" else 0 * z, u, v], axis=1)
    column = {
        "z": z,
        "z in two values": (z > 0).astype(float),
        "z in four values": np.digitize(z, [-0.67, 0, 0.67]).astype(float),
        "consequence": 3 * y + noise,
        "collider": v + 2 * y + 0.5 * noise,
    }[trap]
    fold = group_folds(y, groups, FOLDS, seed)
    train, test = np.flatnonzero(fold), np.flatnonzero(fold == 0)
    inner = group_folds(y[train], groups[train], FOLDS, seed)
    terms = statistics.Known({"column": column}, {}).terms(train)
    found = statistics.of_classes(X, y, terms, train, inner, test, GRID)
    resamples = Resamples.leave_one_out(groups[test], widening=WIDER_OVER_FOLDS)
    p = statistics.p_of_signs(found.association, resamples)
    aurocs = [roc_auc_score(y[test], one[:, 1]) for one in (found.known, found.joint)]
    return [p < LEVEL, *aurocs]


def residualised(is_fitted_on_all: bool, features: int, seed: int) -> float:
    """Return the AUROC of a probe of activations minus their regression on the only cause.

    The regression is fitted on all rows of 40 groups, or on the training rows; 0.5 is true.
    """
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(40), ROWS)
    z = rng.normal(size=len(groups))
    y = (rng.logistic(size=len(groups)) < STRENGTH * z).astype(int)
    X = rng.normal(size=(len(groups), features))
    X[:, 0] += 2 * z
    fold = group_folds(y, groups, FOLDS, seed)
    train, design = fold != 0, np.stack([np.ones(len(z)), z], axis=1)
    fitted = np.ones(len(z), dtype=bool) if is_fitted_on_all else train
    X -= design @ np.linalg.lstsq(design[fitted], X[fitted], rcond=None)[0]
    model = LogisticRegression(C=0.01, max_iter=500).fit(X[train], y[train])
    return float(roc_auc_score(y[~train], model.decision_function(X[~train])))


def through_probe(case: Case, seed: int) -> float:
    """Return p of `probekit.probe` on two layers; the folds choose one of them."""
    rng = np.random.default_rng([17, seed])
    directions = np.linalg.qr(rng.normal(size=(case.features, 4)))[0].T
    groups = groups_of(case)
    X, y, columns = World(case, directions).rows(groups, rng)
    layers = {0: rng.normal(size=X.shape), 1: X}
    settings = {"C": list(GRID), "folds": 3, "control_draws": 0, "baselines": ["majority"]}
    settings |= {"description": False, "permutations": 0, "seed": seed}
    options = {"groups": groups, "probe": settings, "split": {"folds": FOLDS}, "page": False}
    options["confounds"] = {**columns.numbers, **columns.categories}
    with tempfile.TemporaryDirectory() as folder:
        found = probekit.probe(layers, y, out=folder, progress=False, **options).left
        assert found is not None, "there are confounds"
        return float(found["p"].iloc[0])


def main() -> None:
    """Print the tables of runs, and of columns that should not be declared."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=100)
    draws = parser.parse_args().draws
    for labels, shape, extra in (
        ("mixed", "U", 0.0),
        ("constant", "line", 0.0),
        ("mixed", "U", 0.35),
    ):
        case = Case(labels=labels, shape=shape, extra=extra, features=32)
        p = np.array([through_probe(case, seed) for seed in range(draws)])
        print(f"probekit.probe: {labels}, {shape}, extra {extra}: left {np.mean(p < LEVEL):.2f}")
    for trap in ("z", "z in four values", "z in two values", "consequence", "collider"):
        found = np.mean([declared(trap, seed) for seed in range(draws)], axis=0)
        print(f"{trap:18s} left {found[0]:.2f}, AUROC {found[1]:.2f}, with probe {found[2]:.2f}")
    for features, is_all in product((32, 768), (True, False)):
        auroc = np.mean([residualised(is_all, features, seed) for seed in range(draws)])
        rows = "all" if is_all else "the training"
        print(f"residualised on {rows} rows, {features} features: AUROC {auroc:.2f}")


if __name__ == "__main__":
    main()
