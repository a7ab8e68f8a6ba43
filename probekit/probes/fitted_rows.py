"""The rows that probes are fitted on: training rows, or all rows of a nested cross-validation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import numpy as np

from probekit.amounts import counted
from probekit.errors import DataError
from probekit.probes.data import ProbeData, group_folds, numbers, sample_groups, typical_rows
from probekit.probes.fitters import FitContext, LabelColumn, make_fitter
from probekit.probes.kinds.k_sparse import explained_shares
from probekit.probes.outputs import PredictionMaker
from probekit.probes.score.exchange import permuted_labels
from probekit.probes.score.scored import judge_of
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.design import Features, Floats
from probekit.probes.solve.fits import TunedProbeFit
from probekit.probes.solve.layers import FittedLayers
from probekit.probes.solve.solver import Codes, OnFit


def training_rows(data: ProbeData, settings: ProbeSettings) -> Codes:
    """Return the row numbers (n_fitted,) of the training rows that probes are fitted on.

    With `fit_rows` they are a random sample of whole groups, with at most that many rows.

    Raises:
        DataError: The sample contains no row of some training label.
    """
    train, limit = data.train, settings.fit_rows
    if limit is None:
        return train
    sampled = train[sample_groups(data.groups[train], limit, settings.seed)]
    lost = sorted(set(data.classes) - set(data.y[sampled]))
    if lost and settings.reads == "classes":
        raise DataError(
            f"fit_rows is {limit}, which leaves no training row with the label "
            f"{str(lost[0])!r} ({counted(len(lost), 'label')} lost in total). Increase "
            "`fit_rows` or change `seed`."
        )
    return sampled


@dataclass(frozen=True, eq=False)
class FittedRows:
    """Rows with their labels and the folds that select C on them.

    Attributes:
        rows: the row numbers (n_fitted,).
        column: the label code or number (n_fitted,) of each row.
        context: folds, groups and scaling rows of the fits.
    """

    rows: Codes
    column: LabelColumn
    context: FitContext

    def explained(self, X: Features) -> Floats:
        """Return the share (n_features,) of each feature's variance that the labels explain.

        X (n_rows, n_features) contains the features of all rows of the data.
        """
        return explained_shares(X[self.rows], self.column, self.context.typical)

    def permuted_fits(
        self, spec: ProbeSpec, X: Features, penalty: float | None, draws: int
    ) -> list[FittedLayers]:
        """Return fits on permuted labels; see `permuted_labels`.

        The permutations are the same for all sites. All fits of the logistic probe are columns of
        one batch.

        Args:
            spec: the kind, for classification.
            X: the features (n_rows, n_features) of all rows of the data.
            penalty: the penalty of all fits; None for a kind without one.
            draws: the number of permutations.
        """
        context = self.context
        labels = permuted_labels(self.column, context.groups, draws, context.settings.seed)
        unfitted = FittedLayers(np.empty(0, dtype=np.int64), ())
        tuned = [TunedProbeFit(penalty, unfitted, self.column, ())] * draws
        everything = np.ones(len(self.rows), dtype=bool)
        fitter = make_fitter(spec, context, _never_rated)
        return [fit for (fit,) in fitter.refit(X[self.rows], list(labels), tuned, [everything])]


@dataclass(frozen=True, eq=False)
class AllRows:
    """All rows of a nested cross-validation, with the folds that select C on them.

    Attributes:
        fitted: the rows; with `fit_rows` a random sample of whole groups.
        made: makes the held-out predictions by which C is selected.
    """

    fitted: FittedRows
    made: PredictionMaker

    @classmethod
    def of(cls, data: ProbeData, settings: ProbeSettings) -> AllRows:
        """Return the training and test rows of `data` together, sampled if `fit_rows` is set."""
        rows = np.sort(np.concatenate([data.train, data.test]))
        if settings.fit_rows is not None:
            rows = rows[sample_groups(data.groups[rows], settings.fit_rows, settings.seed)]
        is_class = settings.reads == "classes"
        labels, groups = data.y[rows], data.groups[rows]
        stratify = labels if is_class else np.zeros(len(rows))
        folds = group_folds(stratify, groups, settings.folds, settings.seed)
        column = (
            numbers(data)[rows] if settings.reads_numbers else np.searchsorted(data.classes, labels)
        )
        context = FitContext(folds, groups, typical_rows(data, rows), settings)
        positive = data.positive_code if is_class else None
        made = PredictionMaker(settings, len(data.classes), positive)
        return cls(FittedRows(rows, column, context), made)

    def fit(self, spec: ProbeSpec, X: Features, on_fit: OnFit) -> TunedProbeFit[FittedLayers]:
        """Return the fit of a kind on these rows, with C selected by cross-validation on them.

        X (n_rows, n_features) contains the features of all rows of the data.
        """
        judge = judge_of(self.made.settings.main_metric, partial(self.made.of_held_out, spec))
        fitter = make_fitter(spec, self.fitted.context, judge)
        (tuned,) = fitter.tune(X[self.fitted.rows], [self.fitted.column], on_fit)
        return tuned


def _never_rated(*_: object) -> NoReturn:
    raise AssertionError("the penalty is given")
