"""Thresholds of a monitor, fixed on negatives of their own, and the rates at these thresholds.

The false positive rate of a threshold is the probability that a row of a new group has a higher
score, where each group counts once, whatever its number of rows. Its estimate is the mean over the
groups of negatives of the share of their rows, and its upper bound that of Clopper and Pearson for
as many draws as there are groups. All rows of a group may raise an alarm together, and a kind of
group may be absent from the negatives: whatever the number of rows, n groups cannot bound a rate
below 1 - 0.05^(1 / n).

The threshold is the lowest at which the bound is at most the requested rate. The bound falls as the
threshold rises, so that this choice keeps its level. For rows without groups the rate exceeds the
bound in exactly 5 % of draws, for groups in at most as many, simulated by
`python -m benchmarks.claims --part monitors`.

Source: Clopper and Pearson (1934), The use of confidence or fiducial limits illustrated in the case
of the binomial; Hoeffding (1956), On the distribution of the number of successes in independent
trials; Bates et al. (2021), Distribution-free, risk-controlling prediction sets (thresholds).
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
from probekit.lazy_rows import Floats, Mask
from probekit.probes.score.metrics import Resamples
from probekit.probes.score.scored import rates_at


def upper_bound(share: Any, n_groups: int) -> Any:
    """Return the upper 95 % bound of a rate, given the mean share over groups.

    >>> round(float(upper_bound(0.0, 299)), 4), round(float(upper_bound(0.01, 1000)), 4)
    (0.01, 0.0169)
    """
    hits = n_groups * np.asarray(share)
    return scipy.stats.beta.isf(LEVEL, hits + 1, n_groups - hits)


def groups_needed(fpr: float) -> int:
    """Return the smallest number of groups that can bound a rate.

    >>> groups_needed(0.01), groups_needed(0.001)
    (299, 2995)
    """
    return math.ceil(math.log(LEVEL) / math.log1p(-fpr))


def check_groups(groups: NDArray[Any], fpr: float) -> None:
    """Raise DataError if the groups (n_negatives,) of negatives are too few to bound a rate."""
    n_groups = len(np.unique(groups))
    if n_groups < groups_needed(fpr):
        lowest = math.ceil(1e4 * float(upper_bound(0.0, n_groups))) / 1e4
        unit = "negatives" if n_groups == len(groups) else "groups of negatives"
        rows = "" if n_groups == len(groups) else f" with {counted(len(groups), 'row')}"
        raise DataError(
            f"a false positive rate of {fpr:g} needs at least {groups_needed(fpr):,} {unit}, but "
            f"there are {n_groups:,}{rows}. Add {unit}, or request a rate of at least {lowest:g}."
        )


def fixed_threshold(negatives: Floats, groups: NDArray[Any], fpr: float) -> tuple[float, float]:
    """Return the lowest threshold whose bound is at most `fpr`, and the bound.

    A row raises an alarm if its score exceeds the threshold. Of tied scores at the threshold none
    does, so that fewer negatives than the bound allows may raise one.

    Args:
        negatives: scores of the negatives for the positive class, shape (n_negatives,).
        groups: their groups, shape (n_negatives,).
        fpr: the false positive rate.

    Raises:
        DataError: there are too few groups.

    >>> threshold, bound = fixed_threshold(np.arange(1000.0), np.arange(1000), 0.01)
    >>> threshold, round(bound, 4)
    (995.0, 0.0091)
    """
    check_groups(groups, fpr)
    _, codes, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(-negatives, kind="stable")
    # The mean over groups of the share of rows above each row, in descending order of scores.
    shares = np.cumsum(1 / (len(sizes) * sizes[codes[order]]))
    shares = np.concatenate([[0.0], shares[shares < fpr]])
    bounds = upper_bound(shares, len(sizes))
    n_above = int(np.flatnonzero(bounds <= fpr)[-1])
    return float(negatives[order[n_above]]), float(bounds[n_above])


def monitor_rows(
    rates: Sequence[float],
    negatives: Floats,
    groups: NDArray[Any],
    tested: Floats,
    is_positive: Mask,
    resamples: Resamples,
) -> Iterator[dict[str, Any]]:
    """Yield a row of monitor.csv for each rate: its threshold, and the rates on test rows.

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
    for fpr in rates:
        threshold, bound = fixed_threshold(negatives, groups, fpr)
        yield {
            "fpr": fpr,
            "threshold": threshold,
            "false_positives": int((negatives > threshold).sum()),
            "n_negatives": len(negatives),
            "n_groups": len(np.unique(groups)),
            "fpr_bound": bound,
            "n_positive": int(is_positive.sum()),
            "n_test_negative": int((~is_positive).sum()),
        } | rates_at(threshold, tested, is_positive, resamples)
