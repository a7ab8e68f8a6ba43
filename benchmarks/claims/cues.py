"""Size of the difference between test texts without cues and without as many random words.

`python -m benchmarks.claims.cues` prints the share of draws with p < 0.05 if dropping a cue changes
the score of a text as dropping any other word does: at most 0.05, with a Monte Carlo standard
error of 0.007. The last column is the same share if cues contain the signal.
"""

import argparse
from itertools import product

import numpy as np

from probekit.pipeline.measure.selected_probe import leakage_rows
from probekit.probes.score.metrics import ClassPredictions

DRAWS_OF_WORDS = 5


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    n_draws = parser.parse_args().draws
    print("metric groups rows of a group, share of texts with cues | size | power")
    cases = product(("accuracy", "auroc"), ((100, 1), (20, 1), (12, 8), (30, 4)), (1.0, 0.3))
    for metric, (n_groups, n_rows), share in cases:
        shares = []
        for signal in (1.0, 0.0):
            rng = np.random.default_rng(0)
            p = [p_value(metric, n_groups, n_rows, share, signal, rng) for _ in range(n_draws)]
            shares.append(np.mean(np.array(p) < 0.05))
        print(metric, n_groups, n_rows, share, "| {:.3f} | {:.3f}".format(*shares), flush=True)


def p_value(
    metric: str, n_groups: int, n_rows: int, share: float, signal: float, rng: np.random.Generator
) -> float:
    """Return the p-value of one draw; without cues, this share of the signal is left."""
    groups = np.repeat(np.arange(n_groups), n_rows)
    n, truth = len(groups), rng.integers(0, 2, n_groups * n_rows)
    noise = rng.normal(size=n) + 0.5 * rng.normal(size=n_groups)[groups]
    has_cue = rng.random(n) < share

    def predictions(left: float) -> ClassPredictions:
        """Return predictions without some words of the texts with cues."""
        change = rng.normal(size=n) + 0.5 * rng.normal(size=n_groups)[groups]
        scores = 1.2 * (2 * truth - 1) * np.where(has_cue, left, 1) + noise + has_cue * change
        of_classes = np.stack([np.zeros(n), scores], axis=1)
        return ClassPredictions(truth, (scores > 0).astype(int), 2, of_classes)

    without, *random = (predictions(left) for left in (signal, *[1.0] * DRAWS_OF_WORDS))
    rows = leakage_rows(without, without, random, groups, metric)
    return float(next(rows)[-1])


if __name__ == "__main__":
    main()
