"""Whether a score could be luck: labels permuted under fixed guesses, p-values over many sites.

The hypothesis is that the test labels have nothing to do with the guesses of the probe, as it was
fitted on other rows. Then the labels of the test rows may be exchanged, without fitting again, and
the test is exact; it says nothing of how another training sample would do. All sites are scored on
the same permutations, so that the best of them can be judged as the best of many.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probekit.errors import DataError
from probekit.probes.design import Floats
from probekit.probes.solver import Codes

Permuted = NDArray[np.int32]

# Equal scores whose parts were added up in another order differ by less.
ROUNDING = 1e-12
# Entries of a permuted table that are compared at a time.
BLOCK = 4_000_000


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


def permutation_scores(guess: Codes, permuted: Permuted) -> Floats:
    """Return the accuracy of the guesses (n_samples,) under each row of labels, (draws,).

    >>> permutation_scores(np.array([0, 1]), np.array([[0, 1], [0, 0]], np.int32)).tolist()
    [1.0, 0.5]
    """
    scores = [(part == guess).mean(axis=1) for part in _blocks(permuted)]
    return np.concatenate(scores)


def permutation_balanced_scores(guess: Codes, permuted: Permuted) -> Floats:
    """Return the balanced accuracy of the guesses (n_samples,) under each row of labels, (draws,).

    >>> labels = np.array([[0, 0, 1], [0, 1, 0]], np.int32)
    >>> permutation_balanced_scores(np.array([0, 0, 1]), labels).tolist()
    [1.0, 0.25]
    """
    n_classes = int(permuted.max()) + 1
    scores = [_balanced(guess, part, n_classes) for part in _blocks(permuted)]
    return np.concatenate(scores)


def permutation_r2(guess: Floats, permuted: Floats) -> Floats:
    """Return R2 of the guesses (n_samples,) under each row of permuted numbers, (draws,).

    >>> permutation_r2(np.array([0.0, 1.0]), np.array([[0.0, 1.0], [1.0, 0.0]])).tolist()
    [1.0, -3.0]
    """
    spread = np.square(permuted - permuted.mean(axis=1, keepdims=True)).sum(axis=1)
    missed = np.square(permuted - guess).sum(axis=1)
    scores: Floats = 1 - missed / spread
    return scores


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


def _blocks(permuted: Permuted) -> list[Permuted]:
    """Return the permutations in parts whose temporaries stay small."""
    step = max(1, BLOCK // permuted.shape[1])
    return [permuted[at : at + step] for at in range(0, len(permuted), step)]


def _balanced(guess: Codes, permuted: Permuted, n_classes: int) -> Floats:
    """Return the mean recall over the classes that occur, for each row of labels."""
    draws = len(permuted)
    places = permuted + n_classes * np.arange(draws)[:, None]
    n_rows, n_right = (
        np.bincount(chosen, minlength=draws * n_classes).reshape(draws, n_classes)
        for chosen in (places.ravel(), places[permuted == guess])
    )
    occurs = n_rows > 0
    recall = np.divide(n_right, n_rows, out=np.zeros(n_rows.shape), where=occurs)
    balanced: Floats = recall.sum(axis=1) / occurs.sum(axis=1)
    return balanced
