"""Fits on all rows after a nested cross-validation, to be saved: no row is left to test them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probekit.probes.data import ProbeData, numbers, typical_rows
from probekit.probes.fitters import FitContext, LabelColumn, make_fitter
from probekit.probes.folds import group_folds, sample_groups
from probekit.probes.kinds.k_sparse import explained_shares
from probekit.probes.settings import ProbeSettings, ProbeSpec
from probekit.probes.solve.design import Features, Floats
from probekit.probes.solve.fits import TunedProbeFit
from probekit.probes.solve.layers import FittedLayers
from probekit.probes.solve.solver import Codes, OnFit


@dataclass(frozen=True, eq=False)
class AllRows:
    """All rows of a nested cross-validation, with the folds that select C on them.

    Attributes:
        rows: the row numbers (n_fitted,); at most `fit_rows` of whole groups.
        column: the label code or number (n_fitted,) of each row.
        context: folds, groups and scaling rows of the fits.
    """

    rows: Codes
    column: LabelColumn
    context: FitContext

    @classmethod
    def of(cls, data: ProbeData, settings: ProbeSettings) -> AllRows:
        """Return the rows of both sides of a split of `data`."""
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
        return cls(rows, column, FitContext(folds, groups, typical_rows(data, rows), settings))

    def fit(self, spec: ProbeSpec, X: Features, on_fit: OnFit) -> TunedProbeFit[FittedLayers]:
        """Return the fit of a kind on the rows of X (n_rows, n_features), with C selected on them.

        X contains the features of all rows of the data.
        """
        (tuned,) = make_fitter(spec, self.context).tune(X[self.rows], [self.column], on_fit)
        return tuned

    def explained(self, X: Features) -> Floats:
        """Return the share (n_features,) of each feature's variance that the labels explain."""
        return explained_shares(X[self.rows], self.column, self.context.typical)
