"""Where the tensor of a site enters the residual stream, and through which output matrix.

A change of such a tensor changes the residual stream linearly, so that a forward pass with the
change can start from there.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from probekit.errors import ConfigError
from probekit.model.network import Network
from probekit.model.sites.catalogue import describe, layer_of
from probekit.model.sites.sites import SiteSelection

# Component -> the next residual stream that it is a part of. In parallel blocks resid_post follows
# attn_out; there is no resid_mid.
_ENTERS = {
    "embed": "resid_pre",
    "pos_embed": "resid_pre",
    "resid_pre": "resid_pre",
    "attn.z": "resid_mid",
    "attn.result": "resid_mid",
    "attn_out": "resid_mid",
    "resid_mid": "resid_mid",
    "mlp.post": "resid_post",
    "mlp_out": "resid_post",
    "resid_post": "resid_post",
}
_PER_HEAD_ONLY = "attn.result"
# Components that a norm, if the network has it, separates from the residual stream.
_NORMS = {"attn.z": "ln1_post", "attn.result": "ln1_post", "mlp.post": "ln2_post"}


@dataclass(frozen=True, eq=False)
class StreamEntry:
    """Where a tensor enters the residual stream.

    Attributes:
        layer: number of the block that reads the changed stream first; the number of blocks is the
            output of the last block.
        after_attention: whether only the MLP of that block reads the change.
        matrix: output matrix [d_model n_features] from the tensor to the stream; None is identity.
    """

    layer: int
    after_attention: bool
    matrix: Tensor | None = None

    def in_stream(self, change: Tensor) -> Tensor:
        """Return the change of the residual stream [... d_model] of a change [... n_features]."""
        return change if self.matrix is None else change @ self.matrix.to(change).T


def stream_entry(model: Network, selection: SiteSelection) -> StreamEntry | None:
    """Return where a site, head or neuron enters the residual stream; None if it is not linear.

    >>> from probekit import GPT2
    >>> entry = stream_entry(
    ...     GPT2.from_pretrained("mini"), SiteSelection("blocks.2.attn.hook_z", head=1)
    ... )
    >>> entry.layer, entry.after_attention, entry.matrix.shape
    (2, True, torch.Size([256, 64]))
    """
    component = describe(selection.site).component
    stream = _stream_after(model, component)
    if stream is None or (component == _PER_HEAD_ONLY and selection.head is None):
        return None
    layer = (layer_of(selection.site) or 0) + (stream == "resid_post")
    return StreamEntry(layer, stream == "resid_mid", _matrix(model, component, selection))


def linear_entry(model: Network, selection: SiteSelection) -> StreamEntry:
    """Return where a site enters the residual stream.

    Raises:
        ConfigError: its tensor is not a part of the residual stream.
    """
    entry = stream_entry(model, selection)
    if entry is None:
        allowed = ", ".join(
            site.name for site in model.sites.rows if _stream_after(model, site.component)
        )
        raise ConfigError(
            f"{selection.text} is not a part of the residual stream. Allowed: {allowed}; of "
            "hook_result a single head."
        )
    return entry


def _stream_after(model: Network, component: str) -> str | None:
    """Return the next residual stream that a component is a part of; None if it is not."""
    stream = _ENTERS.get(component)
    if f"blocks.0.{_NORMS.get(component)}.hook_scale" in model.sites:
        return None
    if stream == "resid_mid" and "blocks.0.hook_resid_mid" not in model.sites:
        return "resid_post"
    return stream


def _matrix(model: Network, component: str, selection: SiteSelection) -> Tensor | None:
    layer = layer_of(selection.site)
    if component == "mlp.post":
        assert layer is not None
        weight, index = model.mlp_output(layer), selection.neuron
        return weight if index is None else weight[:, index : index + 1]
    if component == "attn.z":
        assert layer is not None
        weight, _ = model.head_output(layer)
        size, index = model.axis_sizes["d_head"], selection.head
        return weight if index is None else weight[:, index * size : (index + 1) * size]
    return None
