"""Scores of texts and their lengths: are they associated, and how good are scores at equal length?

A maximum over many tokens is larger than one over few, so that the score of a long text may be high
whatever it says. If one label has longer texts, this looks like a detection.
"""

from __future__ import annotations

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from probekit.probes.arrays import Codes, Floats, Mask
from probekit.probes.score.intervals import Interval, score_interval
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import NumberPredictions, Resamples
from probekit.probes.score.scored import Predictions, metrics_of, parts_of

SIMILAR = 0.1  # lengths count as equal if they differ by at most this share


def length_correlation(
    scores: Floats, lengths: Codes, labels: Codes, groups: NDArray[np.generic]
) -> Interval:
    """Return the Spearman correlation of scores (n_texts,) and lengths within labels.

    Both are replaced by their ranks among the texts of a label, so that a label with longer texts
    is no correlation. The interval is the jackknife's over groups. NaN if one of them is constant.

    >>> found = length_correlation(np.arange(8.0), np.arange(8), np.tile([0, 1], 4), np.arange(8))
    >>> found.value
    1.0
    """
    ranks = np.zeros((2, len(scores)))
    for label in np.unique(labels):
        inside = labels == label
        ranks[:, inside] = scipy.stats.rankdata([scores[inside], lengths[inside]], axis=1)
        ranks[:, inside] /= inside.sum()
    return with_interval("spearman", NumberPredictions(ranks[0], ranks[1]), groups)


def equal_lengths(lengths: Codes, is_positive: Mask, seed: int = 0) -> Mask:
    """Return a mask (n_texts,) of texts such that both labels have the same lengths.

    Texts with lengths that differ by at most 10 % are one stratum. In each, as many positive as
    other texts are drawn: all of the rarer label.

    >>> lengths, is_positive = np.array([5, 5, 5, 9, 30]), np.array([1, 0, 0, 1, 0], dtype=bool)
    >>> equal_lengths(lengths, is_positive).sum(), equal_lengths(lengths, is_positive)[[0, 3, 4]]
    (np.int64(2), array([ True, False, False]))
    """
    generator, chosen = np.random.default_rng(seed), np.zeros(len(lengths), dtype=bool)
    stratum = np.floor(np.log(lengths) / np.log(1 + SIMILAR))
    for number in np.unique(stratum):
        sides = [np.flatnonzero((stratum == number) & side) for side in (is_positive, ~is_positive)]
        for rows in sides:
            chosen[generator.permutation(rows)[: min(map(len, sides))]] = True
    return chosen


def with_interval(metric: str, predictions: Predictions, groups: NDArray[np.generic]) -> Interval:
    """Return a metric of predictions with its interval over groups; NaN with fewer than two."""
    if len(np.unique(groups)) < 2:
        return Interval(np.nan, np.nan, np.nan)
    resamples = Resamples.leave_one_out(groups)
    values = metrics_of(predictions)[metric](predictions, resamples)
    return score_interval(values, resamples, METRICS[metric].range, parts_of(metric, [predictions]))
