"""Sizes at the edges through `probekit.probe`: fits, outer folds, choice of a layer, tables.

`python -m benchmarks.claims.whole` prints, for each design, in how many draws the p-value of
association is below 5 %, and in how many any difference of the chosen layer from others has an
adjusted p below 5 %. No layer is better than another one, and in the first two designs none has a
signal.

    agree          each of 12 groups has a cluster of a rare label, and clusters share features
    giant label    8 of 48 groups have a label, one of them most of its rows
    skew           the features of a layer fail in a tenth of 40 groups of its own
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import probekit
from probekit.amounts import LEVEL

Array = NDArray[Any]
Drawn = tuple[list[Array], Array, Array]  # layers, labels, groups
LAYERS, FEATURES = 4, 8


def _layers(shared: Array, generator: np.random.Generator, within: float = 0.3) -> list[Array]:
    """Return features whose rows are alike in each cluster (n_rows,)."""
    found = []
    for _ in range(LAYERS):
        common = generator.normal(size=(shared.max() + 1, FEATURES))[shared]
        found.append(common + within * generator.normal(size=common.shape))
    return found


def agree(generator: np.random.Generator) -> Drawn:
    """Return clusters of 6 rows; one in each group has the rare label."""
    cluster = np.repeat(np.arange(12 * 6), 6)
    return _layers(cluster, generator), (cluster % 6 == 0).astype(int), cluster // 6


def giant_label(generator: np.random.Generator) -> Drawn:
    """Return groups with one label each; one is large."""
    groups = np.repeat(np.arange(48), [60, *[4] * 7, *[10] * 40])
    return _layers(groups, generator), (groups < 8).astype(int), groups


def skew(generator: np.random.Generator) -> Drawn:
    """Return features that have the label, except in a few groups of each layer."""
    groups = np.repeat(np.arange(40), 10)
    labels = generator.integers(2, size=len(groups))
    layers = _layers(groups, generator, within=1.0)
    for layer in layers:
        fails = (generator.random(40) < 0.1)[groups]
        layer[:, 0] += 3.0 * (labels - 0.5) * np.where(fails, -1, 1)
    return layers, labels, groups


DESIGNS: dict[str, tuple[Callable[[np.random.Generator], Drawn], str]] = {
    "agree": (agree, "balanced_accuracy"),
    "giant label": (giant_label, "auroc"),
    "skew": (skew, "accuracy"),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=120)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    print("design, metric, folds | association | any difference | draws")
    for name, (design, metric) in DESIGNS.items():
        for folds in (1, 4):
            found = [draw(design, metric, folds, seed) for seed in range(chosen.draws)]
            p, differs = np.array(found, dtype=float).T
            rates = [
                f"{np.nanmean(one):.3f} ({np.isnan(one).mean():.2f} none)" for one in (p, differs)
            ]
            print(f"{name}, {metric}, {folds} | {' | '.join(rates)} | {chosen.draws}", flush=True)


def draw(
    design: Callable[[np.random.Generator], Drawn], metric: str, folds: int, seed: int
) -> tuple[float, float]:
    """Return whether the association, and any difference, is significant; NaN without a verdict."""
    layers, labels, groups = design(np.random.default_rng([13, seed]))
    probe = {
        "C": [0.1],
        "folds": 3,
        "metric": metric,
        "control_draws": 0,
        "baselines": ["majority"],
        "seed": seed % 1000,
    }
    split = {"folds": folds} if folds > 1 else {"test": 0.5}
    with tempfile.TemporaryDirectory() as folder:
        result = probekit.probe(
            dict(enumerate(layers)), labels, groups=groups, probe=probe, split=split, out=folder
        )
        p, table = result.best.p, pd.read_csv(Path(result.folder) / "differences.csv")
    others = table.loc[table["b"] != "majority", "p_adjusted"]
    return _below(p), _below(others.min())


def _below(p: float | None) -> float:
    return np.nan if p is None or np.isnan(p) else float(p < LEVEL)


if __name__ == "__main__":
    main()
