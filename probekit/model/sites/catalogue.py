"""The catalogue of site names: what a name means in every family of networks.

Names are those of TransformerLens. The table of a family lists those that its networks have, with
their formulas; see `probekit.model.families`.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from probekit.errors import ConfigError, UnknownNameError, nearest

Stage = Literal["embedding", "block", "output"]
# Labels of activations of another library: the tensor of their name, another one, or unknown.
VERIFIED, DIFFERS, UNVERIFIED = "verified as", "differs", "unverified"
Axes = tuple[str, ...]


@dataclass(frozen=True)
class Site:
    """One row of a table of sites.

    Attributes:
        name: TransformerLens's name, with `{l}` for the layer of a block.
        axes: names of the axes.
        formula: how a family computes the tensor; empty in the catalogue.
        stage: where the forward pass computes it: before, in or after the blocks.
        on_request: computed only if requested by name; a glob that also matches other sites does
            not include it.
        in_stream: part of the residual stream, or added to it, so that the logit lens applies.
        masked: value at keys that a query does not attend to.
        layers: the blocks that have it; None for all.
    """

    name: str
    axes: Axes
    formula: str = ""
    stage: Stage = "block"
    on_request: bool = False
    in_stream: bool = False
    masked: float = 0.0
    layers: tuple[int, ...] | None = None

    @property
    def in_block(self) -> bool:
        """Whether every block has this tensor."""
        return self.stage == "block"

    @property
    def component(self) -> str:
        """The name without block index and `hook_`.

        >>> [site.component for site in CATALOGUE if site.axes[-1] == "key_pos"]
        ['attn.attn_scores', 'attn.pattern']
        """
        return component_of(self.name)


# Axes of the sites.
_D_MODEL = ("batch", "pos", "d_model")
_SCALE = ("batch", "pos", "1")
_HEAD = ("batch", "pos", "n_heads", "d_head")
_HEAD_SCALE = ("batch", "pos", "n_heads", "1")
_PATTERN = ("batch", "n_heads", "query_pos", "key_pos")
_HEAD_OUT = ("batch", "pos", "n_heads", "d_model")
_MLP = ("batch", "pos", "d_mlp")
_EXPERTS = ("batch", "pos", "n_experts")
_STREAM: dict[str, Any] = {"axes": _D_MODEL, "in_stream": True}

CATALOGUE = (  # in forward order
    Site("hook_embed", stage="embedding", **_STREAM),
    Site("hook_pos_embed", stage="embedding", **_STREAM),
    Site("blocks.{l}.hook_resid_pre", **_STREAM),
    Site("blocks.{l}.ln1.hook_scale", _SCALE),
    Site("blocks.{l}.ln1.hook_normalized", _D_MODEL),
    Site("blocks.{l}.attn.hook_q", _HEAD),
    Site("blocks.{l}.attn.hook_k", _HEAD),
    Site("blocks.{l}.attn.hook_v", _HEAD),
    Site("blocks.{l}.attn.q_norm.hook_scale", _HEAD_SCALE),
    Site("blocks.{l}.attn.q_norm.hook_normalized", _HEAD),
    Site("blocks.{l}.attn.k_norm.hook_scale", _HEAD_SCALE),
    Site("blocks.{l}.attn.k_norm.hook_normalized", _HEAD),
    Site("blocks.{l}.attn.hook_rot_q", _HEAD),
    Site("blocks.{l}.attn.hook_rot_k", _HEAD),
    Site("blocks.{l}.attn.hook_attn_scores", _PATTERN, masked=-math.inf),
    Site("blocks.{l}.attn.hook_pattern", _PATTERN),
    Site("blocks.{l}.attn.hook_z", _HEAD),
    Site("blocks.{l}.attn.hook_result", _HEAD_OUT, on_request=True),
    Site("blocks.{l}.ln1_post.hook_scale", _SCALE),
    Site("blocks.{l}.ln1_post.hook_normalized", _D_MODEL),
    Site("blocks.{l}.hook_attn_out", **_STREAM),
    Site("blocks.{l}.hook_mixer_out", **_STREAM),
    Site("blocks.{l}.hook_resid_mid", **_STREAM),
    Site("blocks.{l}.ln2.hook_scale", _SCALE),
    Site("blocks.{l}.ln2.hook_normalized", _D_MODEL),
    Site("blocks.{l}.mlp.hook_router", _EXPERTS),
    Site("blocks.{l}.mlp.hook_chosen", _EXPERTS),
    Site("blocks.{l}.mlp.hook_chosen_weights", _EXPERTS),
    Site("blocks.{l}.mlp.hook_pre", _MLP),
    Site("blocks.{l}.mlp.hook_pre_linear", _MLP),
    Site("blocks.{l}.mlp.hook_post", _MLP),
    Site("blocks.{l}.ln2_post.hook_scale", _SCALE),
    Site("blocks.{l}.ln2_post.hook_normalized", _D_MODEL),
    Site("blocks.{l}.hook_mlp_out", **_STREAM),
    Site("blocks.{l}.hook_resid_post", **_STREAM),
    Site("ln_final.hook_scale", _SCALE, stage="output"),
    Site("ln_final.hook_normalized", _D_MODEL, stage="output"),
)

_BY_NAME = {site.name: site for site in CATALOGUE}
_SELECTED = re.compile(r"(?P<site>.+)\[(?P<selector>[a-z_]+)=(0|[1-9][0-9]{0,8})\]")
_BLOCK = re.compile(r"^blocks\.(0|[1-9][0-9]{0,8})\.")

# Axis of the tensor that each selector in brackets selects from.
SELECTED_AXES = {"head": "n_heads", "kv_head": "n_kv_heads", "neuron": "d_mlp"}

# Axes of the sites of keys and values in a family whose query heads share them in groups.
GROUPED: Mapping[str, Axes] = {
    f"blocks.{{l}}.attn.{name}": tuple(
        "n_kv_heads" if axis == "n_heads" else axis
        for axis in _BY_NAME[f"blocks.{{l}}.attn.{name}"].axes
    )
    for name in ("hook_k", "hook_v", "k_norm.hook_scale", "k_norm.hook_normalized", "hook_rot_k")
}


def table(formulas: Mapping[str, str], axes: Mapping[str, Axes] | None = None) -> tuple[Site, ...]:
    """Return a family's table of sites, in forward order.

    Args:
        formulas: formula of each site by its name.
        axes: axes that differ from those of the catalogue, such as `GROUPED`.

    >>> table({"hook_embed": "wte[tokens]"})[0].formula
    'wte[tokens]'
    """
    assert formulas.keys() <= _BY_NAME.keys(), formulas.keys() - _BY_NAME.keys()
    other = axes or {}
    return tuple(
        replace(site, formula=formulas[site.name], axes=other.get(site.name, site.axes))
        for site in CATALOGUE
        if site.name in formulas
    )


def heads_of(inputs: str, *, biases: bool) -> dict[str, str]:
    """Return the formulas of queries, keys and values, which are maps of the same inputs.

    >>> heads_of("ln_1(resid_pre)", biases=True)["blocks.{l}.attn.hook_q"]
    'ln_1(resid_pre) W_Q + b_Q'
    """
    formula = "{0} W_{1} + b_{1}" if biases else "{0} W_{1}"
    return {f"blocks.{{l}}.attn.hook_{one.lower()}": formula.format(inputs, one) for one in "QKV"}


def general_name(name: str) -> str:
    """Return the name of a site with `{l}` for the index of its block.

    >>> general_name("blocks.3.mlp.hook_post")
    'blocks.{l}.mlp.hook_post'
    """
    return _BLOCK.sub("blocks.{l}.", name)


def describe(name: str) -> Site:
    """Return the row of the catalogue for the full name of a site.

    What the name means holds in every family. `Sites.describe` adds the formula, and the axes where
    a family has others.

    >>> describe("blocks.3.mlp.hook_post").axes
    ('batch', 'pos', 'd_mlp')

    Raises:
        UnknownNameError: no site has this name.
    """
    return row_of(name, _BY_NAME)


def row_of(name: str, rows: Mapping[str, Site]) -> Site:
    """Return the row for the full name of a site, from the rows of a table by their names.

    Raises:
        UnknownNameError: no site has this name.
    """
    general = general_name(name)
    if general not in rows:
        raise UnknownNameError(f"No site has the full name {name!r}. {nearest(general, rows)}")
    return rows[general]


def check_storable(sites: Iterable[str]) -> None:
    """Check that sites can be stored and probed: each value belongs to one position.

    Raises:
        UnknownNameError: there is no such site.
        ConfigError: a site has no pos axis.
    """
    for site in sites:
        axes = describe(site).axes
        if "pos" not in axes:
            raise ConfigError(
                f"{site} has the axes {' '.join(axes)}. Its values belong to pairs of positions; "
                "they can be drawn (`probekit attention`) but not stored and probed row by row."
            )


def check_single(text: str) -> None:
    """Check that a text is the full name of one site, head or neuron that can be stored.

    Raises:
        UnknownNameError: there is no such site.
        ConfigError: the site has no such axis, or no pos axis.

    >>> check_single("blocks.3.attn.hook_z[head=2]")
    """
    match = _SELECTED.fullmatch(text)
    site = match["site"] if match else text
    check_storable([site])
    axes = (*describe(site).axes, *GROUPED.get(general_name(site), ()))
    if match and SELECTED_AXES.get(match["selector"]) not in axes:
        raise ConfigError(f"{text!r}: {site} has no such axis, but {' '.join(axes)}.")


def layer_of(name: str) -> int | None:
    """Return the block index in the name of a site, or None outside the blocks.

    >>> layer_of("blocks.11.hook_resid_pre"), layer_of("hook_embed")
    (11, None)
    """
    match = _BLOCK.match(name)
    return int(match[1]) if match else None


def component_of(name: str) -> str:
    """Return the name of a site without block index and `hook_`.

    >>> component_of("blocks.11.attn.hook_z")
    'attn.z'
    """
    return general_name(name).removeprefix("blocks.{l}.").replace("hook_", "")
