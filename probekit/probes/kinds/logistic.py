"""The logistic probe: standardised L2 logistic regression as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_expit, log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, column_or_1d, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from probekit.lazy_rows import Codes, Features, Floats, LazyRows
from probekit.probes.data import fittable_insides, group_folds
from probekit.probes.kinds import base
from probekit.probes.kinds.registry import C_GRID, at_least, positive_grid
from probekit.probes.solve.descent import StoppingRule
from probekit.probes.solve.fits import Tuning, fit_columns
from probekit.probes.solve.layers import with_reference
from probekit.probes.solve.solver import Fit, Problem, Solver
from probekit.products import without_tf32

# Largest (objective - minimum) / objective at convergence, by the dtype of the rows. This value is
# quadratic in the gradient; in float64 it can be measured only through the gradient.
TOLERANCES = {"float32": 1e-9, "float64": 1e-19}

ClassWeight = Mapping[Any, float] | Literal["balanced"] | None


@dataclass(eq=False, repr=False)
class LinearProbe(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # sklearn has no types
    """Standardised L2 logistic regression, with C chosen by grouped cross-validation.

    Supports binary, multinomial and multilabel classification: with an indicator matrix y
    (n_samples, n_labels), each column is fitted as a separate probe.

    Args:
        C: Inverse regularisation strength, for standardised features; of several values the one
            with the highest held-out accuracy is selected by group-disjoint cross-validation.
        folds: Number of cross-validation folds that select C.
        max_iter: Maximum number of solver iterations.
        class_weight: Weight of each class, or "balanced" to give all classes the same total weight.
        random_state: Random seed for the folds.
        device: Where `fit` computes; see `LazyRows.on`.

    Attributes:
        classes_: The sorted labels; for multilabel y the column numbers.
        coef_: Weights for raw, unscaled rows, shape (1, n_features) for two classes, else
            (n_classes, n_features).
        intercept_: Biases, shape (1,) or (n_classes,).
        C_: The selected C; for multilabel y one per column.
        n_iter_: Number of solver iterations, the largest of all fits.
        converged_: Whether every fit reached its tolerance.
        gradient_norm_: Norm of the gradient at the solution, in coordinates in which the Hessian is
            approximately the identity; the largest of all fits.

    >>> X = np.array([[-3.0], [-2.0], [-1.0], [1.0], [2.0], [3.0]])
    >>> probe = LinearProbe(C=1.0).fit(X, ["down", "down", "down", "up", "up", "up"])
    >>> probe.predict([[-5.0], [5.0]]).tolist(), probe.converged_
    (['down', 'up'], True)
    """

    C: float | Sequence[float] = C_GRID
    folds: int = 5
    max_iter: int = 2000
    class_weight: ClassWeight = None
    random_state: int = 0
    device: str = "cpu"

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    @without_tf32()
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        groups: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> LinearProbe:
        """Return self, fitted on X (n_samples, n_features).

        Args:
            X: The rows.
            y: The labels (n_samples,), or an indicator matrix (n_samples, n_labels) of 0 and 1.
            groups: The cross-validation group (n_samples,) of each row; None makes each row its
                own group.
            sample_weight: The weight (n_samples,) of each row; rows with weight 0 are removed.

        Raises:
            ConfigError: A C or a class weight is not positive, or there are too few folds or
                iterations.
            DataError: There is only one class, the labels have several types, or there are fewer
                groups than folds.
        """
        grid = positive_grid("C", self.C)
        at_least(self, folds=2, max_iter=1, random_state=0)
        if isinstance(self.class_weight, Mapping):
            # A class of weight 0 cannot be fitted; its rows should be removed instead.
            for label, weight in self.class_weight.items():
                positive_grid(f"class_weight of {label!r}", weight)
        base.refuse_mixed_types(y)
        rows, labels = validate_data(
            self, X, y, dtype=[np.float64, np.float32], ensure_min_samples=2, multi_output=True
        )
        weights = base.weights_of(rows, sample_weight)
        counted = np.flatnonzero(weights)
        units = base.units_of(rows, groups)[counted]
        columns = self._columns(labels[counted])
        rows, weights = rows[counted], weights[counted]
        if self.class_weight is None:
            fits = self._fit_columns(rows, columns, units, weights, grid)
        else:
            fits = []
            for codes in columns:  # class weights differ between the columns of a multilabel y
                class_weighted = self._weighted(codes, weights)
                fits += self._fit_columns(rows, [codes], units, class_weighted, grid)
        if self.multilabel_:
            layers = [_one_row(fit) for fit in fits]
            self.coef_ = np.stack([coef for coef, _ in layers])
            self.intercept_ = np.array([intercept for _, intercept in layers])
            self.C_: float | Floats = np.array([fit.C for fit in fits])
        else:
            self.coef_, self.intercept_, self.C_ = fits[0].coef, fits[0].intercept, fits[0].C
        self.n_iter_ = max(fit.n_iter for fit in fits)
        self.converged_ = all(fit.converged for fit in fits)
        self.gradient_norm_ = max(fit.gradient_norm for fit in fits)
        base.warn_if_flat(self.coef_)
        return self

    def _columns(self, y: NDArray[Any]) -> list[Codes]:
        """Set `classes_` and `multilabel_`; return the label codes of each column to be fitted."""
        check_classification_targets(y)
        self.multilabel_ = type_of_target(y) == "multilabel-indicator"
        if self.multilabel_:
            self.classes_ = np.arange(y.shape[1])
            return [np.ascontiguousarray(column, dtype=np.int64) for column in y.T]
        self.classes_, codes = base.class_codes(column_or_1d(y, warn=True))
        return [codes]

    def _weighted(self, codes: Codes, sample_weight: Features) -> Features:
        """Return the weight (n_samples,) of each row, multiplied by the weight of its class."""
        if self.class_weight == "balanced":
            totals = np.bincount(codes, weights=sample_weight)
            # A label whose total is 0 has no rows: 0, in a column of a multilabel y with only 1.
            total_of_each = sample_weight.sum() / np.count_nonzero(totals)
            weights: Features = sample_weight * total_of_each / totals[codes]
        else:
            labels = codes if self.multilabel_ else self.classes_[codes]
            weights = sample_weight * compute_sample_weight(self.class_weight, labels)
        return weights

    def _fit_columns(
        self,
        X: NDArray[Any],
        columns: Sequence[Codes],
        units: NDArray[Any],
        weights: Features,
        grid: tuple[float, ...],
    ) -> list[Fit]:
        """Return the fit of each label column on all rows, at the selected C of the grid."""
        there = LazyRows.of(X).on(self.device)
        stopping = StoppingRule(TOLERANCES[there.dtype.name], self.max_iter)
        if len(grid) == 1:
            problems = [Problem(codes, grid[0]) for codes in columns]
            return Solver(there, [weights]).solve(problems, stopping)
        # Folds are stratified by the combination of all labels of a row.
        _, labels = np.unique(np.stack(columns), axis=1, return_inverse=True)
        folds = group_folds(labels, units, self.folds, self.random_state)
        if labels.any():  # not if a multilabel y is the same in all rows, which is allowed
            fittable_insides(labels, folds)
        tuned = fit_columns(there, columns, folds, grid, tuning=Tuning(stopping), weights=weights)
        return [column.solution for column in tuned]

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the scores of all classes (n_samples, n_classes).

        For two classes, return only the score (n_samples,) of the second; for multilabel y, return
        the score (n_samples, n_labels) of each label.
        """
        scores = self._scores(X)
        return scores.T if self.multilabel_ or len(scores) > 1 else scores[0]

    def predict_log_proba(self, X: ArrayLike) -> Floats:
        """Return the log probabilities (n_samples, n_classes), in the order of `classes_`.

        For multilabel y, return the log probability that each label is 1.
        """
        scores = self._scores(X)  # this raises NotFittedError before `fit`
        if self.multilabel_:
            logs: Floats = log_expit(scores)
        else:
            logs = log_softmax(with_reference(scores, len(self.classes_)), axis=0)
        return logs.T

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Return the probabilities (n_samples, n_classes); see `predict_log_proba`."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most probable label (n_samples,) of each row.

        For multilabel y, return an indicator matrix (n_samples, n_labels).
        """
        scores = self._scores(X)
        if self.multilabel_:
            return (scores.T > 0).astype(np.int64)
        places = with_reference(scores, len(self.classes_)).argmax(axis=0)
        found: NDArray[Any] = self.classes_[places]
        return found

    def _scores(self, X: ArrayLike) -> Floats:
        """Return the scores (n_out, n_samples) of validated rows."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        found: Floats = self.coef_ @ rows.T + self.intercept_[:, None]
        return found


def _one_row(fit: Fit) -> tuple[Floats, float]:
    """Return weights and bias of a binary column; a constant column gets an infinite bias."""
    if len(fit.classes) == 2:
        return fit.coef[0], fit.intercept[0]
    bias = np.inf if fit.classes[0] == 1 else -np.inf
    return np.zeros_like(fit.coef[0]), bias
