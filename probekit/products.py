"""Products of matrices by the fastest way that this machine has."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# oneDNN's product, which torch.compile also takes. torch's own goes to MKL, which on processors
# other than Intel's uses half of their vector width: it took 2.3 times as long on an AMD EPYC.
_ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x weight^T + bias, shape [... d_out], within rounding of `F.linear`.

    Args:
        x: shape [... d_in].
        weight: shape [d_out d_in].
        bias: shape [d_out].

    >>> linear(torch.ones(2, 3), torch.eye(3), torch.arange(3.0))
    tensor([[1., 2., 3.],
            [1., 2., 3.]])
    """
    if _ONEDNN is None or not _is_for_onednn(x, weight):
        return F.linear(x, weight, bias)
    product: Tensor = _ONEDNN(x, weight, bias, "none", [], "")
    return product


def _is_for_onednn(x: Tensor, weight: Tensor) -> bool:
    # It has no gradient.
    is_trained = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    is_plain = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    return is_plain and not is_trained and x.numel() > 0
