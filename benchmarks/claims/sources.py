"""Intervals over few sources that are left out whole, with ridge probes refitted in each draw.

`python -m benchmarks.claims.sources` prints, for each design and number of sources, the expected
scores on a new source and inside the sources, and coverage and mean width of the interval of the
mean over sources, once as the package computes it and once by Student's t. The expected score is
the mean over all draws, because each draw has new sources. With `--above` it prints the share of
sources whose score is above that of the majority class, once by the interval of the difference, as
the package does, and once by that of the score.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from probekit.probes.score.intervals import Interval, mean_interval, t_quantile
from probekit.probes.score.metrics import ClassPredictions, Resamples, accuracy, auroc
from probekit.probes.score.scored import lead_over, uninformed, with_interval

Array = NDArray[np.float64]

SOURCES = (3, 5, 10)
FEATURES = 10
RIDGE = 10.0
FOLDS = 5  # inside the sources
METRICS = {"accuracy": accuracy, "auroc": auroc}


@dataclass(frozen=True)
class Design:
    """How sources differ.

    Attributes:
        name: name in the table.
        rows: rows of each source.
        signal: strength of a feature that predicts the label in all sources alike.
        shortcut: mean strength of a feature whose strength differs between sources.
        spread: standard deviation of that strength, and of the mean of all features.
        reversed: share of sources in which the sign of the shortcut is reversed.
    """

    name: str
    rows: int
    signal: float
    shortcut: float = 0.0
    spread: float = 0.0
    reversed: float = 0.0


NO_SIGNAL = (Design("no signal", 40, 0.0), Design("no signal", 200, 0.0))
DESIGNS = (
    Design("alike", 40, 1.0),
    Design("alike, nearly perfect", 40, 2.5),
    Design("different", 40, 0.7, 0.7, 0.7),
    Design("different", 200, 0.7, 0.7, 0.7),
    Design("different, nearly perfect", 200, 1.5, 1.0, 0.7),
    Design("one in three reversed", 200, 0.7, 1.0, 0.2, 1 / 3),
    Design("one in ten reversed", 200, 0.7, 1.0, 0.2, 0.1),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--above", action="store_true", help="count sources above chance instead")
    chosen = parser.parse_args()
    if chosen.above:
        print_above(chosen.draws)
        return
    print("design rows sources metric | true inside | coverage width | by t: coverage width")
    for design, n_sources in product(DESIGNS, SOURCES):
        rng, n_rows = np.random.default_rng(0), n_sources * design.rows
        drawn = np.array([draw(design, n_sources, rng) for _ in range(chosen.draws)])
        for number, metric in enumerate(METRICS):
            # Scores (n_draws, n_sources), left out and inside.
            whole, inside = np.moveaxis(drawn[:, :, number], 1, 0)
            true = float(whole.mean())
            found = [mean_interval(scores, n_rows, (0, 1)) for scores in whole]
            columns = (_coverage(found, true), _coverage([_by_t(one) for one in whole], true))
            means = f"{true:.3f} {inside.mean():.3f}"
            print(design.name, design.rows, n_sources, metric, "|", means, *columns, flush=True)


def print_above(draws: int) -> None:
    """Print the share of sources above chance, without and with a signal."""
    print("design rows sources metric | by the difference, by the score")
    for design, n_sources in product((*NO_SIGNAL, *DESIGNS[:1]), SOURCES):
        rng, found = np.random.default_rng(0), []
        for _ in range(draws // n_sources):
            whole, _ = predictions(design, n_sources, rng)
            labels = [one.truth for one in whole]
            for number, one in enumerate(whole):
                others = np.concatenate(labels[:number] + labels[number + 1 :])
                guess = uninformed(others, one)
                resamples = Resamples.leave_one_out(np.arange(len(one.truth)))
                for name, function in METRICS.items():
                    level = function(guess, Resamples.whole(len(one.truth)))[0]
                    lead = lead_over(name, [one], [guess], resamples)
                    found.append((lead.low > 0, with_interval(name, [one], resamples).low > level))
        rates = np.reshape(found, (-1, len(METRICS), 2)).mean(axis=0)
        for name, (by_difference, by_score) in zip(METRICS, rates, strict=True):
            shown = f"{by_difference:.3f} {by_score:.3f}"
            print(design.name, design.rows, n_sources, name, "|", shown, flush=True)


def draw(design: Design, n_sources: int, rng: np.random.Generator) -> Array:
    """Return the scores (2, n_metrics, n_sources) of sources left out whole, and inside them."""
    whole = Resamples.whole(design.rows)
    scores = [
        [[function(one, whole)[0] for one in of_place] for function in METRICS.values()]
        for of_place in predictions(design, n_sources, rng)
    ]
    return np.array(scores)


def predictions(
    design: Design, n_sources: int, rng: np.random.Generator
) -> list[list[ClassPredictions]]:
    """Return the predictions for each source, left out whole, and inside them."""
    source = np.repeat(np.arange(n_sources), design.rows)
    sign = 2.0 * rng.integers(0, 2, len(source)) - 1
    X = rng.normal(size=(len(source), FEATURES))
    X += design.spread * rng.normal(size=(n_sources, FEATURES))[source]
    strength = design.shortcut + design.spread * rng.normal(size=n_sources)
    strength *= np.where(rng.random(n_sources) < design.reversed, -1, 1)
    X[:, 0] += design.signal * sign
    X[:, 1] += strength[source] * sign
    fold = np.arange(len(source)) % FOLDS
    found = []
    for parts in (source, fold):
        outputs = np.empty(len(source))
        for part in range(parts.max() + 1):
            tested = parts == part
            outputs[tested] = _ridge(X[~tested], sign[~tested], X[tested])
        truth, guess = (sign > 0).astype(np.int64), (outputs > 0).astype(np.int64)
        both = np.column_stack([-outputs, outputs])
        of_source = [np.flatnonzero(source == one) for one in range(n_sources)]
        found.append([ClassPredictions(truth[i], guess[i], 2, both[i]) for i in of_source])
    return found


def _ridge(X: Array, y: Array, new: Array) -> Array:
    """Return the outputs of a ridge probe for new rows."""
    centre, offset = X.mean(0), y.mean()
    centred = X - centre
    matrix = centred.T @ centred + RIDGE * np.eye(FEATURES)
    outputs: Array = (new - centre) @ np.linalg.solve(matrix, centred.T @ (y - offset)) + offset
    return outputs


def _by_t(scores: Array) -> Interval:
    """Return the t interval of the mean."""
    mean, n = float(scores.mean()), len(scores)
    margin = t_quantile(n - 1) * float(scores.std(ddof=1)) / np.sqrt(n)
    return Interval(mean, mean - margin, mean + margin)


def _coverage(intervals: list[Interval], true: float) -> str:
    """Return the share of the intervals that contain the true value, and their mean width."""
    covered = np.mean([one.low <= true <= one.high for one in intervals])
    width = np.mean([one.high - one.low for one in intervals])
    return f"| {covered:.3f} {width:.2f}"


if __name__ == "__main__":
    main()
