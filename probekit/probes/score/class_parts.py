"""Scores as sums over the rows of each class, for intervals and tests where a class is rare.

A class that occurs in few groups may carry all of the variance of a score that weights classes
equally. Its variance is then estimated from these few groups, however many others there are. Each
function here returns the contribution of each row to a metric, so that variances and degrees of
freedom can be computed class by class:

    balanced accuracy  recall of each class
    AUROC              share of the rows of other classes that a row outranks
    TPR at an FPR      alarms of the positive rows
    achieved FPR       alarms of the other rows

Source: Hanley and Hajian-Tilaki (1997), Sampling variability of nonparametric estimates of the
areas under ROC curves (placements); Zou and Donner (2008), Construction of confidence limits about
effect measures (limits of sums from limits of parts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import rankdata

from probekit.probes.score.association import rows_by_fold
from probekit.probes.score.detection import RATES
from probekit.probes.score.metrics import ClassPredictions, Resamples, ranking_scores
from probekit.probes.solve.design import Floats
from probekit.probes.solve.solver import Codes


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
    """

    truth: Codes
    rows: Floats
    shares: Floats
    weights: Floats
    classes: Codes
    are_shares: bool = True


def mean_parts(parts: Sequence[ClassParts]) -> ClassParts | None:
    """Return the parts of a mean of scores on the same rows; None if the true classes differ."""
    first = parts[0]
    if any(not np.array_equal(one.truth, first.truth) for one in parts):
        return None
    return replace(
        first,
        rows=np.mean([one.rows for one in parts], axis=0),
        shares=np.mean([one.shares for one in parts], axis=0),
    )


def difference_of_parts(a: ClassParts | None, b: ClassParts | None) -> ClassParts | None:
    """Return the contributions of rows to a difference of scores; None if true classes differ."""
    if a is None or b is None or not np.array_equal(a.truth, b.truth):
        return None
    return replace(a, rows=a.rows - b.rows)


def parts_of_balanced_accuracy(predictions: ClassPredictions) -> ClassParts:
    """Return the recall of each class: a correct row of class k contributes 1 / (n_k K)."""
    hits = (predictions.truth == predictions.guess).astype(np.float64)
    return _means(predictions.truth, hits, np.unique(predictions.truth), average=True)


def parts_of_tpr_at_fpr_1(predictions: ClassPredictions) -> ClassParts:
    """Return the share of positive rows with an alarm at an allowed FPR of 1 %."""
    return _alarms(predictions, 0.01, of_positives=True)


def parts_of_tpr_at_fpr_5(predictions: ClassPredictions) -> ClassParts:
    """Return the share of positive rows with an alarm at an allowed FPR of 5 %."""
    return _alarms(predictions, 0.05, of_positives=True)


def parts_of_achieved_fpr_1(predictions: ClassPredictions) -> ClassParts:
    """Return the share of the other rows with an alarm at an allowed FPR of 1 %."""
    return _alarms(predictions, 0.01, of_positives=False)


def parts_of_achieved_fpr_5(predictions: ClassPredictions) -> ClassParts:
    """Return the share of the other rows with an alarm at an allowed FPR of 5 %."""
    return _alarms(predictions, 0.05, of_positives=False)


def parts_of_auroc(predictions: ClassPredictions) -> ClassParts:
    """Return the placement of each row: the share of the rows of other classes that it outranks.

    For a row of another class, its placement is the share of the positive rows that outrank it.
    With more than two classes, each row has a placement in the area of every class.
    """
    truth, n = predictions.truth, len(predictions.truth)
    ranking = ranking_scores(predictions)
    rows = np.zeros(n)
    areas, in_folds = np.zeros(predictions.n_classes), np.zeros(predictions.n_classes)
    defined = [
        (fold, [code for code in ranking if 0 < (truth[fold] == code).sum() < len(fold)])
        for fold in rows_by_fold(predictions)
    ]
    n_defined = sum(len(fold) for fold, codes in defined if codes)
    for fold, codes in defined:
        for code in codes:
            share = len(fold) / n_defined / len(codes)
            positive = truth[fold] == code
            placements = _placements(ranking[code][fold], positive)
            rows[fold] += share * placements / np.where(positive, positive.sum(), (~positive).sum())
            areas[code] += share * placements[positive].mean()
            in_folds[code] += share
    if len(ranking) == 1:
        return ClassParts(truth, rows, np.full(2, areas[1]), np.ones(2), np.arange(2), False)
    own = np.flatnonzero(in_folds)
    return ClassParts(truth, rows, areas[own] / in_folds[own], in_folds[own], own, False)


def _placements(scores: Floats, positive: np.ndarray) -> Floats:
    """Return the share (n,) of the rows of the other sort that each row is on the right side of."""
    n_positive = int(positive.sum())
    overall, placements = rankdata(scores), np.empty(len(scores))
    wins = overall[positive] - rankdata(scores[positive])
    losses = overall[~positive] - rankdata(scores[~positive])
    placements[positive] = wins / (len(scores) - n_positive)
    placements[~positive] = 1 - losses / n_positive
    return placements


def _alarms(predictions: ClassPredictions, rate: float, of_positives: bool) -> ClassParts:
    assert predictions.alarms is not None
    own = (predictions.truth == predictions.positive) == of_positives
    return _means(own.astype(np.int64), predictions.alarms[:, RATES.index(rate)], np.array([1]))


def _means(truth: Codes, values: Floats, classes: Codes, average: bool = False) -> ClassParts:
    """Return the parts of a mean over classes, or of a sum, of the mean value of their rows."""
    weights = np.full(len(classes), 1 / len(classes) if average else 1.0)
    counts = np.array([(truth == code).sum() for code in classes])
    totals = np.array([values[truth == code].sum() for code in classes])
    of_row = np.zeros(truth.max(initial=0) + 1)
    of_row[classes] = weights / np.maximum(counts, 1)
    return ClassParts(
        truth, values * of_row[truth], totals / np.maximum(counts, 1), weights, classes
    )


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
            divided by the sum of the variances; 1 if that is 0.
        by_group: the contribution (n_parts, n_groups) of each group to each part, around 0.
    """

    variances: Floats
    n_groups: Codes
    n_effective: Floats
    n_rows: Floats
    is_shared: bool
    scale: float
    by_group: Floats


def class_spread(parts: ClassParts, resamples: Resamples) -> ClassSpread:
    """Return the variance of each part of a score, estimated from the groups of its class."""
    groups, n_groups = resamples.group_of_row, resamples.n_groups
    shape = len(parts.classes), n_groups
    counts, by_group = np.empty(shape), np.empty(shape)
    for n, code in enumerate(parts.classes):
        own = parts.truth == code
        counts[n] = np.bincount(groups[own], minlength=n_groups)
        by_group[n] = np.bincount(groups[own], weights=parts.rows[own], minlength=n_groups)
    n_rows, n_units = counts.sum(axis=1), (counts > 0).sum(axis=1)
    by_group -= counts * (by_group.sum(axis=1) / n_rows)[:, None]
    correction = np.divide(n_units, n_units - 1, out=np.full(shape[0], np.nan), where=n_units > 1)
    variances = np.square(by_group).sum(axis=1) * correction * resamples.widening**2
    # Parts covary in groups with several classes only; elsewhere the variances simply add up.
    products = np.square(by_group.sum(axis=0)).sum() - np.square(by_group).sum()
    covariances = products * n_groups / max(1, n_groups - 1) * resamples.widening**2
    apart = variances.sum()
    return ClassSpread(
        variances=variances,
        n_groups=n_units,
        n_effective=np.square(n_rows) / np.square(counts).sum(axis=1),
        n_rows=n_rows if parts.are_shares else np.full(shape[0], len(groups)),
        is_shared=bool(((counts > 0).sum(axis=0) > 1).any()),
        # Parts that cancel have a scale of 0, which rounding can make negative.
        scale=max(0.0, float(1 + covariances / apart)) if apart > 0 else 1.0,
        by_group=by_group,
    )


def has_rare_class(parts: ClassParts, resamples: Resamples) -> bool:
    """Return whether a class that contributes to a score is in fewer than half of the groups.

    Groups are counted by their effective number, which is small if a few have most of the rows.
    """
    return bool(class_spread(parts, resamples).n_effective.min() < resamples.n_effective / 2)
