"""The table of sites: name, axes and formula of every tensor that a tap can read or replace.

Names are those of TransformerLens. `expand` turns names, globs and shorthands into names.
`SiteSelection` adds a head or a neuron to a site, and `SiteConcatenation` joins several selections.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, SupportsIndex, cast, get_args

from probekit.errors import ConfigError, UnknownNameError, nearest

# "blocks.*.hook_resid_post", ("resid_post", 3), or a function that selects names
SitePattern = str | tuple[str, int] | Callable[[str], bool]


Stage = Literal["embedding", "block", "output"]


@dataclass(frozen=True)
class Site:
    """One row of the table of sites.

    Attributes:
        name: TransformerLens's name, with `{l}` for the layer of a block.
        axes: names of the axes.
        formula: how the tensor is computed.
        stage: where the forward pass computes it: before, in or after the blocks.
        on_request: computed only if requested by name; a glob that also matches other sites does
            not include it.
        begins_block: available before the block computes anything.
        in_stream: part of the residual stream, or added to it, so that the logit lens applies.
        masked: value at keys that a query does not attend to.
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
        """Whether every block has this tensor."""
        return self.stage == "block"

    @property
    def component(self) -> str:
        """The name without block index and `hook_`.

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

SITES = (  # in forward order
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
    """Return the names of all sites, in the order of the forward pass.

    Sites that are computed on request are included with `on_request`.

    >>> len(site_names(12))
    208
    """
    sites = [site for site in SITES if on_request or not site.on_request]
    in_stage = {stage: [s.name for s in sites if s.stage == stage] for stage in get_args(Stage)}
    return (
        *in_stage["embedding"],
        *(name.format(l=layer) for layer in range(n_layers) for name in in_stage["block"]),
        *in_stage["output"],
    )


def describe(name: str) -> Site:
    """Return the row of the table for the full name of a site.

    >>> describe("blocks.3.mlp.hook_post").axes
    ('batch', 'pos', 'd_mlp')

    Raises:
        UnknownNameError: no site has this name. Globs and shorthands need `expand`.
    """
    general = _BLOCK.sub("blocks.{l}.", name)
    if general not in _BY_NAME:
        raise UnknownNameError(f"No site has the full name {name!r}. {nearest(general, _BY_NAME)}")
    return _BY_NAME[general]


def layer_of(name: str) -> int | None:
    """Return the block index in the name of a site, or None outside the blocks.

    >>> layer_of("blocks.11.hook_resid_pre"), layer_of("hook_embed")
    (11, None)
    """
    match = _BLOCK.match(name)
    return int(match[1]) if match else None


def expand(patterns: SitePattern | Iterable[SitePattern], n_layers: int) -> tuple[str, ...]:
    """Return the names of all sites that match names, globs, shorthands or functions, in order.

    Negative layers count from the last block.

    >>> expand(["blocks.*.hook_resid_post", ("pattern", -2), "hook_embed"], 2)
    ('hook_embed', 'blocks.0.attn.hook_pattern', 'blocks.0.hook_resid_post',
     'blocks.1.hook_resid_post')
    >>> expand(lambda name: name.endswith("pattern"), 2)
    ('blocks.0.attn.hook_pattern', 'blocks.1.attn.hook_pattern')

    Raises:
        UnknownNameError: a pattern matches no site of a model with `n_layers` blocks.
    """
    names = {name for pattern in listed(patterns) for name in _matches(pattern, n_layers)}
    return tuple(name for name in site_names(n_layers, on_request=True) if name in names)


def listed(
    patterns: SitePattern | SiteSelection | Iterable[SitePattern | SiteSelection],
) -> list[SitePattern]:
    """Return the patterns as a list; a name, function or (short name, layer) is one pattern.

    A selection becomes its text, such as `blocks.3.attn.hook_z[head=2]`.
    """
    if isinstance(patterns, SiteSelection):
        return [patterns.text]
    if isinstance(patterns, str) or callable(patterns):
        return [patterns]
    found = [one.text if isinstance(one, SiteSelection) else one for one in patterns]
    if _is_shorthand(found):
        return [cast(tuple[str, int], tuple(found))]
    return cast(list[SitePattern], found)


def _is_shorthand(value: Sequence[object]) -> bool:
    """Return whether a value is (short name, layer); the layer may be a NumPy or torch integer."""
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
                f"No site matches {pattern!r}. A shorthand is a short name and a layer, such as "
                "('pattern', 3)."
            )
        pattern = _full_name(pattern[0], operator.index(pattern[1]), n_layers)
    # Sites computed on request are matched only if no other site is.
    default, names = site_names(n_layers), site_names(n_layers, on_request=True)
    matches = _matching(default, pattern) or _matching(names, pattern)
    if matches:
        return matches
    if not isinstance(pattern, str):
        raise UnknownNameError(f"The function {pattern!r} selects none of {len(names)} sites.")
    layer = layer_of(pattern)
    if layer is not None and layer >= n_layers:
        raise UnknownNameError(
            f"Site {pattern!r}: the model has {n_layers} blocks, 0 to {n_layers - 1}."
        )
    candidates = _sites_by_short_name(pattern.replace("hook_", ""))
    if candidates:
        one, every = (candidates[0].name.format(l=layer) for layer in (0, "*"))
        remedy = f"write {one!r} for one, {every!r} for all."
        if "hook_" not in pattern:
            remedy = f"add the layer, as in ({pattern!r}, 0), or write {every!r} for all."
        raise UnknownNameError(f"{pattern!r} is a site of every block: {remedy}")
    raise UnknownNameError(f"No site matches {pattern!r}. {nearest(pattern, names)}")


def _matching(names: Iterable[str], pattern: str | Callable[[str], bool]) -> list[str]:
    if isinstance(pattern, str):
        return [name for name in names if fnmatchcase(name, pattern)]
    return [name for name in names if pattern(name)]


def _sites_by_short_name(text: str) -> list[Site]:
    """Return the sites of a block with a short name such as "pattern" or "attn.pattern"."""
    return [
        site
        for site in SITES
        if site.in_block and text in (site.component, site.component.rpartition(".")[2])
    ]


def _full_name(short: str, layer: int, n_layers: int) -> str:
    """Return the full name of a shorthand such as ("pattern", 3) or ("pattern", -1)."""
    if layer < -n_layers:
        raise UnknownNameError(
            f"({short!r}, {layer}): the model has {n_layers} blocks, {-n_layers} to {n_layers - 1}."
        )
    layer += n_layers * (layer < 0)
    candidates = _sites_by_short_name(short)
    if not candidates:
        known = nearest(short, [site.component for site in SITES if site.in_block])
        raise UnknownNameError(f"No site of a block has the name {short!r}. {known}")
    if len(candidates) > 1:
        raise UnknownNameError(
            f"{short!r} matches several sites. Write one of "
            f"{', '.join(repr(site.component) for site in candidates)}."
        )
    return candidates[0].name.format(l=layer)


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
        """This selection as a tuple, like the parts of a `SiteConcatenation`."""
        return (self,)

    @property
    def index(self) -> int | None:
        """The number of the head or neuron; None for a whole site."""
        return self.neuron if self.head is None else self.head

    @property
    def without_head(self) -> SiteSelection:
        """The same selection without the restriction to a head."""
        return replace(self, head=None)

    @property
    def text(self) -> str:
        """The selection as it is written in an experiment file."""
        chosen = {"head": self.head, "neuron": self.neuron}
        parts = [f"[{axis}={index}]" for axis, index in chosen.items() if index is not None]
        return self.site + "".join(parts)


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


def select(
    patterns: Iterable[str], n_layers: int, axis_sizes: dict[str, int]
) -> tuple[SiteSelection, ...]:
    """Return all selections that match patterns such as `blocks.*.attn.hook_z[head=*]`, in order.

    `axis_sizes` has the number of heads (`n_heads`) and of neurons (`d_mlp`).

    >>> for chosen in select(["blocks.*.attn.hook_z[head=0,2]"], 2, {"n_heads": 3, "d_mlp": 11}):
    ...     print(chosen.text)
    blocks.0.attn.hook_z[head=0]
    blocks.0.attn.hook_z[head=2]
    blocks.1.attn.hook_z[head=0]
    blocks.1.attn.hook_z[head=2]

    Raises:
        UnknownNameError: a pattern matches no site.
        ConfigError: the site does not have the selected axis, or an index is out of range.
    """
    selections: set[SiteSelection] = set()
    for pattern in patterns:
        match = _SELECTOR.match(pattern)
        if match is None:
            _check_brackets(pattern)
        for site in expand([match["site"] if match else pattern], n_layers):
            indices: list[dict[str, int]] = _indices(site, match, axis_sizes) if match else [{}]
            selections |= {SiteSelection(site, **index) for index in indices}
    order = {site: rank for rank, site in enumerate(site_names(n_layers, on_request=True))}

    def rank(selection: SiteSelection) -> tuple[int, ...]:
        # A whole site comes before its heads and neurons.
        indices = (-1 if i is None else i for i in (selection.head, selection.neuron))
        return order[selection.site], *indices

    return tuple(sorted(selections, key=rank))


def _check_brackets(pattern: str) -> None:
    """Raise ConfigError if a pattern has an incomplete selection of heads or neurons."""
    site, bracket, choice = pattern.partition("[")
    candidates = _sites_by_short_name(site.replace("hook_", ""))
    if candidates:
        site = candidates[0].name.format(l="*")
    axis = next((axis for axis in _SELECTED_AXES if choice.strip().startswith(axis)), None)
    if bracket and axis:
        raise ConfigError(
            f"{pattern!r}: write [{axis}=3] to select one {axis}, [{axis}=0,3] for several, "
            f"[{axis}=*] for all. Nearest: {site}[{axis}={_digits(choice) or 0}]."
        )


def _digits(text: str) -> str:
    return "".join(filter(str.isdecimal, text.partition(",")[0]))


def _indices(site: str, match: re.Match[str], axis_sizes: dict[str, int]) -> list[dict[str, int]]:
    """Return the head or neuron of each selection in the brackets of a pattern."""
    axis = match["axis"]
    if axis not in _SELECTED_AXES:
        raise ConfigError(f"{match[0]!r}: unknown axis {axis!r}. Allowed: head, neuron.")
    axes = describe(site).axes
    name = _SELECTED_AXES[axis]
    if name not in axes:
        raise ConfigError(f"{match[0]!r}: {site} has no {axis}s, its axes are {' '.join(axes)}.")
    if match["index"] == "*":
        return [{axis: index} for index in range(axis_sizes[name])]
    numbers = [text.strip() for text in match["index"].split(",")]
    if not all(_is_index(text, axis_sizes[name]) for text in numbers):
        raise ConfigError(
            f"{match[0]!r}: {axis} must be an integer from 0 to {axis_sizes[name] - 1}, several "
            "separated by commas, or * for all."
        )
    return [{axis: int(text)} for text in numbers]


def _is_index(text: str, size: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10 and int(text) < size
