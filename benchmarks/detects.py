"""Coverage of the interval of "detects" over outer folds, with ridge probes on random features.

    python -m benchmarks.detects [--draws 2000]

Rows of a group share a part of their features. Each fold's probe is fitted on the other folds and
projects its own test rows, as in the causal test of a direction. The true AUROC is that of the same
fits on 4,000 new rows. Columns: coverage of the jackknife t interval without the factor for folds,
of the interval of `detection` without it, and of `detection` as the causal test calls it; the share
of draws with a lower limit above 0 by the last one; 95 % bounds of the simulation in brackets.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.claims.over_folds import Design
from benchmarks.patch_tests import rate
from probekit.interventions.verdicts import detection, resamples_of
from probekit.lazy_rows import Codes, Floats
from probekit.probes.score.intervals import jackknife_interval
from probekit.probes.score.metrics import (
    WIDER_OVER_FOLDS,
    ClassPredictions,
    Resamples,
    auroc,
    within_folds,
)

NEW_ROWS, RIDGE = 4000, 10.0


DESIGNS = tuple(
    Design(groups, rows, features, signal, folds)
    for folds in (2, 5)
    for groups, rows, features in ((40, 1, 20), (40, 4, 64), (16, 4, 20))
    for signal in (0.0, 0.5)
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=2000)
    chosen = parser.parse_args()
    print("groups, rows, features, signal, folds | t, no factor | no factor | detects | above 0")
    for design in DESIGNS:
        generator = np.random.default_rng(0)
        events = np.array([draw(design, generator) for _ in range(chosen.draws)]).T
        named = ", ".join(map(str, vars(design).values()))
        print(" | ".join([named, *map(rate, events)]), flush=True)


def draw(design: Design, generator: np.random.Generator) -> tuple[bool, ...]:
    """Return the events of one draw, in the order of the columns."""
    codes, X = _rows(design, design.groups, generator)
    new_codes, new_X = _rows(design, NEW_ROWS // design.rows, generator)
    groups = np.repeat(np.arange(design.groups), design.rows)
    fold = (generator.permutation(design.groups) % design.folds)[groups]
    projections, true = np.empty(len(codes)), 0.0
    for number in range(design.folds):
        tested = fold == number
        own, signs = X[~tested] - X[~tested].mean(axis=0), 2.0 * codes[~tested] - 1
        matrix = own.T @ own + RIDGE * np.eye(design.features)
        direction = np.linalg.solve(matrix, own.T @ (signs - signs.mean()))
        projections[tested] = X[tested] @ direction
        area = auroc(_predictions(new_X @ direction, new_codes), Resamples.whole(len(new_codes)))
        true += tested.mean() * float(area[0]) - tested.mean() / 2
    once = resamples_of(groups)
    areas = within_folds(auroc)(_predictions(projections, codes, fold), once)
    found = [jackknife_interval(areas - 0.5, once)]
    for widening in (1.0, WIDER_OVER_FOLDS):
        found.append(
            detection(projections, codes, groups, fold, draws=1, seed=0, widening=widening)
        )
    return *(bool(one.low <= true <= one.high) for one in found), bool(found[-1].low > 0)


def _rows(design: Design, n_groups: int, generator: np.random.Generator) -> tuple[Codes, Floats]:
    """Return labels, both in each group of several rows, and features."""
    n = n_groups * design.rows
    codes = np.arange(n) % 2 if design.rows > 1 else generator.permutation(np.arange(n) % 2)
    shared = generator.normal(size=(n_groups, design.features))
    X = np.repeat(0.7 * shared, design.rows, axis=0) + generator.normal(size=(n, design.features))
    X[:, 0] += design.signal * (2 * codes - 1)
    return codes, X


def _predictions(scores: Floats, codes: Codes, folds: Codes | None = None) -> ClassPredictions:
    return ClassPredictions(
        codes, (scores > 0).astype(np.int64), 2, np.stack([-scores, scores], axis=1), folds=folds
    )


if __name__ == "__main__":
    main()
