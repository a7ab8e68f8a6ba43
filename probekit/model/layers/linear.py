"""Linear layer that uses the fastest matrix product of the machine."""

from __future__ import annotations

from torch import Tensor, nn

from probekit.model.taps import Taps
from probekit.products import Activation, linear


class Linear(nn.Linear):
    """`nn.Linear` computed by `products.linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x weight^T + bias, shape [... d_out]."""
        return linear(x, self.weight, self.bias)

    def activated(self, x: Tensor, activation: Activation, tap: Taps) -> Tensor:
        """Return activation(x weight^T + bias), shape [... d_out], with a tap at `hook_pre`.

        The two are one operation of the processor unless the value between them is requested.
        """
        if tap.wants("hook_pre"):
            return activation(tap("hook_pre", self(x)))
        return linear(x, self.weight, self.bias, activation)
