"""What the blocks of several families share: linear maps, norms, the gated MLP, attention."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import cast

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from probekit.model.layers.visibility import causal, visible_at
from probekit.model.passes.context import BlockContext
from probekit.model.passes.taps import Taps
from probekit.products import Activation, attend, is_derived, linear, with_gradient


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


class RMSNorm(Norm):
    """Division by the root mean square of the last axis, then a gain; computed in float32 or wider.

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
        return cast(Tensor, self.down_proj(tap("hook_post", gate * pre_linear)))


class ResidualBlock(nn.Module):
    """Transformer block: the outputs of attention and of the MLP are added to the residual stream.

    A family defines its modules, `_attn_out` and `_mlp_out`.
    """

    def forward(self, resid: Tensor, context: BlockContext, tap: Taps) -> Tensor:
        """Return the residual stream after this block, shape [batch pos d_model].

        With `context.at` the axis n_at is in place of pos.

        Args:
            resid: residual stream before this block, shape [batch pos d_model].
            context: visibility, earlier keys and values, and positions of the queries.
            tap: taps at the sites of this block.
        """
        resid = tap("hook_resid_pre", resid)
        attn_out = tap("hook_attn_out", self._attn_out(resid, context, tap))
        resid = tap("hook_resid_mid", context.selected(resid) + attn_out)
        return self.after_attention(resid, tap)

    def after_attention(self, resid: Tensor, tap: Taps) -> Tensor:
        """Return the residual stream after this block, from that after its attention."""
        return tap("hook_resid_post", resid + tap("hook_mlp_out", self._mlp_out(resid, tap)))

    @abstractmethod
    def _attn_out(self, resid: Tensor, context: BlockContext, tap: Taps) -> Tensor:
        """Return the output of attention, shape [batch pos d_model], or [batch n_at d_model]."""

    @abstractmethod
    def _mlp_out(self, resid: Tensor, tap: Taps) -> Tensor:
        """Return the output of the MLP, from the residual stream after attention."""


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
