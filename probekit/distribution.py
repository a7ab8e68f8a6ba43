"""The installed distribution that this package belongs to: name, version, and how to add an extra.

The import name is `probekit`, but the package index has an unrelated project of that name. Messages
therefore read the name of the distribution that installed this folder.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, distributions
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

DISTRIBUTION = "probekit-lens"  # preferred if several distributions installed this folder
PACKAGE = Path(__file__).resolve().parent
_UNKNOWN = "unknown"


@dataclass(frozen=True)
class Origin:
    """Where the imported package comes from.

    Attributes:
        name: name of the distribution.
        version: version of the distribution; "unknown" without its metadata.
        checkout: folder of the source code; None if the package was installed from a wheel.
        is_installed: whether a distribution installed this package, editable installs included.
    """

    name: str
    version: str
    checkout: Path | None
    is_installed: bool

    def install_command(self, extra: str) -> str:
        """Return the shell command that installs an extra next to this package.

        >>> Origin("probekit-lens", "1.0.0", None, True).install_command("png")
        "pip install 'probekit-lens[png]'"
        """
        if self.checkout is not None and not self.is_installed:
            return f"pip install -e '{self.checkout}[{extra}]'"
        return f"pip install '{self.name}[{extra}]'"


@cache
def origin() -> Origin:
    """Return where the imported package comes from.

    >>> origin().name
    'probekit-lens'
    """
    return find_origin(PACKAGE)


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra, with the name of the distribution.

    >>> install_command("png").endswith("[png]'")
    True
    """
    return origin().install_command(extra)


def find_origin(package: Path, search: Iterable[str] | None = None) -> Origin:
    """Return where a package folder comes from.

    Args:
        package: the folder.
        search: folders with the metadata of distributions; None for those of `sys.path`.
    """
    owner = next(_owners(package, search), None)
    checkout = _checkout(package)
    if owner is not None:
        return Origin(owner.name, owner.version, checkout, True)
    if checkout is not None:
        project = _project(checkout)
        version = str(project.get("version", _UNKNOWN))
        return Origin(str(project.get("name", DISTRIBUTION)), version, checkout, False)
    return Origin(DISTRIBUTION, _UNKNOWN, None, False)


def origin_warnings(package: Path = PACKAGE, search: Iterable[str] | None = None) -> list[str]:
    """Return a sentence for each sign that another `probekit` than the intended one is imported.

    Args:
        package: the imported folder.
        search: folders with the metadata of distributions; None for those of `sys.path`.
    """
    search = None if search is None else [*search]
    own = find_origin(package, search)
    others = {one.name: one for one in _owners(package, search) if one.name != own.name}
    warnings = [
        f"the distribution {other.name} {other.version} has installed files in the same folder, "
        f"{package}. Uninstall both and install one again: pip uninstall {own.name} {other.name}"
        for other in others.values()
    ]
    if own.is_installed:
        return warnings
    elsewhere = _first_of(_named(DISTRIBUTION, search))
    found = (
        f"{elsewhere.name} {elsewhere.version} is installed in {elsewhere.locate_file('')}"
        if elsewhere
        else f"{DISTRIBUTION} is not installed in this environment"
    )
    return [
        *warnings,
        f"no installed distribution contains the imported package {package}; {found}. Python "
        "imports the first folder `probekit` of sys.path",
    ]


def _owners(package: Path, search: Iterable[str] | None) -> Iterator[Distribution]:
    """Yield the distributions that installed a folder, `DISTRIBUTION` first."""
    every = distributions() if search is None else distributions(path=[*search])
    for distribution in chain(_named(DISTRIBUTION, search), every):
        if _owns(distribution, package):
            yield distribution


def _named(name: str, search: Iterable[str] | None) -> Iterable[Distribution]:
    if search is None:
        return distributions(name=name)
    return distributions(name=name, path=[*search])


def _first_of(found: Iterable[Distribution]) -> Distribution | None:
    return next(iter(found), None)


def _owns(distribution: Distribution, package: Path) -> bool:
    """Return whether a distribution installed a folder, or is an editable install of it."""
    start = f"{package.name}/__init__.py"
    if start in (distribution.read_text("RECORD") or ""):
        return Path(str(distribution.locate_file(start))).resolve() == package / "__init__.py"
    source = json.loads(distribution.read_text("direct_url.json") or "{}")
    is_editable = source.get("dir_info", {}).get("editable", False)
    return is_editable and _path_of(source["url"]) == package.parent


def _path_of(url: str) -> Path:
    return Path(url2pathname(urlsplit(url).path)).resolve()


def _checkout(package: Path) -> Path | None:
    """Return the folder of the source code that contains a package; None if there is none."""
    return package.parent if "name" in _project(package.parent) else None


def _project(folder: Path) -> dict[str, object]:
    """Return the section `project` of a folder's pyproject.toml; empty without that file."""
    file = folder / "pyproject.toml"
    if not file.is_file():
        return {}
    project: dict[str, object] = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    return project
