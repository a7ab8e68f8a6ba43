"""Selections of sites: a site, one head or neuron of it, or several joined."""

from __future__ import annotations

from dataclasses import dataclass, replace

JOINT = " + "  # between the parts of a concatenation

# Axis of the tensor that each selector in brackets selects from.
SELECTED_AXES = {"head": "n_heads", "kv_head": "n_kv_heads", "neuron": "d_mlp"}


@dataclass(frozen=True)
class SiteSelection:
    """A site, or one head, one key-value head or one neuron of it.

    >>> SiteSelection("blocks.5.attn.hook_z", head=3).text
    'blocks.5.attn.hook_z[head=3]'
    """

    site: str
    head: int | None = None
    neuron: int | None = None
    kv_head: int | None = None

    @property
    def parts(self) -> tuple[SiteSelection, ...]:
        """This selection as a tuple, like the parts of a `SiteConcatenation`."""
        return (self,)

    @property
    def selector(self) -> str | None:
        """`head`, `kv_head` or `neuron`; None for a whole site."""
        chosen = (name for name in SELECTED_AXES if getattr(self, name) is not None)
        return next(chosen, None)

    @property
    def index(self) -> int | None:
        """The number of the head or neuron; None for a whole site."""
        return None if self.selector is None else getattr(self, self.selector)

    @property
    def axis(self) -> str | None:
        """The axis that the number selects from, such as `n_heads`; None for a whole site."""
        return None if self.selector is None else SELECTED_AXES[self.selector]

    @property
    def without_head(self) -> SiteSelection:
        """The same selection without the restriction to a head."""
        return replace(self, head=None)

    @property
    def text(self) -> str:
        """The selection as it is written in an experiment file."""
        return self.site if self.selector is None else f"{self.site}[{self.selector}={self.index}]"


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
