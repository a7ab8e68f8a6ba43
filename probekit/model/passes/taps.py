"""Taps: functions that read, and may replace, the named tensors of a forward pass; their cache.

A tap at a single head or neuron, such as `blocks.3.attn.hook_z[head=2]`, receives and returns the
values of this head or neuron only; the axis of heads or neurons is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import torch
from torch import Tensor

from probekit.errors import ConfigError, UnknownNameError, nearest
from probekit.model.sites.sites import SitePattern, Sites, SiteSelection
from probekit.model.transformer_lens import lacks
from probekit.products import is_derived

Tap = Callable[[str, Tensor], Tensor]  # site name, value -> value to continue with


class ForwardStoppedError(Exception):
    """Stops a forward pass after the last requested site; caught inside the model."""


@dataclass(frozen=True)
class Taps:
    """The tap of one forward pass, for a module whose site names begin with `prefix`.

    It is an argument of the forward pass, so the model holds no state that could outlive it.

    Attributes:
        tap: the function called at each requested site; None if no site is requested.
        pending: requested sites that the pass has not reached yet.
        stop_when_done: whether to stop the pass after the last requested site.
        prefix: beginning of the names of the module's sites.
    """

    tap: Tap | None
    pending: set[str] = field(default_factory=set)
    stop_when_done: bool = False
    prefix: str = ""

    def within(self, prefix: str) -> Taps:
        """Return the same taps for the submodule `prefix`."""
        return Taps(self.tap, self.pending, self.stop_when_done, f"{self.prefix}{prefix}.")

    def wants(self, *names: str) -> bool:
        """Return whether any of these sites of the module is requested and not reached yet."""
        return any(self.prefix + name in self.pending for name in names)

    def __call__(self, name: str, value: Tensor) -> Tensor:
        """Return the value to continue with at a site of the module.

        Raises:
            ConfigError: the tap did not return a tensor of the same shape and dtype.
            ForwardStoppedError: this was the last requested site, and `stop_when_done` is set.
        """
        site = self.prefix + name
        if self.tap is None or site not in self.pending:
            return value
        # With gradients the tap gets a clone: autograd forbids in-place changes to views and to
        # tensors saved for the backward pass.
        returned = self.tap(site, value.clone() if is_derived(value) else value)
        check_returned(returned, value, site)
        self.pending.discard(site)
        if self.stop_when_done and not self.pending:
            raise ForwardStoppedError
        return returned


def check_returned(returned: object, value: Tensor, site: str) -> None:
    """Raise ConfigError if a tap did not return a tensor of the same shape and dtype.

    Raises:
        ConfigError: the shape or dtype differs from that of `value`, or it is no tensor.
    """
    if _describe(returned) != _describe(value):
        raise ConfigError(
            f"The tap returned {_describe(returned)} at {site}. Return the value to continue "
            f"with: {_describe(value)}."
        )


def _describe(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"a tensor of shape {tuple(value.shape)} and {value.dtype}"


def head_or_neuron(sites: Sites, value: Tensor, part: SiteSelection) -> Tensor:
    """Return the values of a head or neuron, given those of its site; all for a whole site."""
    return value if part.index is None else value.select(_axis(sites, part), part.index)


def part_features(sites: Sites, value: Tensor, part: SiteSelection) -> Tensor:
    """Return the values of a site, head or neuron as features, shape [batch pos n_features].

    The positions of scores and patterns are those of the queries; a neuron is one feature.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> scores, part = torch.zeros(2, 3, 5, 5), SiteSelection("blocks.0.attn.hook_attn_scores")
    >>> part_features(GPT2Config().sites, scores, part).shape
    torch.Size([2, 5, 15])
    """
    part_value, axes = head_or_neuron(sites, value, part), sites.axes_of(part.text)
    # In all other sites the axis `pos` is axis 1.
    position_axis = axes.index("query_pos") if "query_pos" in axes else 1
    moved = part_value.movedim(position_axis, 1)
    return moved.reshape(*moved.shape[:2], -1)


def tap_parts(sites: Sites, tap: Tap, parts: Iterable[SiteSelection]) -> Tap:
    """Return a tap at whole sites that calls `tap` at each of the parts.

    >>> from probekit.model.families.gpt2 import GPT2Config
    >>> sites, values = GPT2Config().sites, torch.zeros(1, 5, 3, 7)
    >>> head = SiteSelection("blocks.0.attn.hook_z", head=2)
    >>> ones = tap_parts(sites, lambda _, z: z + 1, [head])
    >>> ones("blocks.0.attn.hook_z", values).sum((0, 1, 3)).tolist()
    [0.0, 0.0, 35.0]
    """
    parts_of_site: dict[str, list[SiteSelection]] = defaultdict(list)
    for part in parts:
        parts_of_site[part.site].append(part)

    def tap_part(part: SiteSelection, value: Tensor) -> Tensor:
        """Return the value of a site after the tap at one of its heads or neurons."""
        before = head_or_neuron(sites, value, part)
        returned = tap(part.text, before.clone())  # the tap may change its argument
        check_returned(returned, before, part.text)
        # A tap that only reads must not change a bit of what follows. A copy may have another
        # memory layout, for which products round differently.
        if not is_derived(returned) and torch.equal(returned, before):
            return value
        axis, index = _axis(sites, part), torch.tensor([part.index], device=value.device)
        return value.index_copy(axis, index, returned.unsqueeze(axis))

    def tap_site(site: str, value: Tensor) -> Tensor:
        for part in parts_of_site[site]:
            if part.index is not None:
                value = tap_part(part, value)
                continue
            returned = tap(site, value)
            check_returned(returned, value, site)
            value = returned
        return value

    selected = [part for chosen in parts_of_site.values() for part in chosen]
    return tap_site if any(part.index is not None for part in selected) else tap


def _axis(sites: Sites, part: SiteSelection) -> int:
    """Return the index of the axis that a head or neuron is selected from."""
    assert part.axis is not None, part
    return sites.describe(part.site).axes.index(part.axis)


def remember(values: dict[str, Tensor], *, grad: bool = False) -> Tap:
    """Return a tap that stores the activation of each site in `values` and changes none.

    With `grad`, every stored tensor is part of the autograd graph. A tensor that does not require a
    gradient is replaced by a leaf that does.
    """

    def tap(site: str, value: Tensor) -> Tensor:
        # A view keeps the whole storage alive, e.g. q, k and v, which share one tensor.
        is_view = value.untyped_storage().nbytes() > value.nbytes
        stored = value.clone() if is_view else value
        if grad and not value.requires_grad:
            stored = value = stored.detach().requires_grad_()
        values[site] = stored
        return value

    return tap


class ActivationCache(Mapping[str, Tensor]):
    """Activations of one forward pass, or of several joined, by site name or (short name, layer).

    >>> from probekit import GPT2
    >>> tokens = torch.tensor([[5, 6, 7]])
    >>> _, cache = GPT2.from_pretrained("mini").run_with_cache(tokens)
    >>> cache["blocks.0.hook_resid_pre"].shape
    torch.Size([1, 3, 256])
    >>> cache["pattern", -1].shape
    torch.Size([1, 4, 3, 3])
    >>> cache["z[head=2]", 0].shape
    torch.Size([1, 3, 64])
    >>> len(cache)
    106
    """

    def __init__(self, values: dict[str, Tensor], sites: Sites) -> None:
        self._values = values
        self._sites = sites

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse an unknown attribute; names of TransformerLens with ours."""
        raise lacks(self, name)

    def __getitem__(self, site: SitePattern) -> Tensor:
        """Return the activation at one site.

        Raises:
            UnknownNameError: no site has this name, the cache does not contain it, or several of
                its sites match.
            ConfigError: the site lacks the selected head or neuron.
        """
        values = self._matching(site)
        if len(values) > 1:
            raise UnknownNameError(
                f"{site!r} matches {len(values)} sites of this cache. Use stack() for several "
                "sites."
            )
        return values[0]

    def stack(self, sites: SitePattern) -> Tensor:
        """Return the activations of this cache that match, of equal shape, as [site ...].

        >>> from probekit import GPT2
        >>> _, cache = GPT2.from_pretrained("mini").run_with_cache(torch.tensor([[5, 6, 7]]))
        >>> cache.stack("blocks.*.hook_resid_post").shape
        torch.Size([6, 1, 3, 256])
        """
        return torch.stack(self._matching(sites))

    def _matching(self, site: SitePattern) -> list[Tensor]:
        """Return the stored activations that match; heads and neurons also from whole sites."""
        requested = self._sites.select([site])
        values = []
        for part in requested:
            if part.text in self._values:
                values.append(self._values[part.text])
            elif part.site in self._values:
                values.append(head_or_neuron(self._sites, self._values[part.site], part))
        if not values:
            name = requested[0].text
            raise UnknownNameError(
                f"This cache does not contain {name}. {nearest(name, self._values)}"
            )
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"ActivationCache({len(self)} sites)"
