"""Size of the p-values of patches, and coverage of the intervals, by simulation.

    python -m benchmarks.patch_tests [--draws 2000]

Effects of 10 sites are drawn for groups of 4 pairs: a mean, an effect of the group with a standard
deviation of 0.5, and noise with 1. `p` is the share of the draws with p <= 0.05 at the first site,
`p_best` that with p_best <= 0.05 at any site; both are sizes where the mean is 0. Coverage is that
of 95 % intervals of the mean effect and of the recovery (effect / 2).
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from probekit.interventions.measures import AnswerMeasure
from probekit.interventions.patching.patch_effects import Patch, PatchedValues, effects_of
from probekit.model.sites.selection import SiteSelection

PER_GROUP, N_SITES = 4, 10
SOURCE = 2.0  # change of the measure by the counterfactual


def draw(groups: int, mean: float, generator: np.random.Generator) -> tuple[bool, bool, bool, bool]:
    """Return of one draw whether p, p_best <= 0.05, and whether both intervals hold the truth."""
    n = groups * PER_GROUP
    group = np.repeat(np.arange(groups), PER_GROUP)
    shared = 0.5 * generator.normal(size=(N_SITES, groups))[:, group]
    effects = mean + shared + generator.normal(size=(N_SITES, n))
    base = generator.normal(size=n)
    source = base + SOURCE + 0.5 * generator.normal(size=n)
    patched = {
        Patch(SiteSelection(f"blocks.{site}.hook_resid_post"), "chosen"): base + effects[site]
        for site in range(N_SITES)
    }
    ids = torch.zeros(n, dtype=torch.int64)
    rows = effects_of(PatchedValues(base, source, patched), AnswerMeasure(ids, ids + 1), group)
    first, truth = rows[0], mean / SOURCE
    return (
        first.p <= 0.05,
        min(row.p_best for row in rows) <= 0.05,
        first.effect_low <= mean <= first.effect_high,
        first.low <= truth <= first.high,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    chosen = parser.parse_args()
    names = ("p", "p_best", "effect covered", "recovery covered")
    print(f"{'groups':>6} {'mean':>5} " + " ".join(f"{name:>16}" for name in names))
    for groups in (6, 12, 24, 100):
        for mean in (0.0, 0.5):
            generator = np.random.default_rng([groups, int(10 * mean)])
            found = [draw(groups, mean, generator) for _ in range(chosen.draws)]
            rates = " ".join(f"{rate:16.3f}" for rate in np.mean(found, axis=0))
            print(f"{groups:6} {mean:5} {rates}", flush=True)


if __name__ == "__main__":
    main()
