"""Taps at single heads and neurons, such as `blocks.3.attn.hook_z[head=2]`.

A tap at a part receives and returns the values of this head or neuron only; the axis of heads or
neurons is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor

from probekit.model.passes.taps import Tap, check_returned
from probekit.model.sites.selection import SiteSelection
from probekit.model.sites.sites import Sites
from probekit.products import is_derived


def head_or_neuron(sites: Sites, value: Tensor, part: SiteSelection) -> Tensor:
    """Return the values of a head or neuron, given those of the whole site."""
    if part.index is None:
        return value
    return value.select(_axis(sites, part), part.index)


def part_features(sites: Sites, value: Tensor, part: SiteSelection) -> Tensor:
    """Return the values of a site, head or neuron as features, shape [batch pos n_features].

    The positions of scores and patterns are those of the queries; a neuron is one feature.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> scores, part = torch.zeros(2, 3, 5, 5), SiteSelection("blocks.0.attn.hook_attn_scores")
    >>> part_features(GPT2Config().sites, scores, part).shape
    torch.Size([2, 5, 15])
    """
    own, axes = head_or_neuron(sites, value, part), sites.axes_of(part.text)
    position = axes.index("query_pos") if "query_pos" in axes else 1
    return own.movedim(position, 1).reshape(own.shape[0], own.shape[position], -1)


def tap_parts(sites: Sites, tap: Tap, parts: Iterable[SiteSelection]) -> Tap:
    """Return a tap at whole sites that calls `tap` at each of the parts.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> sites, values = GPT2Config().sites, torch.zeros(1, 5, 3, 7)
    >>> head = SiteSelection("blocks.0.attn.hook_z", head=2)
    >>> ones = tap_parts(sites, lambda _, z: z + 1, [head])
    >>> ones("blocks.0.attn.hook_z", values).sum((0, 1, 3)).tolist()
    [0.0, 0.0, 35.0]
    """
    of_site: dict[str, list[SiteSelection]] = defaultdict(list)
    for part in parts:
        of_site[part.site].append(part)

    def tap_part(part: SiteSelection, value: Tensor) -> Tensor:
        before = head_or_neuron(sites, value, part)
        returned = tap(part.text, before.clone())  # the tap may change its argument
        check_returned(returned, before, part.text)
        # Reading a part must not change a bit of what follows, and a copy may be computed
        # otherwise.
        if not is_derived(returned) and torch.equal(returned, before):
            return value
        axis, at = _axis(sites, part), torch.tensor([part.index], device=value.device)
        return value.index_copy(axis, at, returned.unsqueeze(axis))

    def tap_site(site: str, value: Tensor) -> Tensor:
        for part in of_site[site]:
            value = tap(site, value) if part.index is None else tap_part(part, value)
        return value

    has_parts = any(part.index is not None for chosen in of_site.values() for part in chosen)
    return tap_site if has_parts else tap


def _axis(sites: Sites, part: SiteSelection) -> int:
    assert part.axis is not None, part
    return sites.describe(part.site).axes.index(part.axis)
