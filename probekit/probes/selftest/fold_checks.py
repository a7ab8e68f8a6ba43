"""Checks that features are ranked and scaled on the fitted rows alone, never on held-out rows.

Both defects are invisible on data with a signal, and on noise with few features.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.stats import binom

from probekit.probes.selftest import planted
from probekit.probes.selftest.checks import (
    ALARM,
    SPECS,
    CheckResult,
    SimulationSize,
    Tools,
    interval_text,
    pick,
)
from probekit.probes.settings import ProbeSpec

SPLITS = ("validation", "test")
NEAR = 0.05  # of chance level; the labels of the held-out rows are balanced by design


def ranked_in_folds(tools: Tools, _: SimulationSize) -> Iterator[CheckResult]:
    """Check that the best of 3,000 random features are at chance level on held-out rows.

    If they are selected on all rows, the accuracy is about 0.75.
    """
    spec = ProbeSpec("k_sparse", (("k", 16),))
    result = tools.one(spec, planted.wide_noise(300, 3000, seed=0))
    for split in SPLITS:
        found = pick(result, "accuracy", split)
        most = float(binom.ppf(1 - ALARM, found.n_test, 0.5)) / found.n_test
        ok = found.value <= most
        expected = f"at most {most:.3f}"
        yield CheckResult(f"wide noise, {split}", spec.text, expected, interval_text(found), ok)


def scaled_in_folds(tools: Tools, _: SimulationSize) -> Iterator[CheckResult]:
    """Check that outliers of held-out rows do not reduce the weight of the feature they are in."""
    data = planted.own_outliers(45, 8, seed=0)
    for kind, spec in SPECS.items():
        if spec.kind == "k_sparse":  # it may select the one feature that has no outliers
            continue
        result = tools.one(spec, data)
        for split in SPLITS:
            found = pick(result, "accuracy", split)
            ok = bool(np.abs(found.value - 0.5) < NEAR)
            check, expected = f"held-out outliers, {split}", f"within {NEAR} of 0.5"
            yield CheckResult(check, kind, expected, interval_text(found), ok)
