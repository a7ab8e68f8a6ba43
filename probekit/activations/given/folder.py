"""Arrays in a folder: .npy, .safetensors, .parquet and .zarr, one for each site."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from safetensors import SafetensorError

from probekit.activations.given.arrays import (
    NpyArray,
    ParquetArray,
    SafetensorsArray,
    SiteArray,
    ZarrArray,
)
from probekit.amounts import joined_names
from probekit.disk import inside
from probekit.errors import ConfigError, DataError, MissingError, ProbekitError

ROWS = "rows.csv"  # written by `probekit cache export`
_PACKAGES = {".parquet": "pyarrow", ".zarr": "zarr"}
_PICKLED = (
    "it contains pickled Python objects, which could run code. Save the activations as numbers: "
    "np.save(path, array.astype(np.float32))"
)
_ZARR_FILES = ("zarr.json", ".zarray", ".zgroup")


def find_arrays(folder: Path) -> dict[str, SiteArray]:
    """Return the arrays in a folder by site, with numbers in names in numerical order.

    The site of a .safetensors tensor, or of an array in a Zarr group, is its key; that of any other
    file is its name. The folder may itself be a Zarr group.

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
                    "one array with all rows; join parts with numpy.concatenate first."
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
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


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
    return path.is_dir() and any((path / name).exists() for name in _ZARR_FILES)


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
        yield from _READERS[kind](path).items()


@contextmanager
def _reading(path: Path, folder: Path) -> Iterator[None]:
    """Convert exceptions from reading a file to DataError, and refuse links out of the folder."""
    try:
        if path != folder:
            inside(path, folder)
        yield
    except ProbekitError:  # already has a message for the user
        raise
    except (OSError, ValueError, KeyError, EOFError, SafetensorError) as error:
        problem = f"{str(error).strip().rstrip('.')}. The file may be truncated: save it again"
        if "pickle" in str(error) or "Python objects" in str(error):
            problem = _PICKLED
        raise DataError(f"{path} cannot be read: {problem}.") from error


def _npy(path: Path) -> dict[str, SiteArray]:
    return {path.stem: NpyArray(path)}


def _parquet(path: Path) -> dict[str, SiteArray]:
    return {path.stem: ParquetArray(path)}


def _safetensors(path: Path) -> dict[str, SiteArray]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        keys = list(file.keys())
    return {key: SafetensorsArray(path, key) for key in keys}


def _zarr(path: Path) -> dict[str, SiteArray]:
    import zarr

    for inner in path.rglob("*"):
        inside(inner, path)
        if inner.name in _ZARR_FILES and b"pickle" in inner.read_bytes():
            raise DataError(f"{path} cannot be read: {_PICKLED}.")
    opened = zarr.open(str(path), mode="r")
    if hasattr(opened, "shape"):
        return {path.name.removesuffix(".zarr"): ZarrArray(path)}
    return {key: ZarrArray(path, key) for key, _ in opened.arrays()}


_READERS: Mapping[str, Callable[[Path], Mapping[str, SiteArray]]] = {
    ".npy": _npy,
    ".safetensors": _safetensors,
    ".parquet": _parquet,
    ".zarr": _zarr,
}
