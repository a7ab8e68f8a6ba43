"""RMS norm with taps at its scale and its normalized value."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from probekit.model.passes.taps import Taps


class RMSNorm(nn.Module):
    """Division by the root mean square of the last axis, then a gain; computed in float32.

    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    @property
    def gain(self) -> Tensor:
        """Factor of each feature, shape [width]."""
        return self.weight

    def forward(self, x: Tensor, tap: Taps) -> Tensor:
        """Return x / sqrt(mean(x^2) + eps) times the gain, shape [... width]."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = tap("hook_scale", (wide.square().mean(-1, keepdim=True) + self.eps).sqrt())
        normalized = tap("hook_normalized", wide / scale)
        return (normalized * self.gain).to(self.weight.dtype)
