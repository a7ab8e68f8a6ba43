"""Whether a score could be luck: p-values over many sites, and labels permuted within groups.

A probe that knows nothing is no better than the best constant guess: their answers may be
exchanged, group by group, without fitting again. All sites are judged by the same exchanges, so
that the best of them can be judged as the best of many. Rows of a group resemble each other; to
exchange them one by one would call much significant that is not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probekit.errors import DataError
from probekit.probes.solve.design import Floats
from probekit.probes.solve.solver import Codes

Permuted = NDArray[np.int32]

# Equal scores whose parts were added up in another order differ by less.
ROUNDING = 1e-12
BLOCK = 1000  # exchanges made at a time


def permuted_labels(truth: Codes, groups: NDArray[np.generic], draws: int, seed: int) -> Permuted:
    """Return the labels (n_samples,) permuted within what the groups allow, (draws, n_samples).

    Where every group has one label, the label belongs to the group: groups exchange theirs, large
    or small. Else labels belong to rows: those of a group are shuffled among its rows, and groups
    that happen to have one label exchange it with groups of the same size, so that what rows of a
    group share is kept. Where no exchange changes anything, all permutations are the labels
    themselves, and every p-value is 1.

    >>> permuted_labels(np.array([0, 0, 1]), np.array(["a", "a", "b"]), draws=3, seed=0).tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]

    Source: Winkler et al. (2015), Multi-level block permutation: blocks as wholes, and within
    blocks. Exchange among blocks of different size is ours, for labels that belong to groups.
    """
    _, first, group_of_row, sizes = np.unique(
        groups, return_index=True, return_inverse=True, return_counts=True
    )
    whole = _have_one_label(truth, group_of_row)
    whole_row = whole[group_of_row]
    # Rows exchange within their group; a group of one label has no use for that.
    kind = np.zeros_like(sizes) if whole.all() else sizes
    labels, generator = truth.astype(np.int32), np.random.default_rng(seed)
    permuted = np.empty((draws, len(truth)), dtype=np.int32)
    permuted[:, ~whole_row] = _shuffled(
        labels[~whole_row], group_of_row[~whole_row], draws, generator
    )
    exchanged = np.empty((draws, len(sizes)), dtype=np.int32)
    exchanged[:, whole] = _shuffled(labels[first][whole], kind[whole], draws, generator)
    permuted[:, whole_row] = exchanged[:, group_of_row[whole_row]]
    return permuted


def group_leads(scores: Floats, uninformed: Floats, groups: NDArray[np.generic]) -> Floats:
    """Return how far each group of rows, (n_groups,) by sorted name, puts a probe ahead.

    `scores` and `uninformed` (n_samples,) are what each row gives the probe, and the constant guess
    it is compared to: 1 for right and 0 for wrong, or less the more a number is missed. The leads
    of all groups add up to that of the mean score.

    >>> group_leads(np.array([1.0, 1.0, 0.0]), np.array([0.0, 1.0, 0.0]), np.array(["a", "b", "b"]))
    array([0.33333333, 0.        ])
    """
    names, group_of_row = np.unique(groups, return_inverse=True)
    leads = np.bincount(group_of_row, weights=scores - uninformed, minlength=len(names))
    return leads / len(scores)


def exchanged_leads(leads: Floats, draws: int, seed: int) -> Floats:
    """Return the leads of all sites (n_sites, draws) after each of the exchanges.

    In an exchange the probe and the one it is compared to swap their answers in about half of the
    groups, the same ones for all sites of `leads` (n_sites, n_groups): where a probe knows nothing,
    either might have given them. Rows of a group stay together, however alike they are.

    >>> exchanged_leads(np.array([[0.5, 0.25]]), draws=4, seed=0)
    array([[-0.25,  0.75,  0.25,  0.75]])

    Source: Good (2005), Permutation, parametric and bootstrap tests of hypotheses, section 3.2
    (the matched-pairs test), with groups for pairs.
    """
    generator, exchanged = np.random.default_rng(seed), []
    for at in range(0, draws, BLOCK):
        size = leads.shape[1], min(BLOCK, draws - at)
        exchanged.append(leads @ (2.0 * generator.integers(2, size=size, dtype=np.int8) - 1))
    return np.concatenate(exchanged, axis=1)


@dataclass(frozen=True, eq=False)
class PValues:
    """How often luck does as well, for each site (n_sites,).

    `single` judges a site that was named beforehand. `maximum` compares it to the best site of each
    permutation: the chance that any site whatever would score so high. Its least value is the
    p-value of "the best layer", and the sites below 0.05 hold together at that error rate.
    """

    single: Floats
    maximum: Floats


def p_values(observed: Floats, permuted: Floats) -> PValues:
    """Return the p-values of scores (n_sites,) among those of permutations (n_sites, draws).

    The observed labels count as one permutation more, so that no p-value is 0. The maximum is over
    plain scores: it asks for sites on one scale, as accuracies on the same rows are.

    Raises:
        DataError: The two do not have the same sites, or a score is NaN.

    >>> p = p_values(np.array([0.9, 0.6]), np.array([[0.5, 0.4, 0.6], [0.5, 0.7, 0.4]]))
    >>> p.single.tolist(), p.maximum.tolist()
    ([0.25, 0.5], [0.25, 0.75])

    Source: Phipson and Smyth (2010), Permutation p-values should never be zero; Westfall and Young
    (1993), Resampling-based multiple testing (single step).
    """
    if len(observed) != len(permuted):
        raise DataError(
            f"There are scores of {len(observed)} sites and permutations of {len(permuted)}. "
            "Score the same sites both times."
        )
    if np.isnan(observed).any() or np.isnan(permuted).any():
        raise DataError("A score is NaN, and has no place among others. Leave that site out.")
    least = observed[:, None] - ROUNDING
    draws = permuted.shape[1]

    def share(scores: Floats) -> Floats:
        counted: Floats = (1 + (scores >= least).sum(axis=1)) / (1 + draws)
        return counted

    return PValues(single=share(permuted), maximum=share(permuted.max(axis=0, keepdims=True)))


def holm(p: Floats) -> Floats:
    """Return the p-values (n_tests,) adjusted so that those below a level hold together at it.

    Raises:
        DataError: A value is not between 0 and 1.

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]

    Source: Holm (1979), A simple sequentially rejective multiple test procedure.
    """
    if not np.all((p >= 0) & (p <= 1)):
        raise DataError(f"A p-value lies between 0 and 1; given are {p.tolist()}.")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(stepped)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def _have_one_label(truth: Codes, group_of_row: Codes) -> NDArray[np.bool_]:
    """Return which groups (n_groups,) have rows of one label only."""
    n_labels = np.zeros(group_of_row.max() + 1, dtype=np.int64)
    pairs = np.unique(np.stack([group_of_row, truth]), axis=1)
    np.add.at(n_labels, pairs[0], 1)
    one: NDArray[np.bool_] = n_labels == 1
    return one


def _shuffled(
    values: Permuted, blocks: Codes, draws: int, generator: np.random.Generator
) -> Permuted:
    """Return the values (n,), each moved at random to a place of its block, (draws, n)."""
    places = np.argsort(blocks, kind="stable")
    shuffled = np.empty((draws, len(values)), dtype=np.int32)
    for drawn in shuffled:
        drawn[places] = values[np.argsort(blocks + generator.random(len(values)))]
    return shuffled
