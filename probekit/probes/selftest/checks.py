"""What a check of the engine is made of: the tools that are put to the test, and its verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.probes.curve import Prober, ProbeResult
from probekit.probes.data import ProbeData
from probekit.probes.folds import group_folds
from probekit.probes.score.measurement import Measurement
from probekit.probes.score.metric_table import metric_functions
from probekit.probes.score.metrics import ClassPredictions, Resamples
from probekit.probes.score.permutation import exchanged_leads, group_leads
from probekit.probes.score.regression import NumberPredictions
from probekit.probes.selftest import planted
from probekit.probes.selftest.planted import Planted
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.design import Floats

# A sound engine fails a check on chance events about once in this many drawings of all seeds; as
# the seeds are fixed, it then fails always or never.
ALARM = 1e-3
ROUNDING = 1e-9
# Rates of intervals that a bootstrap of a hundred groups may have, beside the noise of simulation.
NOMINAL = (0.93, 0.96)

SPECS: Mapping[str, ProbeSpec] = MappingProxyType(
    {
        spec.text: spec
        for spec in (
            *(ProbeSpec(name) for name in ("logistic", "ridge", "lda", "svm")),
            ProbeSpec("mass_mean"),
            ProbeSpec("mass_mean", (("covariance", True),)),
            ProbeSpec("nearest_mean"),
            ProbeSpec("k_sparse", (("k", planted.CARRIERS),)),
            ProbeSpec("mlp", (("hidden", 16),)),
        )
    }
)


@dataclass(frozen=True)
class Verdict:
    """What one check expected of one kind of probe, or of a statistic, and what it found."""

    check: str
    kind: str
    expected: str
    found: str
    ok: bool


@dataclass(frozen=True)
class SimulationSize:
    """How much is simulated: `draws` of whatever is repeated, `fits` where each draw is a fit."""

    draws: int
    fits: int


ProbeFunction = Callable[
    [ProbeData, ProbeSettings, Sequence[Floats]], list[tuple[ProbeResult, ...]]
]
QUICK, FULL = SimulationSize(draws=100, fits=4), SimulationSize(draws=500, fits=20)


def probe(
    data: ProbeData, settings: ProbeSettings, sites: Sequence[Floats]
) -> list[tuple[ProbeResult, ...]]:
    """Return what the kinds find at each of the sites X (n_rows, n_features)."""
    prober = Prober(data, settings)
    return [prober.site(X) for X in sites]


@dataclass(frozen=True)
class Tools:
    """What is put to the test; each may be replaced by one that is known to be broken."""

    probe: ProbeFunction = probe
    folds: Callable[[NDArray[Any], NDArray[Any], int, int], NDArray[np.int64]] = group_folds
    resample: Callable[[NDArray[Any], int, int], Resamples] = Resamples.draw
    leads: Callable[[Floats, Floats, NDArray[Any]], Floats] = group_leads
    exchange: Callable[[Floats, int, int], Floats] = exchanged_leads
    metrics: Mapping[str, Callable[[ClassPredictions, Resamples], Floats]] = field(
        default_factory=lambda: metric_functions("class", frozenset({"scores"}))
    )
    number_metrics: Mapping[str, Callable[[NumberPredictions, Resamples], Floats]] = field(
        default_factory=lambda: metric_functions("number")
    )

    def one(self, spec: ProbeSpec, data: Planted, **settings: Any) -> ProbeResult:
        """Return what one kind finds in planted data."""
        plain: dict[str, Any] = {
            "C": (1e-2, 1.0),
            "folds": 3,
            "control_draws": 0,
            "bootstrap": 200,
            "description": False,
        }
        chosen = ProbeSettings(kinds=(spec,), **(plain | settings))
        ((result,),) = self.probe(data.data, chosen, [data.X])
        return result


Check = Callable[[Tools, SimulationSize], Iterator[Verdict]]


def pick(
    result: ProbeResult, metric: str, split: str = "test", target: str = "task"
) -> Measurement:
    """Return the one measurement of that metric, split and target."""
    wanted = (metric, split, target)
    (found,) = [m for m in result.measurements if (m.metric, m.split, m.target) == wanted]
    return found


def interval_text(found: Measurement) -> str:
    """Return value and interval as a table shows them."""
    return f"{found.value:.3f} ({found.ci_low:.3f} to {found.ci_high:.3f})"


def covers(found: Measurement, value: float) -> bool:
    """Return whether the value lies in the interval."""
    return found.ci_low <= value <= found.ci_high
