"""Training set sizes for a learning curve, and nested samples of whole groups.

Each sample contains the smaller ones, so that points of a curve differ only by the added rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from probekit.errors import ConfigError
from probekit.probes.solve.solver import Codes


def learning_sizes(n_samples: int, steps: int, smallest: int = 32) -> tuple[int, ...]:
    """Return up to `steps` geometrically spaced sizes from `smallest` to `n_samples`.

    Sizes that round to the same number are merged.

    Raises:
        ConfigError: There are fewer than two steps, or `smallest` is not below `n_samples`.

    >>> learning_sizes(3200, steps=3)
    (32, 320, 3200)
    """
    if steps < 2 or not 0 < smallest < n_samples:
        raise ConfigError(
            f"A learning curve of {n_samples} rows needs at least 2 steps and a smallest size from "
            f"1 to {n_samples - 1}, but steps is {steps} and smallest is {smallest}."
        )
    sizes = np.geomspace(smallest, n_samples, steps).round().astype(int)
    return tuple(np.unique(sizes).tolist())


def subsets(groups: NDArray[np.generic], sizes: Sequence[int], seed: int) -> NDArray[np.bool_]:
    """Return nested samples of whole groups, one for each size, as masks (n_sizes, n_samples).

    Groups are added in one random order until a sample has at least `size` rows; it may have a few
    more.

    Raises:
        ConfigError: A size is not between 1 and the number of rows.

    >>> rows = subsets(np.array(["a", "a", "b", "c"]), sizes=(1, 3, 4), seed=1)
    >>> rows.astype(int).tolist()
    [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    """
    wrong = [size for size in sizes if not 0 < size <= len(groups)]
    if wrong:
        raise ConfigError(
            f"Sizes must be between 1 and the number of rows, {len(groups)}, but one is {wrong[0]}."
        )
    rank, group_of_row = _random_ranks(groups, seed)
    n_rows = np.cumsum(np.bincount(rank[group_of_row]))
    n_groups = np.searchsorted(n_rows, sizes, side="left") + 1
    selected: NDArray[np.bool_] = rank[group_of_row] < n_groups[:, None]
    return selected


def _random_ranks(groups: NDArray[np.generic], seed: int) -> tuple[Codes, Codes]:
    """Return the rank (n_groups,) of each group in a random order, and the group of each row."""
    names, group_of_row = np.unique(groups, return_inverse=True)
    return np.random.default_rng(seed).permutation(len(names)), group_of_row
