"""Imports of commands that wait until they are used.

A command checks its arguments before it imports torch, and `--help` imports neither torch nor
pandas. So the files of this folder import modules of other packages under `TYPE_CHECKING`, where
type checkers read them, and `later` imports each when a command uses it.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

_IMPORT = re.compile(r"^    from (probekit[.\w]*) import (\([^)]*\)|.+)$", re.MULTILINE)
_NAME = re.compile(r"(\w+)(?: as (\w+))?")


class Later:
    """A module that is imported when one of its names is used.

    >>> Later("probekit.amounts").counted(2, "row")
    '2 rows'
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # doctest, which inspects all objects, imports nothing
            raise AttributeError(name)
        return getattr(import_module(self._module), name)


def later(file: str) -> dict[str, Later]:
    """Return the modules that a file imports under `TYPE_CHECKING`, by the name that it gives them.

    >>> sorted(later(__file__.replace("later", "texts")))[:3]
    ['Bos', 'application', 'exports']
    """
    modules = {}
    for package, names in _IMPORT.findall(Path(file).read_text("utf-8")):
        for module, alias in _NAME.findall(names):
            modules[alias or module] = Later(f"{package}.{module}")
    return modules
