"""False positive rates on new negatives at the thresholds of a monitor, compared with their bounds.

Each draw is a new set of negatives, whose scores have a known distribution, so that the rate at the
threshold is exact. Both methods read the same scores:

groups   the package: each group counts once
rows     each row counts, as if rows of a group were independent
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from benchmarks.claims.rates import Rate
from probekit.chosen.monitor.measure import fixed_threshold, groups_needed
from probekit.lazy_rows import Floats

BURST = 6.0  # standard deviations by which the scores of a group of the rare kind are higher
SHARE = (
    1.1  # rows of the rare kind, as a multiple of the rate: a threshold must exceed their scores
)
LARGER = 4  # times as many rows in larger groups of the rare kind
DEPENDENCES = ("none", "correlated", "bursts", "large bursts")


@dataclass(frozen=True)
class Negatives:
    """Negatives of a monitor.

    Attributes:
        fpr: requested false positive rate.
        groups: number of groups, as a multiple of the smallest number that allows the rate.
        sizes: rows of a group: "1", "10", or "1:20" for 1 to 20 with equal probability.
        dependence: "none"; "correlated" scores, which share 0.5 of their variance; "bursts": a
            rare kind of group whose rows all have high scores; "large bursts": these are larger.
    """

    fpr: float
    groups: float
    sizes: str
    dependence: str

    @property
    def burst(self) -> float:
        """The share of groups of the rare kind."""
        return SHARE * self.fpr if "bursts" in self.dependence else 0.0

    def draw(self, generator: np.random.Generator) -> tuple[Floats, NDArray[np.int64]]:
        """Return the score and the group of each row."""
        n_groups = round(self.groups * groups_needed(self.fpr))
        low, _, high = self.sizes.partition(":")
        sizes = generator.integers(int(low), int(high or low) + 1, size=n_groups)
        is_burst = generator.random(n_groups) < self.burst
        if self.dependence == "large bursts":
            sizes[is_burst] *= LARGER
        group = np.repeat(np.arange(n_groups), sizes)
        shared = 0.5 if self.dependence == "correlated" else 0.0
        scores = np.sqrt(shared) * generator.normal(size=n_groups)[group]
        scores += np.sqrt(1 - shared) * generator.normal(size=len(group))
        return scores + BURST * is_burst[group], group

    def rate(self, threshold: float) -> float:
        """Return the false positive rate at a threshold, over new groups that count once each."""
        high, usual = norm.sf([threshold - BURST, threshold])
        return float(self.burst * high + (1 - self.burst) * usual)


def cases() -> Iterator[Negatives]:
    """Yield all designs; rows without groups have no dependence."""
    for fpr, groups in (*product((0.05, 0.01), (1.02, 3.0)), (0.001, 1.02)):
        yield Negatives(fpr, groups, "1", "none")
        for sizes, dependence in product(("10", "1:20"), DEPENDENCES):
            yield Negatives(fpr, groups, sizes, dependence)


def rows(case: Negatives, draws: int) -> Iterator[dict[str, Any]]:
    """Yield for each method the share of draws whose rate exceeds its bound, and the mean rate."""
    generator = np.random.default_rng(7)
    exceeds: dict[str, list[bool | None]] = {"groups": [], "rows": []}
    achieved: dict[str, list[float]] = {"groups": [], "rows": []}
    for _ in range(draws):
        scores, group = case.draw(generator)
        for method, groups in (("groups", group), ("rows", np.arange(len(group)))):
            threshold, bound = fixed_threshold(scores, groups, case.fpr)
            rate = case.rate(threshold)
            exceeds[method].append(rate > bound)
            achieved[method].append(rate)
    for method, found in exceeds.items():
        yield {"method": method, **vars(Rate.of(found)), "achieved": np.mean(achieved[method])}
