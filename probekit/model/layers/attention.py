"""Attention over heads, from queries, keys and values to the output, with the taps between."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from probekit.model.layers.visibility import causal, visible_at
from probekit.model.passes.context import BlockContext
from probekit.model.passes.taps import Taps
from probekit.products import attend, is_derived, with_gradient


def attend_heads(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: BlockContext,
    tap: Taps,
    *,
    pdrop: float = 0.0,
    divisor: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Return the weighted sums of the values, shape [batch pos n_heads d_head].

    Attention is fused unless scores or patterns are requested, or scores are capped. If there are
    fewer key-value heads than heads, consecutive heads share one.

    Args:
        q: queries, shape [batch pos n_heads d_head].
        k: keys, shape [batch key_pos n_kv_heads d_head].
        v: values, shape [batch key_pos n_kv_heads d_head].
        context: visibility, and positions of the queries.
        tap: taps at the sites of the attention module.
        pdrop: dropout rate of the pattern.
        divisor: number that the scores are divided by; None means sqrt(d_head).
        softcap: cap c of the scores s, which become c tanh(s / c); None for none.
    """
    visible = context.visible
    if context.at is not None:
        visible = visible_at(context.at, visible, q.shape[1], k.shape[1])
        q = context.selected(q)
    is_read = tap.wants("hook_attn_scores", "hook_pattern")
    n_queries, n_keys, group = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    if group > 1:
        k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [batch n_heads pos d_head]
    if is_read or softcap is not None:
        if visible is None:
            visible = causal(n_queries, n_keys, q.device)
        scores = (q / (divisor or math.sqrt(q.shape[-1]))) @ k.transpose(-1, -2)
        if softcap is not None:
            scores = softcap * (scores / softcap).tanh()
        scores = tap("hook_attn_scores", scores.masked_fill_(~visible, -math.inf))
        pattern = tap("hook_pattern", scores.softmax(-1))
        return (F.dropout(pattern, pdrop) @ v).transpose(1, 2)
    if visible is None and 1 < n_queries < n_keys:
        visible = causal(n_queries, n_keys, q.device)
    is_causal = visible is None and n_queries == n_keys  # a single query attends to every key
    scale = None if divisor is None else 1 / divisor
    z = attend(q, k, v, visible, is_causal=is_causal, pdrop=pdrop, scale=scale)
    return z.transpose(1, 2)


def project_heads(z: Tensor, output: nn.Linear, tap: Taps) -> Tensor:
    """Return the output of attention, shape [batch pos d_model], with a tap at that of each head.

    Args:
        z: weighted sums of the values, shape [batch pos n_heads d_head].
        output: map of the concatenated heads to the residual stream.
        tap: taps at the sites of the attention module.
    """
    attn_out: Tensor = output(z.flatten(2))
    if not tap.wants("hook_result"):
        return attn_out
    w_o = rearrange(
        output.weight, "d_model (n_heads d_head) -> n_heads d_head d_model", n_heads=z.shape[2]
    )
    result = einsum(z, w_o, "b pos n_heads d_head, n_heads d_head d -> b pos n_heads d")
    tapped = tap("hook_result", result.clone())
    summed = tapped.sum(2)
    summed = summed if output.bias is None else summed + output.bias
    if not torch.equal(tapped, result):
        return summed
    # Reading the site must not change a bit of the output, and `summed` rounds differently.
    return with_gradient(attn_out, summed) if is_derived(summed) else attn_out
