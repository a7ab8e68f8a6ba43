"""Experiments and recipes that are installed with the package, and can be given by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from probekit.errors import MissingError, nearest, path_of
from probekit.provenance import PACKAGE

_ENDINGS = (".yaml", ".yml")


def bundled_folder(package: Path = PACKAGE) -> Path:
    """Return the folder of the bundled experiments; the data sets are in `../data`.

    In an installed package it is inside the package, in a checkout at the top level.

    >>> bundled_folder().name
    'experiments'
    """
    installed = package / "bundled" / "experiments"
    return installed if installed.is_dir() else package.parent / "experiments"


def bundled_data(name: str) -> Path:
    """Return the CSV file of a bundled data set.

    >>> bundled_data("capitals").name
    'capitals.csv'
    """
    return bundled_folder().with_name("data") / f"{name}.csv"


def bundled_files() -> dict[str, Path]:
    """Return the files of the bundled experiments and recipes by name.

    >>> bundled_files()["quickstart"].name
    'quickstart.yaml'
    """
    return {path.stem: path for path in sorted(bundled_folder().glob("*.yaml"))}


def find_file(given: str | Path) -> Path:
    """Return the file of an experiment or recipe, given by path or by name.

    A local file has precedence: the name `a` refers to the file `a`, else to `a.yaml`, else to the
    bundled experiment `a`.

    >>> find_file("quickstart").name
    'quickstart.yaml'

    Raises:
        MissingError: there is no such file and no bundled experiment of this name.
    """
    path = path_of("path", given, "Give the path of a file, or the name of a bundled one.")
    found = next(_local_files(path), None) or bundled_files().get(_name(path))
    if found is None and not _exists(path):
        raise MissingError(_not_there(path))
    return found or path


def is_experiment(given: str | Path) -> bool:
    """Return whether a path or name refers to the file of an experiment, rather than a model.

    >>> is_experiment("quickstart"), is_experiment("missing.yaml"), is_experiment("mini")
    (True, True, False)
    """
    path = Path(given)
    return path.suffix in _ENDINGS or _name(path) in bundled_files() or any(_local_files(path))


def _name(path: Path) -> str:
    """Return the name that a path without folder and ending can stand for; "" for other paths."""
    return path.name if len(path.parts) == 1 and not path.suffix else ""


def _local_files(path: Path) -> Iterator[Path]:
    """Yield the existing files that a path or name refers to."""
    endings = ("", *_ENDINGS) if _name(path) else ("",)
    for ending in endings:
        file = path.with_name(path.name + ending) if ending else path
        if _exists(file) and file.is_file():
            yield file


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or a path that is not valid
        return False


def _not_there(path: Path) -> str:
    """Return the message about a file that does not exist, with the nearest names."""
    bundled = bundled_files()
    if _name(path):
        local = [one.name for one in Path().glob("*") if one.suffix in _ENDINGS]
        near = nearest(path.name, [*bundled, *local])
        return (
            f"There is no file {path.absolute()} and no bundled experiment {path.name!r}. {near} "
            "`probekit experiments` lists the bundled ones."
        )
    start = f"Experiment file {path.absolute()} does not exist."
    if path.stem in bundled:
        remedy = "To use the bundled experiment, give its name without folder and ending"
        return f"{start} {remedy}: {path.stem}"
    local = [one.name for ending in _ENDINGS for one in path.parent.glob(f"[!.]*{ending}")]
    if local:
        return f"{start} {nearest(path.name, local)}"
    return f"{start} Give the path of a YAML file, or a name that `probekit experiments` lists."
