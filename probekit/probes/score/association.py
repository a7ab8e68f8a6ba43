"""Metrics as sums over rows, for p-values from an exchange of labels.

A p-value tests whether predictions and labels are associated, as measured by the reported metric.
Each function here writes one metric as the sum over rows of `scores[row] @ labels[row]`, where
`scores[row]` holds the score of the row under each possible label. If labels are exchanged between
rows, only `labels` changes.

    of_accuracy, of_balanced_accuracy, of_macro_f1, of_auroc    for classes
    of_auprc, of_tpr_at_fpr_1, of_tpr_at_fpr_5                  for a positive class
    of_r2, of_spearman                                          for numbers

Macro F1 and AUROC are linear in the labels as long as the number of rows with each label stays the
same. Average precision is not linear, so the sum is only its linear part. For R2 the terms that do
not depend on the assignment of the labels are left out, so the sum is a covariance. Under
`split.folds`, ranks are taken within each fold, because scores of different fits are not
comparable.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from probekit.probes.score.detection import RATES, detected
from probekit.probes.score.metrics import ClassPredictions, class_scores, ranking_scores
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
    """Return, for each fit that made predictions, the numbers of the rows that it predicted."""
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
    """Return the row scores whose sum is balanced accuracy.

    A correct row of class k contributes 1 / (n_k * number of true classes).
    """
    n_true = _counted(predictions.truth, predictions.n_classes)
    return _weighted_hits(predictions, _inverse(n_true) / (n_true > 0).sum())


def of_macro_f1(predictions: ClassPredictions) -> RowScores:
    """Return the row scores whose sum is macro F1 over the classes that are true or predicted.

    A correct row of class k contributes 2 / (true rows + predicted rows of k), divided by the
    number of such classes.
    """
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


def of_auprc(predictions: ClassPredictions) -> RowScores:
    """Return the row scores of the average precision, approximated by its linear part.

    The linear part is the projection under the null hypothesis. Take n rows in descending order of
    their scores, with a share p of positive rows. The expected precision at a positive row of rank
    r is 1 / r + p (r - 1) / r: the first term counts the row itself, the second the positive rows
    above it. The row also raises the precision at each positive row below it: at rank j there is
    one with probability p, whose precision increases by 1 / j. Without the constant p, the score of
    a positive row is therefore (1 - p) / r + p (1 / (r + 1) + ... + 1 / n), divided by the number
    of positive rows. Tied rows get their mean score. Without a positive class, scores are averaged
    over classes. Folds are averaged, too.

    >>> scores = np.array([[0.0, 3.0], [0.0, 2.0], [0.0, 1.0], [0.0, 0.0]])
    >>> truth = np.array([1, 1, 0, 0])
    >>> found = of_auprc(ClassPredictions(truth, truth, 2, scores, positive=1))
    >>> found.scores[:, 1].round(3).tolist()
    [0.521, 0.271, 0.146, 0.062]

    Source: Hájek, Šidák and Sen (1999), Theory of rank tests, section 3.3 (projection).
    """
    labels = np.eye(predictions.n_classes)[predictions.truth]
    scores = np.zeros_like(labels)
    for rows in rows_by_fold(predictions):
        n_true = _counted(predictions.truth[rows], predictions.n_classes)
        defined = [code for code in detected(predictions) if 0 < n_true[code] < len(rows)]
        for code in defined:
            share = len(rows) / len(predictions.truth) / len(defined)
            own = class_scores(predictions, code)[rows]
            scores[rows, code] = _precision_scores(own, n_true[code]) * share
    return RowScores(scores, labels)


def of_tpr_at_fpr_1(predictions: ClassPredictions) -> RowScores:
    """Return the row scores of the true positive rate at an allowed FPR of 1 %."""
    return _of_alarms(predictions, RATES.index(0.01))


def of_tpr_at_fpr_5(predictions: ClassPredictions) -> RowScores:
    """Return the row scores of the true positive rate at an allowed FPR of 5 %."""
    return _of_alarms(predictions, RATES.index(0.05))


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


def _precision_scores(scores: Floats, n_positive: float) -> Floats:
    """Return the score (n_samples,) of each row under the positive label; see `of_auprc`."""
    prevalence, n = n_positive / len(scores), len(scores)
    inverse = 1 / np.arange(1, n + 1)
    below = inverse.sum() - np.cumsum(inverse)
    by_rank = ((1 - prevalence) * inverse + prevalence * below) / n_positive
    _, tie, n_tied = np.unique(-scores, return_inverse=True, return_counts=True)
    by_row = by_rank[rankdata(-scores, method="ordinal") - 1]
    means: Floats = np.bincount(tie, weights=by_row) / n_tied
    return means[tie]


def _of_alarms(predictions: ClassPredictions, column: int) -> RowScores:
    """Return the row scores whose sum is the true positive rate at one threshold.

    A positive row whose score exceeds the threshold contributes 1 / n_positive.

    Args:
        predictions: predictions with a positive class and alarms.
        column: number of the threshold in `predictions.alarms`.
    """
    assert predictions.alarms is not None
    assert predictions.positive is not None
    labels = np.eye(predictions.n_classes)[predictions.truth]
    scores = np.zeros_like(labels)
    n_positive = max(1, int((predictions.truth == predictions.positive).sum()))
    scores[:, predictions.positive] = predictions.alarms[:, column] / n_positive
    return RowScores(scores, labels)


def _weighted_hits(predictions: ClassPredictions, weights: Floats) -> RowScores:
    one_hot = np.eye(predictions.n_classes)
    return RowScores(one_hot[predictions.guess] * weights, one_hot[predictions.truth])


def _counted(codes: Codes, n_classes: int) -> Floats:
    return np.bincount(codes, minlength=n_classes).astype(np.float64)


def _inverse(counts: Floats) -> Floats:
    inverse: Floats = np.divide(1.0, counts, out=np.zeros_like(counts), where=counts > 0)
    return inverse
