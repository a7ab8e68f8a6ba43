"""Several edits in one forward pass.

`compose` turns edits at sites, heads or neurons into one tap; `run_edited` runs a model with them.
A tap is an argument of the forward pass, so nothing stays in the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from probekit.errors import ConfigError
from probekit.model.network import Network
from probekit.model.passes.inputs import TokenBatch
from probekit.model.passes.taps import Tap, tap_parts
from probekit.model.sites.sites import SitePattern

# Where and what: `("blocks.5.attn.hook_z[head=2]", zero())`.
EditAt = tuple[SitePattern, Tap]


@dataclass(frozen=True, eq=False)
class ComposedTap:
    """A tap that applies several taps in the order in which they were given.

    Attributes:
        steps: taps at whole sites, each with the names of its sites.
        reached: sites that a pass has called this tap for.
    """

    steps: tuple[tuple[frozenset[str], Tap], ...]
    reached: set[str] = field(default_factory=set)

    @property
    def sites(self) -> list[str]:
        """Names of all sites of the taps."""
        return sorted(frozenset().union(*(sites for sites, _ in self.steps)))

    def __call__(self, site: str, value: Tensor) -> Tensor:
        """Return the value of a site after all of its taps."""
        self.reached.add(site)
        for sites, tap in self.steps:
            if site in sites:
                value = tap(site, value)
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
        edits: pairs of a site and a tap. The site is a name, glob or shorthand, or a head or neuron
            such as `blocks.*.attn.hook_z[head=2]`, whose tap receives [batch pos d_head].

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
    steps = []
    for edit in edits:
        if not isinstance(edit, tuple | list) or len(edit) != 2 or not callable(edit[1]):
            raise ConfigError(
                f"An edit is {edit!r:.60}. Give pairs of a site and a tap, such as "
                '("blocks.2.hook_mlp_out", zero()).'
            )
        where, tap = edit
        parts = model.sites.select([where])
        steps.append((frozenset(part.site for part in parts), tap_parts(model.sites, tap, parts)))
    return ComposedTap(tuple(steps))


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
        at: positions of the logits, shape [batch n_at]; see `Network.forward`.

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
