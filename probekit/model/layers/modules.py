"""What several families share: linear maps, norms, attention, the gated MLP, the loss."""

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from probekit.model.passes.context import BlockContext, causal, visible_at
from probekit.model.passes.inputs import NOT_COUNTED
from probekit.model.passes.taps import Taps
from probekit.products import Activation, attend, is_derived, linear, to_device, with_gradient


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
            # A tap that only reads must not change a bit of the output, so the fused product below
            # is computed as without a tap; `activation(pre)` rounds differently.
        return linear(x, self.weight, self.bias, activation)


class Norm(nn.Module):
    """Norm over the last axis with a gain and an optional bias.

    Args:
        width: size of the last axis.
        eps: number that is added to the variance or to the mean square.
        bias: whether there is a bias.
    """

    weight_of_gain_1 = 1.0  # value of `weight` for which `gain` is 1

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
                exact = (x.var(-1, correction=0, keepdim=True) + self.eps).sqrt()
                scale = with_gradient(scale, exact)
            # A tap that changes nothing multiplies by exactly 1.
            normalized = normalized * (scale / tap("hook_scale", scale.clone()))
        normalized = tap("hook_normalized", normalized)
        if self.bias is None:
            scaled = normalized * self.weight
        else:
            scaled = torch.addcmul(self.bias, normalized, self.weight)
        return scaled.to(self.weight.dtype)


def attend_heads(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: nn.Linear,
    context: BlockContext,
    tap: Taps,
    *,
    pdrop: float = 0.0,
    divisor: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Return the output of attention, shape [batch pos d_model].

    With `context.at` the axis n_at is in place of pos.

    Attention is fused unless scores or patterns are requested, or scores are capped. If there are
    fewer key-value heads than heads, consecutive heads share one.

    Args:
        q: queries, shape [batch pos n_heads d_head].
        k: keys, shape [batch pos n_kv_heads d_head].
        v: values, shape [batch pos n_kv_heads d_head].
        output: map of the concatenated heads to the residual stream.
        context: visibility, earlier keys and values, and positions of the queries.
        tap: taps at the sites of the attention module.
        pdrop: dropout rate of the pattern.
        divisor: number that the scores are divided by; None means sqrt(d_head).
        softcap: cap c of the scores s, which become c tanh(s / c); None for none.
    """
    k, v = context.extend(k, v)  # [batch key_pos n_kv_heads d_head]
    visible = context.visible
    if context.at is not None:
        visible = visible_at(context.at, visible, q.shape[1], k.shape[1])
        q = context.selected(q)
    is_read = tap.wants("hook_attn_scores", "hook_pattern")
    n_queries, n_keys = q.shape[1], k.shape[1]
    group = q.shape[2] // k.shape[2]  # heads that share a key and a value
    if group > 1:
        k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [batch n_heads pos d_head], or key_pos
    if is_read or softcap is not None:
        if visible is None:
            visible = causal(n_queries, n_keys, q.device)
        scores = (q / (divisor or math.sqrt(q.shape[-1]))) @ k.transpose(-1, -2)
        if softcap is not None:
            scores = softcap * (scores / softcap).tanh()
        scores = tap("hook_attn_scores", scores.masked_fill_(~visible, -math.inf))
        pattern = tap("hook_pattern", scores.softmax(-1))
        z = F.dropout(pattern, pdrop) @ v
    else:
        # `is_causal` lets the first query attend to the first key only: wrong after cached keys.
        if visible is None and 1 < n_queries < n_keys:
            visible = causal(n_queries, n_keys, q.device)
        is_causal = visible is None and n_queries == n_keys  # a single query attends to every key
        scale = None if divisor is None else 1 / divisor
        z = attend(q, k, v, visible, is_causal=is_causal, pdrop=pdrop, scale=scale)
    z = tap("hook_z", z.transpose(1, 2))
    attn_out: Tensor = output(z.flatten(2))
    if not tap.wants("hook_result"):
        return attn_out
    by_head = "d_model (n_heads d_head) -> n_heads d_head d_model"
    w_o = rearrange(output.weight, by_head, n_heads=z.shape[2])
    result = einsum(z, w_o, "b pos n_heads d_head, n_heads d_head d -> b pos n_heads d")
    tapped = tap("hook_result", result.clone())
    summed = tapped.sum(2)
    summed = summed if output.bias is None else summed + output.bias
    if not torch.equal(tapped, result):
        return summed
    # Reading the site must not change a bit of the output, and `summed` rounds differently.
    return with_gradient(attn_out, summed) if is_derived(summed) else attn_out


# Tokens whose logits are in memory at once. Those of 4,096 tokens over a vocabulary of 50,257 take
# 0.8 GB, and softmax, loss and gradient read and write them several times. A chunk of a few hundred
# tokens fits the processor's cache: it needs less memory, and training a small model on a CPU is a
# fifth faster.
CHUNK = 256


def cross_entropy(
    x: Tensor, unembedding: Tensor, targets: Tensor, softcap: float | None = None
) -> Tensor:
    """Return the mean cross-entropy in nats over all targets other than -100, a scalar.

    Without a softcap it equals `F.cross_entropy(x @ unembedding.T, targets)`. Only first-order
    gradients exist.

    Args:
        x: output of the final norm, shape [n_tokens d_model].
        unembedding: shape [d_vocab d_model].
        targets: id to predict at each token, -100 to exclude it, shape [n_tokens]; at least one is
            not excluded.
        softcap: cap c of the logits l, which become c tanh(l / c); None for none.

    >>> x, unembedding = torch.eye(2), torch.tensor([[9.0, 0.0], [0.0, 9.0], [0.0, 0.0]])
    >>> round(cross_entropy(x, unembedding, torch.tensor([0, -100])).item(), 5)
    0.00025
    """
    x, targets = (to_device(one, unembedding.device) for one in (x, targets))
    return cast(Tensor, _CrossEntropy.apply(x, unembedding, targets, softcap))  # type: ignore[no-untyped-call]  # torch's


class _CrossEntropy(torch.autograd.Function):
    """Computes the gradients in the forward pass, while the logits of a chunk are in memory."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, unembedding: Tensor, targets: Tensor, softcap: float | None
    ) -> Tensor:
        """Return the loss; keep the gradients of `x` and `unembedding` for the backward pass."""
        counted = targets != NOT_COUNTED
        loss_dtype = torch.promote_types(x.dtype, torch.float32)
        shares = counted.to(loss_dtype) / counted.sum()  # of each token in the mean, [n_tokens]
        targets = targets.clamp(min=0)  # excluded ones become a valid id, with the share 0
        loss = torch.zeros((), dtype=loss_dtype, device=x.device)
        differentiated = (x, unembedding) if any(ctx.needs_input_grad) else ()
        grads = [torch.zeros_like(tensor) for tensor in differentiated]
        x_cast, unembedding_cast = _autocast(x), _autocast(unembedding)
        for start in range(0, len(x), CHUNK):
            chunk = slice(start, start + CHUNK)
            # Shapes [chunk d_model], [chunk 1] and [chunk 1].
            part, share, target = x_cast[chunk], shares[chunk, None], targets[chunk, None]
            logits = linear(part, unembedding_cast).to(loss_dtype)  # [chunk d_vocab]
            if softcap is not None:
                logits = softcap * (logits / softcap).tanh()
            log_p = logits.log_softmax(-1)
            loss = loss - (log_p.gather(1, target) * share).sum()
            if grads:
                x_grad, unembedding_grad = grads
                # Probabilities minus the one-hot target, computed in place of `log_p`.
                error = log_p.exp_().scatter_add_(1, target, -torch.ones_like(share))
                if softcap is not None:
                    # The derivative of c tanh(l / c), where `logits` are capped already.
                    error.mul_(1 - (logits / softcap).square())
                error = error.mul_(share).to(part.dtype)
                x_grad[chunk] = error @ unembedding_cast
                unembedding_grad.add_(error.T @ part)
        ctx.save_for_backward(*grads)
        return loss

    @staticmethod
    def backward(ctx: Any, *loss_grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the gradients of the four arguments of `forward`, given that of the loss."""
        (loss_grad,) = loss_grads
        x_grad, unembedding_grad = ctx.saved_tensors
        return x_grad * loss_grad, unembedding_grad * loss_grad, None, None


def _autocast(x: Tensor) -> Tensor:
    """Return x in the dtype in which autocast computes matrix products."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x
