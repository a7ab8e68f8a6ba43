"""Choosing a penalty on held-out rows of the training data, with folds that keep groups whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from probekit.probes.folds import fittable_insides, group_folds
from probekit.probes.solve.design import Floats

Losses = Callable[[NDArray[np.bool_]], Sequence[float] | Floats]


def inner_folds(
    labels: NDArray[np.generic], groups: NDArray[np.generic], folds: int, seed: int
) -> list[NDArray[np.bool_]]:
    """Return for each fold which rows (n_samples,) are inside, that is, not held out.

    A fold whose inside has one label only is left out, as `fittable_insides` says.

    Raises:
        DataError: There are fewer groups than folds, or no fold can be fitted.

    >>> inner_folds(np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]), folds=2, seed=0)[0].tolist()
    [False, False, True, True]
    """
    return fittable_insides(labels, group_folds(labels, groups, folds, seed))


def choose(values: Floats, insides: Sequence[NDArray[np.bool_]], losses: Losses) -> float:
    """Return the value whose losses, summed over the folds, are least; of equals the first.

    `losses` says for the rows inside a fold what each value loses on the rows outside.

    >>> choose(np.array([1.0, 2.0]), [np.array([True, False])], lambda inside: [5.0, 3.0])
    2.0
    """
    total = np.sum(np.array([losses(inside) for inside in insides]), axis=0)
    return float(values[np.argmin(total)])
