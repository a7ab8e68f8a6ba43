"""Sizes and power of the p-values of patches, and coverage of the intervals, by simulation.

    python -m benchmarks.patch_tests [--draws 2000] [--only equal|unequal|power]

The mean effects of the groups of pairs have a standard deviation of 1 and the distribution in the
table; the left exponential has a skewness of -2, the lognormal of 6.2. Mirrored effects have the
same rates, because tests and intervals mirror. Groups have one pair each, or 1 to 4 (unequal). The
effects at 20 sites are made from Gaussians that are correlated by 0.5. Columns:

    p, p_best           share of the draws with p <= 0.05 at the first site, and with p_best <= 0.05
                        at any of the 20 sites; random signs alone, then as the package computes
    effect, recovery    share of the 95 % intervals that contain the truth, by the t interval of the
                        jackknife alone, then as the package computes; the recovery is 0.25

The second table has an effect of 0.5 or 0.8 standard deviations at the first site; a positive
effect of the left exponential is in the direction of its shorter tail. 95 % bounds of the
simulation are in brackets.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import beta, norm, t, ttest_1samp

from probekit.amounts import LEVEL
from probekit.interventions.verdicts import resamples_of, skewed_interval
from probekit.lazy_rows import Floats
from probekit.probes.score.differences import paired_differences, sign_tests
from probekit.probes.score.exchange import PValues
from probekit.probes.score.intervals import Interval, jackknife_interval
from probekit.probes.score.metrics import Resamples

N_SITES, AT_ONCE = 20, 250
SOURCE, SOURCE_SPREAD = 2.0, 0.5  # change of the measure by the counterfactual
RECOVERY = 0.25
SIZES = {"equal": (1,), "unequal": (1, 2, 3, 4)}

# Effects with mean 0 and standard deviation 1 from standard normal numbers.
EFFECTS: dict[str, Callable[[Floats], Floats]] = {
    "Gaussian": lambda z: z,
    "t3": lambda z: t.ppf(norm.cdf(z), 3) / 3**0.5,
    "left exponential": lambda z: 1 + norm.logcdf(z),
    "lognormal": lambda z: (np.exp(z) - np.exp(0.5)) / np.sqrt(np.e * (np.e - 1)),
}


@dataclass(frozen=True)
class Design:
    """Distribution of the effects, number and sizes of the groups, and mean effect."""

    effects: str
    groups: int
    sizes: str
    mean: float = 0.0


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--only", choices=(*SIZES, "power"), help="part of the tables")
    chosen = parser.parse_args()
    if chosen.only != "power":
        names = ("p: signs", "p", "p_best: signs", "p_best", "effect: t", "effect",
                 "recovery: t", "recovery")  # fmt: skip
        print("effects, groups, sizes | " + " | ".join(names))
        for sizes in [chosen.only] if chosen.only else SIZES:
            for effects in EFFECTS:
                for groups in (8, 12, 16, 24, 48) if sizes == "equal" else (8, 16, 24):
                    _print(Design(effects, groups, sizes), size_and_coverage, chosen.draws)
    if chosen.only in (None, "power"):
        print("effects, groups, sizes, mean | p: signs | p: t test | p | p_best: signs | p_best")
        for effects, signs in (("Gaussian", (1,)), ("t3", (1,)), ("left exponential", (1, -1))):
            for groups in (12, 24):
                for mean in (0.5, 0.8):
                    for sign in signs:
                        _print(Design(effects, groups, "equal", sign * mean), power, chosen.draws)


def size_and_coverage(design: Design, draws: int) -> Iterator[Floats]:
    """Yield the events of each column of the first table, (n,)."""
    found = [[], [], [], []]
    generator = _generator(design)
    for effects in _blocks(design, draws, generator):
        values = _jackknife(effects, design)
        change = SOURCE + SOURCE_SPREAD * generator.normal(size=effects.shape)
        ratios = _jackknife(effects + RECOVERY * change, design) / _jackknife(change, design)
        for n, statistic, truth in ((0, values, 0.0), (2, ratios, RECOVERY)):
            for k, interval in enumerate((jackknife_interval, skewed_interval)):
                found[n + k] += [
                    _covers(interval(one, _resamples(design)), truth) for one in statistic
                ]
    yield from _small_p_values(design, draws)
    yield from np.array(found)


def power(design: Design, draws: int) -> Iterator[Floats]:
    """Yield the events of each column of the second table, (n,)."""
    signs, both, *best = _small_p_values(design, draws)
    effects = np.concatenate(list(_blocks(design, draws, _generator(design))))
    yield from (signs, ttest_1samp(effects, 0.0, axis=1).pvalue <= LEVEL, both, *best)


def _small_p_values(design: Design, draws: int) -> Iterator[Floats]:
    """Yield whether p, then p_best is small: by random signs, then as the package computes it."""
    # Single p-values of different sites do not depend on each other: a call tests many data sets.
    pairs = [_tests(one, design) for one in _blocks(design, draws, _generator(design))]
    for own in zip(*pairs, strict=True):
        yield np.concatenate([one.single <= LEVEL for one in own])
    generator, found = _generator(design), []
    for _ in range(draws):
        effects = _drawn(replace(design, mean=0.0), N_SITES, generator, correlation=0.5)
        effects[0] += design.mean
        pair = _tests(effects, design)
        # Only the first site counts for power.
        counted = 1 if design.mean else N_SITES
        found.append([own.maximum[:counted].min() <= LEVEL for own in pair])
    yield from np.array(found).T


def _tests(effects: Floats, design: Design) -> tuple[PValues, PValues]:
    """Return the p-values of effects (n_tests, n_groups): random signs, and with the bootstrap."""
    values, resamples = _jackknife(effects, design), _resamples(design)
    both = paired_differences([(one, 0 * one) for one in values], resamples, is_skewed=True)
    alone = PValues(*sign_tests(effects * resamples.weights, resamples)[:2])
    return alone, PValues(*np.array([(one.p, one.p_adjusted) for one in both]).T)


def _generator(design: Design) -> np.random.Generator:
    return np.random.default_rng([design.groups, *design.effects.encode(), *design.sizes.encode()])


def _blocks(design: Design, draws: int, generator: np.random.Generator) -> Iterator[Floats]:
    """Yield the effects (n_draws, n_groups) of independent draws of a single site."""
    for at in range(0, draws, AT_ONCE):
        yield _drawn(design, min(AT_ONCE, draws - at), generator)


def _drawn(
    design: Design, n: int, generator: np.random.Generator, correlation: float = 0.0
) -> Floats:
    shared, own = generator.normal(size=design.groups), generator.normal(size=(n, design.groups))
    z = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
    return design.mean + EFFECTS[design.effects](z)


def _resamples(design: Design) -> Resamples:
    return resamples_of(np.repeat(np.arange(design.groups), _sizes(design)))


def _sizes(design: Design) -> Floats:
    return np.resize(SIZES[design.sizes], design.groups)


def _jackknife(effects: Floats, design: Design) -> Floats:
    """Return means (n, 1 + n_groups) over all pairs, then without each group."""
    weights = _sizes(design) / _sizes(design).sum()
    whole = (effects @ weights)[:, None]
    return np.concatenate([whole, (whole - effects * weights) / (1 - weights)], axis=1)


def _covers(interval: Interval, truth: float) -> bool:
    return bool(interval.low <= truth <= interval.high)


def _print(design: Design, simulate: Callable[[Design, int], Iterator[Floats]], draws: int) -> None:
    named = f"{design.effects}, {design.groups}, {design.sizes}"
    if design.mean:
        named += f", {design.mean:+}"
    print(" | ".join([named, *map(rate, simulate(design, draws))]), flush=True)


def rate(events: Floats) -> str:
    """Return a share with its 95 % bounds."""
    n, k = len(events), int(np.sum(events))
    low = beta.ppf(0.025, k, n - k + 1) if k else 0.0
    high = beta.ppf(0.975, k + 1, n - k) if k < n else 1.0
    return f"{k / n:.3f} [{low:.3f}, {high:.3f}]"


if __name__ == "__main__":
    main()
