"""Lowest and highest value of a figure, for axes and colour scales."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def finite_ends(values: Iterable[float]) -> tuple[float, float]:
    """Return the lowest and the highest of the values that are finite; (0, 1) if none is.

    A score that is undefined is drawn nowhere, so it has no effect on axes and colours.

    >>> finite_ends([0.5, float("nan"), 0.75]), finite_ends([float("nan")])
    ((0.5, 0.75), (0.0, 1.0))
    """
    numbers = np.array(list(values), dtype=np.float64)
    finite = numbers[np.isfinite(numbers)]
    return (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
