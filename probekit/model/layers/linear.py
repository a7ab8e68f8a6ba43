"""Linear layer that uses the fastest matrix product of the machine."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from probekit.model.passes.taps import Taps
from probekit.products import Activation, is_derived, linear


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
