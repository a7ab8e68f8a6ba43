"""Several edits in one forward pass.

`compose` turns edits at sites, heads or neurons into one tap; `run_edited` runs a model with them.
A tap is an argument of the forward pass, so nothing stays in the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

from torch import Tensor

from probekit.errors import ConfigError
from probekit.model.inputs import TokenBatch
from probekit.model.network import Network
from probekit.model.sites import SitePattern, SiteSelection, describe, expand, select
from probekit.model.taps import Tap

# Where and what: `("blocks.5.attn.hook_z[head=2]", zero())`.
EditAt = tuple[SitePattern | SiteSelection, Tap]


@dataclass(frozen=True, eq=False)
class ComposedTap:
    """A tap that applies several taps in the order in which they were given.

    Attributes:
        steps: taps, each with its site, head or neuron.
        reached: sites that a pass has called this tap for.
    """

    steps: tuple[tuple[SiteSelection, Tap], ...]
    reached: set[str] = field(default_factory=set)

    @property
    def sites(self) -> list[str]:
        """Names of all sites of the taps."""
        return list(dict.fromkeys(selection.site for selection, _ in self.steps))

    def __call__(self, site: str, value: Tensor) -> Tensor:
        """Return the value of a site after all of its taps."""
        self.reached.add(site)
        for selection, tap in self.steps:
            if selection.site == site:
                value = _applied(tap, selection, value)
        return value

    def check_reached(self) -> None:
        """Validate that a pass has reached every site.

        Raises:
            ConfigError: a site was not reached, so its edits had no effect.
        """
        missed = [site for site in self.sites if site not in self.reached]
        if missed:
            raise ConfigError(
                f"The forward pass did not reach {missed[0]}, so its edit had no effect. Edit a "
                "site that this pass computes."
            )


def compose(model: Network, edits: Sequence[EditAt]) -> ComposedTap:
    """Return one tap that applies edits in the given order.

    Args:
        model: the network.
        edits: pairs of a site and a tap. The site is a name, glob, shorthand or selection such as
            `blocks.*.attn.hook_z[head=2]`; the tap of a head gets [batch pos d_head].

    Raises:
        UnknownNameError: a pattern matches no site.
        ConfigError: there are no edits, or the site has no such head or neuron.

    >>> from probekit import GPT2
    >>> from probekit.interventions.edits import zero
    >>> model = GPT2.from_pretrained("mini")
    >>> compose(model, [("blocks.*.attn.hook_z[head=2]", zero())]).sites[:2]
    ['blocks.0.attn.hook_z', 'blocks.1.attn.hook_z']
    """
    if not edits:
        raise ConfigError("There are no edits. Give at least one pair of a site and a tap.")
    return ComposedTap(
        tuple((one, tap) for where, tap in edits for one in selections(model, where))
    )


def selections(model: Network, where: SitePattern | SiteSelection) -> tuple[SiteSelection, ...]:
    """Return the sites, heads or neurons that a pattern selects, in forward order.

    >>> from probekit import GPT2
    >>> [one.text for one in selections(GPT2.from_pretrained("mini"), ("resid_post", 3))]
    ['blocks.3.hook_resid_post']
    """
    if isinstance(where, SiteSelection):
        return (where,)
    sizes = model.axis_sizes
    if isinstance(where, tuple):
        return tuple(SiteSelection(site) for site in expand([where], sizes["n_layers"]))
    return select([where], sizes["n_layers"], dict(sizes))


def all_selections(
    model: Network, sites: SitePattern | Iterable[SitePattern | SiteSelection]
) -> list[SiteSelection]:
    """Return the sites, heads and neurons of one or several patterns, each once, in given order.

    >>> from probekit import GPT2
    >>> model = GPT2.from_pretrained("mini")
    >>> [one.text for one in all_selections(model, ["hook_embed", ("resid_post", 3)])]
    ['hook_embed', 'blocks.3.hook_resid_post']
    """
    listed: list[object] = [sites] if isinstance(sites, str) else [*sites]
    if len(listed) == 2 and isinstance(listed[1], int):
        listed = [tuple(listed)]  # a single shorthand such as ("resid_post", 3)
    patterns = cast(list[SitePattern | SiteSelection], listed)
    return list(dict.fromkeys(one for where in patterns for one in selections(model, where)))


def run_edited(
    model: Network,
    tokens: Tensor | TokenBatch,
    edits: Sequence[EditAt],
    *,
    mask: Tensor | None = None,
    at: Tensor | None = None,
) -> Tensor:
    """Return the logits, shape [batch pos d_vocab], of a pass with edits.

    Args:
        model: the network.
        tokens: token ids, shape [batch pos], or a `TokenBatch`.
        edits: pairs of a site and a tap; see `compose`.
        mask: True at tokens, False at padding, shape [batch pos].
        at: positions of the logits, shape [batch n_at]; see `GPT2.forward`.

    >>> import torch
    >>> from probekit import GPT2
    >>> from probekit.interventions.edits import zero
    >>> model, tokens = GPT2.from_pretrained("mini"), torch.tensor([[5, 6, 7]])
    >>> edited = run_edited(model, tokens, [("blocks.2.hook_mlp_out", zero())])
    >>> torch.equal(edited, model(tokens))
    False

    Raises:
        ConfigError: a site was not reached.
    """
    tap = compose(model, edits)
    logits: Tensor = model(tokens, mask, tap, tap.sites, at=at)
    tap.check_reached()
    return logits


def _applied(tap: Tap, selection: SiteSelection, value: Tensor) -> Tensor:
    """Return a value with one of its heads or neurons, or all of it, changed by a tap."""
    if selection.head is None and selection.neuron is None:
        return tap(selection.site, value)
    changed = value.clone()
    part = selected_part(changed, selection)
    returned = tap(selection.site, part.clone())
    if returned.shape != part.shape:
        raise ConfigError(
            f"The tap returned shape {tuple(returned.shape)} at {selection.text}. Return the value "
            f"to continue with, of shape {tuple(part.shape)}."
        )
    part.copy_(returned)
    return changed


def selected_part(value: Tensor, selection: SiteSelection) -> Tensor:
    """Return the selected head [batch pos d_head] or neuron [batch pos 1] of a site's value.

    Without head and neuron, return the value itself.

    >>> import torch
    >>> selected_part(torch.zeros(2, 5, 3, 7), SiteSelection("blocks.0.attn.hook_z", head=1)).shape
    torch.Size([2, 5, 7])
    """
    axes = describe(selection.site).axes
    if selection.head is not None:
        return value.select(axes.index("n_heads"), selection.head)
    if selection.neuron is not None:
        return value.narrow(axes.index("d_mlp"), selection.neuron, 1)
    return value
