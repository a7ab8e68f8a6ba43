"""The rows that probes are fitted on, and fitters of one kind of probe to several label columns.

A label column holds the labels of the task or of one draw of the control task. A fitter tunes
columns, which includes selecting the penalty by cross-validation, and refits columns on subsets of
the rows. The fitter of the logistic probe computes many fits in one batch; the others compute one
fit at a time.

Modules of kinds are imported inside functions: they import scikit-learn, which takes a second and
is not needed to check an experiment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probekit.amounts import counted
from probekit.errors import ConfigError, DataError
from probekit.lazy_rows import Codes, Floats, LazyRows, Mask, Rows
from probekit.probes.aggregation import GroupedTokens
from probekit.probes.data import ProbeData, group_folds, numbers, sample_groups, typical_rows
from probekit.probes.kinds.left_out import logistic_left_out, ridge_left_out
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import (
    LEAST_ALARMS,
    RATES,
    ClassPredictions,
    NumberPredictions,
    fixed_thresholds,
    with_alarms,
)
from probekit.probes.score.scored import log_frequencies, rating
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.descent import StoppingRule
from probekit.probes.solve.fits import (
    Judge,
    Search,
    TunedProbeFit,
    Tuning,
    best_rated,
    fit_jointly,
    placed,
)
from probekit.probes.solve.kernel import is_wide
from probekit.probes.solve.layers import AffineLayer, FittedLayers
from probekit.probes.solve.solver import OnFit, Problem, Solver
from probekit.probes.training_rows import TrainingRows, balanced_weights

LabelColumn = NDArray[Any]  # label codes, or numbers
RowPredictions = ClassPredictions | NumberPredictions
LabelsAndPenalty = tuple[LabelColumn, float | None]


def training_rows(data: ProbeData, settings: ProbeSettings) -> Codes:
    """Return the row numbers (n_fitted,) of the training rows that probes are fitted on.

    With `fit_rows` they are a random sample of whole groups, with at most that many rows.

    Raises:
        DataError: The first sampled group has more than `fit_rows` rows; or labels are classes, and
            the sample contains no row of some training label.
    """
    sampled = _sampled(data, data.train, settings)
    lost = sorted(set(data.classes) - set(data.y[sampled]))
    if lost and settings.reads == "classes":
        raise DataError(
            f"fit_rows is {settings.fit_rows}, which leaves no training row with the label "
            f"{str(lost[0])!r} ({counted(len(lost), 'label')} lost in total). Increase "
            "`fit_rows` or change `seed`."
        )
    return sampled


def _sampled(data: ProbeData, rows: Codes, settings: ProbeSettings) -> Codes:
    """Return the rows, or with `fit_rows` a random sample of their groups."""
    if settings.fit_rows is None:
        return rows
    groups, names = data.groups[rows], data.group_names
    return rows[sample_groups(groups, settings.fit_rows, settings.seed, names)]


def label_column(data: ProbeData, labels: NDArray[np.str_], settings: ProbeSettings) -> LabelColumn:
    """Return labels (n_rows,) of the rows of the data as codes or as numbers.

    Entries of rows that are neither training nor test rows have no meaning.
    """
    if settings.reads_numbers:
        return numbers(labels, np.concatenate([data.train, data.test]))
    # Labels that are not in train occur only in rows outside the split; any code will do for them.
    return np.searchsorted(data.classes, labels).clip(max=len(data.classes) - 1)


@dataclass(frozen=True, eq=False)
class FittedRows:
    """Rows that probes are fitted on, with the folds that select C on them.

    They are the training rows of one split, or all rows of a nested cross-validation.

    Attributes:
        data: labels and groups of all rows.
        settings: the settings of the probes.
        rows: the numbers (n_fitted,) of the fitted rows.
        fold_of_row: the fold (n_fitted,) of each fitted row.
    """

    data: ProbeData
    settings: ProbeSettings
    rows: Codes
    fold_of_row: Codes

    @classmethod
    def of(cls, data: ProbeData, settings: ProbeSettings, rows: Codes) -> FittedRows:
        """Return the rows with their folds, which are stratified by label if labels are classes."""
        labels = data.y[rows] if settings.reads == "classes" else np.zeros(len(rows))
        folds = group_folds(labels, data.groups[rows], settings.folds, settings.seed)
        return cls(data, settings, rows, folds)

    @classmethod
    def of_all(cls, data: ProbeData, settings: ProbeSettings) -> FittedRows:
        """Return training and test rows together, sampled if `fit_rows` is set."""
        rows = np.sort(np.concatenate([data.train, data.test]))
        return cls.of(data, settings, _sampled(data, rows, settings))

    def texts(self, rows: Codes) -> GroupedTokens:
        """Return the tokens of the texts with a fitted row.

        Args:
            rows: numbers of the rows to select from; all of a text, even if one of them is fitted.
        """
        examples = self.data.examples
        text_of_row = np.arange(len(self.data.y)) if examples is None else examples
        inside = rows[np.isin(text_of_row[rows], text_of_row[self.rows])]
        return GroupedTokens.of(np.sort(inside), examples)

    @cached_property
    def column(self) -> LabelColumn:
        """The label code or number (n_fitted,) of each row."""
        return label_column(self.data, self.data.y, self.settings)[self.rows]

    @cached_property
    def groups(self) -> NDArray[np.generic]:
        """The group (n_fitted,) of each row."""
        return self.data.groups[self.rows]

    @cached_property
    def typical(self) -> Mask | None:
        """Which rows (n_fitted,) feature scaling is estimated from; None means all."""
        return typical_rows(self.data, self.rows)

    @property
    def n_classes(self) -> int:
        """The number of classes."""
        return len(self.data.classes)

    @property
    def is_balanced(self) -> bool:
        """Whether all classes have the same total weight in each fit."""
        return self.settings.class_weight == "balanced"

    @property
    def positive(self) -> int | None:
        """The code of the positive class; None if there is none."""
        return self.data.positive_code if self.settings.reads == "classes" else None

    def fitter(self, spec: ProbeSpec) -> Fitter:
        """Return the fitter of a kind for classification or regression."""
        return _LogisticFitter(spec, self) if spec.kind == "logistic" else Fitter(spec, self)

    def search(self, spec: ProbeSpec, columns: Sequence[LabelColumn]) -> Search:
        """Return the search for C of label columns (n_samples,) of these rows."""
        settings = self.settings
        # Without a judge C is selected by accuracy, the only default metric of classes.
        judge = None if METRICS[settings.main_metric].is_main else self.judge(spec)
        tuning = Tuning(StoppingRule(max_iter=settings.max_iter), judge, self.is_balanced)
        return Search(self.rows, columns, self.fold_of_row, tuning, typical=self.typical)

    def predictions(
        self, spec: ProbeSpec, truth: LabelColumn, outputs: NDArray[Any], fitted: LabelColumn
    ) -> RowPredictions:
        """Return the predictions of one fit.

        Args:
            spec: the kind of probe.
            truth: the labels (n_samples,) of the predicted rows.
            outputs: their numbers (n_samples,) or class scores (n_samples, n_classes).
            fitted: the labels (n_fitted,) of the rows of the fit.
        """
        if self.settings.reads_numbers:
            return NumberPredictions(truth, outputs)
        prior = self.removed_prior(fitted)
        return ClassPredictions.of_scores(
            truth, outputs, are_logits=spec.logits, log_prior=prior, positive=self.positive
        )

    def held_out(
        self, spec: ProbeSpec, truth: LabelColumn, outputs: NDArray[Any], fold_of_row: Codes
    ) -> RowPredictions:
        """Return cross-validated predictions: `outputs` are those of the fit that held out the row.

        If there is a positive class, alarms are added, at thresholds fixed on the same rows.
        """
        if self.settings.reads_numbers:
            return NumberPredictions(truth, outputs, folds=fold_of_row)
        # A draw of the control task may lack the last classes: they get the lowest output.
        lowest = -np.inf if spec.logits else outputs.min() - 1
        missing = self.n_classes - outputs.shape[1]
        outputs = np.pad(outputs, ((0, 0), (0, missing)), constant_values=lowest)
        prior = None
        if self.settings.class_weight is not None:
            folds = range(int(fold_of_row.max()) + 1)
            prior_of_fold = [self.removed_prior(truth[fold_of_row != fold]) for fold in folds]
            prior = np.array(prior_of_fold)[fold_of_row]
        predictions = ClassPredictions.of_scores(
            truth, outputs, spec.logits, folds=fold_of_row, log_prior=prior, positive=self.positive
        )
        if self.positive is None:
            return predictions
        return with_alarms(predictions, fixed_thresholds(predictions))

    def judge(self, spec: ProbeSpec) -> Judge:
        """Return a function that rates held-out outputs by the main metric; higher is better."""

        def rate(truth: NDArray[Any], outputs: NDArray[Any], fold_of_row: Codes) -> float:
            """Return the main metric of held-out outputs; see `held_out`."""
            predictions = self.held_out(spec, truth, outputs, fold_of_row)
            return rating(self.settings.main_metric, predictions)

        return rate

    def removed_prior(self, fitted: LabelColumn) -> Floats | None:
        """Return the log class frequencies (n_classes,) of the training rows of a weighted fit.

        Class weights remove them from the scores, so they are added before probabilities are
        computed. None without class weights. `fitted` (n_fitted,) are the training labels.
        """
        if self.settings.class_weight is None:
            return None
        prior: Floats = log_frequencies(fitted, n_rows=1, n_classes=self.n_classes)[0]
        return prior

    def check_metric_is_defined(self) -> None:
        """Raise ConfigError if the main metric needs a threshold that cannot be fixed.

        Raises:
            ConfigError: There is no positive class, or there are too few other rows.
        """
        metric = self.settings.main_metric
        if METRICS[metric].needs != "alarms":
            return
        codes, positive = self.column, self.positive
        n_negative = 0 if positive is None else int(np.sum(codes != positive))
        scores = np.zeros((len(codes), self.n_classes))
        trial = ClassPredictions(codes, codes, self.n_classes, scores, positive=positive)
        # Whether a threshold is NaN depends only on the number of negative rows, not on the scores.
        if not n_negative or np.isnan(rating(metric, with_alarms(trial, fixed_thresholds(trial)))):
            raise ConfigError(
                f"metric is {metric}, whose threshold needs at least "
                f"{LEAST_ALARMS / min(RATES):,.0f} (at 1 %) or {LEAST_ALARMS / max(RATES):,.0f} "
                f"(at 5 %) training rows that are not of the positive class, but there are "
                f"{n_negative:,}. Choose another metric, such as auprc; without a "
                "positive class, set `data.positive`."
            )


def tuned_together(
    spec: ProbeSpec,
    X: LazyRows,
    parts: Sequence[tuple[FittedRows, Sequence[LabelColumn]]],
    steps: Sequence[OnFit],
) -> list[list[TunedProbeFit[FittedLayers]]]:
    """Return the tuned fits of label columns (n_rows,) of all rows X on the rows of each part.

    Logistic fits from products of the rows are one batch of all parts. `steps` has a callback for
    each part.
    """
    pairs = [(rows, [one[rows.rows] for one in columns]) for rows, columns in parts]
    if not is_one_batch(spec, X, [rows for rows, _ in pairs]):
        return [
            rows.fitter(spec).tune(X.select(rows.rows), own, step)
            for (rows, own), step in zip(pairs, steps, strict=True)
        ]

    def report(done: int, total: int) -> None:
        """Report progress of all parts."""
        for step in steps:
            step(done, total)

    searches = [rows.search(spec, own) for rows, own in pairs]
    return [list(one) for one in fit_jointly(X, searches, pairs[0][0].settings.C, report)]


def refitted(
    X: LazyRows,
    parts: Sequence[tuple[FittedRows, Codes, Sequence[LabelsAndPenalty], Sequence[Mask]]],
) -> list[list[list[FittedLayers]]]:
    """Return the logistic fits of parts of the rows X, given with their numbers, in one batch."""
    shares, problems = list[Mask](), list[Problem]()
    typical = np.ones(len(X), dtype=bool)
    for rows, inside, tasks, masks in parts:
        if rows.typical is not None:
            typical[inside] = rows.typical
        for codes, C in tasks:
            assert C is not None  # logistic fits always have a penalty
            whole, balanced = placed(codes, inside, len(X)), rows.is_balanced
            own = range(len(shares), len(shares) + len(masks))
            problems += [Problem(whole, C, share, balanced=balanced) for share in own]
        shares += [placed(mask, inside, len(X)) for mask in masks]
    stopping = StoppingRule(max_iter=parts[0][0].settings.max_iter)
    fits = iter(Solver(X, shares, typical=typical).solve(problems, stopping))
    return [[[next(fits) for _ in masks] for _ in tasks] for _, _, tasks, masks in parts]


def is_one_batch(spec: ProbeSpec, X: LazyRows, parts: Sequence[FittedRows]) -> bool:
    """Return whether logistic fits on all parts of the rows are computed from their products."""
    is_mixed = len({rows.typical is None for rows in parts}) > 1
    return spec.kind == "logistic" and is_wide(X) and not is_mixed


@dataclass(frozen=True, eq=False)
class Fitter:
    """Fits one kind of probe to label columns of rows X (n_samples, n_features), one at a time."""

    spec: ProbeSpec
    rows: FittedRows

    def tune(
        self, X: Rows, columns: Sequence[LabelColumn], on_fit: OnFit
    ) -> list[TunedProbeFit[FittedLayers]]:
        """Return the tuned fit of each label column (n_samples,); calls `on_fit(done, total)`."""
        fold_of_row, penalties = self.rows.fold_of_row, self.spec.penalties(self.rows.settings)
        grid: list[float | None] = [None]
        if penalties is not None:  # strongest regularisation first: the smallest C or largest alpha
            grid = [*sorted(penalties, reverse=self.spec.grid_name == "alpha")]
        folds = range(int(fold_of_row.max()) + 1)
        total = len(columns) * (len(folds) + 1)
        tuned = []
        for number, column in enumerate(columns):
            done = number * (len(folds) + 1)
            paths = []
            for fold in folds:
                inside = fold_of_row != fold
                paths.append(self._path(grid, X, column, inside))
                on_fit(done + fold + 1, total)
            # The held-out outputs (n_grid, n_samples, ...) of all rows at each penalty.
            n_classes = None if self.rows.settings.reads_numbers else int(column.max()) + 1
            by_fold = []
            for fold, path in enumerate(paths):
                outside = LazyRows.of(X).select(fold_of_row == fold)
                by_fold.append(np.stack([fit.outputs(outside, n_classes) for fit in path]))
            # They are in the order of folds; the second sort restores the order of the rows.
            row_in_fold_order = np.argsort(fold_of_row, kind="stable")
            outputs = np.concatenate(by_fold, axis=1)[:, np.argsort(row_in_fold_order)]
            best = best_rated(self.rows.judge(self.spec), column, outputs, fold_of_row)
            all_rows = np.ones(len(X), dtype=bool)
            (final,) = self._path([grid[best]], X, column, all_rows)
            on_fit(done + len(folds) + 1, total)
            search = tuple(path[best] for path in paths)
            held_out = outputs[best] if n_classes is None else outputs[best].argmax(axis=1)
            tuned.append(TunedProbeFit(grid[best], final, held_out, search))
        return tuned

    def refit(
        self, X: Rows, tasks: Sequence[LabelsAndPenalty], masks: Sequence[Mask]
    ) -> list[list[FittedLayers]]:
        """Return, for each label column with its penalty, the fit on the rows of each mask."""
        return [[self._path([penalty], X, y, mask)[0] for mask in masks] for y, penalty in tasks]

    def left_out(
        self, X: Rows, column: LabelColumn, fit: FittedLayers, penalty: float | None
    ) -> Floats | None:
        """Return the scores (n_samples, n_out) of a fit on all rows without the group of each row.

        None if they have no closed form: for kinds other than logistic and ridge, for logistic fits
        of more than two classes, and for fits of a single class.
        """
        from probekit.probes.kinds.ridge import targets_of

        kind, n_classes = self.spec.kind, len(fit.classes)
        if penalty is None or n_classes == 1:
            return None
        codes = np.searchsorted(fit.classes, column)
        data = TrainingRows(X, codes, self.rows.groups, self.rows.typical)
        weights = balanced_weights(codes) if self.rows.is_balanced else None
        if kind == "logistic" and n_classes == 2:
            return logistic_left_out(data, fit.layers[0], penalty, weights)
        if kind == "ridge":
            return ridge_left_out(data, targets_of(codes), fit.layers[0], penalty, weights)
        return None

    def _path(
        self, penalties: Sequence[float | None], X: Rows, column: LabelColumn, inside: Mask
    ) -> list[FittedLayers]:
        """Return the fit at each penalty on the rows selected by `inside`."""
        from probekit.probes.kinds.base import TunedProbe
        from probekit.probes.kinds.ridge import ridge_path

        # Without a penalty the single value is None, here NaN, which is not used below.
        values = np.array(penalties, dtype=np.float64)
        typical = None if self.rows.typical is None else self.rows.typical[inside]
        if self.rows.settings.reads_numbers:
            y = column[inside, None].astype(np.float64)
            layers = ridge_path(LazyRows.of(X).select(inside), y, values, typical)
            return [FittedLayers(np.empty(0, dtype=np.int64), (layer,)) for layer in layers]
        codes = np.asarray(column[inside], dtype=np.int64)
        classes = np.unique(codes)
        if len(classes) == 1:  # the fit always predicts this class
            layer = AffineLayer(np.zeros((1, X.shape[1])), np.zeros(1))
            return [FittedLayers(classes, (layer,))] * len(penalties)
        probe = self.spec.build(self.rows.settings)
        index_in_classes = np.searchsorted(classes, codes)
        data = TrainingRows(
            LazyRows.of(X).select(inside), index_in_classes, self.rows.groups[inside], typical
        )
        path = probe.path(values, data) if isinstance(probe, TunedProbe) else [probe.solve(data)]
        return [replace(fit, classes=classes[fit.classes]) for fit in path]  # back to label codes


class _LogisticFitter(Fitter):
    """Computes the logistic fits of all label columns in one batch; see `Fitter`."""

    def tune(
        self, X: Rows, columns: Sequence[LabelColumn], on_fit: OnFit
    ) -> list[TunedProbeFit[FittedLayers]]:
        search = replace(self.rows.search(self.spec, columns), rows=np.arange(len(X)))
        return list(fit_jointly(LazyRows.of(X), [search], self.rows.settings.C, on_fit)[0])

    def refit(
        self, X: Rows, tasks: Sequence[LabelsAndPenalty], masks: Sequence[Mask]
    ) -> list[list[FittedLayers]]:
        return refitted(LazyRows.of(X), [(self.rows, np.arange(len(X)), tasks, masks)])[0]
