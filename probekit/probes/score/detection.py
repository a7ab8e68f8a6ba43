"""Metrics for the detection of one class: average precision, and rates of alarms at thresholds.

The class is `ClassPredictions.positive`; rows of other classes are negative. A row raises an alarm
if its score exceeds a threshold. Thresholds allow a given false positive rate (FPR) on negative
training rows, each scored without its own group; see `probekit.probes.kinds.left_out`. The rate
holds on average over training sets, so that the FPR on the test rows is measured, too.

    auprc               predictions with scores -> average precision
    thresholds          scores of negatives -> a threshold for each FPR in RATES
    with_alarms         predictions, thresholds -> predictions with alarms
    tpr_at_fpr_1, ...   predictions with alarms -> true positive rate
    achieved_fpr_1, ... predictions with alarms -> false positive rate of the scored rows
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from probekit.errors import DataError
from probekit.probes.score.metrics import (
    BLOCK,
    ClassPredictions,
    Resamples,
    class_scores,
    mean_of_defined,
    mean_of_rows,
    tally,
)
from probekit.probes.solve.design import Floats

RATES = (0.01, 0.05)  # allowed false positive rates, in the order of the columns of `alarms`
LEAST_ALARMS = 10  # smallest expected number of false alarms at a threshold on training rows


def auprc(predictions: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the average precision of the positive class.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.

    The precision at each distinct score of a positive row is weighted by the share of the positive
    rows with this score; rows with tied scores are accepted together. Uninformative scores reach
    the share of positive rows. Without a positive class, the average precision of each class
    against all others is averaged over the classes. NaN for resamples without positive or without
    negative rows.

    Raises:
        DataError: The predictions have no scores.

    >>> scores = np.array([[0.9, 0.1], [0.4, 0.6], [0.6, 0.4], [0.2, 0.8]])
    >>> predictions = ClassPredictions(np.array([0, 0, 1, 1]), scores.argmax(axis=1), 2, scores)
    >>> resamples = Resamples.whole(4)
    >>> auprc(replace(predictions, positive=1), resamples).round(3).tolist()
    [0.833]

    Source: Zhu (2004), Recall, precision and average precision; as in scikit-learn's
    `average_precision_score`.
    """
    parts = [_precisions(predictions, code, resamples) for code in detected(predictions)]
    sums, n_positive = np.stack(parts, axis=1)
    return mean_of_defined(sums, n_positive)


def detected(predictions: ClassPredictions) -> Sequence[int]:
    """Return the code of the positive class; without one, the codes of all classes."""
    positive = predictions.positive
    return range(predictions.n_classes) if positive is None else [positive]


def _precisions(predictions: ClassPredictions, code: int, resamples: Resamples) -> Floats:
    """Return the summed precision at the positive rows, and the number of these (2, 1 + n_units).

    Both are 0 in resamples without negative rows, where the precision is meaningless.

    Levels are the distinct scores of the positives. A negative row is accepted at all levels up to
    its score, so it is counted at the highest of them; below all levels it never counts.
    """
    scores, is_positive = class_scores(predictions, code), predictions.truth == code
    groups = resamples.group_of_row
    levels, level_of_positive = np.unique(scores[is_positive], return_inverse=True)
    shape = (len(levels), resamples.n_groups)
    positives = tally(level_of_positive, groups[is_positive], shape)
    level = np.searchsorted(levels, scores[~is_positive], side="right") - 1
    counts = level >= 0
    negatives = tally(level[counts], groups[~is_positive][counts], shape)
    blocks = range(0, resamples.counts.shape[1], BLOCK)
    sums = np.concatenate(
        [_summed(positives, negatives, resamples.counts[:, at : at + BLOCK]) for at in blocks],
        axis=1,
    )
    n_negative = np.bincount(groups[~is_positive], minlength=resamples.n_groups)
    has_negatives: NDArray[np.bool_] = n_negative @ resamples.counts > 0
    return sums * has_negatives


def _summed(positives: csr_array, negatives: csr_array, counts: NDArray[np.float32]) -> Floats:
    """Return summed precision and number of positives (2, n_draws) in the resamples `counts`."""
    hits = positives @ counts.astype(np.float64)
    accepted_hits = np.cumsum(hits[::-1], axis=0)[::-1]
    accepted = accepted_hits + np.cumsum((negatives @ counts)[::-1], axis=0)[::-1]
    shape = accepted.shape
    precision = np.divide(accepted_hits, accepted, out=np.zeros(shape), where=accepted > 0)
    return np.stack([np.einsum("ld,ld->d", hits, precision), hits.sum(axis=0)])


def thresholds(negatives: Floats) -> Floats:
    """Return the score thresholds (n_rates,) that allow the false positive rates in `RATES`.

    A threshold is the k-th largest of the n scores of negative rows. A new negative row, if it is
    exchangeable with these, exceeds it with probability at most k / (n + 1); k is the largest
    number for which this is at most the allowed rate. NaN for a rate at which fewer than
    `LEAST_ALARMS` of the n rows are expected to raise an alarm.

    >>> thresholds(np.arange(399.0)).tolist()  # 20 of 400 are 5 %; 1 % needs 1,000 negatives
    [nan, 379.0]

    Source: Vovk, Gammerman and Shafer (2005), Algorithmic learning in a random world (conformal
    prediction).
    """
    descending, n = -np.sort(-negatives), len(negatives)
    return np.array(
        [
            descending[int(rate * (n + 1) + 1e-9) - 1] if n * rate >= LEAST_ALARMS else np.nan
            for rate in RATES
        ]
    )


def fixed_thresholds(held_out: ClassPredictions) -> Floats:
    """Return the thresholds (n_rates,) from the negative rows of predictions.

    `held_out` are predictions of training rows by a fit without the group of the row.
    """
    assert held_out.positive is not None
    scores = class_scores(held_out, held_out.positive)
    return thresholds(scores[held_out.truth != held_out.positive])


def with_alarms(predictions: ClassPredictions, limits: Floats) -> ClassPredictions:
    """Return the predictions with alarms (n_samples, n_rates), given the thresholds `limits`.

    An alarm is 1 if the score of the positive class exceeds the threshold, else 0. It is NaN if the
    threshold is NaN.
    """
    assert predictions.positive is not None
    scores = class_scores(predictions, predictions.positive)[:, None]
    alarms = np.where(np.isnan(limits), np.nan, (scores > limits).astype(np.float64))
    return replace(predictions, alarms=alarms)


def _alarm_rate(
    predictions: ClassPredictions, resamples: Resamples, rate: float, of_positives: bool
) -> Floats:
    """Return the share (1 + n_units,) of positive rows with an alarm, or of negative rows."""
    if predictions.alarms is None:
        raise DataError("These predictions have no alarms. Give them with `with_alarms`.")
    alarms = predictions.alarms[:, RATES.index(rate)]
    own = (predictions.truth == predictions.positive) == of_positives
    return mean_of_rows(alarms[own], replace(resamples, group_of_row=resamples.group_of_row[own]))


def tpr_at_fpr_1(predictions: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the true positive rate at the threshold that allows an FPR of 1 % on training rows.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.
    """
    return _alarm_rate(predictions, resamples, 0.01, of_positives=True)


def tpr_at_fpr_5(predictions: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the true positive rate at the threshold that allows an FPR of 5 % on training rows.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.
    """
    return _alarm_rate(predictions, resamples, 0.05, of_positives=True)


def achieved_fpr_1(predictions: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the false positive rate at the threshold that allows 1 % on training rows.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.
    """
    return _alarm_rate(predictions, resamples, 0.01, of_positives=False)


def achieved_fpr_5(predictions: ClassPredictions, resamples: Resamples) -> Floats:
    """Return the false positive rate at the threshold that allows 5 % on training rows.

    Shape (1 + n_units,): the value over all groups, then with each unit left out; see `Resamples`.
    """
    return _alarm_rate(predictions, resamples, 0.05, of_positives=False)
