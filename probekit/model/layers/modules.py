"""The modules that the blocks of several families share: linear maps, norms, the gated MLP."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from probekit.model.passes.taps import Taps
from probekit.products import Activation, is_derived, linear, with_gradient


class Linear(nn.Linear):
    """`nn.Linear` computed by `products.linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x weight^T + bias, shape [... d_out]."""
        return linear(x, self.weight, self.bias)

    def activated(self, x: Tensor, activation: Activation, tap: Taps) -> Tensor:
        """Return activation(x weight^T + bias), shape [... d_out], with a tap at `hook_pre`."""
        if tap.wants("hook_pre"):
            pre = self(x)
            tapped = tap("hook_pre", pre.clone())
            if is_derived(tapped) or not torch.equal(tapped, pre):
                return activation(tapped)
            # Reading the site must not change a bit of the output; `activation` rounds differently.
        return linear(x, self.weight, self.bias, activation)


class Norm(nn.Module):
    """Norm over the last axis with a gain and an optional bias.

    Args:
        width: size of the last axis.
        eps: number that is added to the variance or to the mean square.
        bias: whether there is a bias.
    """

    weight_of_gain_1 = 1.0

    def __init__(self, width: int, eps: float, *, bias: bool = False) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None

    @property
    def gain(self) -> Tensor:
        """Factor of each feature, shape [width]."""
        return self.weight


class LayerNorm(Norm):
    """Layer norm over d_model, with taps at its scale and its normalized value."""

    def __init__(self, width: int, eps: float, *, bias: bool = True) -> None:
        super().__init__(width, eps, bias=bias)

    def forward(self, x: Tensor, tap: Taps) -> Tensor:
        """Return x normalized over its last axis, times gain plus bias, shape [... d_model]."""
        normalized, _, inverse = torch.native_layer_norm(x, x.shape[-1:], None, None, self.eps)
        if tap.wants("hook_scale"):
            scale = inverse.reciprocal()  # [batch pos 1]
            if is_derived(x):  # torch does not differentiate `inverse`
                scale = with_gradient(
                    scale, (x.var(-1, correction=0, keepdim=True) + self.eps).sqrt()
                )
            # A tap that changes nothing multiplies by exactly 1.
            normalized = normalized * (scale / tap("hook_scale", scale.clone()))
        normalized = tap("hook_normalized", normalized)
        scaled = (
            normalized * self.weight
            if self.bias is None
            else torch.addcmul(self.bias, normalized, self.weight)
        )
        return scaled.to(self.weight.dtype)


class RMSNorm(Norm):
    """Division by the root mean square of the last axis, then a gain; computed in float32.

    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
    """

    def forward(self, x: Tensor, tap: Taps) -> Tensor:
        """Return x / sqrt(mean(x^2) + eps) times the gain, shape [... width]."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = tap("hook_scale", (wide.square().mean(-1, keepdim=True) + self.eps).sqrt())
        normalized = tap("hook_normalized", wide / scale)
        return (normalized * self.gain).to(self.weight.dtype)


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
        found: Tensor = self.down_proj(post)
        return found
