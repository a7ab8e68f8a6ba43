"""Measure sites against one another: the task, its controls and baselines, each with an interval.

A `Prober` holds what all sites share: folds, control labels, resampled groups. So two sites differ
by their activations alone, and their bootstrap draws are paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probekit.errors import DataError
from probekit.probes.controls.controls import control_types
from probekit.probes.data import ProbeData
from probekit.probes.fitters import LabelColumn
from probekit.probes.score.measurement import (
    Measurement,
    Predictions,
    Resampler,
    Score,
    measure,
)
from probekit.probes.score.metrics import Resamples
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.design import Features
from probekit.probes.solve.layers import FittedLayers
from probekit.probes.solve.solver import Codes, OnFit
from probekit.probes.split import SplitProber

FLOATS = (np.float16, np.float32, np.float64)


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """What one kind of probe found at a site.

    Attributes:
        spec: the kind; None for a baseline.
        measurements: the numbers.
        said: the task's answers on the test rows.
        solution: the fitted probe of the task; None for kinds that are no stack of layers, and
            where several splits fitted one each.
    """

    spec: ProbeSpec | None
    measurements: tuple[Measurement, ...]
    said: Predictions
    solution: FittedLayers | None = None


class Prober:
    """Measures any number of sites of the same rows under the same folds, controls and resamples.

    Args:
        data: the rows and their split; or several splits of the same rows, as of a nested
            cross-validation, whose test rows are scored together.
        settings: how to fit and to score.

    Raises:
        ConfigError: A control task is asked for, but all training rows have the same word type.
        DataError: There are fewer groups of training rows than folds, or labels that the kinds of
            probe cannot read.

    >>> y = np.array(["no", "yes"] * 40)
    >>> row = np.arange(80).astype(str)
    >>> data = ProbeData(y, row, row, train=np.arange(60), test=np.arange(60, 80))
    >>> prober = Prober(data, ProbeSettings(folds=2, control_draws=1, bootstrap=100))
    >>> X = np.random.default_rng(0).normal(size=(80, 3)) + 9 * (y == "yes")[:, None]
    >>> first = prober.site(X)[0].measurements[0]
    >>> first.target, first.split, first.metric, first.value
    ('task', 'test', 'accuracy', 1.0)
    """

    def __init__(
        self, data: ProbeData | Sequence[ProbeData], settings: ProbeSettings | None = None
    ) -> None:
        splits = [data] if isinstance(data, ProbeData) else list(data)
        self.data = splits[0]
        self.settings = settings or ProbeSettings()
        self._splits = [SplitProber(split, self.settings) for split in splits]
        self._resampler = Resampler(self.settings.bootstrap, self.settings.seed)

    @property
    def seen_types(self) -> float:
        """The share of test rows whose type in the control stands in the rows fitted, 0 to 1."""
        types = control_types(self.data, self.settings)
        seen = [np.isin(types[s.judged.test], types[s.fitted]) for s in self._splits]
        return float(np.concatenate(seen).mean())

    @property
    def test_rows(self) -> Codes:
        """The numbers (n_test,) of the rows that are scored."""
        return np.concatenate([split.judged.test for split in self._splits])

    @property
    def only_split(self) -> SplitProber | None:
        """The one split; None of several, each of which chooses and fits for itself."""
        return self._splits[0] if len(self._splits) == 1 else None

    @property
    def _text_kinds(self) -> set[str]:
        return {spec.text for spec in self.settings.kinds if spec.task == "text"}

    def rows_of(self, probe: str) -> Codes:
        """Return the numbers of the rows that a kind is scored on; of a text, its first token."""
        if probe not in self._text_kinds:
            return self.test_rows
        return np.concatenate([split.wholes.test.first for split in self._splits])

    def truth_of(self, probe: str) -> LabelColumn:
        """Return the label codes, or numbers, of the rows that a kind is scored on."""
        return self._splits[0].task[self.rows_of(probe)]

    @property
    def codes_online(self) -> bool:
        """Whether the labels are coded online."""
        return all(split.codes_online for split in self._splits)

    def resamples_of(self, probe: str) -> Resamples:
        """Return the resamples of the groups of the rows that a kind is scored on."""
        return self._resampler.of(self.data.groups[self.rows_of(probe)])

    @property
    def main_metric(self) -> str:
        """The metric by which sites are chosen."""
        return self._splits[0].main_metric

    def site(
        self, X: Features, *, random: bool = False, on_fit: OnFit | None = None
    ) -> tuple[ProbeResult, ...]:
        """Return what each kind finds at one site with activations X (n_rows, n_features).

        With `random`, X comes from a model with random weights: it gets the task alone, under the
        target "random_weights". `on_fit(done, total)` is called after each fit.

        Raises:
            DataError: X has other rows than the data, or values that are not finite numbers.
        """
        self._check(X)
        kinds, n_splits = self.settings.kinds, len(self._splits)
        results = []
        for number, spec in enumerate(kinds):
            outcomes = [
                split.read(
                    spec, X, random, _part(on_fit, number * n_splits + n, len(kinds) * n_splits)
                )
                for n, split in enumerate(self._splits)
            ]
            results.append(self._result(spec, outcomes))
        return tuple(results)

    def baselines(self) -> dict[str, ProbeResult]:
        """Return what each guess made without activations comes to."""
        of_splits = [split.baselines() for split in self._splits]
        return {
            target: self._result(None, [found[target] for found in of_splits])
            for target in of_splits[0]
        }

    def _result(self, spec: ProbeSpec | None, of_splits: Sequence[Sequence[Score]]) -> ProbeResult:
        scores = [Score.of_all(same) for same in zip(*of_splits, strict=True)]
        return ProbeResult(
            spec,
            tuple(number for score in scores for number in measure(score, self._resampler)),
            said=scores[0].readings[0][0],
            solution=scores[0].fit,
        )

    def _check(self, X: Features) -> None:
        if X.ndim != 2 or len(X) != len(self.data.y):
            raise DataError(
                f"X has shape {X.shape}, but the data need ({len(self.data.y)}, n_features): one "
                "row of activations for each label."
            )
        if X.dtype not in FLOATS:
            raise DataError(f"X holds {X.dtype}. Give activations as float32 or float64.")
        wrong = np.flatnonzero(~np.isfinite(X).all(axis=1))
        if len(wrong):
            raise DataError(
                f"{len(wrong)} of {len(X)} rows of X hold NaN or infinity, first row {wrong[0]}. "
                "Capture them again, in float32 if they were stored as float16."
            )


def _part(on_fit: OnFit | None, number: int, n_parts: int) -> OnFit:
    """Return what hears of the fits of one of several parts."""

    def tell(done: int, total: int) -> None:
        if on_fit is not None:
            on_fit(number * total + done, n_parts * total)

    return tell
