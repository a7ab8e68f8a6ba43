"""The activation cache of one forward pass, in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from probekit.errors import UnknownNameError, nearest
from probekit.model.sites import SitePattern, describe, expand
from probekit.model.taps import Tap


def remember(values: dict[str, Tensor]) -> Tap:
    """Return a tap that keeps every value it sees in `values` and changes nothing."""

    def tap(site: str, value: Tensor) -> Tensor:
        # A view (q, k and v are thirds of one tensor) would keep all of its storage alive.
        is_part = value.untyped_storage().nbytes() > value.nbytes
        values[site] = value.clone() if is_part else value
        return value

    return tap


class Recording:
    """A tap that keeps every value it sees over several forward passes that follow one another.

    Generation with it gives what one pass over all of the text would give, except for the last new
    token, which no pass has read. Generation that slides refuses it: windows that overlap cannot be
    joined.

    >>> from probekit import GPT2, generate
    >>> model, tokens, record = GPT2.from_pretrained("mini"), torch.tensor([[5, 6, 7]]), Recording()
    >>> _ = generate(model, tokens, 4, tap=record, sites=["blocks.*.hook_resid_post"])
    >>> record.cache(model.config.n_layer)["resid_post", 5].shape
    torch.Size([1, 6, 256])
    """

    def __init__(self) -> None:
        self._seen: dict[str, list[Tensor]] = {}

    def __call__(self, site: str, value: Tensor) -> Tensor:
        """Keep a value and return it."""
        self._seen.setdefault(site, []).append(value.clone())
        return value

    def cache(self, n_layers: int) -> ActivationCache:
        """Return the values of all passes so far, joined along the positions."""
        joined = {site: _join(site, values) for site, values in self._seen.items()}
        return ActivationCache(joined, n_layers)


def _join(site: str, values: list[Tensor]) -> Tensor:
    axes = describe(site).axes
    if "key_pos" in axes:
        # Earlier passes did not see the later keys, which are masked in one pass over all.
        n_keys = values[-1].shape[-1]
        values = [F.pad(v, (0, n_keys - v.shape[-1]), value=describe(site).masked) for v in values]
    return torch.cat(values, dim=axes.index("query_pos" if "key_pos" in axes else "pos"))


class ActivationCache(Mapping[str, Tensor]):
    """The values at the sites of one forward pass, by name or by (short name, layer).

    >>> from probekit import GPT2
    >>> tokens = torch.tensor([[5, 6, 7]])
    >>> _, cache = GPT2.from_pretrained("mini").run_with_cache(tokens)
    >>> cache["blocks.0.hook_resid_pre"].shape
    torch.Size([1, 3, 256])
    >>> cache["pattern", 3].shape
    torch.Size([1, 4, 3, 3])
    >>> len(cache)
    106
    """

    def __init__(self, values: dict[str, Tensor], n_layers: int) -> None:
        self._values = values
        self._n_layers = n_layers

    def __getitem__(self, site: SitePattern) -> Tensor:
        """Return the value at one site.

        Raises:
            UnknownNameError: there is no such site, or the cache does not hold it.
        """
        names = self._held(site)
        if len(names) > 1:
            raise UnknownNameError(
                f"{site!r} stands for {len(names)} sites of this cache; use stack() for several."
            )
        return self._values[names[0]]

    def stack(self, sites: SitePattern) -> Tensor:
        """Return the values of equally shaped sites along a new first axis, shape [site ...].

        >>> from probekit import GPT2
        >>> _, cache = GPT2.from_pretrained("mini").run_with_cache(torch.tensor([[5, 6, 7]]))
        >>> cache.stack("blocks.*.hook_resid_post").shape
        torch.Size([6, 1, 3, 256])
        """
        return torch.stack([self._values[name] for name in self._held(sites)])

    def _held(self, site: SitePattern) -> list[str]:
        asked = expand([site], self._n_layers)
        held = [name for name in asked if name in self._values]
        if not held:
            raise UnknownNameError(
                f"This cache does not hold {asked[0]}. {nearest(asked[0], self._values)}"
            )
        return held

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"ActivationCache({len(self)} sites)"
