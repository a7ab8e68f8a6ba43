"""Checks of single parameters: penalties and counts. No numerics are imported here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from probekit.errors import ConfigError


def positive_grid(name: str, values: float | Sequence[float]) -> tuple[float, ...]:
    """Return the values of a penalty in rising order.

    Raises:
        ConfigError: There is none, one is not a positive finite number, or one is given twice.

    >>> positive_grid("C", [1.0, 0.1])
    (0.1, 1.0)
    """
    given = _plain(values)
    try:
        grid = sorted(map(_number, given if isinstance(given, list | tuple) else [given]))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{name} is {values!r}. Give one number or more, such as 0.01."
        ) from error
    wrong = [value for value in grid if not 0 < value < math.inf]
    if wrong or not grid:
        raise ConfigError(
            f"{name} must be positive and finite, but holds {wrong or 'nothing'}. Give one or more "
            "values, such as 0.01 or [0.01, 0.1, 1.0]."
        )
    if len(set(grid)) < len(grid):
        raise ConfigError(f"{name} holds a value twice: {', '.join(map(str, grid))}.")
    return tuple(grid)


def _number(value: Any) -> float:
    plain = _plain(value)
    if isinstance(plain, bool):
        raise TypeError(f"{plain} is not a number")
    return float(plain)


def _plain(value: Any) -> Any:
    """Return arrays and numbers of NumPy as lists and numbers of Python, others unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def at_least(estimator: Any, **least: int) -> None:
    """Return nothing if each named parameter is a whole number, at least as large as given.

    Raises:
        ConfigError: One is smaller, or no whole number.

    >>> from types import SimpleNamespace
    >>> at_least(SimpleNamespace(k=0), k=1)
    Traceback (most recent call last):
    probekit.errors.ConfigError: k is 0, but must be a whole number, 1 or more.
    """
    for name, bound in least.items():
        value = getattr(estimator, name)
        if isinstance(value, bool) or not isinstance(value, Integral) or value < bound:
            raise ConfigError(f"{name} is {value!r}, but must be a whole number, {bound} or more.")
