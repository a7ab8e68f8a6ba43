"""Activations that another library has computed: sites on the layer axis, and checked arrays."""

from __future__ import annotations

import math
import re
import shutil
import tempfile
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from probekit.activations.given.checks import FEWEST, unusable
from probekit.activations.given.formats import NpyArray, SiteArray, dtype_name, find_arrays, natural
from probekit.activations.records import FloatArray
from probekit.amounts import counted
from probekit.data.labels import appearance
from probekit.data.positions import IntArray
from probekit.errors import ConfigError, DataError, UnknownNameError, nearest
from probekit.files import as_store_error
from probekit.lazy_rows import LOADED_BYTES, LazyRows, as_array
from probekit.model.config import MAX_LAYERS
from probekit.model.sites.catalogue import CATALOGUE, check_storable, describe, layer_of
from probekit.model.sites.sites import JOINT, Sites, SiteSelection
from probekit.provenance import digest, digest_json

LONGEST_SITE = 200  # characters
RESERVED = ("baselines", "chosen")  # names of other results in the folder of a run
_SEPARATE = r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])"  # the 3 of layer_3, not the 2 of gpt2
_KNOWN = {site.name for site in CATALOGUE}  # such as blocks.{l}.hook_resid_pre
_FLOATS = ("float16", "bfloat16", "float32", "float64")
# Advice if a number is infinite as float32, by type of the array.
_OVERFLOWS = {
    "float16": "The type float16 holds numbers up to 65,504: save the activations as float32 or "
    "bfloat16",
    "float64": "Numbers beyond 3.4e38 do not fit into float32",
}
_NUMBERS_AT_ONCE = 2**20  # read and checked in one part, which fits into the processor's cache
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no information is lost
Position = int | Sequence[int]


@dataclass(frozen=True)
class GivenSite:
    """A site whose name is not one of probekit's.

    Attributes:
        site: the name.
        layer: the number in the name that counts layers; None if there is none.
        component: the name with `*` in place of that number; for a site without a layer see
            `placed_sites`. Sites with the same component are one line of a figure.
        order: place on the layer axis, from 0.
    """

    site: str
    layer: int | None
    component: str
    order: int

    @property
    def text(self) -> str:
        """The name."""
        return self.site

    @property
    def parts(self) -> tuple[GivenSite, ...]:
        """This site as a tuple, like the parts of a `SiteConcatenation`."""
        return (self,)


def site_name(key: Any) -> str:
    """Return the name of a site, given the key of a mapping: a text, or the number of a layer.

    >>> site_name("layer_3"), site_name(3)
    ('layer_3', 'layer_3')

    Raises:
        ConfigError: the key is not a valid name.
    """
    if isinstance(key, int) and not isinstance(key, bool) and key >= 0:
        return f"layer_{key}"
    if not isinstance(key, str):
        raise ConfigError(
            f"The site {key!r} has a name of type {type(key).__name__}. Allowed: a text, or the "
            "number of a layer."
        )
    problems = (
        (not key.strip(), "is empty"),
        (len(key) > LONGEST_SITE, f"has more than {LONGEST_SITE} characters"),
        (not key.isprintable(), "contains a character that cannot be printed"),
        (JOINT in key, f"contains {JOINT!r}, which joins the names of concatenated sites"),
        (key.casefold() in RESERVED, f"is reserved; also reserved: {', '.join(RESERVED)}"),
    )
    for holds, problem in problems:
        if holds:
            raise ConfigError(f"The site name {key[:LONGEST_SITE]!r} {problem}. Rename the site.")
    return key


def check_distinct(names: Sequence[str]) -> None:
    """Raise ConfigError if two names are equal, or look the same.

    Files of a run are named after sites, and some file systems ignore case, spaces at the end and
    encodings of an accent.

    Raises:
        ConfigError: two names are equal, or differ only in case, spaces or encoding.

    >>> check_distinct(["embed", "embed"])
    Traceback (most recent call last):
    probekit.errors.ConfigError: The site name 'embed' occurs twice. Rename one of the sites.
    """
    seen: dict[str, str] = {}
    for name in names:
        key = str(natural(appearance(name)))  # layer_1 and layer_01 are alike
        if (other := seen.get(key)) is not None:
            problem = "occurs twice" if other == name else f"looks the same as {other!r}"
            raise ConfigError(f"The site name {name!r} {problem}. Rename one of the sites.")
        seen[key] = name


def chosen_names(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the names that match at least one name or glob, in their order.

    >>> chosen_names(["layer_0", "layer_1", "embed"], ["layer_*"])
    ['layer_0', 'layer_1']

    Raises:
        UnknownNameError: a pattern matches no name.
    """
    listed, matched = list(names), set()
    for pattern in patterns:
        matches = {name for name in listed if name == pattern or fnmatchcase(name, pattern)}
        if not matches:
            raise UnknownNameError(f"No site matches {pattern!r}. {nearest(pattern, listed)}")
        matched |= matches
    return [name for name in listed if name in matched]


def is_known(name: str) -> bool:
    """Return whether a name is that of a site in probekit's table, such as `hook_embed`."""
    layer = layer_of(name)
    general = name if layer is None else name.replace(f".{layer}.", ".{l}.", 1)
    return general in _KNOWN and (layer is None or layer < MAX_LAYERS)


def placed_sites(names: Sequence[str]) -> tuple[SiteSelection | GivenSite, ...]:
    """Return the sites with their places on the layer axis.

    If all names are those of probekit's sites, the places are those of a run, in forward order.
    Otherwise the sites keep their order, and the first number that differs between names of the
    same form counts the layers. If the layers of each component ascend, the places of all layers
    are sorted together. Sites without a layer share the line of the only component that has layers;
    if no site has a layer, the line is called `sites`.

    >>> placed_sites(["blocks.0.hook_resid_post"])
    (SiteSelection(site='blocks.0.hook_resid_post', head=None, neuron=None, kv_head=None),)
    >>> [(s.layer, s.component, s.order) for s in placed_sites(["embed", "layer_2", "layer_10"])]
    [(None, 'layer_*', 0), (2, 'layer_*', 1), (10, 'layer_*', 2)]
    """
    if all(map(is_known, names)):
        n_layers = 1 + max((layer_of(name) or 0 for name in names), default=0)
        order = {site: n for n, site in enumerate(Sites(CATALOGUE, {"n_layers": n_layers}))}
        return tuple(SiteSelection(name) for name in sorted(names, key=order.__getitem__))
    form_of = {name: re.sub(r"\d+", "#", name) for name in names}
    # The numbers of each name, by the form of the name.
    numbers: dict[str, list[list[str]]] = defaultdict(list)
    for name, form in form_of.items():
        numbers[form].append(re.findall(r"\d+", name))
    index_of_form: dict[str, int | None] = {}  # of the first number that differs; None without
    for form, rows in numbers.items():
        columns = enumerate(zip(*rows, strict=True))
        index_of_form[form] = next((n for n, column in columns if len(set(column)) > 1), None)
    sites = [_numbered(name, index_of_form[form]) for name, form in form_of.items()]
    lines = {site.component for site in sites if site.layer is not None}
    if len(lines) <= 1:
        line = next(iter(lines), "sites")
        sites = [replace(site, component=line) for site in sites]
    places = _axis(sites)
    return tuple(replace(site, order=places.index(_place(site))) for site in sites)


def _numbered(name: str, index: int | None) -> GivenSite:
    """Return a site, not placed yet, with the layer that is the number of this index in its name.

    Without an index, it is the first number without adjacent letters or digits: the 3 of layer_3. A
    number with more digits than `MAX_LAYERS` counts no layers.
    """
    match = re.search(_SEPARATE, name) if index is None else [*re.finditer(r"\d+", name)][index]
    if match is None or len(match[0]) > len(str(MAX_LAYERS)):
        return GivenSite(name, layer=None, component=name, order=0)
    component = f"{name[: match.start()]}*{name[match.end() :]}"
    return GivenSite(name, int(match[0]), component, order=0)


def _place(site: GivenSite) -> int | str:
    """Return the layer of a site, or its name: sites of the same layer share a place."""
    return site.site if site.layer is None else site.layer


def _axis(sites: Sequence[GivenSite]) -> list[int | str]:
    """Return the places of the layer axis, in the order of the sites.

    If the layers of every line ascend, those of all lines are sorted together. Lines may have
    different layers: without sorting, those of the second would follow the first.
    """
    layers_of_line: dict[str, list[int]] = defaultdict(list)
    for site in sites:
        if site.layer is not None:
            layers_of_line[site.component].append(site.layer)
    places = list(dict.fromkeys(map(_place, sites)))
    if any(layers != sorted(layers) for layers in layers_of_line.values()):
        return places
    # Places of layers get the layers in ascending order; names stay where they are.
    ascending = iter(sorted(place for place in places if isinstance(place, int)))
    return [next(ascending) if isinstance(place, int) else place for place in places]


def has_positions(name: str, n_axes: int) -> bool:
    """Return whether an array of this site has an axis of positions after that of the rows.

    Arrays of a site of probekit may have it or not, which the number of axes shows; those of
    another site have two axes without it.
    """
    return n_axes >= len(describe(name).axes) if is_known(name) else n_axes > 2


class MemoryArray(SiteArray):
    """An array in memory: NumPy, torch, or another with shape, dtype and slices.

    It is pickled as the path of a temporary file, which is written once, so that worker processes
    share it.
    """

    remedy = "Give a dense array of NumPy or torch"

    def __init__(self, values: Any, place: str) -> None:
        has_array = all(hasattr(values, name) for name in ("shape", "dtype", "__getitem__"))
        self._values = values if has_array else np.ma.asarray(values)  # with its mask
        self._file: NpyArray | None = None
        self.place = place
        self.dtype = dtype_name(self._values.dtype)
        is_torch = hasattr(self._values, "detach")
        self.has_numbers = is_torch or isinstance(self._values, np.ndarray)

    def _open(self) -> Any:
        return self._values

    def __reduce__(self) -> tuple[Any, ...]:
        if self._file is None:  # it is removed with its array
            parts = self.parts(_rows_at_once(self))
            self._file = _temporary_file(self.shape, parts, self.floats)
        return NpyArray, (Path(self._file.place),)


def _temporary_file(shape: tuple[int, ...], parts: Iterable[FloatArray], floats: Any) -> NpyArray:
    """Return the array of a new .npy file with the rows of some parts.

    The file is removed with the array. It is written before it is mapped: writing to the map of a
    full disk would kill the process.

    Raises:
        StoreError: the file cannot be written.
    """
    folder = tempfile.mkdtemp(prefix="probekit-")
    path = Path(folder) / "rows.npy"
    try:
        with as_store_error("write", path), path.open("wb") as file:
            descr = np.dtype(floats).newbyteorder("<").str
            header = {"descr": descr, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for part in parts:
                file.write(np.ascontiguousarray(part, descr).data.cast("B"))
        array = NpyArray(path)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(array, shutil.rmtree, folder, ignore_errors=True)
    return array


class AtPosition(SiteArray):
    """The rows of an array of shape (n_rows, n_positions, ...) at one position of each.

    Args:
        array: the array.
        position: index of the position, the same for all rows or one for each.
    """

    def __init__(self, array: SiteArray, position: IntArray) -> None:
        self.place, self.dtype, self.remedy = array.place, array.dtype, array.remedy
        self._array = array
        self._positions = np.broadcast_to(position, array.shape[:1])

    def _shape(self) -> tuple[int, ...]:
        return (self._array.shape[0], *self._array.shape[2:])

    def _parts(self, n_rows: int) -> Iterator[FloatArray]:
        start = 0
        for rows in self._array.parts(n_rows):
            yield rows[np.arange(len(rows)), self._positions[start : start + len(rows)]]
            start += len(rows)


@dataclass(frozen=True, eq=False)
class GivenActivations:
    """Checked arrays of the same rows at several sites.

    Attributes:
        arrays: the array of each site.
        digests: digest of the shape and of all numbers of each array, as they are read.
        sites: the sites with their places on the layer axis, as `placed_sites` returns them.
        row_keys: hash of each row over all sites, shape (n_rows,); equal rows have equal hashes.
    """

    arrays: Mapping[str, SiteArray]
    digests: Mapping[str, str]
    sites: tuple[SiteSelection | GivenSite, ...]
    row_keys: npt.NDArray[np.uint64]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.row_keys)

    @property
    def n_bytes(self) -> int:
        """Size of all rows as float32."""
        return 4 * self.n_rows * sum(self.widths.values())

    @property
    def widths(self) -> dict[str, int]:
        """Number of features of each site."""
        return {site: math.prod(array.shape[1:]) for site, array in self.arrays.items()}

    @property
    def digest(self) -> str:
        """Digest of the names of the sites and of all numbers; the same for any file format."""
        return digest_json([[site.text, self.digests[site.text]] for site in self.sites])

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Number of heads and features of each, in the first array with heads; empty without."""
        shapes = [array.shape[1:] for array in self.arrays.values() if len(array.shape) == 3]
        return dict(zip(("n_heads", "d_head"), shapes[0], strict=True)) if shapes else {}

    def read(self, site: str) -> LazyRows:
        """Return the rows of a site as float32, shape (n_rows, n_features), read when needed.

        An array whose rows cannot be read by number is copied, into a temporary file if it is
        large.

        Raises:
            DataError: a file changed since it was checked, or changes while it is read.
            StoreError: the copy cannot be written.
        """
        array, shape = self.arrays[site], (self.n_rows, self.widths[site])
        if not array.has_numbers:
            if 4 * math.prod(shape) > LOADED_BYTES:
                array = _temporary_file(shape, _parts(array), array.floats)
            else:
                array = MemoryArray(np.concatenate(list(_parts(array))), site)
            if _digest(array, _parts(array)) != self.digests[site]:
                raise DataError(f"{site}: the activations changed during the run. Run it again.")
        return LazyRows(
            lambda place: array.at(place).reshape(-1, shape[1]),
            shape,
            np.dtype(array.floats),
            is_mapped=array.is_mapped,
        )


def open_activations(
    activations: Any, *, sites: Iterable[str] = ("*",), position: Position | None = None
) -> GivenActivations:
    """Return the checked arrays of a mapping from sites to arrays, or of a folder.

    Args:
        activations: mapping, or path of a folder.
        sites: names or globs of the sites to keep, at least one.
        position: for arrays with an axis of positions: the position to read, or one for each row.

    Raises:
        MissingError: the folder does not exist, or contains no array.
        ConfigError: the type of `activations` or a name is invalid, there is no site, `sites`
            match none, or `position` is missing, invalid or of no use.
        DataError: an array cannot be used; the message names the site and the row.

    >>> given = open_activations({"layer_0": np.eye(3), "layer_1": np.eye(3)[:, :2]})
    >>> given.n_rows, [site.text for site in given.sites], given.read("layer_1").shape
    (3, ['layer_0', 'layer_1'], (3, 2))
    """
    if isinstance(activations, str | Path):
        by_key: dict[Any, SiteArray] = dict(find_arrays(Path(activations)))
    elif hasattr(activations, "items"):  # also the cache of TransformerLens, which is no Mapping
        by_key = {key: _in_memory(key, values) for key, values in activations.items()}
    else:
        raise ConfigError(
            f"activations is of type {type(activations).__name__}. Allowed: a mapping from sites "
            "to arrays of shape (n_rows, n_features), or the path of a folder. For a list of "
            "layers: dict(enumerate(layers))."
        )
    all_names = [site_name(key) for key in by_key]
    check_distinct(all_names)
    if not all_names:
        raise ConfigError("activations is empty. Give at least one site and its array.")
    by_name = dict(zip(all_names, by_key.values(), strict=True))
    names = chosen_names(by_name, sites)
    check_storable(filter(is_known, names))
    if position is not None and not any(has_positions(n, len(by_name[n].shape)) for n in names):
        raise ConfigError(
            "`position` is given, but no array has an axis of positions after that of the rows. "
            "Leave it out, or give arrays of shape (n_rows, n_positions, n_features)."
        )
    arrays = {name: _at_position(name, by_name[name], position) for name in names}
    n_rows = arrays[names[0]].shape[0]
    for name, array in arrays.items():
        if array.dtype not in _FLOATS:
            raise DataError(
                f"{name}: the array has dtype {array.dtype}. Allowed: {', '.join(_FLOATS)}. "
                "Convert activations to numbers, array.astype(numpy.float32); rows of different "
                "lengths form no array."
            )
        if 0 in array.shape:
            empty = "rows" if array.shape[0] == 0 else "features"
            raise DataError(f"{name}: the array has shape {array.shape}, so it has no {empty}.")
        if array.shape[0] != n_rows:
            raise DataError(
                f"{name} has {counted(array.shape[0], 'row')}, but {names[0]} has {n_rows:,}. All "
                "sites need the same rows in the same order."
            )
    digests: dict[str, str] = {}
    row_keys = np.zeros(n_rows, dtype=np.uint64)
    for name, array in arrays.items():
        if array.dtype == "float64" and not _loses_digits(array):
            array.floats = np.float32
        digests[name], keys = _contents(name, array)
        row_keys = row_keys * _MULTIPLIER + keys
    return GivenActivations(arrays, digests, placed_sites(names), row_keys)


def _in_memory(key: Any, values: Any) -> SiteArray:
    """Return values in memory as the array of a site; raise DataError if they form no array."""
    if isinstance(values, Mapping | set | frozenset):
        raise DataError(
            f"{key}: the rows are in a {type(values).__name__}, which is not in the order of the "
            "labels. Give an array of shape (n_rows, n_features), such as numpy.stack(rows)."
        )
    try:
        return MemoryArray(values, str(key))
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(
            f"{key}: the rows do not form an array ({str(error).rstrip('.')}). Give all rows the "
            "same number of features, in one dense array of NumPy or torch."
        ) from error


def _at_position(name: str, array: SiteArray, position: Position | None) -> SiteArray:
    """Return the array of a site; of one with an axis of positions, the rows at the position."""
    shape = array.shape
    if len(shape) < 2:
        raise DataError(
            f"{name}: the array has shape {shape}, but needs (n_rows, n_features). For one feature "
            "use array[:, None]."
        )
    if not has_positions(name, len(shape)):
        return array
    if position is None:
        raise ConfigError(
            f"{name}: the array has shape {shape}, with an axis of positions after that of the "
            "rows. Give `position`: the index of the token of each row, such as -1 for the last, "
            "or one index for each row; or select the tokens first: array[:, -1]."
        )
    n_rows, n_positions = shape[:2]
    positions = as_array(position)
    if positions.dtype.kind not in "iu" or positions.shape not in ((), (n_rows,)):
        raise ConfigError(
            f"`position` has shape {positions.shape} and dtype {positions.dtype}. Allowed: an "
            f"integer, or {n_rows:,} integers, one for each row."
        )
    outside = np.flatnonzero((positions < -n_positions) | (positions >= n_positions))
    if len(outside):
        row = f" of row {outside[0]}" if positions.shape else ""
        raise ConfigError(
            f"{name}: the position{row} is {positions.flat[outside[0]]}. Allowed for an array of "
            f"shape {shape}: {-n_positions} to {n_positions - 1}."
        )
    return AtPosition(array, positions.astype(np.int64))


def _rows_at_once(array: SiteArray) -> int:
    """Return the number of rows of a part; a single one may have more numbers than wanted."""
    return max(1, _NUMBERS_AT_ONCE // math.prod(array.shape[1:]))


def _parts(array: SiteArray) -> Iterator[FloatArray]:
    """Yield all rows as float32, in parts of bounded size."""
    width = math.prod(array.shape[1:])
    for rows in array.parts(_rows_at_once(array)):
        yield np.ascontiguousarray(rows.reshape(len(rows), width))


def _digest(array: SiteArray, parts: Iterable[FloatArray]) -> str:
    """Return the digest of the shape of an array and of its numbers, given in parts."""
    header = f"{array.shape[0]},{math.prod(array.shape[1:])};".encode()
    return digest(chain([header], (part.data.cast("B") for part in parts)))


def _loses_digits(array: SiteArray) -> bool:
    """Return whether float32 changes a feature by over 0.1 % of its deviation in the first part.

    Constant features do not count: they are left out of fits.
    """
    rows = next(_parts(array))
    with np.errstate(over="ignore", invalid="ignore"):  # such rows are refused later
        rows = rows[:, rows.min(axis=0) < rows.max(axis=0)]
        largest = np.abs(rows).max(axis=0)  # squares of small numbers would be 0
        errors = np.sqrt(np.mean(((rows - rows.astype(np.float32)) / largest) ** 2, axis=0))
        return bool((errors > 1e-3 * (rows / largest).std(axis=0)).any())


def _contents(name: str, array: SiteArray) -> tuple[str, npt.NDArray[np.uint64]]:
    """Return the digest of an array, and a hash of each row, after one pass over its numbers.

    Raises:
        DataError: a number is NaN or infinite, or cannot be stored as float32; or all numbers of a
            row, or all rows, are equal.
    """
    width = math.prod(array.shape[1:])
    # Odd weights: the product with an even one would lose bits of a number.
    weights = np.random.default_rng(0).integers(2**64, size=width, dtype=np.uint64) | np.uint64(1)
    keys, n_before = [], 0

    def checked() -> Iterator[FloatArray]:
        """Yield the parts to be digested; check each, and add the hashes of its rows to `keys`."""
        nonlocal n_before
        for rows in _parts(array):
            with np.errstate(over="ignore"):
                in_float32 = rows.astype(np.float32, copy=False)
            if (wrong := unusable(in_float32)) is not None:
                index, n_wrong, problem = wrong
                is_infinite = np.isinf(in_float32[index]).any()
                overflow = _OVERFLOWS.get(array.dtype) if is_infinite else None
                advice = overflow or "Remove the row from all sites and labels, or compute it again"
                raise DataError(
                    f"{name}: row {n_before + index} {problem} ({counted(n_wrong, 'such row')} "
                    f"among the first {n_before + len(rows):,}). {advice}."
                )
            n_before += len(rows)
            bits = (rows + rows.dtype.type(0)).view(f"u{rows.itemsize}")  # -0.0 becomes 0.0
            hashes = np.einsum("ij,j->i", bits, weights, dtype=np.uint64, casting="unsafe")
            keys.append(hashes)
            yield rows

    total, hashes = _digest(array, checked()), np.concatenate(keys)
    if n_before > 1 and width >= FEWEST and (hashes == hashes[0]).all():
        raise DataError(
            f"{name}: all {n_before:,} rows are equal, so nothing can be decoded. Compute them "
            "again, or leave the site out with `sites`."
        )
    return total, hashes
