"""Probing of many sites: scores of the task, its controls and baselines, with intervals.

A `Prober` holds folds, control labels and resamples, which all sites share. Two sites therefore
differ only in their activations, and differences of their scores are paired.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from probekit.amounts import counted
from probekit.errors import DataError
from probekit.probes.controls.comparable import (
    FEWEST_TYPES,
    control_types,
    why_not_comparable,
)
from probekit.probes.data import ProbeData
from probekit.probes.fitted_rows import AllRows, FittedRows
from probekit.probes.fitters import LabelColumn
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import WIDER_OVER_FOLDS, ClassPredictions, Resamples
from probekit.probes.score.scored import (
    Measurement,
    Predictions,
    Predictor,
    Resampler,
    Score,
    SiteResult,
    control_draw,
    measure,
)
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.design import Features
from probekit.probes.solve.solver import Codes, OnFit
from probekit.probes.split import SplitProber
from probekit.probes.targets import NETWORKS, NO_CONTROL_TASK, TARGETS

FLOATS = (np.float16, np.float32, np.float64)


class Prober:
    """Probes any number of sites with the same rows, folds, control labels and resamples.

    Args:
        data: the rows and their split; or several splits of the same rows, as in nested
            cross-validation, whose test rows are scored together. Each split selects C on its own
            training rows; validation scores are also given for each split, so that each can choose
            its own site.
        settings: settings for fitting and scoring.

    Raises:
        ConfigError: A control task is requested that cannot be drawn; see `draw_controls`.
        DataError: There are fewer groups of training rows than folds, or the kinds of probe cannot
            use the labels.

    >>> y = np.array(["no", "yes"] * 40)
    >>> row = np.arange(80).astype(str)
    >>> data = ProbeData(y, row, row, train=np.arange(60), test=np.arange(60, 80))
    >>> prober = Prober(data, ProbeSettings(folds=2, control_draws=1))
    >>> X = np.random.default_rng(0).normal(size=(80, 3)) + 9 * (y == "yes")[:, None]
    >>> first = prober.site(X).measurements[0]
    >>> first.target, first.split, first.metric, first.value
    ('task', 'test', 'accuracy', 1.0)
    """

    def __init__(
        self, data: ProbeData | Sequence[ProbeData], settings: ProbeSettings | None = None
    ) -> None:
        splits = [data] if isinstance(data, ProbeData) else list(data)
        self.settings = settings or ProbeSettings()
        if self.settings.reads == "classes":
            splits = _with_one_positive(splits)
        self.data = splits[0]
        _check_test_groups(splits)
        self._splits = [SplitProber(split, self.settings) for split in splits]
        self.why_no_control = self._why_no_control()
        if self.has_control:
            for split in self._splits:
                split.draw_controls()
        self._all_rows = AllRows.of(self.data, self.settings) if self.is_nested else None
        self._resampler = Resampler(WIDER_OVER_FOLDS if self.is_nested else 1.0)

    @property
    def has_control(self) -> bool:
        """Whether there is a control task."""
        is_requested = self.settings.control_draws > 0 and bool(self._row_kinds)
        return is_requested and not self.why_no_control

    def _why_no_control(self) -> str:
        if not self.settings.control_draws or not self._row_kinds:
            return ""
        rows = self.test_rows[self.comparable()]
        n_groups = len(np.unique(self.data.groups[rows]))
        return self._too_few_types() or why_not_comparable(
            len(rows), n_groups, len(self.test_rows), self.settings.control_by
        )

    def _too_few_types(self) -> str:
        types = control_types(self.data, self.settings)
        n_types = min(len(np.unique(types[split.fitted])) for split in self._splits)
        if n_types >= FEWEST_TYPES:
            return ""
        return (
            f"{NO_CONTROL_TASK}the training rows have only "
            f"{counted(n_types, f'{self.settings.control_by} type')}; random labels of fewer than "
            f"{FEWEST_TYPES} types are too easy to learn."
        )

    def comparable(self, fold: int | None = None) -> NDArray[np.bool_]:
        """Return a mask (n_test,) of the test rows that the control task is scored on.

        `fold` is the number of one split; None for the test rows of all splits. See
        `comparable_rows`.
        """
        splits = self._splits if fold is None else [self._splits[fold]]
        return np.concatenate([split.comparable for split in splits])

    @property
    def test_rows(self) -> Codes:
        """The row numbers (n_test,) of the test rows."""
        return np.concatenate([split.scored.test for split in self._splits])

    @property
    def is_nested(self) -> bool:
        """Whether there are several splits, each with its own fits."""
        return len(self._splits) > 1

    @property
    def saved_rows(self) -> FittedRows:
        """The rows that `SiteResult.fits` are fitted on."""
        if self._all_rows is not None:
            return self._all_rows.fitted
        return self._splits[0].fitted_rows

    def chance(self, predictions: Predictions, fold: int, draw: int | None = None) -> Predictions:
        """Return the chance level predictions for the test rows of one split.

        Args:
            predictions: predictions of the task, or of one draw of the control task.
            fold: the number of the split.
            draw: the number of that draw; None for the task.
        """
        return self._splits[fold].chance(predictions, draw)

    @property
    def positive(self) -> str | None:
        """The label that metrics of one class refer to; None if there is none; see `ProbeData`."""
        code = self.data.positive_code if self.settings.reads == "classes" else None
        return None if code is None else str(self.data.classes[code])

    @property
    def _text_kinds(self) -> set[str]:
        return {spec.text for spec in self.settings.kinds if spec.task == "text"}

    @property
    def _row_kinds(self) -> set[str]:
        tasks = ("classification", "regression")
        return {spec.text for spec in self.settings.kinds if spec.task in tasks}

    def rows_of(self, probe: str) -> Codes:
        """Return the row numbers that a kind is scored on.

        A kind that reads whole texts is scored on the first row of each text.
        """
        if probe not in self._text_kinds:
            return self.test_rows
        return np.concatenate([split.token_prober.test.first for split in self._splits])

    def fold_of(self, probe: str) -> Codes:
        """Return the number of the split in which each row of `rows_of` is a test row."""
        fold_of_row = np.zeros(len(self.data.y), dtype=np.int64)
        for number, split in enumerate(self._splits):
            fold_of_row[split.data.test] = number
        return fold_of_row[self.rows_of(probe)]

    def truth_of(self, probe: str) -> LabelColumn:
        """Return the label codes, or the numbers, of the rows that a kind is scored on."""
        return self._splits[0].task[self.rows_of(probe)]

    @property
    def codes_online(self) -> bool:
        """Whether the description length of the labels is computed, by online coding."""
        return all(split.codes_online for split in self._splits)

    def measure(self, score: Score) -> list[Measurement]:
        """Return the measurements of a score, with the resamples that all sites share."""
        return measure(score, self._resampler)

    def resamples_of(self, probe: str) -> Resamples:
        """Return the resamples that the intervals of a kind are computed from."""
        return self._resampler.of(self.data.groups[self.rows_of(probe)])

    @property
    def main_metric(self) -> str:
        """The metric by which sites are selected."""
        return self._splits[0].main_metric

    def site(self, X: Features, *, on_fit: OnFit | None = None) -> SiteResult:
        """Return the results of all kinds at one site, kind by kind.

        Args:
            X: the activations (n_rows, n_features).
            on_fit: called as `on_fit(done, total)` after each fit.

        Raises:
            DataError: X has the wrong number of rows or the wrong dtype, or is not finite.
        """
        self._check(X)
        kinds, n_steps = self.settings.kinds, len(self._splits) + self.is_nested
        result = SiteResult()
        for spec, on_kind in zip(kinds, _parts(on_fit, len(kinds)), strict=True):
            steps = _parts(on_kind, n_steps)
            of_splits = self._read(spec, X, False, steps)
            self._add(result, of_splits)
            if self._all_rows is not None and of_splits[0][0].fit is not None:
                refit = self._all_rows.fit(spec, X, steps[-1])
                result.fits[spec.text] = refit.solution
                result.penalties[spec.text] = refit.penalty
        return result

    def random_site(
        self, networks: Iterable[Features], n_networks: int, on_fit: OnFit | None = None
    ) -> SiteResult:
        """Return the results of networks with random weights at one site, kind by kind.

        Only the task is scored. The target "random_weights" is the mean score over the networks.
        In addition, each network has a target of its own in `NETWORKS`, for its validation score
        and its predictions.

        Args:
            networks: the activations (n_rows, n_features) of each network.
            n_networks: number of networks.
            on_fit: called as `on_fit(done, total)` after each fit.

        Raises:
            DataError: as for `site`.
        """
        kinds, of_networks = self.settings.kinds, []
        for X, on_network in zip(networks, _parts(on_fit, n_networks), strict=True):
            self._check(X)
            of_networks.append(
                [
                    self._read(spec, X, True, _parts(on_kind, len(self._splits)))
                    for spec, on_kind in zip(kinds, _parts(on_network, len(kinds)), strict=True)
                ]
            )
        result = SiteResult()
        for of_kind in zip(*of_networks, strict=True):
            scores = [_combined(of_splits) for of_splits in of_kind]
            for same in zip(*scores, strict=True):
                result.measurements.extend(self.measure(Score.of_networks(same)))
            for target, of_splits, (first, *_) in zip(NETWORKS, of_kind, scores, strict=False):
                validated = [_validated(of_split, target) for of_split in of_splits]
                result.measurements.extend(self._measured(validated))
                result.predictions[Predictor(first.probe, target)] = first.pairs[0][0]
        return result

    def _read(
        self, spec: ProbeSpec, X: Features, random: bool, steps: Sequence[OnFit]
    ) -> list[list[Score]]:
        """Return the scores of a kind of probe for each split."""
        return [
            split.read(spec, X, random, step)
            for split, step in zip(self._splits, steps, strict=False)
        ]

    def baselines(self) -> SiteResult:
        """Return the results of all baselines."""
        of_splits = [split.baselines() for split in self._splits]
        result = SiteResult()
        for target in of_splits[0]:
            self._add(result, [scores[target] for scores in of_splits])
        return result

    def _add(self, result: SiteResult, of_splits: Sequence[Sequence[Score]]) -> None:
        """Add the scores of a kind or baseline, given for each split, to a result."""
        result.measurements.extend(self._measured(of_splits))
        scores = _combined(of_splits)
        first = scores[0]
        result.predictions[Predictor(first.probe, first.target)] = first.pairs[0][0]
        if self.is_nested:
            result.predictions.update(_of_controls(scores, self.main_metric))
        if first.fit is not None:
            result.fits[first.probe], result.penalties[first.probe] = first.fit, first.C

    def _measured(self, of_splits: Sequence[Sequence[Score]]) -> Iterator[Measurement]:
        """Yield the measurements of each score over all splits.

        With several splits, validation scores are also given for each split alone, because each
        split chooses its own site by them.
        """
        for same in zip(*of_splits, strict=True):
            yield from self.measure(Score.of_all(same))
            first = same[0]
            if self.is_nested and first.split == "validation" and TARGETS[first.target].chooses:
                for fold, score in enumerate(same):
                    yield from self.measure(replace(score, fold=fold))

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


def _check_test_groups(splits: Sequence[ProbeData]) -> None:
    """Raise DataError if the test rows of all splits together are in a single group."""
    groups = np.concatenate([split.groups[split.test] for split in splits])
    if len(np.unique(groups)) < 2:
        raise DataError(
            f"All test rows belong to the group {str(groups[0])!r}, but the intervals need at "
            "least two groups. Give test at least two groups."
        )


def _with_one_positive(splits: Sequence[ProbeData]) -> list[ProbeData]:
    """Return the splits with the positive label of the first, so that all have the same."""
    code = splits[0].positive_code
    positive = None if code is None else str(splits[0].classes[code])
    return [replace(split, positive=positive) for split in splits]


def _combined(of_splits: Sequence[Sequence[Score]]) -> list[Score]:
    """Return the scores of several splits, each combined over the splits."""
    return [Score.of_all(same) for same in zip(*of_splits, strict=True)]


def _validated(scores: Sequence[Score], target: str) -> list[Score]:
    """Return the validation scores among the given scores, renamed to another target."""
    return [replace(one, target=target) for one in scores if one.split == "validation"]


def _of_controls(scores: Sequence[Score], metric: str) -> dict[Predictor, Predictions]:
    """Return the predictions of each draw of the control task on the test rows.

    Scores and alarms are removed if selectivity, computed from this metric, does not need them.
    """
    controls = [one for one in scores if (one.target, one.split) == ("control", "test")]
    return {
        Predictor(one.probe, control_draw(number)): _reduced(predictions, METRICS[metric].needs)
        for one in controls
        for number, (predictions, _) in enumerate(one.pairs)
    }


def _reduced(predictions: Predictions, needs: str) -> Predictions:
    """Return class predictions without unneeded scores and alarms; others are unchanged."""
    if not isinstance(predictions, ClassPredictions):
        return predictions
    if needs != "alarms":
        predictions = replace(predictions, alarms=None)
    if needs in ("scores", "probabilities"):
        return predictions
    return replace(predictions, scores=None, scores_are_log_probabilities=False)


def _parts(on_fit: OnFit | None, n_parts: int) -> list[OnFit]:
    """Return callbacks that report the fits of several parts as overall progress."""
    return [partial(_report, on_fit, number, n_parts) for number in range(n_parts)]


def _report(on_fit: OnFit | None, number: int, n_parts: int, done: int, total: int) -> None:
    if on_fit is not None:
        on_fit(number * total + done, n_parts * total)
