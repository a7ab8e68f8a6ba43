"""A norm that is only known as a function: its gain, bias and scale, measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_EPSILON = ("variance_epsilon", "eps", "epsilon")  # attributes of a norm
_SIZES = (0.01, 1.0, 100.0)  # of the rows with which a norm is measured


@dataclass(frozen=True)
class MeasuredNorm:
    """A layer norm or an RMS norm: gain * x / scale(x) + bias, with x centred or not.

    Attributes:
        gain: shape [d_model].
        bias: shape [d_model]; None if it is 0.
        is_centred: whether the mean of a row is subtracted.
        epsilon: number that is added to the variance, or to the mean square.
    """

    gain: Tensor
    bias: Tensor | None
    is_centred: bool
    epsilon: float

    def scale(self, x: Tensor) -> Tensor:
        """Return the divisor of each row, shape [... 1], in float64."""
        return _scale(_centred(x.double(), self.is_centred), self.epsilon)


def measured_norm(
    norm: Callable[[Tensor], Tensor], like: Tensor, module: Any
) -> MeasuredNorm | None:
    """Return a norm by its values; None if it is neither a layer norm nor an RMS norm.

    Args:
        norm: the norm, of shape [n d_model].
        like: a row of the residual stream, whose dtype and device are used.
        module: the module of the norm, whose epsilon is tried.
    """
    n, generator = 8, torch.Generator().manual_seed(0)
    rows = torch.randn(n * len(_SIZES), like.shape[-1], generator=generator) + 0.3
    rows *= torch.tensor(_SIZES).repeat_interleave(n)[:, None]
    x = rows.to(like.device, like.dtype)
    with torch.no_grad():
        y, bias = norm(x).double(), norm(torch.zeros_like(x[:1])).double()[0]
    x = x.double()
    found = (getattr(module, name, None) for name in _EPSILON)
    epsilon = next((float(one) for one in found if isinstance(one, float)), 0.0)
    tolerance = 8 * torch.finfo(like.dtype).eps
    for is_centred in (False, True):
        centred = _centred(x, is_centred)
        unit = centred / _scale(centred, epsilon)
        gain = ((y - bias) * unit).sum(0) / unit.square().sum(0)
        error = (gain * unit + bias - y).norm(dim=1) / y.norm(dim=1)
        if bool((error < tolerance).all()):
            return MeasuredNorm(gain, bias if bool(bias.any()) else None, is_centred, epsilon)
    return None


def _centred(x: Tensor, is_centred: bool) -> Tensor:
    return x - x.mean(-1, keepdim=True) if is_centred else x


def _scale(x: Tensor, epsilon: float) -> Tensor:
    return (x.square().mean(-1, keepdim=True) + epsilon).sqrt()
