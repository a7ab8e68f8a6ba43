"""Processor seconds of whole calls on the shapes that people bring, compared with scikit-learn.

    python -m benchmarks.usual [--part wide|many|classes|excess|choices] [--repeats 3] [--rows DIR]

Ours is `probekit.probe` with its defaults: fits, control task, description length, intervals,
comparisons, records and page. Theirs is `StandardScaler` and `LogisticRegressionCV` in the same
nested folds, and nothing else. Both run on one core, in one process, one after the other; tables
have the medians of several seeds.

`wide` has few rows and 5 outer folds, also of the activations (.npy files of one array per site) in
a folder; `many` has many rows, one split, and no control task or description length; `classes` has
the search of many classes; `excess` compares fits with a reference that is solved to 1e-10;
`choices` compares rules for C by the accuracy and the log loss on rows that no fit has seen.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import probekit
from probekit.lazy_rows import Codes
from probekit.probes.kinds.registry import C_GRID
from probekit.probes.solve.fits import Tuning, fit_columns, rate_scores
from probekit.probes.solve.layers import apply_layers
from probekit.probes.solve.solver import Fit, Problem, Solver
from probekit.products import threads

Rows = NDArray[Any]
Layers = dict[str, Rows]
Drawn = tuple[Layers, Codes]
Draw = Callable[[int, int, int], Rows]
N_GROUPS = 200
HEADER = f"{'rows':40} {'ours s':>8} {'theirs s':>9} {'faster':>7}"


def power_law(n_rows: int, n_features: int, seed: int) -> Rows:
    """Return rows whose variances fall as a power of the rank, with one massive feature."""
    generator = np.random.default_rng(seed)
    n_axes = min(n_rows, n_features)
    spread = np.arange(1, n_axes + 1) ** -0.5
    mixing = generator.normal(size=(n_axes, n_features)) / np.sqrt(n_features)
    X = (generator.normal(size=(n_rows, n_axes)) * spread) @ mixing
    X = X / X.std() + 0.3 * generator.normal(size=n_features)
    X[:, 7] = 250 + 5 * generator.normal(size=n_rows)
    found: Rows = X.astype(np.float32)
    return found


def isotropic(n_rows: int, n_features: int, seed: int) -> Rows:
    """Return rows of independent features."""
    generator = np.random.default_rng(seed)
    return generator.normal(size=(n_rows, n_features)).astype(np.float32)


def labelled(X: Rows, seed: int, noise: float = 1.0) -> Codes:
    """Return two classes (n_rows,) that a direction of the rows predicts, with noise."""
    generator = np.random.default_rng(seed + 1000)
    score = (X - X.mean(axis=0)) @ generator.normal(size=X.shape[1])
    score = score / score.std() + noise * generator.normal(size=len(X))
    found: Codes = (score > np.median(score)).astype(np.int64)
    return found


def ours(layers: Layers, y: Codes, groups: NDArray[np.str_], **how: Any) -> None:
    """Probe all layers in one call."""
    names = np.array(["no", "yes"])[y]
    with tempfile.TemporaryDirectory() as folder, threads(1):
        probekit.probe(layers, names, groups=groups, out=folder, workers=1, progress=False, **how)


def theirs(layers: Layers, y: Codes, groups: NDArray[np.str_], n_outer: int) -> None:
    """Fit and tune all layers in nested folds, or in one split."""
    outer = StratifiedGroupKFold(5, shuffle=True, random_state=0)
    inner = StratifiedGroupKFold(5, shuffle=True, random_state=0)
    with threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for X in layers.values():
            for train, test in list(outer.split(X, y, groups))[:n_outer]:
                search = LogisticRegressionCV(
                    Cs=C_GRID,
                    cv=list(inner.split(X[train], y[train], groups[train])),
                    l1_ratios=(0,),
                    scoring="accuracy",
                    use_legacy_attributes=False,
                    max_iter=1000,
                )
                make_pipeline(StandardScaler(), search).fit(X[train], y[train]).predict(X[test])


def seconds(work: Callable[[], object]) -> float:
    """Return the processor seconds of a call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def compare(
    name: str, repeats: int, make: Callable[[int], tuple[Layers, Codes]], **how: Any
) -> None:
    """Print a line of a table: our seconds, theirs, and their ratio."""
    times = []
    for seed in range(repeats):
        layers, y = make(seed)
        groups = (np.arange(len(y)) % N_GROUPS).astype(str)
        own = seconds(partial(ours, layers, y, groups, **how))
        folds = 5 if "folds" in how["split"] else 1
        times.append((own, seconds(partial(theirs, layers, y, groups, folds))))
    own, other = (median(column) for column in zip(*times, strict=True))
    print(f"{name:40} {own:8.2f} {other:9.2f} {other / own:7.2f}", flush=True)


def drawn(generator: Draw, n_rows: int, n_features: int, n_layers: int, seed: int) -> Drawn:
    """Return layers of rows from a generator, and two classes that the first layer predicts."""
    layers = {f"l{i}": generator(n_rows, n_features, 100 * seed + i) for i in range(n_layers)}
    return layers, labelled(layers["l0"], seed)


def stored(folder: Path, seed: int) -> Drawn:
    """Return the arrays of a folder, and two classes that a layer in the middle predicts."""
    layers = {path.stem: np.load(path) for path in sorted(folder.glob("*.npy"))}
    return layers, labelled(list(layers.values())[len(layers) // 2], seed)


def wide(repeats: int, folder: Path | None) -> None:
    """Print the table of few rows and many features."""
    print(HEADER)
    shapes: list[tuple[str, Draw, int, int, int]] = [
        ("power-law", power_law, 1000, 4096, 8),
        ("power-law", power_law, 1000, 768, 8),
        ("isotropic", isotropic, 1000, 768, 8),
    ]
    for name, generator, *sizes in shapes:
        shape = f"{name}, {sizes[0]:,} x {sizes[1]:,}, {sizes[2]} layers"
        compare(shape, repeats, partial(drawn, generator, *sizes), split={"folds": 5})
    if folder is not None:
        compare(
            f"the arrays in {folder.name}", repeats, partial(stored, folder), split={"folds": 5}
        )


def many(repeats: int) -> None:
    """Print the table of many rows."""
    print(HEADER)
    bare = {"control_draws": 0, "description": False}
    for name, generator, n_rows in (
        ("isotropic", isotropic, 50_000),
        ("power-law", power_law, 30_000),
    ):
        make = partial(drawn, generator, n_rows, 768, 1)
        compare(f"{name}, {n_rows:,} x 768, one split", repeats, make, split={}, probe=bare)


def classes() -> None:
    """Print the seconds of the search for C and the final fit of many classes."""
    for n_classes in (17, 250, 1000):
        random = np.random.default_rng(0)
        y = np.arange(6000) % n_classes
        X = random.normal(size=(n_classes, 48))[y] + random.normal(size=(6000, 48))
        with threads(1):
            spent = seconds(partial(fit_columns, X.astype(np.float32), [y], y * 7 % 5, C_GRID))
        print(f"{n_classes:5} classes, 6,000 x 48: {spent:6.1f} s", flush=True)


def excess(repeats: int) -> None:
    """Print the largest relative excess of fits of a search over a tight reference."""
    found = []
    for seed in range(repeats):
        for generator, n_classes in product((power_law, isotropic), (2, 3)):
            X = generator(200, 300, seed)
            scores = (X - X.mean(axis=0)) @ np.random.default_rng(seed).normal(
                size=(300, n_classes)
            )
            y = (scores / scores.std() + np.random.default_rng(1).gumbel(size=scores.shape)).argmax(
                1
            )
            shares = [np.arange(200) % 5 != fold for fold in range(5)]
            problems = [Problem(y, C, share) for C in C_GRID for share in range(5)]
            for one, fit in zip(problems, Solver(X, shares).solve(problems), strict=True):
                found.append(
                    _excess(X[shares[one.share]].astype(np.float64), y[shares[one.share]], fit)
                )
    print(f"{len(found)} fits: largest excess {max(found):.1e}, smallest {min(found):.1e}")


RULES = {"log loss within a row": None, "most correct, smallest C": rate_scores}


def choices(repeats: int) -> None:
    """Print how two rules for C do on 4,000 unseen rows: the mean of 100 draws and its error."""
    print(f"{'rows':28} {'rule':26} {'accuracy':>16} {'log loss':>16} {'decided by loss':>16}")
    for (name, draw), n_rows, noise in product(
        {"power-law": power_law, "isotropic": isotropic}.items(), (120, 400), (0.2, 1.0, 8.0)
    ):
        found: dict[str, list[tuple[float, float, float]]] = {rule: [] for rule in RULES}
        for seed in range(100 * repeats):
            X = draw(n_rows + 4000, 192, seed)
            y = labelled(X, seed, noise)
            folds = np.random.default_rng(seed).permutation(n_rows) % 5
            for rule, judge in RULES.items():
                how = {"tuning": Tuning(judge=judge)}
                (fit,) = fit_columns(X[:n_rows], [y[:n_rows]], folds, C_GRID, **how)
                scores = fit.solution.by_class(apply_layers(fit.solution.layers, X[n_rows:]), 2)
                losses = -log_softmax(scores, axis=1)[np.arange(4000), y[n_rows:]]
                accuracy = float((scores.argmax(axis=1) == y[n_rows:]).mean())
                found[rule].append((accuracy, float(losses.mean()), float(bool(fit.is_close))))
        for rule, values in found.items():
            mean = np.mean(values, axis=0)
            error = np.std(values, axis=0) / np.sqrt(len(values))
            shown = [f"{a:9.4f} ± {b:.4f}" for a, b in zip(mean[:2], error, strict=False)]
            case = f"{name}, {n_rows} rows, noise {noise}"
            print(f"{case:28} {rule:26} {' '.join(shown)} {mean[2]:16.2f}", flush=True)


def _excess(X: Rows, y: Codes, fit: Fit) -> float:
    """Return the relative excess of the objective of a fit over a tight reference."""
    scale = X.std(axis=0)
    scale[scale == 0] = 1
    Z = (X - X.mean(axis=0)) / scale
    reference = LogisticRegression(C=fit.C, tol=1e-10, max_iter=100_000).fit(Z, y)
    values = []
    for coef, intercept in (
        (fit.coef * scale, fit.intercept + fit.coef @ X.mean(axis=0)),
        (reference.coef_, reference.intercept_),
    ):
        scores = Z @ coef.T + intercept
        scores = np.column_stack([0 * scores, scores]) if len(coef) == 1 else scores
        losses = logsumexp(scores, axis=1) - scores[np.arange(len(y)), y]
        values.append(losses.sum() + (coef**2).sum() / (2 * fit.C))
    return float(values[0] / values[1] - 1)


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "wide": lambda options: wide(options.repeats, options.rows),
    "many": lambda options: many(options.repeats),
    "classes": lambda _: classes(),
    "excess": lambda options: excess(options.repeats),
    "choices": lambda options: choices(options.repeats),
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Time whole calls on the usual shapes.")
    parser.add_argument("--part", choices=PARTS, default="wide")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=Path, help="folder of .npy files")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {0})
    warm = {"warm": isotropic(60, 8, 0)}
    ours(warm, np.arange(60) % 2, np.arange(60).astype(str), split={"folds": 5})
    PARTS[options.part](options)


if __name__ == "__main__":
    main()
