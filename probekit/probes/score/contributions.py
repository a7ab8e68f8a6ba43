"""Metrics as sums over rows, for p-values, and over the rows of each class, for intervals.

A p-value tests whether predictions and labels are associated, as measured by the reported metric.
Each function `of_...` writes one metric as the sum over rows of `scores[row] @ labels[row]`, where
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

A class that occurs in few groups may carry all of the variance of a score that weights classes
equally. Its variance is then estimated from these few groups, however many others there are. Each
function `parts_of_...` returns the contribution of each row to a metric, so that variances and
degrees of freedom can be computed class by class:

    balanced accuracy  recall of each class
    AUROC              share of the rows of other classes that a row outranks
    AUPRC              derivative of the average precision by the weight of a row
    TPR at an FPR      alarms of the positive rows
    achieved FPR       alarms of the other rows

Source: Hanley and Hajian-Tilaki (1997), Sampling variability of nonparametric estimates of the
areas under ROC curves (placements); Zou and Donner (2008), Construction of confidence limits about
effect measures (limits of sums from limits of parts).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import scipy

from probekit.lazy_rows import Codes, Floats, Mask
from probekit.probes.score import metrics


@dataclass(frozen=True, eq=False)
class RowScores:
    """A metric as a sum over rows.

    Attributes:
        scores: the score (n_samples, n_labels) of each row for each label.
        labels: the label (n_samples, n_labels) of each row: one-hot for classes, a single column
            with the number or its rank for numbers.
        guess: the predicted class (n_samples,) of each row, if the metric counts hits.
        stricter: another metric of the same rows whose p-value is a lower limit of this one's.
    """

    scores: Floats
    labels: Floats
    guess: Codes | None = None
    stricter: RowScores | None = None


def rows_by_fold(predictions: metrics.ClassPredictions | metrics.NumberPredictions) -> list[Codes]:
    """Return, for each fit that made predictions, the numbers of the rows that it predicted."""
    folds = predictions.folds
    if folds is None:
        return [np.arange(len(predictions.truth))]
    return [np.flatnonzero(folds == fold) for fold in np.unique(folds)]


def of_accuracy(predictions: metrics.ClassPredictions) -> RowScores:
    """Return the row scores of the accuracy: 1 / n_samples at the predicted class.

    >>> found = of_accuracy(metrics.ClassPredictions(np.array([0, 1]), np.array([0, 0]), 2))
    >>> float((found.scores * found.labels).sum())
    0.5
    """
    return _weighted_hits(predictions, np.full(predictions.n_classes, 1 / len(predictions.truth)))


def of_balanced_accuracy(predictions: metrics.ClassPredictions) -> RowScores:
    """Return the row scores whose sum is balanced accuracy.

    A correct row of class k contributes 1 / (n_k * number of true classes).
    """
    n_true = _counted(predictions.truth, predictions.n_classes)
    return _weighted_hits(predictions, _inverse(n_true) / (n_true > 0).sum())


def of_macro_f1(predictions: metrics.ClassPredictions) -> RowScores:
    """Return the row scores whose sum is macro F1 over the classes that are true or predicted.

    A correct row of class k contributes 2 / (true rows + predicted rows of k), divided by the
    number of such classes.
    """
    n_classes = predictions.n_classes
    total = _counted(predictions.truth, n_classes) + _counted(predictions.guess, n_classes)
    return _weighted_hits(predictions, 2 * _inverse(total) / (total > 0).sum())


def of_auroc(predictions: metrics.ClassPredictions) -> RowScores:
    """Return the row scores of the AUROC: scaled ranks, averaged over classes and folds.

    The area of a class is (sum of the ranks of its n rows - n (n + 1) / 2) / number of pairs. The
    constant n (n + 1) / 2 is left out. Folds are weighted by their rows. Classes that occur in none
    or in all rows of a fold are left out there.

    Source: Hanley and McNeil (1982), for the area as a rank sum.
    """
    labels = np.eye(predictions.n_classes)[predictions.truth]
    scores = np.zeros_like(labels)
    for rows in rows_by_fold(predictions):
        n_true = _counted(predictions.truth[rows], predictions.n_classes)
        pairs = n_true * (len(rows) - n_true)  # of a row of the class and a row of another class
        ranked = [code for code in metrics.ranking_scores(predictions) if pairs[code]]
        for code in ranked:
            ranks = scipy.stats.rankdata(metrics.ranking_scores(predictions)[code][rows])
            weight = len(rows) / len(predictions.truth) / len(ranked)
            scores[rows, code] = ranks / pairs[code] * weight
    return RowScores(scores, labels)


def of_auprc(predictions: metrics.ClassPredictions) -> RowScores:
    """Return the row scores of the average precision, approximated by its linear part.

    The linear part is the projection under the null hypothesis. Take n rows in descending order of
    their scores, with a fraction p of positive rows. The expected precision at a positive row of
    rank r is 1 / r + p (r - 1) / r = p + (1 - p) / r: on the left, the first term counts the row
    itself, the second the positive rows above it. The row also raises the precision at each
    positive row below it: at rank j there is one with probability p, whose precision increases by
    1 / j. Without the constant p, the score of a positive row is therefore (1 - p) / r +
    p (1 / (r + 1) + ... + 1 / n), divided by the number of positive rows. Tied rows get their mean
    score. Without a positive class, scores are averaged over the classes that occur in some, but
    not all, rows of the fold. Folds are averaged, weighted by their rows.

    >>> scores = np.array([[0.0, 3.0], [0.0, 2.0], [0.0, 1.0], [0.0, 0.0]])
    >>> truth = np.array([1, 1, 0, 0])
    >>> found = of_auprc(metrics.ClassPredictions(truth, truth, 2, scores, positive=1))
    >>> found.scores[:, 1].round(3).tolist()
    [0.521, 0.271, 0.146, 0.062]

    Source: Hájek, Šidák and Sen (1999), Theory of rank tests, section 3.3 (projection).
    """
    labels = np.eye(predictions.n_classes)[predictions.truth]
    scores = np.zeros_like(labels)
    for rows in rows_by_fold(predictions):
        n_true = _counted(predictions.truth[rows], predictions.n_classes)
        defined = [code for code in metrics.detected(predictions) if 0 < n_true[code] < len(rows)]
        for code in defined:
            weight = len(rows) / len(predictions.truth) / len(defined)
            descending = -metrics.class_scores(predictions, code)[rows]  # the best rank is 1
            n_positive = n_true[code]
            prevalence = n_positive / len(rows)
            inverse = 1 / np.arange(1, len(rows) + 1)
            below = inverse.sum() - np.cumsum(inverse)
            by_rank = ((1 - prevalence) * inverse + prevalence * below) / n_positive
            # Tied rows first get different ranks; then the scores of these ranks are averaged.
            _, tie, n_tied = np.unique(descending, return_inverse=True, return_counts=True)
            by_row = by_rank[scipy.stats.rankdata(descending, method="ordinal") - 1]
            means: Floats = np.bincount(tie, weights=by_row) / n_tied
            scores[rows, code] = means[tie] * weight
    return RowScores(scores, labels, stricter=of_auroc(predictions))


def _of_alarms(predictions: metrics.ClassPredictions, rate: float) -> RowScores:
    """Return the row scores whose sum is the true positive rate at one threshold.

    A positive row whose score exceeds the threshold contributes 1 / n_positive.

    Args:
        predictions: predictions with a positive class and alarms.
        rate: the false positive rate that the threshold allows.
    """
    assert predictions.alarms is not None
    assert predictions.positive is not None
    labels = np.eye(predictions.n_classes)[predictions.truth]
    scores = np.zeros_like(labels)
    # Without positive rows the sum is 0, whatever the divisor.
    n_positive = max(1, int((predictions.truth == predictions.positive).sum()))
    scores[:, predictions.positive] = predictions.alarms[:, metrics.RATES.index(rate)] / n_positive
    return RowScores(scores, labels)


of_tpr_at_fpr_1 = partial(_of_alarms, rate=0.01)
of_tpr_at_fpr_5 = partial(_of_alarms, rate=0.05)


def of_r2(predictions: metrics.NumberPredictions) -> RowScores:
    """Return the row scores of the covariance between true and predicted numbers.

    The covariance is scaled by the variance of the true numbers, like R2: of the squared errors
    (truth - guess)^2, only the term -2 truth guess depends on the assignment of the labels.
    """
    centred = predictions.truth - predictions.truth.mean()
    spread = np.square(centred).sum()
    # If all labels are equal, the sum is 0, whatever the divisor.
    scores = 2 * (predictions.guess - predictions.guess.mean()) / (spread if spread else 1.0)
    return RowScores(scores[:, None], centred[:, None])


def of_spearman(predictions: metrics.NumberPredictions) -> RowScores:
    """Return the row scores of the rank correlation, averaged over folds, weighted by rows."""
    n_rows = len(predictions.truth)
    scores, labels = np.zeros(n_rows), np.zeros(n_rows)
    for rows in rows_by_fold(predictions):
        weight = np.sqrt(len(rows) / n_rows)  # a product of score and label has the weight squared
        scores[rows] = _unit_ranks(predictions.guess[rows]) * weight
        labels[rows] = _unit_ranks(predictions.truth[rows]) * weight
    return RowScores(scores[:, None], labels[:, None])


def _unit_ranks(numbers: Floats) -> Floats:
    """Return the ranks, centred and scaled to a sum of squares of 1; zeros if all are equal."""
    ranks = scipy.stats.rankdata(numbers)
    centred: Floats = ranks - ranks.mean()
    length = float(np.sqrt(np.square(centred).sum()))
    return centred / (length or 1.0)


def _weighted_hits(predictions: metrics.ClassPredictions, weights: Floats) -> RowScores:
    """Return row scores whose sum counts each correct row with the weight of its class."""
    one_hot = np.eye(predictions.n_classes)
    scores, labels = one_hot[predictions.guess] * weights, one_hot[predictions.truth]
    return RowScores(scores, labels, predictions.guess)


def _counted(codes: Codes, n_classes: int) -> Floats:
    """Return the number of rows (n_classes,) with each class code."""
    return np.bincount(codes, minlength=n_classes).astype(np.float64)


def _inverse(counts: Floats) -> Floats:
    """Return 1 / counts; 0 where a count is 0."""
    return np.divide(1.0, counts, out=np.zeros_like(counts), where=counts > 0)


@dataclass(frozen=True, eq=False)
class ClassParts:
    """Contributions of rows to a score, class by class.

    Attributes:
        truth: the class code (n_samples,) of each row.
        rows: the contribution (n_samples,) of each row to the score. If other rows are drawn from a
            class, the score changes by the change of the sum of the contributions of its rows.
        shares: for each class that contributes, its part of the score on the scale of the metric,
            such as its recall; shape (n_parts,).
        weights: the weight (n_parts,) of each part in the score.
        classes: the class code (n_parts,) of each part.
        are_shares: whether a part is a share of the rows of its class, so that its sample size is
            at most their number. Placements vary less than shares.
        is_linear: whether the score does not depend on the shares of the classes, so that the
            contributions describe it exactly.
    """

    truth: Codes
    rows: Floats
    shares: Floats
    weights: Floats
    classes: Codes
    are_shares: bool = True
    is_linear: bool = True


def mean_parts(parts: Sequence[ClassParts]) -> ClassParts | None:
    """Return the parts of a mean of scores on the same rows; None if the true classes differ."""
    first = parts[0]
    if any(not np.array_equal(one.truth, first.truth) for one in parts):
        return None
    rows = np.mean([one.rows for one in parts], axis=0)
    return replace(first, rows=rows, shares=np.mean([one.shares for one in parts], axis=0))


def difference_of_parts(a: ClassParts | None, b: ClassParts | None) -> ClassParts | None:
    """Return the contributions of rows to a difference of scores; its `shares` remain those of a.

    None if a side is None, or if the true classes differ.
    """
    if a is None or b is None or not np.array_equal(a.truth, b.truth):
        return None
    return replace(a, rows=a.rows - b.rows)


def parts_of_balanced_accuracy(predictions: metrics.ClassPredictions) -> ClassParts:
    """Return the recall of each class.

    A correct row contributes 1 / (rows of its class * number of true classes).
    """
    hits = (predictions.truth == predictions.guess).astype(np.float64)
    return _means(predictions.truth, hits, np.unique(predictions.truth), average=True)


def parts_of_auroc(predictions: metrics.ClassPredictions) -> ClassParts:
    """Return the area of each class against all others, with the placements of the rows.

    The placement of a positive row is the share of the other rows that it outranks; the placement
    of another row is the share of the positive rows that outrank it. With more than two classes,
    each row has a placement in the area of every class.
    """
    return _parts_of_ranks(predictions, metrics.ranking_scores(predictions), _placements)


def parts_of_auprc(predictions: metrics.ClassPredictions) -> ClassParts:
    """Return the average precision of each class, with its derivative by the weight of each row."""
    predictions = predictions.ranked_together()
    ranking = {k: metrics.class_scores(predictions, k) for k in metrics.detected(predictions)}
    return _parts_of_ranks(predictions, ranking, _precisions, is_linear=False)


def _parts_of_ranks(
    predictions: metrics.ClassPredictions,
    ranking: Mapping[int, Floats],
    contributions: Callable[[Mask, Floats], tuple[float, Floats]],
    is_linear: bool = True,
) -> ClassParts:
    """Return the parts of a metric that compares the rows of each class with all others.

    Args:
        predictions: the predictions.
        ranking: the scores (n_samples,) for each class that is ranked.
        contributions: returns the value for a class, given which rows have it and their scores, and
            the contribution of each row; those of the class, and those of all others, add up to
            the value.
        is_linear: see `ClassParts`.
    """
    truth = predictions.truth
    if len(ranking) == 1:
        (code,) = ranking
        truth, ranking = (truth == code).astype(np.int64), {1: ranking[code]}
    rows = np.zeros(len(truth))
    # The weighted sum of the values of each class over folds, and the sum of these weights.
    values, weights = np.zeros((2, max(2, predictions.n_classes)))
    # The row numbers of each fold, with the classes that have a value in it.
    defined = [
        (fold, [code for code in ranking if 0 < (truth[fold] == code).sum() < len(fold)])
        for fold in rows_by_fold(predictions)
    ]
    n_defined = sum(len(fold) for fold, codes in defined if codes)
    for fold, codes in defined:
        for code in codes:
            weight = len(fold) / n_defined / len(codes)
            value, of_row = contributions(truth[fold] == code, ranking[code][fold])
            rows[fold] += weight * of_row
            values[code] += weight * value
            weights[code] += weight
    scored = np.flatnonzero(weights)
    shares = values[scored] / weights[scored]
    if len(ranking) == 1:
        # Rows of both sorts contribute to a single value, so that each sort is a part with this
        # value and the weight 1. The fold weights of a single value sum to 1.
        scored, shares, weights = np.arange(2), np.full(2, values[1]), np.ones(2)
    return ClassParts(truth, rows, shares, weights[scored], scored, False, is_linear)


def _placements(positive: Mask, scores: Floats) -> tuple[float, Floats]:
    """Return the area, and the placement of each row divided by the number of rows of its sort."""
    n_positive, placements = int(positive.sum()), np.empty(len(scores))
    # The rank among all rows minus the rank among rows of the same sort is the number of rows of
    # the other sort that a row outranks.
    overall = scipy.stats.rankdata(scores)
    wins_of_positive = overall[positive] - scipy.stats.rankdata(scores[positive])
    wins_of_negative = overall[~positive] - scipy.stats.rankdata(scores[~positive])
    placements[positive] = wins_of_positive / (len(scores) - n_positive)
    placements[~positive] = 1 - wins_of_negative / n_positive
    n_alike = np.where(positive, n_positive, len(scores) - n_positive)
    return float(placements[positive].mean()), placements / n_alike


def _precisions(positive: Mask, scores: Floats) -> tuple[float, Floats]:
    """Return the average precision, and its derivative by the weight of each row.

    A constant for each sort of row makes the derivatives of its rows add up to the value.
    """
    _, level = np.unique(-scores, return_inverse=True)  # from the highest score
    accepted, at_level = np.cumsum(np.bincount(level)), np.bincount(level, weights=positive)
    precision = np.cumsum(at_level) / accepted
    n_positive = positive.sum()
    value = (precision * at_level).sum() / n_positive
    # A row changes the precision at its own level and at all lower ones.
    gain, loss = (
        np.cumsum((at_level * change / accepted)[::-1])[::-1]
        for change in (1 - precision, precision)
    )
    rows = np.where(positive, precision[level] + gain[level], -loss[level]) / n_positive
    for own in (positive, ~positive):
        rows[own] += (value - rows[own].sum()) / own.sum()
    return float(value), rows


def _alarms(predictions: metrics.ClassPredictions, rate: float, of_positives: bool) -> ClassParts:
    """Return one part: the share of the positive rows, or of the other rows, that have an alarm.

    Its class codes are not those of the predictions: 1 for the rows of the share, 0 for all others.
    """
    assert predictions.alarms is not None
    is_averaged = (predictions.truth == predictions.positive) == of_positives
    alarms = predictions.alarms[:, metrics.RATES.index(rate)]
    return _means(is_averaged.astype(np.int64), alarms, classes=np.array([1]))


parts_of_tpr_at_fpr_1 = partial(_alarms, rate=0.01, of_positives=True)
parts_of_tpr_at_fpr_5 = partial(_alarms, rate=0.05, of_positives=True)
parts_of_achieved_fpr_1 = partial(_alarms, rate=0.01, of_positives=False)
parts_of_achieved_fpr_5 = partial(_alarms, rate=0.05, of_positives=False)


def _means(truth: Codes, values: Floats, classes: Codes, average: bool = False) -> ClassParts:
    """Return one part for each class: the mean of `values` over its rows.

    The score is the sum of the parts or, with `average`, their mean. Rows of other classes do not
    contribute.
    """
    weights = np.full(len(classes), 1 / len(classes) if average else 1.0)
    # The total of a class without rows is 0, and so is its mean.
    counts = np.maximum([(truth == code).sum() for code in classes], 1)
    totals = np.array([values[truth == code].sum() for code in classes])
    # The largest code may occur in `truth` only or, if its class has no rows, in `classes` only.
    row_weight_of_class = np.zeros(max(truth.max(initial=0), classes.max(initial=0)) + 1)
    row_weight_of_class[classes] = weights / counts
    return ClassParts(truth, values * row_weight_of_class[truth], totals / counts, weights, classes)


@dataclass(frozen=True, eq=False)
class ClassSpread:
    """Variances of the parts of a score.

    Attributes:
        variances: the variance (n_parts,) of each part; NaN if its class is in a single group.
        n_groups: the number (n_parts,) of groups of each class.
        n_effective: the effective number (n_parts,) of groups of each class: their number if all
            have equally many of its rows, else fewer.
        n_rows: the largest possible sample size (n_parts,) of each part.
        is_shared: whether a group has rows of several parts.
        scale: the variance of the score, to which parts in the same group contribute together,
            divided by the sum of the variances; 1 if that is 0 or NaN.
    """

    variances: Floats
    n_groups: Codes
    n_effective: Floats
    n_rows: Floats
    is_shared: bool
    scale: float


def class_spread(
    parts: ClassParts, resamples: metrics.Resamples, values: Floats | None = None
) -> ClassSpread:
    """Return the variance of each part of a score, estimated from the groups of its class.

    If groups have rows of several parts, a new sample of groups has other shares of the classes. A
    score that depends on these shares has at least the jackknife variance of its `values`
    (1 + n_units,).
    """
    groups, n_groups = resamples.group_of_row, resamples.n_groups
    counts, by_group = np.empty((2, len(parts.classes), n_groups))
    for part, code in enumerate(parts.classes):
        rows = parts.truth == code
        counts[part] = np.bincount(groups[rows], minlength=n_groups)
        by_group[part] = np.bincount(groups[rows], weights=parts.rows[rows], minlength=n_groups)
    n_rows, n_with_class = counts.sum(axis=1), (counts > 0).sum(axis=1)
    # The contribution of a group is 0 if its rows have the mean contribution of their class. A
    # large group pulls the mean towards itself; for equal groups the factors cancel.
    by_group -= counts * (by_group.sum(axis=1) / n_rows)[:, None]
    n_units = n_with_class[:, None]
    others = np.where(n_units > 1, 1 - counts / n_rows[:, None], np.nan)  # one has no variance
    by_group *= (1 - 1 / n_units) / others
    variances = np.square(by_group).sum(axis=1) / (1 - 1 / n_with_class) * resamples.widening**2
    # Parts covary in groups with several classes only; elsewhere the variances simply add up.
    products = np.square(by_group.sum(axis=0)).sum() - np.square(by_group).sum()
    # With a single group all variances are NaN, so that the scale is 1, whatever the divisor.
    covariances = products * n_groups / max(1, n_groups - 1) * resamples.widening**2
    total, is_shared = variances.sum(), bool(((counts > 0).sum(axis=0) > 1).any())
    least = 0.0  # of the variance of the score
    if values is not None and is_shared and not parts.is_linear:
        least = float(values[1:].var()) * (len(values) - 2) * resamples.widening**2
    return ClassSpread(
        variances=variances,
        n_groups=n_with_class,
        n_effective=np.square(n_rows) / np.square(counts).sum(axis=1),
        n_rows=n_rows if parts.are_shares else np.full(len(n_rows), len(groups)),
        is_shared=is_shared,
        # Parts that cancel have a scale of 0, which rounding can make negative.
        scale=max(0.0, 1 + covariances / total, least / total) if total > 0 else 1.0,
    )


def has_rare_class(parts: ClassParts, resamples: metrics.Resamples) -> bool:
    """Return whether a class that contributes to a score is in fewer than half of the groups.

    Groups are counted by their effective number, which is small if a few have most of the rows.
    """
    n_effective = class_spread(parts, resamples).n_effective.min()
    return bool(n_effective < resamples.n_effective / 2 - 1e-9)  # two equal classes are not rare
