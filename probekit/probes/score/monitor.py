"""Thresholds of a monitor, fixed on negatives of their own, and the rates at these thresholds.

The false positive rate of a threshold is the probability that a negative row has a higher score. It
is bounded as Clopper and Pearson bound a binomial probability. Rows of a group may all raise an
alarm together, and some kind of group may be missing among the negatives: whatever the number of
rows, no method can bound a rate below 1 - 0.05^(1 / n) from n groups. The sample size is therefore
the effective number of groups, (sum of sizes)^2 / (sum of squared sizes), not that of rows.

The threshold is the lowest at which the bound is at most the requested rate. The bound falls as the
threshold rises, so that this choice keeps its level. For rows without groups the rate exceeds the
bound in exactly 5 % of draws. Simulated by `python -m benchmarks.claims --part monitors`.

Source: Clopper and Pearson (1934), The use of confidence or fiducial limits illustrated in the case
of the binomial; Kish (1965), Survey sampling (effective sample size); Bates et al. (2021),
Distribution-free, risk-controlling prediction sets (thresholds).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from probekit.amounts import LEVEL, counted
from probekit.errors import DataError
from probekit.probes.arrays import Floats, Mask
from probekit.probes.score.intervals import score_interval
from probekit.probes.score.metrics import RATES, ClassPredictions, Resamples, with_alarms
from probekit.probes.score.scored import metrics_of, parts_of

# Columns of a monitor: the requested rate, the threshold with its bound, the rates on test rows.
COLUMNS = (
    *("fpr", "threshold", "false_positives", "n_negatives", "n_groups", "n_effective", "fpr_bound"),
    *("tpr", "tpr_low", "tpr_high", "n_positive"),
    *("test_fpr", "test_fpr_low", "test_fpr_high", "n_test_negative"),
)


def effective_groups(groups: NDArray[Any]) -> float:
    """Return the effective number of groups: their number if all have equally many rows, else less.

    >>> effective_groups(np.array(["a", "a", "b", "b"])), effective_groups(np.array([1, 1, 1, 2]))
    (2.0, 1.6)
    """
    sizes = np.unique(groups, return_counts=True)[1]
    return float(sizes.sum() ** 2 / np.square(sizes).sum())


def upper_bound(share: Any, n_effective: float) -> Any:
    """Return the upper 95 % bound of a rate, given its observed share.

    >>> round(float(upper_bound(0.0, 299)), 4), round(float(upper_bound(0.01, 1000)), 4)
    (0.01, 0.0169)
    """
    hits = n_effective * np.asarray(share)
    return scipy.stats.beta.isf(LEVEL, hits + 1, n_effective - hits)


def groups_needed(fpr: float) -> int:
    """Return the smallest number of groups of equal size that can bound a rate.

    >>> groups_needed(0.01), groups_needed(0.001)
    (299, 2995)
    """
    return math.ceil(math.log(LEVEL) / math.log1p(-fpr))


def allowed_alarms(groups: NDArray[Any], fpr: float) -> int:
    """Return the largest number of negative rows above a threshold whose bound is at most `fpr`.

    Args:
        groups: group of each negative row, shape (n_negatives,).
        fpr: the false positive rate.

    Raises:
        DataError: there are too few groups.

    >>> allowed_alarms(np.arange(1000), 0.01)
    4
    """
    n_effective = effective_groups(groups)
    counts = np.arange(int(fpr * len(groups)) + 1)
    is_allowed = upper_bound(counts / len(groups), n_effective) <= fpr
    if not is_allowed[0]:
        n_groups, lowest = len(np.unique(groups)), float(upper_bound(0.0, n_effective))
        unequal = "" if n_groups - n_effective < 1 else f", as informative as {n_effective:.0f}"
        equal = "" if n_groups == len(groups) else " of equal size; rows of a group count once"
        raise DataError(
            f"a false positive rate of {100 * fpr:g} % needs at least {groups_needed(fpr):,} "
            f"groups of negatives{equal}, but there are {n_groups:,}{unequal} "
            f"({counted(len(groups), 'row')}). Add negatives, or request a rate of at least "
            f"{math.ceil(1e4 * lowest) / 1e4:g}."
        )
    return int(np.flatnonzero(is_allowed)[-1])


def monitor_rows(
    rates: Sequence[float],
    negatives: Floats,
    groups: NDArray[Any],
    tested: Floats,
    is_positive: Mask,
    resamples: Resamples,
) -> Iterator[dict[str, Any]]:
    """Yield the threshold of each rate and the rates on test rows, with the keys `COLUMNS`.

    A row raises an alarm if its score exceeds the threshold. Intervals are those of the metrics at
    a fixed false positive rate.

    Args:
        rates: requested false positive rates.
        negatives: scores of the negatives for the positive class, shape (n_negatives,).
        groups: their groups, shape (n_negatives,).
        tested: scores of the test rows, shape (n_test,).
        is_positive: which test rows are of the positive class, shape (n_test,).
        resamples: resamples of the test rows.

    Raises:
        DataError: there are too few groups of negatives for a rate.
    """
    descending, n_effective = -np.sort(-negatives), effective_groups(groups)
    scores = np.stack([np.zeros_like(tested), tested], axis=1)
    truth = is_positive.astype(np.int64)
    predictions = ClassPredictions(truth, truth, 2, scores, positive=1)
    for fpr in rates:
        allowed = allowed_alarms(groups, fpr)
        threshold = descending[allowed]
        # The metrics then read the alarms of this threshold, whatever their names say of its rate.
        alarmed = with_alarms(predictions, np.full(len(RATES), threshold))
        row = {
            "fpr": fpr,
            "threshold": float(threshold),
            "false_positives": int((negatives > threshold).sum()),  # fewer than allowed if tied
            "n_negatives": len(negatives),
            "n_groups": len(np.unique(groups)),
            "n_effective": n_effective,
            "fpr_bound": float(upper_bound(allowed / len(negatives), n_effective)),
            "n_positive": int(is_positive.sum()),
            "n_test_negative": int((~is_positive).sum()),
        }
        for name, metric in (("tpr", "tpr_at_fpr_1"), ("test_fpr", "achieved_fpr_1")):
            values = metrics_of(alarmed)[metric](alarmed, resamples)
            found = score_interval(values, resamples, (0, 1), parts_of(metric, [alarmed]))
            row |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
        yield row
