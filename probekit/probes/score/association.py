"""The score of each test row under each label it could have: what tests of association exchange.

A p-value asks whether predictions and labels are associated, by the metric that is reported. For
that, a metric is written as a sum over rows of `scores[row] @ labels[row]`, which stays a sum when
labels are exchanged between rows.

    of_accuracy, of_balanced_accuracy, of_macro_f1, of_auroc    for classes
    of_r2, of_spearman                                          for numbers

Macro F1 and AUROC are linear in the labels as long as the number of rows with each label stays the
same. For R2 the terms that do not depend on the assignment of the labels are left out, so that the
sum is a covariance. Under `split.folds`, ranks are taken within each fold, because scores of
different fits are not comparable.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from probekit.probes.score.metrics import ClassPredictions, ranking_scores
from probekit.probes.score.regression import NumberPredictions
from probekit.probes.solve.design import Floats
from probekit.probes.solve.solver import Codes


@dataclass(frozen=True, eq=False)
class RowScores:
    """A metric as a sum over rows.

    Attributes:
        scores: the score (n_samples, n_labels) of each row for each label.
        labels: the label (n_samples, n_labels) of each row: one-hot for classes, a single column
            with the number or its rank for numbers.
    """

    scores: Floats
    labels: Floats


def rows_by_fold(predictions: ClassPredictions | NumberPredictions) -> list[Codes]:
    """Return the row numbers of each fit that made the predictions."""
    folds = predictions.folds
    if folds is None:
        return [np.arange(len(predictions.truth))]
    return [np.flatnonzero(folds == fold) for fold in np.unique(folds)]


def of_accuracy(predictions: ClassPredictions) -> RowScores:
    """Return the row scores of the accuracy: 1 / n_samples at the predicted class.

    >>> found = of_accuracy(ClassPredictions(np.array([0, 1]), np.array([0, 0]), 2))
    >>> float((found.scores * found.labels).sum())
    0.5
    """
    return _weighted_hits(predictions, np.full(predictions.n_classes, 1 / len(predictions.truth)))


def of_balanced_accuracy(predictions: ClassPredictions) -> RowScores:
    """Return the row scores of the mean recall over the classes that occur."""
    n_true = _counted(predictions.truth, predictions.n_classes)
    return _weighted_hits(predictions, _inverse(n_true) / (n_true > 0).sum())


def of_macro_f1(predictions: ClassPredictions) -> RowScores:
    """Return the row scores of the mean F1 over the true or predicted classes."""
    n_true, n_guessed = (
        _counted(codes, predictions.n_classes) for codes in (predictions.truth, predictions.guess)
    )
    total = n_true + n_guessed
    return _weighted_hits(predictions, 2 * _inverse(total) / (total > 0).sum())


def of_auroc(predictions: ClassPredictions) -> RowScores:
    """Return the row scores of the AUROC: rank sums of each class, averaged over classes and folds.

    Source: Hanley and McNeil (1982), for the area as a rank sum.
    """
    labels = np.eye(predictions.n_classes)[predictions.truth]
    scores = np.zeros_like(labels)
    for rows in rows_by_fold(predictions):
        n_true = _counted(predictions.truth[rows], predictions.n_classes)
        pairs = n_true * (len(rows) - n_true)
        ranked = [code for code in ranking_scores(predictions) if pairs[code]]
        for code in ranked:
            ranks = rankdata(ranking_scores(predictions)[code][rows])
            share = len(rows) / len(predictions.truth) / len(ranked)
            scores[rows, code] = ranks / pairs[code] * share
    return RowScores(scores, labels)


def of_r2(predictions: NumberPredictions) -> RowScores:
    """Return the row scores of the covariance between true and predicted numbers.

    The covariance is scaled by the variance of the true numbers, like R2.
    """
    centred = predictions.truth - predictions.truth.mean()
    spread = np.square(centred).sum()
    scores = 2 * (predictions.guess - predictions.guess.mean()) / (spread if spread else 1.0)
    return RowScores(scores[:, None], centred[:, None])


def of_spearman(predictions: NumberPredictions) -> RowScores:
    """Return the row scores of the rank correlation, averaged over folds."""
    sides = [np.zeros(len(predictions.truth)) for _ in range(2)]
    for rows in rows_by_fold(predictions):
        for side, numbers in zip(sides, (predictions.guess, predictions.truth), strict=True):
            ranks = rankdata(numbers[rows])
            centred = ranks - ranks.mean()
            spread = np.sqrt(np.square(centred).sum())
            side[rows] = centred / (spread or 1.0) * np.sqrt(len(rows) / len(predictions.truth))
    return RowScores(sides[0][:, None], sides[1][:, None])


def _weighted_hits(predictions: ClassPredictions, weights: Floats) -> RowScores:
    one_hot = np.eye(predictions.n_classes)
    return RowScores(one_hot[predictions.guess] * weights, one_hot[predictions.truth])


def _counted(codes: Codes, n_classes: int) -> Floats:
    return np.bincount(codes, minlength=n_classes).astype(np.float64)


def _inverse(counts: Floats) -> Floats:
    inverse: Floats = np.divide(1.0, counts, out=np.zeros_like(counts), where=counts > 0)
    return inverse
