"""Probing of many sites: scores of the task, its controls and baselines, with intervals.

A `Prober` holds folds, control labels and resamples, which all sites share. Two sites therefore
differ only in their activations, and differences of their scores are paired.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from probekit.errors import DataError
from probekit.lazy_rows import Codes, Floats, LazyRows, Mask, Rows
from probekit.probes.aggregation import outputs_of_rows, text_probe, text_sides
from probekit.probes.controls import why_no_control
from probekit.probes.data import ProbeData, names_of, typical_rows
from probekit.probes.fitters import FittedRows, LabelColumn, tuned_together
from probekit.probes.score.description_length import coding_fits
from probekit.probes.score.exchange import LabelExchange
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import WIDER_OVER_FOLDS, ClassPredictions, Resamples, take
from probekit.probes.score.scored import (
    Measurement,
    Predictions,
    Predictor,
    Scored,
    SiteResult,
    control_draw,
    measure,
)
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.fits import TunedProbeFit
from probekit.probes.solve.kernel import with_products
from probekit.probes.solve.layers import FittedLayers
from probekit.probes.solve.solver import OnFit
from probekit.probes.split import SplitProber
from probekit.probes.targets import NETWORKS, TARGETS, WITHIN
from probekit.products import without_tf32
from probekit.provenance import digest


class Prober:
    """Probes any number of sites with the same rows, folds, control labels and resamples.

    Args:
        data: the rows and their split; or several splits of the same rows, as in nested
            cross-validation, whose test rows are scored together. Each split selects C on its own
            training rows; validation scores are also given for each split, so that each can choose
            its own site.
        settings: settings for fitting and scoring.
        within: further splits of the same test rows, whose scores have the target `WITHIN`; none
            by default.

    Attributes:
        splits: the fits and scores of each split.
        within: those of each further split.
        why_no_control: why there is no control task although one is requested; "" if there is one.

    Raises:
        ConfigError: A control task is requested that cannot be drawn; see `draw_controls`. The main
            metric needs a threshold that cannot be fixed, or there are too few rows for a learning
            curve.
        DataError: There are fewer groups of training rows than folds, all test rows are in one
            group, or the kinds of probe cannot use the labels.

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
        self,
        data: ProbeData | Sequence[ProbeData],
        settings: ProbeSettings | None = None,
        within: Sequence[ProbeData] = (),
    ) -> None:
        splits = [data] if isinstance(data, ProbeData) else list(data)
        self.settings = settings or ProbeSettings()
        if self.settings.reads == "classes":
            # All splits have the positive label of the first.
            code = splits[0].positive_code
            positive = None if code is None else str(splits[0].classes[code])
            splits = [replace(split, positive=positive) for split in splits]
            within = [replace(split, positive=positive) for split in within]
        self.data = splits[0]
        groups = np.unique(np.concatenate([split.groups[split.test] for split in splits]))
        if len(groups) < 2:
            (name,) = names_of(groups, self.data.group_names)
            raise DataError(
                f"All test rows belong to the group {name!r}, but the intervals need at "
                "least two groups. Give test at least two groups."
            )
        self.splits = [SplitProber(split, self.settings, len(splits) > 1) for split in splits]
        plain = self.settings.changed(description=False, learning_steps=0)
        self.within = [SplitProber(split, plain, is_joined=True) for split in within]
        self.why_no_control = ""
        if self._requests_control:
            fitted = [split.fitted.rows for split in self.splits]
            self.why_no_control = why_no_control(
                self.data, self.settings, fitted, self.test_rows, self.comparable
            )
        if self.has_control:
            for split in self.splits:
                split.draw_controls()
        self._all_rows = FittedRows.of_all(self.data, self.settings) if self.is_nested else None
        self._resamples: dict[str, Resamples] = {}

    @property
    def has_control(self) -> bool:
        """Whether there is a control task."""
        return self._requests_control and not self.why_no_control

    @property
    def _requests_control(self) -> bool:
        """Whether the settings request a control task, and some kind of probe can have one."""
        scores_rows = any(spec.traits.scores_rows for spec in self.settings.specs)
        return self.settings.control_draws > 0 and scores_rows

    @property
    def comparable(self) -> Mask:
        """Mask (n_test,) of the test rows that the control task is scored on."""
        return np.concatenate([split.comparable for split in self.splits])

    @property
    def test_rows(self) -> Codes:
        """The row numbers (n_test,) of the test rows."""
        return self._tested("", self.splits)

    @property
    def is_nested(self) -> bool:
        """Whether there are several splits, each with its own fits."""
        return len(self.splits) > 1

    @property
    def saved_rows(self) -> FittedRows:
        """The rows that `SiteResult.fits` are fitted on."""
        return self.splits[0].fitted if self._all_rows is None else self._all_rows

    @property
    def positive(self) -> str | None:
        """The label that metrics of one class refer to; None if there is none; see `ProbeData`."""
        code = self.splits[0].fitted.positive
        return None if code is None else str(self.data.classes[code])

    def rows_of(self, probe: str) -> Codes:
        """Return the row numbers that a kind is scored on.

        A kind that reads whole texts is scored on the first row of each text.
        """
        return self._tested(probe, self.splits)

    def _tested(self, probe: str, splits: Sequence[SplitProber]) -> Codes:
        """Return the row numbers that a kind is scored on in some splits, one after the other."""
        if probe in {spec.text for spec in self.settings.specs if spec.traits.scores_texts}:
            return np.concatenate([split.test_tokens.first for split in splits])
        return np.concatenate([split.scored.test for split in splits])

    def fold_of(self, probe: str, *, within: bool = False) -> Codes:
        """Return the number of the split in which each row of `rows_of` is a test row.

        With `within` it is that of the splits with the target `WITHIN`.
        """
        fold_of_row = np.zeros(len(self.data.y), dtype=np.int64)
        for number, split in enumerate(self.within if within else self.splits):
            fold_of_row[split.data.test] = number
        return fold_of_row[self.rows_of(probe)]

    def truth_of(self, probe: str) -> LabelColumn:
        """Return the label codes, or the numbers, of the rows that a kind is scored on."""
        return self.splits[0].task[self.rows_of(probe)]

    def label_exchange(self, labels: Floats, probe: str, draws: int) -> LabelExchange:
        """Return the exchanges of labels for the test rows that a kind is scored on.

        Args:
            labels: label of each of these rows, one-hot or a number, shape (n_samples, n_labels).
            probe: the kind of probe.
            draws: number of exchanges.
        """
        groups = self.data.groups[self.rows_of(probe)]
        return LabelExchange(labels, groups, self.fold_of(probe), draws, self.settings.seed)

    @property
    def main_metric(self) -> str:
        """The metric by which sites are selected."""
        return self.settings.main_metric

    def measure(self, scored: Scored) -> list[Measurement]:
        """Return the measurements of predictions, with the resamples that all sites share."""
        return measure(scored, self._resampled(scored.groups))  # the imported function

    def resamples_of(self, probe: str) -> Resamples:
        """Return the resamples that the intervals of a kind are computed from."""
        return self._resampled(self.data.groups[self.rows_of(probe)])

    def _resampled(self, groups: NDArray[np.generic]) -> Resamples:
        """Return the resamples of groups (n_samples,): identical ones for identical groups."""
        key = digest([np.ascontiguousarray(groups).tobytes()])
        if key not in self._resamples:
            widening = WIDER_OVER_FOLDS if self.is_nested else 1.0
            self._resamples[key] = Resamples.leave_one_out(groups, widening=widening)
        return self._resamples[key]

    @without_tf32()
    def site(self, X: Rows, *, on_fit: OnFit | None = None) -> SiteResult:
        """Return the results of all kinds at one site, kind by kind.

        Args:
            X: the activations (n_rows, n_features).
            on_fit: called as `on_fit(done, total)` to report progress; see `SplitProber.read`.

        Raises:
            DataError: X is not finite.
        """
        X = self._checked(X)
        # A nested cross-validation ends with a further fit, on all rows.
        kinds, n_splits = self.settings.specs, len(self.splits)
        n_steps = n_splits + len(self.within) + (1 if self.is_nested else 0)
        result = SiteResult()
        for spec, on_kind in zip(kinds, _callbacks(on_fit, len(kinds)), strict=True):
            steps = _callbacks(on_kind, n_steps)
            of_splits, refit = _read(self.splits, spec, X, steps, whole=self._all_rows)
            self._add(result, of_splits)
            if self.within:
                of_within = [
                    [one.with_facts(target=WITHIN) for one in scores]
                    for scores in _read(self.within, spec, X, steps[n_splits:])[0]
                ]
                self._add(result, of_within)
            task = of_splits[0][0]  # it has a fit if the kind is a stack of layers
            if self._all_rows is not None and task.fit is not None:
                if spec.traits.scores_texts:
                    probe = text_probe(self.splits[0], spec, X, text_sides(self)[-1][0])
                    result.fits[spec.text], result.penalties[spec.text] = probe.fit_, probe.C_
                    steps[-1](1, 1)
                elif refit is not None:
                    result.fits[spec.text] = refit.solution
                    result.penalties[spec.text] = refit.penalty
        return result

    @without_tf32()
    def random_site(
        self, networks: Iterable[Rows], n_networks: int, on_fit: OnFit | None = None
    ) -> SiteResult:
        """Return the results of networks with random weights at one site, kind by kind.

        Only the task is scored. The target "random_weights" is the mean score over the networks.
        In addition, each network has a target of its own in `NETWORKS`, for its validation score
        and its predictions.

        Args:
            networks: the activations (n_rows, n_features) of each network.
            n_networks: number of networks, at most as many as `NETWORKS` has targets.
            on_fit: called as `on_fit(done, total)` to report progress; see `SplitProber.read`.

        Raises:
            DataError: as for `site`.
        """
        kinds, of_networks = self.settings.specs, []
        for X, on_network in zip(networks, _callbacks(on_fit, n_networks), strict=True):
            rows = self._checked(X)
            of_kinds = []
            for spec, on_kind in zip(kinds, _callbacks(on_network, len(kinds)), strict=True):
                steps = _callbacks(on_kind, len(self.splits))
                of_kinds.append(_read(self.splits, spec, rows, steps, random=True)[0])
            of_networks.append(of_kinds)
        result = SiteResult()
        # `of_kind` holds, for each network, the scores of one kind of probe for each split.
        for of_kind in zip(*of_networks, strict=True):
            scores = [_over_splits(of_splits) for of_splits in of_kind]
            for of_draws in zip(*scores, strict=True):
                result.measurements.extend(self.measure(Scored.of_draws(of_draws)))
            # There may be fewer networks than `NETWORKS` has targets.
            for target, of_splits, (task, *_) in zip(NETWORKS, of_kind, scores, strict=False):
                validations = []
                for of_split in of_splits:
                    validation = [one for one in of_split if one.facts.split == "validation"]
                    validations.append([one.with_facts(target=target) for one in validation])
                result.measurements.extend(self._measured(validations))
                result.predictions[Predictor(task.facts.probe, target)] = task.predictions[0]
        return result

    def baselines(self, outputs: Mapping[str, Floats] | None = None) -> SiteResult:
        """Return the results of all requested baselines; empty for trees.

        Args:
            outputs: numbers of the network's output by name, each (n_rows,); None without them.
        """
        result, numbers = SiteResult(), outputs_of_rows(self, outputs)
        for same in zip(*(split.baselines(numbers) for split in self.splits), strict=True):
            self._add(result, [[scored] for scored in same])
        return result

    def _add(self, result: SiteResult, of_splits: Sequence[Sequence[Scored]]) -> None:
        """Add the scores of a kind or baseline, given for each split, to a result."""
        result.measurements.extend(self._measured(of_splits))
        scores = _over_splits(of_splits)
        task, probe = scores[0], scores[0].facts.probe
        predictions = task.predictions[0]
        if task.facts.target == WITHIN:  # in the order of all other predictions
            order = np.argsort(self._tested(probe, self.within))
            ranks = np.argsort(np.argsort(self.rows_of(probe)))
            predictions = take(predictions, order[ranks])
        result.predictions[Predictor(probe, task.facts.target)] = predictions
        for scored in scores:
            if self.is_nested and (scored.facts.target, scored.facts.split) == ("control", "test"):
                for number, predictions in enumerate(scored.predictions):
                    reduced = _reduced(predictions, METRICS[self.main_metric].needs)
                    result.predictions[Predictor(probe, control_draw(number))] = reduced
        if task.fit is not None:
            result.fits[probe], result.penalties[probe] = task.fit, task.facts.C

    def _measured(self, of_splits: Sequence[Sequence[Scored]]) -> Iterator[Measurement]:
        """Yield the measurements of each score over all splits.

        With several splits, validation scores of targets that choose sites (see `Target.chooses`)
        are also given for each split alone, because each split chooses its own site by them.
        """
        for same in zip(*of_splits, strict=True):
            yield from self.measure(Scored.of_splits(same))
            facts = same[0].facts
            if self.is_nested and facts.split == "validation" and TARGETS[facts.target].chooses:
                for fold, scored in enumerate(same):
                    yield from self.measure(scored.with_facts(fold=fold))

    def _checked(self, X: Rows) -> LazyRows:
        """Return X after checking that it has one finite row of floats for each label."""
        rows = LazyRows.of(X).loaded()
        is_finite = [np.isfinite(block).all(axis=1) for _, block in rows.blocks()]
        wrong = np.flatnonzero(~np.concatenate(is_finite))
        if len(wrong):
            raise DataError(
                f"{len(wrong)} of {len(X)} rows of X contain NaN or infinity, first row {wrong[0]}."
                " Capture them again, in bfloat16 or float32 if they were stored as float16."
            )
        rows = rows.on(self.settings.device)
        typical = typical_rows(self.data, np.arange(len(rows)))
        return with_products(rows, typical)


def _read(
    splits: Sequence[SplitProber],
    spec: ProbeSpec,
    X: LazyRows,
    steps: Sequence[OnFit],
    *,
    random: bool = False,
    whole: FittedRows | None = None,
) -> tuple[list[list[Scored]], TunedProbeFit[FittedLayers] | None]:
    """Return the scores of a kind of probe for each split, and its fit on the rows of `whole`.

    `steps` holds a callback for each split, others that are not used, and the last for `whole`.
    """
    if not spec.traits.scores_rows:
        found = []
        for split, step in zip(splits, steps, strict=False):
            found.append(split.read(spec, X, random, []))
            step(1, 1)
        return found, None
    parts = [(split.fitted, split.labels(random)) for split in splits]
    parts += [] if whole is None else [(whole, [splits[0].task])]
    callbacks = [*steps[: len(splits)], steps[-1]][: len(parts)]
    tuned = tuned_together(spec, X, parts, callbacks)
    pairs = list(zip(splits, tuned, strict=False))
    coding = coding_fits(spec, X, random, pairs)
    scores = [
        split.read(spec, X, random, of_split, of_blocks)
        for (split, of_split), of_blocks in zip(pairs, coding, strict=True)
    ]
    return scores, None if whole is None else tuned[-1][0]


def _over_splits(of_splits: Sequence[Sequence[Scored]]) -> list[Scored]:
    """Return the scores of several splits, each combined over the splits."""
    return [Scored.of_splits(same) for same in zip(*of_splits, strict=True)]


def _reduced(predictions: Predictions, needs: str) -> Predictions:
    """Return class predictions with only the scores or alarms that a metric `needs`.

    Other predictions are unchanged.
    """
    if not isinstance(predictions, ClassPredictions):
        return predictions
    if needs != "alarms":
        predictions = replace(predictions, alarms=None)
    if needs in ("scores", "probabilities"):
        return predictions
    return replace(predictions, scores=None, scores_are_log_probabilities=False, scaled=None)


def _callbacks(on_fit: OnFit | None, n_parts: int) -> list[OnFit]:
    """Return callbacks that report the fits of several parts as overall progress."""

    def report(number: int, done: int, total: int) -> None:
        """Report that `done` of `total` fits of a part are done; all parts have equally many."""
        if on_fit is not None:
            on_fit(number * total + done, n_parts * total)

    return [partial(report, number) for number in range(n_parts)]
