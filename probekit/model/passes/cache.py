"""Activations of forward passes, kept in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NoReturn

import torch
from torch import Tensor

from probekit.errors import UnknownNameError, nearest
from probekit.model.passes.taps import Tap, head_or_neuron
from probekit.model.sites.sites import SitePattern, Sites
from probekit.model.transformer_lens import lacks


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
