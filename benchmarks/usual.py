"""Processor seconds of whole calls on the shapes that people bring, compared with scikit-learn.

    python -m benchmarks.usual [--part wide|many|classes|excess] [--repeats 3]

Ours is `probekit.probe` with its defaults and 5 outer folds: fits, control task, description
length, intervals, comparisons, records and page. Theirs is `StandardScaler` and
`LogisticRegressionCV` in the same nested folds, and nothing else. Both run on one core, in one
process, one after the other; the table has the medians of several seeds.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from statistics import median

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegressionCV
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import probekit
from probekit.lazy_rows import Codes
from probekit.probes.kinds.registry import C_GRID
from probekit.products import threads

Rows = NDArray[np.float32]
N_GROUPS = 200


def power_law(n_rows: int, n_features: int, seed: int) -> Rows:
    """Return rows whose variances fall as a power of the rank, with one massive feature."""
    generator = np.random.default_rng(seed)
    n_axes = min(n_rows, n_features)
    spread = np.arange(1, n_axes + 1) ** -0.5
    mixing = generator.normal(size=(n_axes, n_features)) / np.sqrt(n_features)
    X = (generator.normal(size=(n_rows, n_axes)) * spread) @ mixing
    X = X / X.std() + 0.3 * generator.normal(size=n_features)
    X[:, 7] = 250 + 5 * generator.normal(size=n_rows)
    return X.astype(np.float32)


def isotropic(n_rows: int, n_features: int, seed: int) -> Rows:
    """Return rows of independent features."""
    generator = np.random.default_rng(seed)
    return generator.normal(size=(n_rows, n_features)).astype(np.float32)


def labelled(X: Rows, seed: int, noise: float = 1.0) -> Codes:
    """Return two classes (n_rows,) that a direction of the rows predicts, with noise."""
    generator = np.random.default_rng(seed + 1000)
    score = (X - X.mean(axis=0)) @ generator.normal(size=X.shape[1])
    score = score / score.std() + noise * generator.normal(size=len(X))
    return (score > np.median(score)).astype(np.int64)


def ours(layers: dict[str, Rows], y: Codes, groups: NDArray[np.str_]) -> None:
    """Probe all layers in one call."""
    names = np.array(["no", "yes"])[y] if y.max() < 2 else y.astype(str)
    with tempfile.TemporaryDirectory() as folder, threads(1):
        probekit.probe(
            layers, names, groups=groups, split={"folds": 5}, out=folder, workers=1, progress=False
        )


def theirs(layers: dict[str, Rows], y: Codes, groups: NDArray[np.str_]) -> None:
    """Fit and tune all layers in nested folds."""
    with threads(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for X in layers.values():
            outer = StratifiedGroupKFold(5, shuffle=True, random_state=0)
            for train, test in outer.split(X, y, groups):
                inner = StratifiedGroupKFold(5, shuffle=True, random_state=0)
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


def wide(repeats: int) -> None:
    """Print the table of few rows and many features."""
    ours({"warm": isotropic(60, 8, 0)}, np.arange(60) % 2, np.arange(60).astype(str))
    print(f"{'rows':34} {'ours s':>8} {'theirs s':>9} {'faster':>7}")
    shapes = [
        ("power-law", power_law, 1000, 4096, 2),
        ("power-law", power_law, 1000, 768, 8),
        ("isotropic", isotropic, 1000, 768, 8),
    ]
    for name, generator, n_rows, n_features, n_layers in shapes:
        times = []
        for seed in range(repeats):
            layers = {
                f"layer{i}": generator(n_rows, n_features, 100 * seed + i) for i in range(n_layers)
            }
            y = labelled(layers["layer0"], seed)
            groups = (np.arange(n_rows) % N_GROUPS).astype(str)
            own = seconds(lambda: ours(layers, y, groups))  # noqa: B023
            times.append((own, seconds(lambda: theirs(layers, y, groups))))  # noqa: B023
        own, other = (median(column) for column in zip(*times, strict=True))
        shape = f"{name}, {n_rows:,} x {n_features:,}, {n_layers} layers"
        print(f"{shape:34} {own:8.2f} {other:9.2f} {other / own:7.2f}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Time whole calls on the usual shapes.")
    parser.add_argument("--part", choices=["wide"], default="wide")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {0})
    {"wide": wide}[options.part](options.repeats)


if __name__ == "__main__":
    main()
