"""Intervals and differences of scores over outer folds, with ridge probes refitted in each draw.

`python -m benchmarks.claims.over_folds` prints, for each design, the coverage of the 95 % interval
of a score and of the difference between two probes that read independent features of the same rows,
and the share of significant differences, once as the package computes them and once without
widening. The true score is that of the same fits on 4,000 new rows.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from probekit.amounts import LEVEL
from probekit.probes.score.differences import paired_differences
from probekit.probes.score.intervals import Interval, jackknife_interval
from probekit.probes.score.metrics import WIDER_OVER_FOLDS, ClassPredictions, Resamples, accuracy

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

NEW_ROWS = 4000
RIDGE = 10.0
WIDENINGS = (WIDER_OVER_FOLDS, 1.0)


@dataclass(frozen=True)
class Design:
    """Sizes of a data set, its signal in standard deviations, and the number of outer folds."""

    groups: int
    rows: int
    features: int
    signal: float
    folds: int


DESIGNS = (
    Design(40, 1, 20, 0.0, 5),
    Design(40, 3, 20, 0.0, 5),
    Design(40, 3, 20, 0.5, 5),
    Design(40, 3, 20, 1.2, 5),
    Design(40, 3, 100, 0.5, 5),
    Design(12, 10, 20, 0.0, 3),
    Design(100, 1, 20, 0.5, 10),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    rng = np.random.default_rng(chosen.seed)
    print("groups rows features signal folds widening | score, difference: coverage | size")
    for design in DESIGNS:
        found = np.mean([draw(design, rng) for _ in range(chosen.draws)], axis=0)
        for widening, (score, difference, size) in zip(WIDENINGS, found, strict=True):
            sizes = (design.groups, design.rows, design.features, design.signal, design.folds)
            print(*sizes, widening, "|", f"{score:.3f} {difference:.3f} | {size:.3f}", flush=True)


def draw(design: Design, rng: np.random.Generator) -> Array:
    """Return, for each widening, whether both intervals cover and the difference is significant."""
    groups, labels = _rows(design, design.groups, rng)
    _, new_labels = _rows(design, NEW_ROWS // design.rows, rng)
    fold = rng.permutation(np.arange(design.groups) % design.folds)[groups]
    answers, truths = [], []
    for _ in range(2):
        own, new = (_features(design, y, rng) for y in (labels, new_labels))
        guess, true = np.empty(len(labels), np.int64), 0.0
        for number in range(design.folds):
            tested = fold == number
            weights = _ridge(own[~tested], labels[~tested])
            guess[tested] = _predicted(weights, own[tested])
            true += tested.mean() * float((_predicted(weights, new) == new_labels).mean())
        answers.append(ClassPredictions(labels, guess, 2))
        truths.append(true)
    once = Resamples.leave_one_out(groups)
    scores = [accuracy(one, once) for one in answers]
    found = []
    for widening in WIDENINGS:
        resamples = replace(once, widening=widening)
        (difference,) = paired_differences([(scores[0], scores[1])], resamples)
        score = jackknife_interval(scores[0], resamples, (0, 1))
        of_difference = Interval(difference.value, difference.ci_low, difference.ci_high)
        covered = _covers(score, truths[0]), _covers(of_difference, truths[0] - truths[1])
        found.append((*covered, difference.p < LEVEL))
    return np.array(found, np.float64)


def _rows(design: Design, n_groups: int, rng: np.random.Generator) -> tuple[Labels, Labels]:
    groups = np.repeat(np.arange(n_groups), design.rows)
    return groups, rng.integers(0, 2, len(groups))


def _features(design: Design, labels: Labels, rng: np.random.Generator) -> Array:
    shape = (len(labels) // design.rows, design.features)
    shared = 0.7 * np.repeat(rng.normal(size=shape), design.rows, axis=0)
    features: Array = shared + rng.normal(size=shared.shape)
    features[:, 0] += design.signal * (2 * labels - 1)
    return features


def _ridge(features: Array, labels: Labels) -> tuple[Array, float]:
    centre, offset = features.mean(0), 2 * labels.mean() - 1
    centred = features - centre
    matrix = centred.T @ centred + RIDGE * np.eye(features.shape[1])
    weights: Array = np.linalg.solve(matrix, centred.T @ (2 * labels - 1 - offset))
    return weights, float(offset - centre @ weights)


def _predicted(fit: tuple[Array, float], features: Array) -> Labels:
    weights, intercept = fit
    return (features @ weights + intercept > 0).astype(np.int64)


def _covers(interval: Interval, value: float) -> bool:
    return interval.low <= value <= interval.high


if __name__ == "__main__":
    main()
