"""Gated MLP: one map of the input is multiplied by the activation of another."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from probekit.model.layers.linear import Linear
from probekit.model.passes.taps import Taps
from probekit.products import Activation


class GatedMLP(nn.Module):
    """Feed-forward layer down(activation(gate(x)) * up(x)) with d_mlp neurons.

    Args:
        d_model: width of the residual stream.
        d_mlp: number of neurons.
        activation: function of the gate.
        bias: whether the three maps have a bias.

    Source: Shazeer 2020, "GLU Variants Improve Transformer".
    """

    def __init__(self, d_model: int, d_mlp: int, activation: Activation, *, bias: bool) -> None:
        super().__init__()
        self.gate_proj = Linear(d_model, d_mlp, bias=bias)
        self.up_proj = Linear(d_model, d_mlp, bias=bias)
        self.down_proj = Linear(d_mlp, d_model, bias=bias)
        self.activation = activation

    def forward(self, x: Tensor, tap: Taps) -> Tensor:
        """Return the output of the MLP, shape [batch pos d_model]."""
        gate = self.gate_proj.activated(x, self.activation, tap)  # [batch pos d_mlp]
        pre_linear = tap("hook_pre_linear", self.up_proj(x))  # [batch pos d_mlp]
        post = tap("hook_post", gate * pre_linear)
        return cast(Tensor, self.down_proj(post))
