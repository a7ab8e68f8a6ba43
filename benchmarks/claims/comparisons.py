"""Size and power of the tests of differences, paired and unpaired."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from benchmarks.claims.designs import GROUPS, Design, Sizes
from benchmarks.claims.rates import Rate, size_of
from probekit.amounts import LEVEL
from probekit.lazy_rows import Floats
from probekit.probes.score.differences import Difference, paired_differences
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import ClassPredictions, Resamples, accuracy
from probekit.probes.score.unpaired import Side, unpaired_differences

GAIN = 0.1  # planted difference of the accuracies
COMPARISONS = 8  # that are adjusted together


Pairing = Literal["paired", "unpaired", "unpaired, 200 groups", "best of 8"]


@dataclass(frozen=True)
class Comparison:
    """Two probes of equal accuracy whose hits are correlated within groups."""

    groups: int
    sizes: Sizes
    accuracy: float
    correlation: float
    pairing: Pairing


def cases() -> Iterator[Comparison]:
    """Yield all cases."""
    for case in product(GROUPS, ("equal", "1:20"), (0.5, 0.8, 0.95), (0.0, 0.3), get_args(Pairing)):
        yield Comparison(*case)


def rows(case: Comparison, draws: int) -> Iterator[dict[str, Any]]:
    """Yield size and power of a case."""
    size = size_of(partial(_rate, case, gain=0.0), draws)
    power = _rate(case, max(draws // 10, 20), GAIN if case.accuracy < 0.9 else -GAIN)
    facts = {"rate": size.rate, "error": size.error, "no_verdict": size.no_verdict}
    yield {**facts, "draws": size.draws, "power": power.rate}


def groups_of(case: Comparison) -> NDArray[np.int64]:
    """Return the group (n_rows,) of each row."""
    return Design(case.groups, case.sizes, "mixed", 0.5, 0.0, 0.0).group_of_row


def hits(case: Comparison, share: float, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return 0 or 1 (n_rows,) for each row, with a common rate in each group (beta-binomial)."""
    group = groups_of(case)
    rate = np.full(case.groups, share)
    if case.correlation:
        concentration = (1 - case.correlation) / case.correlation
        rate = generator.beta(share * concentration, (1 - share) * concentration, case.groups)
    return (generator.random(len(group)) < rate[group]).astype(np.int64)


def _rate(case: Comparison, draws: int, gain: float) -> Rate:
    generator = np.random.default_rng(2)
    return Rate.of([_rejects(case, gain, generator) for _ in range(draws)])


def _rejects(case: Comparison, gain: float, generator: np.random.Generator) -> bool | None:
    resamples = Resamples.leave_one_out(groups_of(case))

    def values(share: float) -> Floats:
        own = hits(case, share, generator)
        return accuracy(ClassPredictions(np.ones_like(own), own, 2), resamples)

    first = values(case.accuracy + gain)
    found: list[Difference]
    if case.pairing.startswith("unpaired"):
        # A small run next to a large one may be perfect by chance.
        other = replace(case, groups=200) if case.pairing == "unpaired, 200 groups" else case
        many = Resamples.leave_one_out(groups_of(other))
        own = hits(other, case.accuracy, generator)
        second = accuracy(ClassPredictions(np.ones_like(own), own, 2), many)
        pair = Side(first, resamples), Side(second, many)
        found = unpaired_differences([pair], METRICS["accuracy"].range)
    else:
        n = 1 if case.pairing == "paired" else COMPARISONS
        found = paired_differences([(first, values(case.accuracy)) for _ in range(n)], resamples)
    if any(np.isnan(one.p_adjusted) for one in found):
        return None
    return any(one.p_adjusted <= LEVEL for one in found)
