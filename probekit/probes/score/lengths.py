"""Scores of texts and their lengths: are they associated, and how good are scores at equal length?

A maximum over many tokens is larger than one over few, so that the score of a long text may be high
whatever it says. If one label has longer texts, this looks like a detection.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from probekit.probes.arrays import Codes, Floats, Mask
from probekit.probes.score.intervals import Interval, jackknife_interval
from probekit.probes.score.metrics import Resamples

SIMILAR = 0.1  # lengths count as equal if they differ by at most this share of the longer one
LEAST_PAIRS = 30  # fewest pairs of texts of equal length for a score
MOST_TEXTS = 3000  # of one label that are compared; more are sampled


class Association(NamedTuple):
    """Spearman correlation of score and length within labels, and its two-sided p-value."""

    rho: float
    p: float


def length_association(
    scores: Floats, lengths: Codes, labels: Codes, groups: NDArray[np.generic]
) -> Association:
    """Return the association of scores (n_texts,) with lengths within each label.

    It is the correlation of ranks within labels, each with the mean of its label subtracted. For
    the p-value, the products of ranks are summed in each group, and their sum over groups divided
    by the root of the sum of their squares has Student's t distribution. NaN without variation or
    with fewer than three groups.

    >>> length_association(np.arange(8.0), np.arange(8), np.tile([0, 1], 4), np.arange(8)).rho
    1.0
    """
    ranks = np.zeros((2, len(scores)))
    for label in np.unique(labels):
        inside = labels == label
        for row, values in zip(ranks, (scores, lengths), strict=True):
            ordered = scipy.stats.rankdata(values[inside])
            row[inside] = (ordered - ordered.mean()) / len(ordered)  # labels weigh by their texts
    product, norm = ranks[0] * ranks[1], np.sqrt(np.prod(np.sum(ranks**2, axis=1)))
    _, unit = np.unique(groups, return_inverse=True)
    sums = np.bincount(unit, weights=product)
    if not norm or not sums.any() or len(sums) < 3:
        return Association(np.nan, np.nan)
    t = sums.sum() / np.sqrt(np.sum(sums**2))
    p = 2 * scipy.stats.t.sf(abs(t), len(sums) - 1)
    return Association(float(product.sum() / norm), float(p))


def matched_auroc(
    scores: Floats, lengths: Codes, is_positive: Mask, groups: NDArray[np.generic]
) -> tuple[Interval, int]:
    """Return the AUROC over pairs of texts of about equal length, and the number of pairs.

    It is the share of pairs of a positive and another text, with lengths that differ by at most
    10 % of the longer one, in which the positive text has the higher score; ties count half. The
    interval is the jackknife's over groups; all are NaN with fewer than `LEAST_PAIRS` pairs. Of
    more than `MOST_TEXTS` texts of a label, as many are drawn at random.

    >>> lengths, is_positive = np.repeat([5, 50], 20), np.tile([True, False], 20)
    >>> found, n_pairs = matched_auroc(lengths + is_positive, lengths, is_positive, np.arange(40))
    >>> found.value, n_pairs
    (1.0, 200)
    """
    resamples = Resamples.leave_one_out(groups)
    unit = resamples.unit_of_group[resamples.group_of_row]
    generator = np.random.default_rng(0)
    rows = [np.flatnonzero(side) for side in (is_positive, ~is_positive)]
    positive, other = (np.sort(generator.permutation(side)[:MOST_TEXTS]) for side in rows)
    a, b = lengths[positive][:, None], lengths[other]
    is_pair = np.abs(a - b) <= SIMILAR * np.maximum(a, b)
    n_pairs = int(is_pair.sum())
    if n_pairs < LEAST_PAIRS:
        return Interval(np.nan, np.nan, np.nan), n_pairs
    gap = scores[positive][:, None] - scores[other]
    same = is_pair & (unit[positive][:, None] == unit[other])
    sums = []  # of wins, then of pairs: over all units, then without each
    for values in (np.where(gap > 0, 1.0, np.where(gap < 0, 0.0, 0.5)) * is_pair, is_pair * 1.0):
        of_unit = np.bincount(unit[positive], values.sum(axis=1), resamples.n_units)
        of_unit += np.bincount(unit[other], values.sum(axis=0), resamples.n_units)
        of_unit -= np.bincount(unit[positive], (values * same).sum(axis=1), resamples.n_units)
        sums.append(np.append(values.sum(), values.sum() - of_unit))
    wins, pairs = sums
    with np.errstate(invalid="ignore"):  # without pairs the value is NaN, and so are the limits
        return jackknife_interval(wins / pairs, resamples, (0.0, 1.0)), n_pairs
