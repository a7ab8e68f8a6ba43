"""Products of matrices by the fastest way that this machine has."""

from __future__ import annotations

import os
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

# oneDNN's product, which torch.compile also takes. torch's own goes to MKL, which on processors
# other than Intel's uses half of their vector width: it took 2.3 times as long on an AMD EPYC.
_ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
_HERE = os.getpid()
if hasattr(os, "register_at_fork"):  # not on Windows, which has no forks
    os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))  # see is_forked
_QUERIES_AT_ONCE = 4  # 16 bytes of float32


def is_forked() -> bool:
    """Return whether this process is a fork, as of multiprocessing.Pool, and must have one thread.

    OpenMP's threads do not come along into it: a product would wait for them for ever.
    """
    return os.getpid() != _HERE


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
    # oneDNN's product has no derivative: its gradient would be 0.
    if _ONEDNN is None or not _is_for_onednn(x, weight) or is_derived(x, weight, bias):
        return F.linear(x, weight, bias)
    product: Tensor = _ONEDNN(x, weight, bias, "none", [], "")
    return product


def attend(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, *, is_causal: bool, pdrop: float = 0.0
) -> Tensor:
    """Return softmax(q k^T / sqrt(d_head)) v, shape [batch n_heads query_pos d_head].

    On a CPU it is the same to the last bit for any number of threads.

    Args:
        q: shape [batch n_heads query_pos d_head].
        k: shape [batch n_heads key_pos d_head].
        v: shape of k.
        visible: which keys each query sees, shape [batch 1 query_pos key_pos]; None for all.
        is_causal: whether each query sees the keys up to its own place alone.
        pdrop: rate of dropout.

    >>> q, k = torch.zeros(1, 1, 2, 3), torch.zeros(1, 1, 2, 3)
    >>> attend(q, k, torch.arange(6.0).view(1, 1, 2, 3), None, is_causal=True)[0, 0]
    tensor([[0.0000, 1.0000, 2.0000],
            [1.5000, 2.5000, 3.5000]])
    """
    n_queries = q.shape[2]
    is_whole = is_causal or visible is not None  # not a step of generation, which has no time
    if q.device.type == "cpu" and is_whole and not pdrop:
        # torch gives each thread its part of a buffer, as long as the queries are many. Where a
        # part does not begin at 16 bytes, its numbers are summed in another order.
        n_more = -n_queries % _QUERIES_AT_ONCE
        q = F.pad(q, (0, 0, 0, n_more))
        visible = None if visible is None else F.pad(visible, (0, 0, 0, n_more), value=True)
    z = F.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, is_causal=is_causal, dropout_p=pdrop
    )
    return z[:, :, :n_queries]


def _is_for_onednn(x: Tensor, weight: Tensor) -> bool:
    is_plain = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    return is_plain and x.numel() > 0


def is_derived(*tensors: Tensor | None) -> bool:
    """Return whether torch records a derivative of one of these tensors, in any of its modes."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return True
    # Forward mode is not ended by no_grad, and tensors of torch.func may hide that they are
    # differentiated. torch has no public names for either.
    try:
        is_forward = forward_ad._current_level >= 0
        return is_forward or torch._C._functorch.peek_interpreter_stack() is not None
    except AttributeError:  # another torch: its own product is right under any derivative
        return True


def with_gradient(value: Tensor, of: Tensor) -> Tensor:
    """Return a value, bit for bit, with the gradient of another that equals it within rounding.

    Args:
        value: any shape.
        of: shape of value, finite.

    >>> x = torch.tensor(2.0, requires_grad=True)
    >>> y = with_gradient(torch.tensor(4.0), of=x**2)
    >>> y.item(), torch.autograd.grad(y, x)[0].item()
    (4.0, 4.0)
    """
    return value.detach() + (of - of.detach())
