"""P-values of several sites from a null distribution, Holm's adjustment, and permuted labels.

`p_values` compares observed scores with scores under the null hypothesis. Scores of fixed
predictions under the null hypothesis come from `probekit.probes.score.exchange`. `permuted_labels`
is for null distributions of probe directions, which require that probes are refitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probekit.errors import DataError
from probekit.probes.solve.design import Floats
from probekit.probes.solve.solver import Codes

Permuted = NDArray[np.int32]

# Tolerance for equal scores whose terms were summed in a different order.
ROUNDING = 1e-12


def permuted_labels(truth: Codes, groups: NDArray[np.generic], draws: int, seed: int) -> Permuted:
    """Return random permutations (draws, n_samples) of the labels that respect the groups.

    Groups with a single label exchange it with each other, whatever their sizes. In groups with
    several labels, rows exchange labels within the group. If no permutation changes the labels, all
    permutations equal the labels.

    >>> permuted_labels(np.array([0, 0, 1]), np.array(["a", "a", "b"]), draws=3, seed=0).tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]

    Source: Winkler et al. (2015), Multi-level block permutation (whole-block and within-block
    exchange). They exchange blocks of the same size only; labels of whole groups need no such
    restriction.
    """
    _, first, group_of_row = np.unique(groups, return_index=True, return_inverse=True)
    uniform = _have_one_label(truth, group_of_row)
    in_uniform = uniform[group_of_row]
    labels, generator = truth.astype(np.int32), np.random.default_rng(seed)
    permuted = np.empty((draws, len(truth)), dtype=np.int32)
    permuted[:, ~in_uniform] = _shuffled(
        labels[~in_uniform], group_of_row[~in_uniform], draws, generator
    )
    exchanged = np.empty((draws, len(first)), dtype=np.int32)
    exchanged[:, uniform] = _shuffled(
        labels[first][uniform], np.zeros(int(uniform.sum()), dtype=np.int64), draws, generator
    )
    permuted[:, in_uniform] = exchanged[:, group_of_row[in_uniform]]
    return permuted


@dataclass(frozen=True, eq=False)
class PValues:
    """Permutation p-values of each site (n_sites,).

    Attributes:
        single: Unadjusted p-values, valid for a site chosen in advance.
        maximum: p-values adjusted for all sites, by comparison with the best site of each
            permutation. The smallest is the p-value of the best site; rejecting all sites below
            0.05 controls the family-wise error rate at 0.05.
    """

    single: Floats
    maximum: Floats


def p_values(observed: Floats, permuted: Floats) -> PValues:
    """Return the p-values of the observed scores (n_sites,).

    `permuted` (n_sites, draws) are scores under the null hypothesis. The observed labels count as
    one additional permutation, so that no p-value is 0. The maximum is taken over unstandardised
    scores, which must be on the same scale, such as accuracies on the same rows.

    Raises:
        DataError: The number of sites differs, or a score is NaN.

    >>> p = p_values(np.array([0.9, 0.6]), np.array([[0.5, 0.4, 0.6], [0.5, 0.7, 0.4]]))
    >>> p.single.tolist(), p.maximum.tolist()
    ([0.25, 0.5], [0.25, 0.75])

    Source: Phipson and Smyth (2010), Permutation p-values should never be zero; Westfall and Young
    (1993), Resampling-based multiple testing (single step).
    """
    if len(observed) != len(permuted):
        raise DataError(
            f"There are observed scores of {len(observed)} sites, but permuted scores of "
            f"{len(permuted)}. Give both for the same sites."
        )
    if np.isnan(observed).any() or np.isnan(permuted).any():
        raise DataError("A score is NaN, so it cannot be ranked. Remove that site.")
    least = observed[:, None] - ROUNDING
    draws = permuted.shape[1]

    def share(scores: Floats) -> Floats:
        counted: Floats = (1 + (scores >= least).sum(axis=1)) / (1 + draws)
        return counted

    return PValues(single=share(permuted), maximum=share(permuted.max(axis=0, keepdims=True)))


def holm(p: Floats) -> Floats:
    """Return the p-values (n_tests,) with Holm's adjustment for multiple comparisons.

    Raises:
        DataError: A value is not between 0 and 1.

    >>> holm(np.array([0.01, 0.04, 0.03])).tolist()
    [0.03, 0.06, 0.06]

    Source: Holm (1979), A simple sequentially rejective multiple test procedure.
    """
    if not np.all((p >= 0) & (p <= 1)):
        raise DataError(f"p-values must be between 0 and 1, but are {p.tolist()}.")
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(stepped)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def _have_one_label(truth: Codes, group_of_row: Codes) -> NDArray[np.bool_]:
    """Return a mask (n_groups,) of the groups whose rows all have the same label."""
    n_labels = np.zeros(group_of_row.max() + 1, dtype=np.int64)
    pairs = np.unique(np.stack([group_of_row, truth]), axis=1)
    np.add.at(n_labels, pairs[0], 1)
    one: NDArray[np.bool_] = n_labels == 1
    return one


def _shuffled(
    values: Permuted, blocks: Codes, draws: int, generator: np.random.Generator
) -> Permuted:
    """Return random permutations (draws, n) of the values (n,) within their blocks."""
    order = np.argsort(blocks, kind="stable")
    shuffled = np.empty((draws, len(values)), dtype=np.int32)
    for drawn in shuffled:
        drawn[order] = values[np.argsort(blocks + generator.random(len(values)))]
    return shuffled
