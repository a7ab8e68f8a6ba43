"""Arrays in a folder: .npy, .safetensors, .parquet and .zarr, one for each site."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from probekit.activations.given.arrays import (
    PICKLED,
    ZARR_FILES,
    CheckedArray,
    NpyArray,
    SafetensorsArray,
    SiteArray,
    ZarrArray,
    reading,
)
from probekit.activations.given.parquet import ParquetArray
from probekit.amounts import joined_names
from probekit.disk import inside
from probekit.errors import ConfigError, DataError, MissingError

ROWS = "rows.csv"  # written by `probekit cache export`
_PACKAGES = {".parquet": "pyarrow", ".zarr": "zarr"}


def find_arrays(folder: Path) -> dict[str, SiteArray]:
    """Return the arrays in a folder by site, with numbers in names in numerical order.

    The site of a .safetensors tensor, of an array in a Zarr group and of a column of a Parquet file
    is its name; that of any other file is the name of the file. The folder may itself be a Zarr
    group.

    Raises:
        MissingError: the folder does not exist, or contains no array.
        ConfigError: a required package is not installed.
        DataError: a file cannot be read, leads out of the folder, or two have the same site.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise MissingError(f"There is no folder {folder}. Give the folder of the activations.")
    paths = [folder] if _is_zarr(folder) else sorted(folder.iterdir())
    found: dict[str, SiteArray] = {}
    origin: dict[str, Path] = {}
    for path in paths:
        for site, array in _arrays_of(path, folder):
            if site in found:
                raise DataError(
                    f"{path}: the site {site!r} is already in {origin[site].name}. Give each site "
                    "its own name; join parts of one site with numpy.concatenate."
                )
            found[site], origin[site] = array, path
    if not found:
        others = [path.name for path in paths if not path.name.startswith(".")][:5]
        contents = f"It contains {joined_names(others)}." if others else "It is empty."
        raise MissingError(
            f"{folder} contains no activations. {contents} Give a folder of .npy, .safetensors, "
            ".parquet or .zarr arrays, one for each site."
        )
    return {site: found[site] for site in sorted(found, key=natural)}


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that orders the numbers in names by value.

    >>> sorted(["layer_10", "layer_2", "embed"], key=natural)
    ['embed', 'layer_2', 'layer_10']
    """
    parts = filter(None, re.split(r"(\d+)", name))
    digits = [(part, part.lstrip("0")) for part in parts]  # int() takes at most 4,300 digits
    return [(0, len(n), n) if part.isdecimal() else (1, 0, part) for part, n in digits]


def row_ids(folder: Path) -> list[str] | None:
    """Return the column `id` of rows.csv in a folder; None if there is no such column."""
    path = folder / ROWS
    if not path.is_file():
        return None
    with _reading(path, folder), path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        if "id" not in (rows.fieldnames or ()):
            return None
        return [row["id"] for row in rows]


def _is_zarr(path: Path) -> bool:
    return path.is_dir() and any((path / name).exists() for name in ZARR_FILES)


def _arrays_of(path: Path, folder: Path) -> Iterator[tuple[str, SiteArray]]:
    """Yield the sites and arrays of one file or Zarr folder; nothing for other files."""
    kind = ".zarr" if _is_zarr(path) else path.suffix
    if kind not in _READERS or path.name.startswith("."):
        return
    package = _PACKAGES.get(kind)
    if package is not None and find_spec(package) is None:
        raise ConfigError(
            f"{path} needs the package {package}. Install it with `pip install {package}`, or save "
            "the activations as .npy."
        )
    with _reading(path, folder):
        for site, array in _READERS[kind](path).items():
            place = f"{path}" if site == path.stem else f"{path}: {site}"
            yield site, CheckedArray(array, place)


@contextmanager
def _reading(path: Path, folder: Path) -> Iterator[None]:
    """Convert exceptions from reading a file to DataError, and refuse links out of the folder."""
    with reading(str(path)):
        if path != folder:
            inside(path, folder)
        yield


def _npy(path: Path) -> dict[str, SiteArray]:
    return {path.stem: NpyArray(path)}


def _parquet(path: Path) -> dict[str, SiteArray]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        columns, metadata = file.schema_arrow.names, file.schema_arrow.metadata or {}
    if not columns or len(set(columns)) < len(columns):
        problem = "has two columns of the same name" if columns else "has no columns"
        raise DataError(f"{path} {problem}. Give each site one column, named after it.")
    if len(columns) == 1 and metadata.keys() >= {b"site", b"shape"}:  # of `cache export`
        return {path.stem: ParquetArray(path, columns[0], json.loads(metadata[b"shape"]))}
    return {column: ParquetArray(path, column) for column in columns}


def _safetensors(path: Path) -> dict[str, SiteArray]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        keys = list(file.keys())
    return {key: SafetensorsArray(path, key) for key in keys}


def _zarr(path: Path) -> dict[str, SiteArray]:
    import zarr

    for inner in path.rglob("*"):
        inside(inner, path)
        if inner.name not in (*ZARR_FILES, ".zmetadata"):
            continue
        if "pickle" in str(json.loads(inner.read_bytes())):  # parsed: JSON can escape letters
            raise DataError(f"{path} cannot be read: {PICKLED}.")
    opened = zarr.open(str(path), mode="r")
    if hasattr(opened, "shape"):
        return {path.name.removesuffix(".zarr"): ZarrArray(path)}
    members = [one for one in path.iterdir() if one.is_dir() and not one.name.startswith(".")]
    for inner in members:
        if not _is_zarr(inner) or not hasattr(opened[inner.name], "shape"):
            raise DataError(
                f"{inner} is no array: it is a group, or its zarr.json or .zarray is missing. Save "
                "it again, give the folder of that group, or remove it."
            )
    return {inner.name: ZarrArray(path, inner.name) for inner in members}


_READERS: Mapping[str, Callable[[Path], Mapping[str, SiteArray]]] = {
    ".npy": _npy,
    ".safetensors": _safetensors,
    ".parquet": _parquet,
    ".zarr": _zarr,
}
