"""The sites of one network: its family's table, bound to its sizes, and selections of them.

`Sites.expand` turns names, globs and shorthands into names. `Sites.select` also reads heads and
neurons in brackets.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, SupportsIndex, cast, get_args

from probekit.errors import ConfigError, UnknownNameError, nearest
from probekit.model.sites.catalogue import SELECTED_AXES, Site, Stage, layer_of, row_of

JOINT = " + "  # between the parts of a concatenation


@dataclass(frozen=True)
class SiteSelection:
    """A site, or one head, one key-value head or one neuron of it.

    >>> SiteSelection("blocks.5.attn.hook_z", head=3).text
    'blocks.5.attn.hook_z[head=3]'
    """

    site: str
    head: int | None = None
    neuron: int | None = None
    kv_head: int | None = None

    @property
    def parts(self) -> tuple[SiteSelection, ...]:
        """This selection as a tuple, like the parts of a `SiteConcatenation`."""
        return (self,)

    @property
    def selector(self) -> str | None:
        """`head`, `kv_head` or `neuron`; None for a whole site."""
        return next((name for name in SELECTED_AXES if getattr(self, name) is not None), None)

    @property
    def index(self) -> int | None:
        """The number of the head or neuron; None for a whole site."""
        return None if self.selector is None else getattr(self, self.selector)

    @property
    def axis(self) -> str | None:
        """The axis that the number selects from, such as `n_heads`; None for a whole site."""
        return None if self.selector is None else SELECTED_AXES[self.selector]

    @property
    def text(self) -> str:
        """The selection as it is written in an experiment file."""
        return self.site if self.selector is None else f"{self.site}[{self.selector}={self.index}]"


@dataclass(frozen=True)
class SiteConcatenation:
    """Several selections whose features are concatenated and probed together.

    >>> SiteConcatenation((SiteSelection("hook_embed"), SiteSelection("hook_pos_embed"))).text
    'hook_embed + hook_pos_embed'
    """

    parts: tuple[SiteSelection, ...]

    @property
    def text(self) -> str:
        """The parts as they are written in an experiment file, joined by `+`."""
        return JOINT.join(part.text for part in self.parts)


# "blocks.*.hook_resid_post", ("resid_post", 3), or a function that selects names
_Pattern = str | tuple[str, int] | Callable[[str], bool]
SitePattern = _Pattern | SiteSelection

_SELECTOR = re.compile(r"^(?P<site>.+)\[(?P<selector>[a-z_]+)=(?P<index>[^\]]*)\]$")


@dataclass(frozen=True, eq=False)
class Sites(Sequence[str]):
    """Names of all sites of a network in the order of the forward pass, and what they mean.

    Sites that are computed on request are included.

    Attributes:
        rows: the family's table, in forward order.
        axis_sizes: size of each axis that does not depend on the input.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> sites = GPT2Config(n_layer=2).sites
    >>> len(sites), sites[2]
    (40, 'blocks.0.hook_resid_pre')
    >>> sites.describe("blocks.1.mlp.hook_post").formula
    'gelu_tanh(pre)'
    """

    rows: tuple[Site, ...]
    axis_sizes: Mapping[str, int]

    @property
    def n_layers(self) -> int:
        """Number of blocks."""
        return self.axis_sizes["n_layers"]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all sites."""
        return self._names(self.rows)

    @cached_property
    def without_request(self) -> tuple[str, ...]:
        """Names of the sites that are not computed on request only."""
        return self._names([row for row in self.rows if not row.on_request])

    def _names(self, rows: Sequence[Site]) -> tuple[str, ...]:
        """Return the full names of the sites in rows of the table, in forward order."""
        of_stage = {stage: [row for row in rows if row.stage == stage] for stage in get_args(Stage)}
        in_blocks = (
            row.name.format(l=layer)
            for layer in range(self.n_layers)
            for row in of_stage["block"]
            if row.layers is None or layer in row.layers
        )
        before, after = ([row.name for row in of_stage[at]] for at in ("embedding", "output"))
        return (*before, *in_blocks, *after)

    @cached_property
    def _by_name(self) -> dict[str, Site]:
        return {row.name: row for row in self.rows}

    def __getitem__(self, index: int | slice) -> Any:
        """Return a name, or a tuple of names for a slice."""
        return self.names[index]

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self.names)

    def describe(self, name: str) -> Site:
        """Return the row of the table for the full name of a site.

        Raises:
            UnknownNameError: no site has this name. Globs and shorthands need `expand`.
        """
        return row_of(name, self._by_name)

    def axes_of(self, part: str) -> tuple[str, ...]:
        """Return the axes of a site, or those of a head or neuron of it.

        >>> from probekit.model.families.gpt2 import GPT2Config
        >>> GPT2Config().sites.axes_of("blocks.0.attn.hook_pattern[head=1]")
        ('batch', 'query_pos', 'key_pos')
        """
        site, _, choice = part.partition("[")
        # None for a whole site: no axis equals it, so that all remain.
        selected = SELECTED_AXES.get(choice.partition("=")[0])
        return tuple(axis for axis in self.describe(site).axes if axis != selected)

    def expand(self, patterns: SitePattern | Iterable[SitePattern]) -> tuple[str, ...]:
        """Return the names of all sites that match names, globs, shorthands or functions, in order.

        Negative layers count from the last block.

        >>> from probekit.model.families.gpt2 import GPT2Config
        >>> sites = GPT2Config(n_layer=2).sites
        >>> sites.expand(["blocks.*.hook_resid_post", ("pattern", -2), "hook_embed"])
        ('hook_embed', 'blocks.0.attn.hook_pattern', 'blocks.0.hook_resid_post',
         'blocks.1.hook_resid_post')
        >>> sites.expand(lambda name: name.endswith("pattern"))
        ('blocks.0.attn.hook_pattern', 'blocks.1.attn.hook_pattern')

        Raises:
            UnknownNameError: a pattern matches no site of the network.
        """
        names = {name for pattern in listed(patterns) for name in self._matches(pattern)}
        return tuple(name for name in self.names if name in names)

    def select(self, patterns: SitePattern | Iterable[SitePattern]) -> tuple[SiteSelection, ...]:
        """Return all sites, heads and neurons that match the patterns, in forward order.

        >>> from probekit.model.families.gpt2 import GPT2Config
        >>> sites = GPT2Config(n_layer=2, n_head=3, n_embd=21).sites
        >>> [part.text for part in sites.select([("pattern", 0), ("z[head=1,2]", -1)])]
        ['blocks.0.attn.hook_pattern', 'blocks.1.attn.hook_z[head=1]',
         'blocks.1.attn.hook_z[head=2]']

        Raises:
            UnknownNameError: a pattern matches no site.
            ConfigError: a site does not have the selected axis, or an index is out of range.
        """
        selections: set[SiteSelection] = set()
        for pattern in listed(patterns):
            selections.update(self._selected(pattern))
        order = {site: number for number, site in enumerate(self.names)}

        def rank(selection: SiteSelection) -> tuple[int, int]:
            # A whole site comes before its heads and neurons.
            return order[selection.site], -1 if selection.index is None else selection.index

        return tuple(sorted(selections, key=rank))

    def _selected(self, pattern: _Pattern) -> Iterator[SiteSelection]:
        """Yield the sites, heads and neurons that match one pattern."""
        # A shorthand with brackets, such as ("z[head=1,2]", -1).
        if isinstance(pattern, tuple) and "[" in str(pattern[0]):
            short, _, choice = pattern[0].partition("[")
            for name in self.expand([(short, pattern[1])]):
                yield from self._selected(f"{name}[{choice}")
            return
        match = _SELECTOR.match(pattern) if isinstance(pattern, str) else None
        if match is None and isinstance(pattern, str):
            # Incomplete brackets with the name of a selector are a mistake, not those of a glob.
            site, bracket, choice = pattern.partition("[")
            selectors = (name for name in SELECTED_AXES if choice.strip().startswith(name))
            selector = next(selectors, None)
            if bracket and selector:
                # For the message: the full name if `site` is a short one, and the first number.
                candidates = self._by_short_name(site.replace("hook_", ""))
                if candidates:
                    site = candidates[0].name.format(l="*")
                digits = "".join(filter(str.isdecimal, choice.partition(",")[0]))
                raise ConfigError(
                    f"{pattern!r}: write [{selector}=3] to select one {selector}, [{selector}=0,3] "
                    f"for several, [{selector}=*] for all. Nearest: "
                    f"{site}[{selector}={digits or 0}]."
                )
        for site in self.expand([match["site"] if match else pattern]):
            # {} selects the whole site.
            indices: list[dict[str, int]] = self._indices(site, match) if match else [{}]
            for index in indices:
                yield SiteSelection(site, **index)

    def _matches(self, pattern: _Pattern) -> Sequence[str]:
        """Return the names of the sites that match one pattern without brackets."""
        if isinstance(pattern, tuple):
            if not _is_shorthand(pattern):
                raise UnknownNameError(
                    f"No site matches {pattern!r}. A shorthand is a short name and a layer, such "
                    "as ('pattern', 3)."
                )
            # The full name of a shorthand such as ("pattern", 3) or ("pattern", -1).
            short, layer = pattern[0], operator.index(pattern[1])
            n_layers = self.n_layers
            if layer < -n_layers:
                raise UnknownNameError(
                    f"({short!r}, {layer}): the model has {n_layers} blocks, "
                    f"{-n_layers} to {n_layers - 1}."
                )
            if layer < 0:
                layer += n_layers
            candidates = self._by_short_name(short)
            if not candidates:
                components = [row.component for row in self.rows if row.in_block]
                raise UnknownNameError(
                    f"No site of a block has the name {short!r}. {nearest(short, components)}"
                )
            if len(candidates) > 1:
                raise UnknownNameError(
                    f"{short!r} matches several sites. Write one of "
                    f"{', '.join(repr(row.component) for row in candidates)}."
                )
            pattern = candidates[0].name.format(l=layer)
        # Sites computed on request are matched only if no other site is.
        matches = _matching(self.without_request, pattern) or _matching(self.names, pattern)
        if matches:
            return matches
        if not isinstance(pattern, str):
            raise UnknownNameError(f"The function {pattern!r} selects none of {len(self)} sites.")
        raise UnknownNameError(self._no_match(pattern))

    def _no_match(self, pattern: str) -> str:
        """Return the message for a name or glob that matches no site."""
        layer = layer_of(pattern)
        if layer is not None and layer >= self.n_layers:
            return (
                f"Site {pattern!r}: the model has {self.n_layers} blocks, 0 to {self.n_layers - 1}."
            )
        candidates = self._by_short_name(pattern.replace("hook_", ""))
        if not candidates:
            return f"No site matches {pattern!r}. {nearest(pattern, self.names)}"
        one, every = candidates[0].name.format(l=0), candidates[0].name.format(l="*")
        if "hook_" in pattern:
            return (
                f"{pattern!r} is a site of every block: write {one!r} for one, {every!r} for all."
            )
        return (
            f"{pattern!r} is a site of every block: add the layer, as in ({pattern!r}, 0), or "
            f"write {every!r} for all."
        )

    def _by_short_name(self, text: str) -> list[Site]:
        """Return the sites of a block with a short name such as "pattern" or "attn.pattern"."""
        in_blocks = (row for row in self.rows if row.in_block)
        return [
            row for row in in_blocks if text in (row.component, row.component.rpartition(".")[2])
        ]

    def _indices(self, site: str, match: re.Match[str]) -> list[dict[str, int]]:
        """Return each head or neuron in the brackets of a pattern, such as {"head": 3}.

        Raises:
            ConfigError: the site does not have the axis, or an index is out of range.
        """
        selector, axes = match["selector"], self.describe(site).axes
        known = {name: axis for name, axis in SELECTED_AXES.items() if axis in self.axis_sizes}
        if selector not in known:
            raise ConfigError(
                f"{match[0]!r}: unknown axis {selector!r}. Allowed: {', '.join(known)}."
            )
        if known[selector] not in axes:
            other = [name for name, axis in known.items() if axis in axes]
            remedy = f" Write [{other[0]}={match['index']}]." if other else ""
            raise ConfigError(
                f"{match[0]!r}: {site} has no {selector}s, its axes are {' '.join(axes)}.{remedy}"
            )
        size = self.axis_sizes[known[selector]]
        if match["index"] == "*":
            return [{selector: index} for index in range(size)]
        numbers = [text.strip() for text in match["index"].split(",")]
        chosen = [int(text) if re.fullmatch("[0-9]{1,9}", text) else size for text in numbers]
        if max(chosen) >= size or len(set(chosen)) < len(chosen):
            raise ConfigError(
                f"{match[0]!r}: {selector} must be an integer from 0 to {size - 1}, several "
                "different ones separated by commas, or * for all."
            )
        return [{selector: index} for index in chosen]


def listed(patterns: SitePattern | Iterable[SitePattern]) -> list[_Pattern]:
    """Return the patterns as a list; a name, function or (short name, layer) is one pattern.

    A selection becomes its text, such as `blocks.3.attn.hook_z[head=2]`.

    Raises:
        UnknownNameError: a value is not a pattern.
    """
    is_one = isinstance(patterns, str | SiteSelection) or not isinstance(patterns, Iterable)
    given = [patterns] if is_one else cast(Iterable[object], patterns)
    several = [each.text if isinstance(each, SiteSelection) else each for each in given]
    if _is_shorthand(several):
        return [cast(tuple[str, int], tuple(several))]
    for pattern in several:
        if not (isinstance(pattern, str | tuple) or callable(pattern)):
            raise UnknownNameError(
                f"No site matches {pattern!r}. Give a name, a glob, a short name and a layer such "
                "as ('pattern', 3), or a function of the name."
            )
    return cast(list[_Pattern], several)


def _is_shorthand(value: Sequence[object]) -> bool:
    """Return whether a value is (short name, layer); the layer may be a NumPy or torch integer."""
    if len(value) != 2:
        return False
    short, layer = value
    is_integer = isinstance(layer, SupportsIndex) and not isinstance(layer, bool)
    return isinstance(short, str) and is_integer


def _matching(names: Iterable[str], pattern: str | Callable[[str], bool]) -> list[str]:
    """Return the names that match a name or glob, or that a function selects."""
    if isinstance(pattern, str):
        return [name for name in names if fnmatchcase(name, pattern)]
    return [name for name in names if pattern(name)]
