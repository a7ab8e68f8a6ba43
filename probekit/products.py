"""Products of matrices by the fastest way that this machine has."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

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
    if _ONEDNN is None or not _is_for_onednn(x, weight) or _is_derived(x, weight, bias):
        return F.linear(x, weight, bias)
    product: Tensor = _ONEDNN(x, weight, bias, "none", [], "")
    return product


def _is_for_onednn(x: Tensor, weight: Tensor) -> bool:
    is_plain = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    return is_plain and x.numel() > 0


def _is_derived(*tensors: Tensor | None) -> bool:
    """Return whether a derivative may be asked: oneDNN's product has none and would give 0."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return True
    # Forward mode, which no_grad does not end; and torch.func, whose tensors may hide that they
    # are derived. Neither can be asked of torch by a public name.
    is_forward = forward_ad._current_level >= 0
    return is_forward or torch._C._functorch.peek_interpreter_stack() is not None
