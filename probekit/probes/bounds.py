"""Checks of single parameters: penalties and counts.

This module imports no numerical libraries, so that experiment files can be checked quickly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from probekit.errors import ConfigError


def positive_grid(name: str, values: float | Sequence[float]) -> tuple[float, ...]:
    """Return the candidate values of a penalty in ascending order.

    Raises:
        ConfigError: No value is given, a value is not a positive finite number, or a value is
            given twice.

    >>> positive_grid("C", [1.0, 0.1])
    (0.1, 1.0)
    """
    plain = _to_python(values)
    try:
        grid = sorted(map(_number, plain if isinstance(plain, list | tuple) else [plain]))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{name} is {values!r}. Give at least one number, such as 0.01."
        ) from error
    invalid = [value for value in grid if not 0 < value < math.inf]
    if invalid or not grid:
        raise ConfigError(
            f"{name} must be positive and finite, but is {invalid or 'empty'}. Give at least one "
            "value, such as 0.01 or [0.01, 0.1, 1.0]."
        )
    if len(set(grid)) < len(grid):
        raise ConfigError(f"{name} contains a value twice: {', '.join(map(str, grid))}.")
    return tuple(grid)


def _number(value: Any) -> float:
    plain = _to_python(value)
    if isinstance(plain, bool):
        raise TypeError(f"{plain} is not a number")
    return float(plain)


def _to_python(value: Any) -> Any:
    """Convert NumPy arrays and scalars to Python lists and numbers; return others unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def at_least(estimator: Any, **lower_bounds: int) -> None:
    """Raise ConfigError unless each named parameter is an integer of at least the given value.

    Raises:
        ConfigError: A parameter is smaller or not an integer.

    >>> from types import SimpleNamespace
    >>> at_least(SimpleNamespace(k=0), k=1)
    Traceback (most recent call last):
    probekit.errors.ConfigError: k is 0, but must be an integer of at least 1.
    """
    for name, bound in lower_bounds.items():
        value = getattr(estimator, name)
        if isinstance(value, bool) or not isinstance(value, Integral) or value < bound:
            raise ConfigError(f"{name} is {value!r}, but must be an integer of at least {bound}.")
