"""Size of the claims of a study: paired settings over data sets, and counts of cells over a rival.

`python -m benchmarks.claims.studies` prints, for each distribution of the differences between two
settings and each number of data sets, the share of draws without a difference in which p < 0.05,
coverage and mean width of the interval of a median of 0.05, and the power at that median. Then, for
each number of cells and correlation between cells, the share of studies without any difference from
a rival with any false result, after both adjustments, and the share of false results on average
(false discovery rate) if a third of the cells are better.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from probekit.amounts import LEVEL
from probekit.probes.score.unpaired import signed_rank
from probekit.results.study import BETTER, FIRST, compared_cells

Array = NDArray[np.float64]

DATA_SETS = (6, 8, 12, 30)
SPREAD, MEDIAN = 0.05, 0.05
ROWS = 100  # of a test set, so that differences of accuracies are tied or 0
LEAD = 4.0  # of cells that are better, in standard errors


def _rounded(rng: np.random.Generator, n: int) -> Array:
    """Return differences (n,) of accuracies on 100 rows."""
    return np.round(rng.normal(0, SPREAD / 2, n) * ROWS) / ROWS


def _unlike(rng: np.random.Generator, n: int) -> Array:
    """Return differences (n,) whose standard deviations differ tenfold between data sets."""
    return SPREAD * rng.normal(size=n) * np.where(np.arange(n) % 4, 0.2, 2.0)


# Distribution of the differences, symmetric about 0.
DIFFERENCES: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "normal": lambda rng, n: SPREAD * rng.normal(size=n),
    "rounded, tied": _rounded,
    "heavy tails": lambda rng, n: SPREAD * rng.standard_t(2, n),
    "unlike data sets": _unlike,
}
# Number of cells, and the correlation between their test statistics.
STUDIES = tuple(product((8, 30, 113), (0.0, 0.5, 0.9)))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    draws = parser.parse_args().draws
    print("differences, data sets | size | coverage, width | power")
    for (name, drawn), n in product(DIFFERENCES.items(), DATA_SETS):
        rng = np.random.default_rng(0)
        null = [signed_rank(drawn(rng, n))[1] < LEVEL for _ in range(draws)]
        planted = [signed_rank(MEDIAN + drawn(rng, n)) for _ in range(draws)]
        limits = np.array([(one.low, one.high) for one, _ in planted])
        is_in = (limits[:, 0] <= MEDIAN + 1e-9) & (limits[:, 1] >= MEDIAN - 1e-9)
        width, power = np.diff(limits).mean(), np.mean([p < LEVEL for _, p in planted])
        print(f"{name}, {n} | {np.mean(null):.4f} | {is_in.mean():.4f}, {width:.3f} | {power:.2f}")
    print("cells, correlation | any false: Holm, Benjamini-Yekutieli | false discovery rate, power")
    for n, correlation in STUDIES:
        rng = np.random.default_rng(0)
        found = np.array([study(rng, n, correlation, 0.0) for _ in range(draws)])
        mixed = np.array([study(rng, n, correlation, LEAD) for _ in range(draws)])
        any_false = (found[..., 0] > 0).mean(axis=0)
        share = (mixed[..., 0] / np.maximum(mixed.sum(axis=2), 1)).mean(axis=0)
        power = mixed[..., 1].mean(axis=0) / (n // 3)
        print(f"{n}, {correlation} | {any_false} | {share} {power}", flush=True)


def study(rng: np.random.Generator, n: int, correlation: float, lead: float) -> Array:
    """Return the false and true results (2, 2) of a study by both adjustments.

    The first third of the cells are better by `lead` standard errors; all others are equal.
    """
    common = np.sqrt(correlation) * rng.normal()
    z = common + np.sqrt(1 - correlation) * rng.normal(size=n)
    is_better = (np.arange(n) < n // 3) & (lead > 0)
    z += lead * is_better
    p = 2 * scipy.stats.norm.sf(np.abs(z))
    table = pd.DataFrame({"cell": range(n), "metric": "accuracy", "error": "", "p": p})
    ends = {"difference": z, "ci_low": z - 1.96, "ci_high": z + 1.96, "p": p}
    rivals = pd.DataFrame({"cell": range(n), "rival": FIRST, **ends, "is_constant": False})
    found = compared_cells(table, rivals, FIRST)[["holm", "fdr"]]
    wrong = found.ne("") & ~(found.eq(BETTER) & is_better[:, None])
    right = found.eq(BETTER) & is_better[:, None]
    return np.stack([wrong.sum(), right.sum()], axis=1)


if __name__ == "__main__":
    main()
