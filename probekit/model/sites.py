"""The table of all sites: every tensor that GPT-2 names, its axes and its formula.

The table is the one place that knows them; names are those of TransformerLens. `expand` turns what
people write (names, globs, shorthands) into names, `SiteSelection` adds a head or a neuron, and
`SiteConcatenation` takes several of those as one.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, SupportsIndex, cast, get_args

from probekit.errors import ConfigError, UnknownNameError, nearest

SitePattern = str | tuple[str, int]  # "blocks.*.hook_resid_post" or ("resid_post", 3)


Stage = Literal["embedding", "block", "output"]


@dataclass(frozen=True)
class Site:
    """One row of the table of sites.

    Attributes:
        name: TransformerLens's name, with `{l}` for the layer of a block.
        axes: names of the axes.
        formula: how the tensor is computed.
        stage: where the forward pass computes it: before, in or after the blocks.
        on_request: computed only where the name is given in full; a glob that other sites match
            too does not reach it.
        begins_block: available before the block has computed anything.
        in_stream: part of the residual stream, or added to it; the logit lens can read it.
        masked: the value at keys that a query does not see.
    """

    name: str
    axes: tuple[str, ...]
    formula: str
    stage: Stage = "block"
    on_request: bool = False
    begins_block: bool = False
    in_stream: bool = False
    masked: float = 0.0

    @property
    def in_block(self) -> bool:
        """Whether every block has such a tensor."""
        return self.stage == "block"

    @property
    def component(self) -> str:
        """The name without block number and hook prefix.

        >>> [site.component for site in SITES if site.axes[-1] == "key_pos"]
        ['attn.attn_scores', 'attn.pattern']
        """
        return self.name.removeprefix("blocks.{l}.").replace("hook_", "")


_D_MODEL = ("batch", "pos", "d_model")
_SCALE = ("batch", "pos", "1")
_HEAD = ("batch", "pos", "n_heads", "d_head")
_PATTERN = ("batch", "n_heads", "query_pos", "key_pos")
_HEAD_OUT = ("batch", "pos", "n_heads", "d_model")
_MLP = ("batch", "pos", "d_mlp")
_STREAM: dict[str, Any] = {"axes": _D_MODEL, "in_stream": True}

# In the order of the forward pass.
SITES = (
    Site("hook_embed", formula="wte[tokens]", stage="embedding", **_STREAM),
    Site("hook_pos_embed", formula="wpe[positions]", stage="embedding", **_STREAM),
    Site(
        "blocks.{l}.hook_resid_pre",
        formula="embed + pos_embed, or resid_post of block l-1",
        begins_block=True,
        **_STREAM,
    ),
    Site("blocks.{l}.ln1.hook_scale", _SCALE, "sqrt(var(resid_pre) + eps)"),
    Site("blocks.{l}.ln1.hook_normalized", _D_MODEL, "(resid_pre - mean) / scale"),
    Site("blocks.{l}.attn.hook_q", _HEAD, "ln_1(resid_pre) W_Q + b_Q"),
    Site("blocks.{l}.attn.hook_k", _HEAD, "ln_1(resid_pre) W_K + b_K"),
    Site("blocks.{l}.attn.hook_v", _HEAD, "ln_1(resid_pre) W_V + b_V"),
    Site(
        "blocks.{l}.attn.hook_attn_scores",
        _PATTERN,
        "q k / sqrt(d_head), -inf where masked",
        masked=-math.inf,
    ),
    Site("blocks.{l}.attn.hook_pattern", _PATTERN, "softmax(attn_scores) over key_pos"),
    Site("blocks.{l}.attn.hook_z", _HEAD, "pattern v"),
    Site("blocks.{l}.attn.hook_result", _HEAD_OUT, "z W_O per head, without b_O", on_request=True),
    Site("blocks.{l}.hook_attn_out", formula="z W_O + b_O", **_STREAM),
    Site("blocks.{l}.hook_resid_mid", formula="resid_pre + attn_out", **_STREAM),
    Site("blocks.{l}.ln2.hook_scale", _SCALE, "sqrt(var(resid_mid) + eps)"),
    Site("blocks.{l}.ln2.hook_normalized", _D_MODEL, "(resid_mid - mean) / scale"),
    Site("blocks.{l}.mlp.hook_pre", _MLP, "ln_2(resid_mid) W_in + b_in"),
    Site("blocks.{l}.mlp.hook_post", _MLP, "gelu_tanh(pre)"),
    Site("blocks.{l}.hook_mlp_out", formula="post W_out + b_out", **_STREAM),
    Site("blocks.{l}.hook_resid_post", formula="resid_mid + mlp_out", **_STREAM),
    Site(
        "ln_final.hook_scale",
        _SCALE,
        "sqrt(var(resid_post of the last block) + eps)",
        stage="output",
    ),
    Site("ln_final.hook_normalized", _D_MODEL, "(resid_post - mean) / scale", stage="output"),
)

_BY_NAME = {site.name: site for site in SITES}
_BLOCK = re.compile(r"^blocks\.(\d{1,9})\.")
_GLOB = re.compile(r"[*?]")
_SELECTOR = re.compile(r"^(?P<site>.+)\[(?P<axis>[a-z]+)=(?P<index>[^\]]*)\]$")
_SELECTED_AXES = {"head": "n_heads", "neuron": "d_mlp"}

JOINT = " + "  # between the parts of a concatenation


def site_names(n_layers: int, *, on_request: bool = False) -> tuple[str, ...]:
    """Return the names of all sites in the order of the forward pass.

    >>> len(site_names(12))
    208
    """
    there = [site for site in SITES if on_request or not site.on_request]
    in_stage = {stage: [s.name for s in there if s.stage == stage] for stage in get_args(Stage)}
    return (
        *in_stage["embedding"],
        *(name.format(l=layer) for layer in range(n_layers) for name in in_stage["block"]),
        *in_stage["output"],
    )


def describe(name: str) -> Site:
    """Return the row of the table that a site's name belongs to.

    >>> describe("blocks.3.mlp.hook_post").axes
    ('batch', 'pos', 'd_mlp')

    Raises:
        UnknownNameError: no site has that name; globs and short names are for `expand`.
    """
    general = _BLOCK.sub("blocks.{l}.", name)
    if general not in _BY_NAME:
        raise UnknownNameError(f"No site has the full name {name!r}. {nearest(general, _BY_NAME)}")
    return _BY_NAME[general]


def blocks_before(name: str, n_layers: int) -> int:
    """Return how many blocks a forward pass runs, wholly or in part, to reach a site.

    >>> [blocks_before(name, 12) for name in ("hook_embed", "blocks.3.hook_resid_pre")]
    [0, 3]
    >>> [blocks_before(name, 12) for name in ("blocks.3.attn.hook_z", "ln_final.hook_scale")]
    [4, 12]
    """
    site, layer = describe(name), layer_of(name)
    if layer is None:
        return 0 if site.stage == "embedding" else n_layers
    return layer + (not site.begins_block)


def layer_of(name: str) -> int | None:
    """Return the block index that stands in a site's name, None outside the blocks.

    >>> layer_of("blocks.11.hook_resid_pre"), layer_of("hook_embed")
    (11, None)
    """
    match = _BLOCK.match(name)
    return int(match[1]) if match else None


def expand(patterns: SitePattern | Iterable[SitePattern], n_layers: int) -> tuple[str, ...]:
    """Return the names that names, globs and shorthands stand for, in the order of the forward.

    >>> expand(["blocks.*.hook_resid_post", ("pattern", 0), "hook_embed"], 2)
    ('hook_embed', 'blocks.0.attn.hook_pattern', 'blocks.0.hook_resid_post',
     'blocks.1.hook_resid_post')

    Raises:
        UnknownNameError: a pattern stands for no site of a model with `n_layers` blocks.
    """
    found = {name for pattern in _listed(patterns) for name in _matches(pattern, n_layers)}
    return tuple(name for name in site_names(n_layers, on_request=True) if name in found)


def _listed(patterns: SitePattern | Iterable[SitePattern]) -> list[SitePattern]:
    """Return the patterns as a list; one alone, a name or a pair (short name, layer), is one."""
    if isinstance(patterns, str):
        return [patterns]
    listed = list(patterns)
    if _is_shorthand(listed):
        return [cast(tuple[str, int], tuple(listed))]
    return cast(list[SitePattern], listed)


def _is_shorthand(value: Sequence[object]) -> bool:
    """Return whether it is a short name and a layer, which may be a number of numpy or torch."""
    return (
        len(value) == 2
        and isinstance(value[0], str)
        and isinstance(value[1], SupportsIndex)
        and not isinstance(value[1], bool)
    )


def _matches(pattern: SitePattern, n_layers: int) -> Sequence[str]:
    if isinstance(pattern, tuple):
        if not _is_shorthand(pattern):
            raise UnknownNameError(
                f"No site is called {pattern!r}; a shorthand is a short name and a layer, such as "
                "('pattern', 3)."
            )
        pattern = _full_name(pattern[0], operator.index(pattern[1]))
    # A glob reaches the sites that are computed on request only where it matches nothing else.
    usual, names = site_names(n_layers), site_names(n_layers, on_request=True)
    matches = _matching(usual, pattern) or _matching(names, pattern)
    if matches:
        return matches
    layer = layer_of(pattern)
    if layer is not None and layer >= n_layers:
        raise UnknownNameError(
            f"Site {pattern!r}: the model has {n_layers} blocks, 0 to {n_layers - 1}."
        )
    fits = _short_for(pattern.replace("hook_", ""))
    if fits and "hook_" in pattern:
        raise UnknownNameError(
            f"{pattern!r} is a site of every block: write {fits[0].name.format(l=0)!r} for one, "
            f"{fits[0].name.format(l='*')!r} for all."
        )
    if fits:
        every = fits[0].name.format(l="*")
        raise UnknownNameError(
            f"{pattern!r} is a site of every block: give its layer too, as in ({pattern!r}, 0), or "
            f"take all of them with {every!r}."
        )
    raise UnknownNameError(f"No site is called {pattern!r}. {nearest(pattern, names)}")


def _matching(names: Iterable[str], pattern: str) -> list[str]:
    return [name for name in names if fnmatchcase(name, pattern)]


def _short_for(text: str) -> list[Site]:
    """Return the sites of a block that a short name like "pattern" or "attn.pattern" is for."""
    return [
        site
        for site in SITES
        if site.in_block and text in (site.component, site.component.rpartition(".")[2])
    ]


def _full_name(short: str, layer: int) -> str:
    """Return the name that a shorthand like ("pattern", 3) stands for."""
    if layer < 0:
        raise UnknownNameError(f"Layers are counted from 0, so there is no ({short!r}, {layer}).")
    fits = _short_for(short)
    if not fits:
        components = [site.component for site in SITES if site.in_block]
        raise UnknownNameError(
            f"No site of a block is called {short!r}. {nearest(short, components)}"
        )
    if len(fits) > 1:
        raise UnknownNameError(
            f"{short!r} stands for several sites; write one of "
            f"{', '.join(repr(site.component) for site in fits)}."
        )
    return fits[0].name.format(l=layer)


@dataclass(frozen=True)
class SiteSelection:
    """A site, or one head or one neuron of it.

    >>> SiteSelection("blocks.5.attn.hook_z", head=3).text
    'blocks.5.attn.hook_z[head=3]'
    """

    site: str
    head: int | None = None
    neuron: int | None = None

    @property
    def parts(self) -> tuple[SiteSelection, ...]:
        """The selection alone, as a concatenation has several."""
        return (self,)

    @property
    def without_head(self) -> SiteSelection:
        """The same selection with all its heads."""
        return replace(self, head=None)

    @property
    def text(self) -> str:
        """The selection as people write it."""
        chosen = {"head": self.head, "neuron": self.neuron}
        parts = [f"[{axis}={index}]" for axis, index in chosen.items() if index is not None]
        return self.site + "".join(parts)


@dataclass(frozen=True)
class SiteConcatenation:
    """Several selections whose features stand side by side and are probed as one.

    >>> SiteConcatenation((SiteSelection("hook_embed"), SiteSelection("hook_pos_embed"))).text
    'hook_embed + hook_pos_embed'
    """

    parts: tuple[SiteSelection, ...]

    @property
    def text(self) -> str:
        """The parts as people write them, joined."""
        return JOINT.join(part.text for part in self.parts)


def select(
    patterns: Iterable[str], n_layers: int, axis_sizes: dict[str, int]
) -> tuple[SiteSelection, ...]:
    """Return what patterns like `blocks.*.attn.hook_z[head=*]` stand for, in forward order.

    `axis_sizes` gives the number of heads (`n_heads`) and neurons (`d_mlp`).

    >>> for chosen in select(["blocks.*.attn.hook_z[head=0,2]"], 2, {"n_heads": 3, "d_mlp": 11}):
    ...     print(chosen.text)
    blocks.0.attn.hook_z[head=0]
    blocks.0.attn.hook_z[head=2]
    blocks.1.attn.hook_z[head=0]
    blocks.1.attn.hook_z[head=2]

    Raises:
        UnknownNameError: a pattern stands for no site.
        ConfigError: the site has no such axis, or an index is outside of it.
    """
    chosen: set[SiteSelection] = set()
    for pattern in patterns:
        match = _SELECTOR.match(pattern)
        if match is None:
            _require_whole_brackets(pattern)
        for site in expand([match["site"] if match else pattern], n_layers):
            indices: list[dict[str, int]] = _indices(site, match, axis_sizes) if match else [{}]
            chosen |= {SiteSelection(site, **index) for index in indices}
    order = {site: place for place, site in enumerate(site_names(n_layers, on_request=True))}

    def place(selection: SiteSelection) -> tuple[int, ...]:
        whole_first = (-1 if i is None else i for i in (selection.head, selection.neuron))
        return order[selection.site], *whole_first

    return tuple(sorted(chosen, key=place))


def _require_whole_brackets(pattern: str) -> None:
    """Refuse a pattern that begins to choose a head or neuron, and does not end so."""
    site, bracket, choice = pattern.partition("[")
    if _short_for(site.replace("hook_", "")):
        site = _short_for(site.replace("hook_", ""))[0].name.format(l="*")
    axis = next((axis for axis in _SELECTED_AXES if choice.strip().startswith(axis)), None)
    if bracket and axis:
        raise ConfigError(
            f"{pattern!r}: a {axis} is chosen by [{axis}=3], several by [{axis}=0,3], all by "
            f"[{axis}=*]. Nearest: {site}[{axis}={_digits(choice) or 0}]."
        )


def _digits(text: str) -> str:
    return "".join(filter(str.isdecimal, text.partition(",")[0]))


def _indices(site: str, match: re.Match[str], axis_sizes: dict[str, int]) -> list[dict[str, int]]:
    """Return each head or neuron that the brackets of a pattern choose at a site."""
    axis = match["axis"]
    if axis not in _SELECTED_AXES:
        raise ConfigError(f"{match[0]!r}: unknown axis {axis!r}. Allowed: head, neuron.")
    axes = describe(site).axes
    name = _SELECTED_AXES[axis]
    if name not in axes:
        raise ConfigError(f"{match[0]!r}: {site} has the axes {' '.join(axes)}, no {axis}.")
    if match["index"] == "*":
        return [{axis: index} for index in range(axis_sizes[name])]
    numbers = [text.strip() for text in match["index"].split(",")]
    if not all(_is_index(text, axis_sizes[name]) for text in numbers):
        raise ConfigError(
            f"{match[0]!r}: {axis} must be a number from 0 to {axis_sizes[name] - 1}, several with "
            "commas between them, or * for all."
        )
    return [{axis: int(text)} for text in numbers]


def _is_index(text: str, size: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10 and int(text) < size
