"""Building blocks of the self-test: the tools under test, verdicts, and helpers of the checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.probes.data import ProbeData
from probekit.probes.folds import group_folds
from probekit.probes.prober import Prober
from probekit.probes.score.association import RowScores
from probekit.probes.score.exchange import LabelExchange
from probekit.probes.score.measurement import Measurement
from probekit.probes.score.metric_table import metric_functions
from probekit.probes.score.metrics import ClassPredictions, Resamples
from probekit.probes.score.regression import NumberPredictions
from probekit.probes.selftest import planted
from probekit.probes.selftest.planted import Planted
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.site_result import SiteResult
from probekit.probes.solve.design import Floats

# False alarm rate of a randomised check over the choice of seeds. The seeds are fixed, so that a
# check gives the same verdict in every run.
ALARM = 1e-3
ROUNDING = 1e-9
# Range of acceptable coverage rates of 95 % intervals with about a hundred groups.
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
class CheckResult:
    """Expected and actual result of one check of a kind of probe or a statistic."""

    check: str
    kind: str
    expected: str
    found: str
    ok: bool


@dataclass(frozen=True)
class SimulationSize:
    """Number of simulations: `draws` for cheap ones, `fits` for those that fit a probe."""

    draws: int
    fits: int


ProbeFunction = Callable[[ProbeData, ProbeSettings, Sequence[Floats]], list[SiteResult]]
QUICK, FULL = SimulationSize(draws=100, fits=4), SimulationSize(draws=500, fits=20)


def exchanged(rows: RowScores, groups: NDArray[Any], draws: int, seed: int) -> Floats:
    """Return the t statistic of the labels and of exchanged labels; see `LabelExchange`."""
    one_fold = np.zeros(len(groups), dtype=np.int64)
    t: Floats = LabelExchange.of(rows.labels, groups, one_fold, draws, seed).null([rows]).t[0]
    return t


def probe_arrays(
    data: ProbeData, settings: ProbeSettings, sites: Sequence[Floats]
) -> list[SiteResult]:
    """Return the results of all kinds at each of the sites X (n_rows, n_features)."""
    prober = Prober(data, settings)
    return [prober.site(X) for X in sites]


@dataclass(frozen=True)
class Tools:
    """The functions under test; the tests replace them by broken ones."""

    probe: ProbeFunction = probe_arrays
    folds: Callable[[NDArray[Any], NDArray[Any], int, int], NDArray[np.int64]] = group_folds
    resample: Callable[[NDArray[Any]], Resamples] = Resamples.leave_one_out
    exchange: Callable[[RowScores, NDArray[Any], int, int], Floats] = exchanged
    metrics: Mapping[str, Callable[[ClassPredictions, Resamples], Floats]] = field(
        default_factory=lambda: metric_functions("class", frozenset({"scores"}))
    )
    number_metrics: Mapping[str, Callable[[NumberPredictions, Resamples], Floats]] = field(
        default_factory=lambda: metric_functions("number")
    )

    def one(self, spec: ProbeSpec, data: Planted, **settings: Any) -> SiteResult:
        """Return the result of one kind of probe at the site of a synthetic data set.

        `settings` replace the defaults, which make the fits of the self-test fast.
        """
        defaults: dict[str, Any] = {
            "C": (1e-2, 1.0),
            "folds": 3,
            "control_draws": 0,
            "description": False,
        }
        probe_settings = ProbeSettings(kinds=(spec,), **(defaults | settings))
        (result,) = self.probe(data.data, probe_settings, [data.X])
        return result


def pick(result: SiteResult, metric: str, split: str = "test", target: str = "task") -> Measurement:
    """Return the measurement with this metric, split and target."""
    key = (metric, split, target)
    (measurement,) = [m for m in result.measurements if (m.metric, m.split, m.target) == key]
    return measurement


def interval_text(measurement: Measurement) -> str:
    """Return value and confidence interval as text."""
    return f"{measurement.value:.3f} ({measurement.ci_low:.3f} to {measurement.ci_high:.3f})"


def covers(measurement: Measurement, value: float) -> bool:
    """Return whether the confidence interval contains the value."""
    return measurement.ci_low <= value <= measurement.ci_high
