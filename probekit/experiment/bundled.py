"""The bundled experiments and data sets, given by name."""

from __future__ import annotations

from pathlib import Path

from probekit.provenance import PACKAGE

ENDINGS = (".yaml", ".yml")  # of experiment files


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
