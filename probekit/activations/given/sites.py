"""Sites of given activations: their names, and their places on the layer axis."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from probekit.errors import ConfigError, UnknownNameError, nearest
from probekit.model.config import MAX_LAYERS
from probekit.model.sites.catalogue import CATALOGUE, describe, layer_of
from probekit.model.sites.sites import JOINT, Sites, SiteSelection

LONGEST_SITE = 200  # characters
RESERVED = ("baselines", "chosen")  # names of other results in the folder of a run
_SEPARATE = r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])"  # the 3 of layer_3, not the 2 of gpt2
_KNOWN = {site.name for site in CATALOGUE}


@dataclass(frozen=True)
class GivenSite:
    """A site whose name is not one of probekit's.

    Attributes:
        site: the name.
        layer: the number in the name that counts layers; None if there is none.
        component: the name with `*` in place of that number; sites with the same component are one
            line of a figure.
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
    problems = {
        "is empty": not key.strip(),
        f"has more than {LONGEST_SITE} characters": len(key) > LONGEST_SITE,
        "contains a character that cannot be printed": not key.isprintable(),
        f"contains {JOINT!r}, which joins the names of concatenated sites": JOINT in key,
        f"is reserved; also reserved: {', '.join(RESERVED)}": key.casefold() in RESERVED,
    }
    for problem, holds in problems.items():
        if holds:
            raise ConfigError(f"The site name {key[:LONGEST_SITE]!r} {problem}. Rename the site.")
    return key


def check_distinct(names: Sequence[str]) -> None:
    """Raise ConfigError if two names are equal, or differ only in case.

    Files of a run are named after sites, and some file systems ignore case.

    Raises:
        ConfigError: two names are equal.
    """
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.casefold(), name)
        if other is not name:
            problem = "occurs twice" if other == name else f"differs from {other!r} only in case"
            raise ConfigError(f"The site name {name!r} {problem}. Rename one of the sites.")


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
    Otherwise the sites keep their order, and the number that differs between names of the same form
    counts the layers. Names without a number share the line of the only other component.

    >>> placed_sites(["blocks.0.hook_resid_post"])
    (SiteSelection(site='blocks.0.hook_resid_post', head=None, neuron=None, kv_head=None),)
    >>> [(s.layer, s.component, s.order) for s in placed_sites(["embed", "layer_2", "layer_10"])]
    [(None, 'layer_*', 0), (2, 'layer_*', 1), (10, 'layer_*', 2)]
    """
    if all(map(is_known, names)):
        n_layers = 1 + max((layer_of(name) or 0 for name in names), default=0)
        rank = {site: n for n, site in enumerate(Sites(CATALOGUE, {"n_layers": n_layers}))}
        return tuple(SiteSelection(name) for name in sorted(names, key=rank.__getitem__))
    form_of = {name: re.sub(r"\d+", "#", name) for name in names}
    numbers: dict[str, list[list[str]]] = defaultdict(list)
    for name, form in form_of.items():
        numbers[form].append(re.findall(r"\d+", name))
    counting = {form: _first_difference(rows) for form, rows in numbers.items()}
    sites = [_numbered(name, counting[form]) for name, form in form_of.items()]
    lines = {site.component for site in sites if site.layer is not None}
    if len(lines) <= 1:
        line = next(iter(lines), "sites")
        sites = [replace(site, component=line) for site in sites]
    keys = [
        (site.layer is not None, site.site if site.layer is None else site.layer) for site in sites
    ]
    order = {key: n for n, key in enumerate(_axis(keys, [site.component for site in sites]))}
    return tuple(replace(site, order=order[key]) for site, key in zip(sites, keys, strict=True))


def _first_difference(rows: Sequence[Sequence[str]]) -> int | None:
    """Return the first column in which rows of equal length differ; None if there is none."""
    columns = enumerate(zip(*rows, strict=True))
    return next((at for at, column in columns if len(set(column)) > 1), None)


def _numbered(name: str, at: int | None) -> GivenSite:
    """Return a site, not placed yet, with the layer that its number `at` counts.

    Without `at`, it is the first number without adjacent letters or digits: the 3 of layer_3.
    """
    numbers = list(re.finditer(r"\d+", name))
    match = next(re.finditer(_SEPARATE, name), None) if at is None else numbers[at]
    if match is None or len(match[0]) > len(str(MAX_LAYERS)):
        return GivenSite(name, None, name, 0)
    component = f"{name[: match.start()]}*{name[match.end() :]}"
    return GivenSite(name, int(match[0]), component, 0)


_Key = tuple[bool, int | str]  # (True, layer) or (False, name)


def _axis(keys: Sequence[_Key], components: Sequence[str]) -> list[_Key]:
    """Return the places of the layer axis: as given, with layers that ascend in each line sorted.

    Lines may have different layers: without sorting, those of the second would follow the first.
    """
    by_line: dict[str, list[Any]] = defaultdict(list)
    for (is_layer, value), line in zip(keys, components, strict=True):
        if is_layer:
            by_line[line].append(value)
    distinct = list(dict.fromkeys(keys))
    if any(values != sorted(values) for values in by_line.values()):
        return distinct
    layers = iter(sorted(key for key in distinct if key[0]))
    return [next(layers) if key[0] else key for key in distinct]


def has_positions(name: str, n_axes: int) -> bool:
    """Return whether an array of this site has an axis of positions after that of the rows.

    Arrays of a site of probekit may have it or not, which the number of axes shows; those of
    another site have two axes without it.
    """
    if not is_known(name):
        return n_axes > 2
    return n_axes >= len(describe(name).axes)
