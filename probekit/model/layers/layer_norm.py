"""Layer norm with taps at its scale and its normalized value."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from probekit.model.passes.taps import Taps
from probekit.products import is_derived, with_gradient


class LayerNorm(nn.Module):
    """Layer norm over d_model, with taps at its scale and its normalized value."""

    def __init__(self, d_model: int, eps: float, *, bias: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(d_model))
        self.bias = nn.Parameter(torch.empty(d_model)) if bias else None

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
