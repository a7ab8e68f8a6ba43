"""Seconds and growth of the statistics with the numbers of rows, groups and sites.

python -m benchmarks.scale            sizes for continuous integration
python -m benchmarks.scale --large    160,000 groups, 384 sites
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from probekit.probes.kinds.left_out import logistic_left_out
from probekit.probes.score.contributions import of_accuracy
from probekit.probes.score.exchange import LabelExchange
from probekit.probes.score.metrics import ClassPredictions, Resamples
from probekit.probes.score.scored import metrics_of
from probekit.probes.solve.layers import AffineLayer
from probekit.probes.training_rows import TrainingRows

GROUP_ROWS = 4  # rows of each group in the exchanges of labels
GROUPS = 4000
DRAWS_A_SITE, MOST_DRAWS = 80, 20_000  # as in a run


def predictions(n_rows: int, seed: int = 0) -> ClassPredictions:
    """Return predictions of two classes that are better than chance."""
    generator = np.random.default_rng(seed)
    truth = generator.integers(2, size=n_rows)
    scores = generator.normal(size=(n_rows, 2))
    scores[np.arange(n_rows), truth] += 0.5
    return ClassPredictions.of_scores(truth, scores, are_logits=True, positive=1)


def jackknife(n_groups: int) -> None:
    """Compute the jackknife of four metrics, each row in a group of its own."""
    given, resamples = predictions(n_groups), Resamples.leave_one_out(np.arange(n_groups))
    for name in ("accuracy", "balanced_accuracy", "auroc", "brier"):
        metrics_of(given)[name](given, resamples)


def exchange(n_sites: int) -> None:
    """Compute the null distribution of the accuracy at so many sites."""
    generator = np.random.default_rng(0)
    codes = np.repeat(generator.integers(2, size=GROUPS), GROUP_ROWS)
    groups, folds = np.repeat(np.arange(GROUPS), GROUP_ROWS), np.zeros(len(codes), dtype=np.int64)
    draws = min(DRAWS_A_SITE * n_sites, MOST_DRAWS)
    labels = np.eye(2)[codes]
    rows = []
    for _ in range(n_sites):
        guess = np.where(generator.random(len(codes)) < 0.6, codes, 1 - codes)
        rows.append(of_accuracy(ClassPredictions(codes, guess, 2)))
    LabelExchange.of(labels, groups, folds, draws, seed=0).null(rows)


def left_out(n_rows: int) -> None:
    """Compute the scores of single rows by fits without them, with 256 features."""
    generator = np.random.default_rng(0)
    X = generator.standard_normal((n_rows, 256), dtype=np.float32)
    layer = AffineLayer(0.02 * generator.standard_normal((1, 256)), np.zeros(1))
    data = TrainingRows(X, generator.integers(2, size=n_rows), groups=np.arange(n_rows))
    logistic_left_out(data, layer, C=1.0)


def measured(work: Callable[[int], None], sizes: Sequence[int]) -> Iterator[str]:
    """Yield the processor seconds at each size, then the exponent of growth."""
    work(sizes[0] // 10 or 1)  # imports and caches
    seconds = []
    for size in sizes:
        start = time.process_time()
        work(size)
        seconds.append(time.process_time() - start)
        yield f"{size:,}: {seconds[-1]:.2f} s"
    growth = math.log(seconds[-1] / max(seconds[0], 1e-4)) / math.log(sizes[-1] / sizes[0])
    yield f"exponent {growth:.2f}"


def main() -> None:
    """Print the seconds of each kind of work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true")
    large = 4 if parser.parse_args().large else 1
    for name, work, sizes in (
        ("jackknife, groups", jackknife, [10_000, 20_000, 40_000]),
        ("exchanges, sites", exchange, [24, 48, 96]),
        ("left out, rows", left_out, [4_000, 8_000, 16_000]),
    ):
        print(f"{name}: {', '.join(measured(work, [large * size for size in sizes]))}", flush=True)


if __name__ == "__main__":
    main()
