"""Probing of many sites: scores of the task, its controls and baselines, with intervals.

A `Prober` holds folds, control labels and resamples, which all sites share. Two sites therefore
differ only in their activations, and their bootstrap draws are paired.
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
    """Result of one kind of probe at one site.

    Attributes:
        spec: the kind; None for a baseline.
        measurements: the scores.
        predictions: the predictions of the task on the test rows.
        solution: the fitted probe of the task; None for kinds that are not a stack of layers, and
            for several splits, because each one has its own fit.
    """

    spec: ProbeSpec | None
    measurements: tuple[Measurement, ...]
    predictions: Predictions
    solution: FittedLayers | None = None


class Prober:
    """Probes any number of sites with the same rows, folds, control labels and resamples.

    Args:
        data: the rows and their split; or several splits of the same rows, as in nested
            cross-validation, whose test rows are scored together.
        settings: settings for fitting and scoring.

    Raises:
        ConfigError: A control task is requested that cannot be drawn; see `draw_controls`.
        DataError: There are fewer groups of training rows than folds, or the kinds of probe cannot
            use the labels.

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
        """Fraction of test rows whose control type occurs in the fitted rows, 0 to 1."""
        types = control_types(self.data, self.settings)
        seen = [np.isin(types[s.scored.test], types[s.fitted]) for s in self._splits]
        return float(np.concatenate(seen).mean())

    @property
    def test_rows(self) -> Codes:
        """The row numbers (n_test,) of the test rows."""
        return np.concatenate([split.scored.test for split in self._splits])

    @property
    def only_split(self) -> SplitProber | None:
        """The split if there is only one; None for several, each with its own fits."""
        return self._splits[0] if len(self._splits) == 1 else None

    @property
    def _text_kinds(self) -> set[str]:
        return {spec.text for spec in self.settings.kinds if spec.task == "text"}

    def rows_of(self, probe: str) -> Codes:
        """Return the row numbers that a kind is scored on: for texts, the first token of each."""
        if probe not in self._text_kinds:
            return self.test_rows
        return np.concatenate([split.token_prober.test.first for split in self._splits])

    def truth_of(self, probe: str) -> LabelColumn:
        """Return the label codes, or the numbers, of the rows that a kind is scored on."""
        return self._splits[0].task[self.rows_of(probe)]

    @property
    def codes_online(self) -> bool:
        """Whether the description length of the labels is computed, by online coding."""
        return all(split.codes_online for split in self._splits)

    def resamples_of(self, probe: str) -> Resamples:
        """Return the resamples of the groups of the rows that a kind is scored on."""
        return self._resampler.of(self.data.groups[self.rows_of(probe)])

    @property
    def main_metric(self) -> str:
        """The metric by which sites are selected."""
        return self._splits[0].main_metric

    def site(
        self, X: Features, *, random: bool = False, on_fit: OnFit | None = None
    ) -> tuple[ProbeResult, ...]:
        """Return the result of each kind at one site.

        Args:
            X: the activations (n_rows, n_features).
            random: whether X comes from a model with random weights. Then only the task is scored,
                under the target "random_weights".
            on_fit: called as `on_fit(done, total)` after each fit.

        Raises:
            DataError: X has the wrong number of rows or the wrong dtype, or is not finite.
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
        """Return the result of each baseline, by its target."""
        of_splits = [split.baselines() for split in self._splits]
        return {
            target: self._result(None, [scores[target] for scores in of_splits])
            for target in of_splits[0]
        }

    def _result(self, spec: ProbeSpec | None, of_splits: Sequence[Sequence[Score]]) -> ProbeResult:
        scores = [Score.of_all(same) for same in zip(*of_splits, strict=True)]
        return ProbeResult(
            spec,
            tuple(one for score in scores for one in measure(score, self._resampler)),
            predictions=scores[0].pairs[0][0],
            solution=scores[0].fit,
        )

    def _check(self, X: Features) -> None:
        if X.ndim != 2 or len(X) != len(self.data.y):
            raise DataError(
                f"X has shape {X.shape}, but needs shape ({len(self.data.y)}, n_features), with "
                "one row for each label."
            )
        if X.dtype not in FLOATS:
            raise DataError(f"X has dtype {X.dtype}. Give activations as float32 or float64.")
        wrong = np.flatnonzero(~np.isfinite(X).all(axis=1))
        if len(wrong):
            raise DataError(
                f"{len(wrong)} of {len(X)} rows of X contain NaN or infinity, first row {wrong[0]}."
                " Capture them again, in float32 if they were stored as float16."
            )


def _part(on_fit: OnFit | None, number: int, n_parts: int) -> OnFit:
    """Return a callback that reports the fits of one of several parts as overall progress."""

    def report(done: int, total: int) -> None:
        if on_fit is not None:
            on_fit(number * total + done, n_parts * total)

    return report
