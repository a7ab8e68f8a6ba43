"""Modules that moved: their old paths work for one release, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

_SAME: Mapping[str, str] = MappingProxyType({})


def moved(old: str, new: str, renamed: Mapping[str, str] = _SAME) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module whose contents moved to another module.

    Args:
        old: dotted name of the module.
        new: dotted name of the module that has the contents now.
        renamed: new names of renamed objects, by their old names.

    >>> find = moved("probekit.old", "probekit.amounts", {"number_of": "counted"})
    >>> with warnings.catch_warnings(action="ignore"):
    ...     find("number_of")(2, "row")
    '2 rows'
    """

    def find(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        found = getattr(import_module(new), renamed.get(name, name))
        warnings.warn(
            f"{old}.{name} is now {new}.{renamed.get(name, name)}; the old path will be removed in "
            "the next release.",
            FutureWarning,
            stacklevel=2,
        )
        return found

    return find
