"""Taps at single heads and neurons, such as `blocks.3.attn.hook_z[head=2]`.

A tap at a part receives and returns the values of this head or neuron only; the axis of heads or
neurons is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from probekit.model.sites import (
    SitePattern,
    SiteSelection,
    describe,
    expand,
    listed,
    select,
)
from probekit.model.taps import Tap, check_returned
from probekit.products import is_derived

_AXES = {"head": "n_heads", "neuron": "d_mlp"}


def expand_parts(
    patterns: SitePattern | SiteSelection | Iterable[SitePattern | SiteSelection],
    axis_sizes: Mapping[str, int],
) -> tuple[SiteSelection, ...]:
    """Return all sites, heads and neurons that match the patterns, in forward order.

    >>> sizes = {"n_layers": 2, "n_heads": 3, "d_mlp": 11}
    >>> [part.text for part in expand_parts([("pattern", 0), ("z[head=1,2]", -1)], sizes)]
    ['blocks.0.attn.hook_pattern', 'blocks.1.attn.hook_z[head=1]', 'blocks.1.attn.hook_z[head=2]']

    Raises:
        UnknownNameError: a pattern matches no site.
        ConfigError: a site does not have the selected axis, or an index is out of range.
    """
    n_layers = axis_sizes["n_layers"]
    names: list[str] = []
    for pattern in listed(patterns):
        if isinstance(pattern, tuple) and "[" in str(pattern[0]):
            short, _, choice = pattern[0].partition("[")
            names += [f"{name}[{choice}" for name in expand([(short, pattern[1])], n_layers)]
        elif isinstance(pattern, str) and "[" in pattern:
            names.append(pattern)
        else:
            names += expand([pattern], n_layers)
    return select(names, n_layers, dict(axis_sizes))


def part_axes(name: str) -> tuple[str, ...]:
    """Return the axes of a site, or those of a head or neuron of it.

    >>> part_axes("blocks.0.attn.hook_pattern[head=1]")
    ('batch', 'query_pos', 'key_pos')
    """
    site, _, choice = name.partition("[")
    left_out = _AXES.get(choice.partition("=")[0])
    return tuple(axis for axis in describe(site).axes if axis != left_out)


def head_or_neuron(value: Tensor, part: SiteSelection) -> Tensor:
    """Return the values of a head or neuron, given those of the whole site."""
    if part.index is None:
        return value
    return value.select(_axis(part), part.index)


def part_features(value: Tensor, part: SiteSelection) -> Tensor:
    """Return the values of a site, head or neuron as features, shape [batch pos n_features].

    The positions of scores and patterns are those of the queries; a neuron is one feature.

    >>> scores = torch.zeros(2, 3, 5, 5)
    >>> part_features(scores, SiteSelection("blocks.0.attn.hook_attn_scores")).shape
    torch.Size([2, 5, 15])
    """
    own, axes = head_or_neuron(value, part), part_axes(part.text)
    position = axes.index("query_pos") if "query_pos" in axes else 1
    return own.movedim(position, 1).reshape(own.shape[0], own.shape[position], -1)


def tap_parts(tap: Tap, parts: Iterable[SiteSelection]) -> Tap:
    """Return a tap at whole sites that calls `tap` at each of the parts.

    >>> values = torch.zeros(1, 5, 3, 7)
    >>> ones = tap_parts(lambda _, z: z + 1, [SiteSelection("blocks.0.attn.hook_z", head=2)])
    >>> ones("blocks.0.attn.hook_z", values).sum((0, 1, 3)).tolist()
    [0.0, 0.0, 35.0]
    """
    of_site: dict[str, list[SiteSelection]] = defaultdict(list)
    for part in parts:
        of_site[part.site].append(part)

    def tap_site(site: str, value: Tensor) -> Tensor:
        for part in of_site[site]:
            value = tap(site, value) if part.index is None else _tap_part(tap, part, value)
        return value

    return tap_site if any(part.index is not None for part in parts) else tap


def _tap_part(tap: Tap, part: SiteSelection, value: Tensor) -> Tensor:
    before = head_or_neuron(value, part)
    returned = tap(part.text, before.clone())  # the tap may change its argument
    check_returned(returned, before, part.text)
    # Reading a part must not change a bit of what follows, and a copy may be computed otherwise.
    if not is_derived(returned) and torch.equal(returned, before):
        return value
    at = torch.tensor([part.index], device=value.device)
    return value.index_copy(_axis(part), at, returned.unsqueeze(_axis(part)))


def _axis(part: SiteSelection) -> int:
    axis = "n_heads" if part.head is not None else "d_mlp"
    return describe(part.site).axes.index(axis)
