"""Selection of a penalty by group-disjoint cross-validation on the training rows."""

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
    """Return a mask (n_samples,) of the fitted rows, those not held out, for each fold.

    Folds whose fitted rows have only one label are omitted; see `fittable_insides`.

    Raises:
        DataError: There are fewer groups than folds, or no fold can be fitted.

    >>> inner_folds(np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]), folds=2, seed=0)[0].tolist()
    [False, False, True, True]
    """
    return fittable_insides(labels, group_folds(labels, groups, folds, seed))


def choose(values: Floats, insides: Sequence[NDArray[np.bool_]], losses: Losses) -> float:
    """Return the value with the smallest loss summed over the folds; the first of equal ones.

    `losses` takes the mask of the fitted rows of a fold and returns the held-out loss of each
    value.

    >>> choose(np.array([1.0, 2.0]), [np.array([True, False])], lambda inside: [5.0, 3.0])
    2.0
    """
    total = np.sum(np.array([losses(inside) for inside in insides]), axis=0)
    return float(values[np.argmin(total)])
