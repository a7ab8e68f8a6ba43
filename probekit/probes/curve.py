"""Probing of many sites: scores of the task, its controls and baselines, with intervals.

A `Prober` holds folds, control labels and resamples, which all sites share. Two sites therefore
differ only in their activations, and their intervals are paired.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from probekit.errors import DataError
from probekit.probes.all_rows import AllRows
from probekit.probes.controls.controls import control_types
from probekit.probes.data import ProbeData
from probekit.probes.fitters import LabelColumn
from probekit.probes.score.measurement import Measurement, Predictions, Resampler, Score, measure
from probekit.probes.score.metrics import ClassPredictions, Resamples
from probekit.probes.settings import ProbeSettings
from probekit.probes.site_result import Predictor, SiteResult, control_draw
from probekit.probes.solve.design import Features, Floats
from probekit.probes.solve.solver import Codes, OnFit
from probekit.probes.split import SplitProber
from probekit.probes.targets import TARGETS

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
        self.data = splits[0]
        self.settings = settings or ProbeSettings()
        self._splits = [SplitProber(split, self.settings) for split in splits]
        self._all_rows = AllRows.of(self.data, self.settings) if self.is_nested else None
        self._resampler = Resampler()

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
    def is_nested(self) -> bool:
        """Whether there are several splits, each with its own fits."""
        return len(self._splits) > 1

    @property
    def saved_rows(self) -> Codes:
        """The row numbers (n_fitted,) that `SiteResult.fits` are fitted on."""
        return self._splits[0].fitted if self._all_rows is None else self._all_rows.rows

    def explained(self, X: Features) -> Floats:
        """Return the share (n_features,) of each feature's variance that the labels explain.

        This is the feature ranking of the k-sparse probes in `SiteResult.fits`.
        """
        if self._all_rows is None:
            return self._splits[0].explained(X)
        return self._all_rows.explained(X)

    def chance(self, predictions: Predictions, fold: int, draw: int | None = None) -> Predictions:
        """Return the chance level predictions for the test rows of one split.

        Args:
            predictions: predictions of the task, or of one draw of the control task.
            fold: the number of the split.
            draw: the number of that draw; None for the task.
        """
        return self._splits[fold].chance(predictions, draw)

    @property
    def _text_kinds(self) -> set[str]:
        return {spec.text for spec in self.settings.kinds if spec.task == "text"}

    def rows_of(self, probe: str) -> Codes:
        """Return the row numbers that a kind is scored on: for texts, the first token of each."""
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
        """Return the jackknife resamples of the groups of the rows that a kind is scored on."""
        return self._resampler.of(self.data.groups[self.rows_of(probe)])

    @property
    def main_metric(self) -> str:
        """The metric by which sites are selected."""
        return self._splits[0].main_metric

    def site(self, X: Features, *, random: bool = False, on_fit: OnFit | None = None) -> SiteResult:
        """Return the results of all kinds at one site, kind by kind.

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
        all_rows = None if random else self._all_rows
        n_steps = n_splits + (all_rows is not None)
        result = SiteResult()
        for number, spec in enumerate(kinds):
            steps = [
                _part(on_fit, number * n_steps + n, len(kinds) * n_steps) for n in range(n_steps)
            ]
            outcomes = [
                split.read(spec, X, random, step)
                for split, step in zip(self._splits, steps, strict=False)
            ]
            self._add(result, outcomes)
            if all_rows is not None and outcomes[0][0].fit is not None:
                refit = all_rows.fit(spec, X, steps[-1])
                result.fits[spec.text] = refit.solution
                result.penalties[spec.text] = refit.penalty
        return result

    def baselines(self) -> SiteResult:
        """Return the results of all baselines."""
        of_splits = [split.baselines() for split in self._splits]
        result = SiteResult()
        for target in of_splits[0]:
            self._add(result, [scores[target] for scores in of_splits])
        return result

    def _add(self, result: SiteResult, of_splits: Sequence[Sequence[Score]]) -> None:
        """Add the scores of a kind or baseline, given for each split, to a result."""
        scores = [Score.of_all(same) for same in zip(*of_splits, strict=True)]
        first = scores[0]
        for score, same in zip(scores, zip(*of_splits, strict=True), strict=True):
            result.measurements.extend(self.measure(score))
            result.measurements.extend(self._by_fold(same))
        result.predictions[Predictor(first.probe, first.target)] = first.pairs[0][0]
        if self.is_nested:
            result.predictions.update(_of_controls(scores))
        if first.fit is not None:
            result.fits[first.probe], result.penalties[first.probe] = first.fit, first.C

    def _by_fold(self, scores: Sequence[Score]) -> Iterator[Measurement]:
        """Yield the validation scores by which each of several splits chooses its own site."""
        first = scores[0]
        if self.is_nested and first.split == "validation" and TARGETS[first.target].chooses:
            for fold, score in enumerate(scores):
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


def _of_controls(scores: Sequence[Score]) -> dict[Predictor, Predictions]:
    """Return the predictions of each draw of the control task on the test rows, without scores."""
    controls = [one for one in scores if (one.target, one.split) == ("control", "test")]
    return {
        Predictor(one.probe, control_draw(number)): _without_scores(predictions)
        for one in controls
        for number, (predictions, _) in enumerate(one.pairs)
    }


def _without_scores(predictions: Predictions) -> Predictions:
    if isinstance(predictions, ClassPredictions):
        return replace(predictions, scores=None, scores_are_log_probabilities=False)
    return predictions


def _part(on_fit: OnFit | None, number: int, n_parts: int) -> OnFit:
    """Return a callback that reports the fits of one of several parts as overall progress."""

    def report(done: int, total: int) -> None:
        if on_fit is not None:
            on_fit(number * total + done, n_parts * total)

    return report
