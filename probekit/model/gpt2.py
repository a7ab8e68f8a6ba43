"""GPT-2, written to be read.

    GPT2:  resid = wte[tokens] + wpe[positions]; Block, ..., Block; logits = ln_f(resid) @ wte.T
    Block: resid = resid + attn(ln_1(resid)); resid = resid + mlp(ln_2(resid))

Every intermediate tensor passes through a tap at its site: `tap("hook_x", x)` returns x, or the
value that the caller of the forward pass substitutes for it. sites.py lists all sites.
Parameters have the names of the Hugging Face checkpoints.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", and the code
published with it (tanh GELU, layer norm before each sublayer, learned position embeddings).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from probekit.errors import ConfigError
from probekit.model.config import GPT2Config, model_config
from probekit.model.cross_entropy import cross_entropy
from probekit.model.initialisation import initialise
from probekit.model.inputs import (
    TokenBatch,
    check_context,
    check_targets,
    next_tokens,
    prepare_tokens,
    warn_of_padding,
)
from probekit.model.kv_cache import Extend, KeyValueCache
from probekit.model.layer_norm import LayerNorm
from probekit.model.linear import Linear
from probekit.model.network import Network
from probekit.model.resuming import resume_blocks
from probekit.model.site_parts import expand_parts, tap_parts
from probekit.model.sites import SitePattern
from probekit.model.taps import ForwardStoppedError, Tap, Taps
from probekit.model.visibility import causal, positions_and_visible, select_positions, visible_at
from probekit.model.weights.loading import as_dtype, read_checkpoint
from probekit.model.weights.saving import write_checkpoint
from probekit.model.weights.sources import find_model
from probekit.products import attend, is_derived, linear, with_gradient


class Attention(nn.Module):
    """Causal multi-head attention."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.n_heads = config.n_head
        self.pdrop = config.attn_pdrop
        self.c_attn = Linear(config.n_embd, 3 * config.n_embd, bias=config.has_qkv_bias)
        self.c_proj = Linear(config.n_embd, config.n_embd, bias=config.bias)

    def forward(
        self, x: Tensor, visible: Tensor | None, tap: Taps,
        at: Tensor | None = None, extend: Extend | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the output of attention, shape [batch pos d_model], or [batch n_at d_model].

        Args:
            x: normalized residual stream, shape [batch pos d_model].
            visible: True where a query attends to a key, shape [batch 1 pos key_pos]; None means a
                causal mask.
            tap: taps at the sites of this module.
            at: positions of the queries, shape [batch n_at]; None means all.
            extend: function that puts the cached keys and values before the new ones, see
                `KeyValueCache.extend`; None without a cache.
        """
        qkv = rearrange(
            self.c_attn(x), "batch pos (qkv n_heads d_head) -> qkv batch pos n_heads d_head",
            qkv=3, n_heads=self.n_heads,
        )  # fmt: skip
        # Indexed, not unpacked: torch forbids in-place changes to unpacked views.
        q, k, v = tap("hook_q", qkv[0]), tap("hook_k", qkv[1]), tap("hook_v", qkv[2])
        if extend is not None:
            k, v = extend(k, v)  # [batch key_pos n_heads d_head]
        if at is not None:
            visible = visible_at(at, visible, q.shape[1], k.shape[1])
            q = select_positions(q, at)
        pdrop = self.pdrop if self.training else 0.0
        if tap.wants("hook_attn_scores", "hook_pattern"):
            z = _attend(q, k, v, visible, tap, pdrop)
        else:
            z = _attend_fused(q, k, v, visible, pdrop)
        z = tap("hook_z", z)  # [batch pos n_heads d_head]
        attn_out = cast(Tensor, self.c_proj(z.flatten(2)))
        if tap.wants("hook_result"):
            w_o = rearrange(
                self.c_proj.weight, "d_model (n_heads d_head) -> n_heads d_head d_model",
                n_heads=self.n_heads,
            )  # fmt: skip
            result = einsum(z, w_o, "b pos n_heads d_head, n_heads d_head d -> b pos n_heads d")
            tapped = tap("hook_result", result.clone())
            summed = tapped.sum(2)
            summed = summed if self.c_proj.bias is None else summed + self.c_proj.bias
            if not torch.equal(tapped, result):
                return summed
            # Reading the site must not change a bit of the output, and `summed` rounds differently.
            if is_derived(summed):
                return with_gradient(attn_out, summed)
        return attn_out


def _attend(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, tap: Taps, pdrop: float
) -> Tensor:
    if visible is None:
        visible = causal(q.shape[1], k.shape[1], q.device)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [batch n_heads pos d_head]
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2)
    scores = tap("hook_attn_scores", scores.masked_fill_(~visible, -math.inf))
    pattern = tap("hook_pattern", scores.softmax(-1))
    return (F.dropout(pattern, pdrop) @ v).transpose(1, 2)


def _attend_fused(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, pdrop: float) -> Tensor:
    n_queries, n_keys = q.shape[1], k.shape[1]
    if visible is None and 1 < n_queries < n_keys:
        visible = causal(n_queries, n_keys, q.device)
    is_causal = visible is None and n_queries == n_keys  # a single query attends to every key
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # [batch n_heads pos d_head]
    return attend(q, k, v, visible, is_causal=is_causal, pdrop=pdrop).transpose(1, 2)


class MLP(nn.Module):
    """Feed-forward layer with d_mlp neurons and a tanh GELU."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.c_fc = Linear(config.n_embd, config.d_mlp, bias=config.bias)
        self.c_proj = Linear(config.d_mlp, config.n_embd, bias=config.bias)

    def forward(self, x: Tensor, tap: Taps) -> Tensor:
        """Return the output of the MLP, shape [batch pos d_model]."""
        pre = tap("hook_pre", self.c_fc(x))  # [batch pos d_mlp]
        # GPT-2 was trained with this approximation; the exact GELU gives slightly wrong logits.
        post = tap("hook_post", F.gelu(pre, approximate="tanh"))
        return cast(Tensor, self.c_proj(post))


class Block(nn.Module):
    """Transformer block: attention and MLP, each after a layer norm and added to the residual."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(config)
        self.attn = Attention(config)
        self.ln_2 = LayerNorm(config)
        self.mlp = MLP(config)
        self.drop = nn.Dropout(config.resid_pdrop)

    def forward(
        self, resid: Tensor, visible: Tensor | None, tap: Taps,
        at: Tensor | None = None, extend: Extend | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the residual stream after this block; arguments and shape as in `Attention`."""
        resid = tap("hook_resid_pre", resid)
        normed = self.ln_1(resid, tap.within("ln1"))
        attn_out = self.attn(normed, visible, tap.within("attn"), at, extend)
        if at is not None:
            resid = select_positions(resid, at)
        resid = tap("hook_resid_mid", resid + tap("hook_attn_out", self.drop(attn_out)))
        mlp_out = self.mlp(self.ln_2(resid, tap.within("ln2")), tap.within("mlp"))
        return tap("hook_resid_post", resid + tap("hook_mlp_out", self.drop(mlp_out)))


class GPT2(nn.Module, Network):
    """GPT-2 with a tap at every site.

    Args:
        config: sizes and switches.
        seed: random seed for GPT-2's initialisation. None leaves the weights on the meta device,
            without storage, to be filled by `load_state_dict(..., assign=True)`.

    >>> model = GPT2(GPT2Config(n_layer=2, n_head=3, n_embd=21, vocab_size=97, n_positions=16))
    >>> tokens = torch.tensor([[3, 14, 15, 92, 65]])
    >>> model(tokens).shape
    torch.Size([1, 5, 97])
    >>> logits, cache = model.run_with_cache(tokens, sites=["blocks.*.hook_resid_post"])
    >>> cache["resid_post", 1].shape
    torch.Size([1, 5, 21])
    """

    def __init__(self, config: GPT2Config, seed: int | None = 0) -> None:
        super().__init__()
        self.config = config
        with torch.device("meta"):
            self.wte = _embedding(config.vocab_size, config.n_embd)
            self.wpe = _embedding(config.n_positions, config.n_embd)
            self.drop = nn.Dropout(config.embd_pdrop)
            self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
            self.ln_f = LayerNorm(config)
            if not config.tie_word_embeddings:
                self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if seed is not None:
            self.to_empty(device="cpu")
            initialise(self, seed)
        self.eval()  # no dropout until model.train()

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.wte.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.wte.weight.dtype

    @property
    def unembedding(self) -> Tensor:
        """Matrix from the output of the final norm to the logits, shape [d_vocab d_model]."""
        unembedding = self.wte if self.config.tie_word_embeddings else self.lm_head
        return unembedding.weight

    @property
    def position_embedding(self) -> Tensor:
        """Embedding of every position, shape [n_ctx d_model]."""
        return self.wpe.weight

    @property
    def final_norm_gain(self) -> Tensor:
        """Gain of the final layer norm, shape [d_model]."""
        return self.ln_f.weight

    @property
    def final_norm_bias(self) -> Tensor | None:
        """Bias of the final layer norm, shape [d_model]; None if `config.bias` is false."""
        return self.ln_f.bias

    def final_norm(self, resid: Tensor) -> Tensor:
        """Return the final layer norm of residuals, shape [... d_model]."""
        return cast(Tensor, self.ln_f(resid, Taps(None)))

    def head_output(self, layer: int) -> tuple[Tensor, Tensor | None]:
        """Return W_O of a layer's heads, [d_model (n_heads d_head)], and its bias, [d_model]."""
        c_proj = cast(Block, self.h[layer]).attn.c_proj
        return c_proj.weight, c_proj.bias

    def mlp_output(self, layer: int) -> Tensor:
        """Return W_out of a layer's MLP, shape [d_model d_mlp]."""
        return cast(Block, self.h[layer]).mlp.c_proj.weight

    def resume(self, resid: Tensor, layer: int, **options: Any) -> Tensor:
        """Return the residual stream after the last block; see `Network.resume`."""
        return resume_blocks(cast(Sequence[Block], self.h), resid, layer, **options)

    @classmethod
    def from_pretrained(
        cls, source: str | Path, dtype: str | torch.dtype = torch.float32, device: str = "cpu"
    ) -> GPT2:
        """Return a pretrained GPT-2 with frozen parameters; `requires_grad_()` unfreezes them.

        Args:
            source: `mini`, a hub name such as `gpt2-medium` or `org/name@revision`, or a folder
                in the format of the hub or of OpenAI.
            dtype: float32, float16, bfloat16 or float64, for weights and computation.
            device: device of the weights, e.g. `cuda`.

        Raises:
            MissingError: no model has this name.
            CheckpointError: a file is damaged, or its tensors are not those of a GPT-2.
        """
        weights_dtype, folder = as_dtype(dtype), find_model(source)
        model = cls(model_config(folder), seed=None)
        tensors = read_checkpoint(folder, model.state_dict(), weights_dtype)
        model.load_state_dict(tensors, assign=True)
        return model.to(device).requires_grad_(False)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors, readable by `transformers`."""
        write_checkpoint(Path(folder), self.config, self.state_dict())

    def forward(
        self,
        tokens: Tensor | TokenBatch,
        mask: Tensor | None = None,
        tap: Tap | None = None,
        sites: SitePattern | Iterable[SitePattern] | None = None,
        *,
        logits: bool = True,
        at: Tensor | None = None,
        past: KeyValueCache | None = None,
    ) -> Tensor | None:
        """Return the logits, shape [batch pos d_vocab], or None with `logits=False`.

        Args:
            tokens: token ids, shape [batch pos], or a `TokenBatch`.
            mask: True at tokens, False at padding, shape [batch pos]. None means the mask of the
                `TokenBatch`, or no padding. Positions count real tokens, so padding on either side
                does not change the result.
            tap: function called at each requested site; returns the value to continue with.
            sites: names, globs or shorthands of the requested sites, or functions of a name. A
                head or neuron is written as `blocks.3.attn.hook_z[head=2]`. None means all sites
                except those computed on request (`attn.hook_result`). Attention is fused unless
                scores or patterns are requested.
            logits: False stops the pass after the last requested site.
            at: positions in each row of `tokens`, shape [batch n_at]. The last block computes its
                queries and its MLP at these positions only. Its sites after `attn.hook_v`, the
                sites of `ln_final` and the logits then have the axis n_at in place of pos.
            past: cache with the keys and values of earlier tokens. `tokens` continue these tokens,
                and their keys and values are added to it.

        Raises:
            UnknownNameError: a pattern matches no site.
            ConfigError: `sites` without a tap, or neither logits nor a site is requested.
            DataError: ids outside the vocabulary; padding without a mask; more tokens than the
                context; a mask with another shape or an empty row; or a `past` of another model or
                batch size.
        """
        if tap is None and sites is not None:
            raise ConfigError("`sites` was given without `tap`. Pass a tap, or leave `sites` out.")
        patterns = ["*"] if sites is None else sites
        parts = expand_parts(patterns, self.config.axis_sizes) if tap else ()
        requested = {part.site for part in parts}
        if not logits and not requested:
            raise ConfigError(
                "Neither logits nor a site is requested. Pass logits=True, or a tap and sites."
            )
        ids, mask = prepare_tokens(self.config, tokens, mask)
        if mask is None and past is None:
            warn_of_padding(self.config, ids)
        taps = Taps(tap_parts(tap, parts) if tap else None, requested, stop_when_done=not logits)
        try:
            resid = self._residual_stream(ids, mask, taps, at, past)
            return linear(self.ln_f(resid, taps.within("ln_final")), self.unembedding)
        except ForwardStoppedError:
            return None

    def _residual_stream(
        self, tokens: Tensor, mask: Tensor | None, tap: Taps,
        at: Tensor | None, past: KeyValueCache | None,
    ) -> Tensor:  # fmt: skip
        if past is not None:
            mask = past.join_mask(self, tokens, mask)
        # Computed on the device of the tokens, so that host tokens cause no GPU synchronisation.
        positions, visible = positions_and_visible(tokens, mask, past.length if past else 0)
        check_context(self.config, positions)
        visible = None if visible is None else visible.to(self.device)
        embed = tap("hook_embed", self.wte(tokens.to(self.device)))
        # At least float32: in half precision, rounding errors would accumulate over the blocks.
        embed = embed.to(torch.promote_types(embed.dtype, torch.float32))
        pos_embed = tap("hook_pos_embed", self.wpe(positions.to(self.device)))
        resid: Tensor = self.drop(embed + pos_embed)
        last = len(self.h) - 1
        for layer, block in enumerate(self.h):
            block_at = at.to(self.device) if at is not None and layer == last else None
            extend = partial(past.extend, layer) if past else None
            resid = block(resid, visible, tap.within(f"blocks.{layer}"), block_at, extend)
        if past is not None:
            past.advance(tokens.shape[1], mask)
        return resid

    def loss(
        self,
        tokens: Tensor | TokenBatch,
        mask: Tensor | None = None,
        *,
        targets: Tensor | None = None,
    ) -> Tensor:
        """Return the mean cross-entropy in nats per target.

        Args:
            tokens: token ids, shape [batch pos], or a `TokenBatch`.
            mask: True at tokens, False at padding, shape [batch pos].
            targets: id to predict at each position, shape [batch pos]; -100 excludes a position.
                None means the next token.

        Raises:
            DataError: the targets differ in shape from the tokens, lie outside the vocabulary, or
                are all excluded.

        >>> model = GPT2.from_pretrained("mini")
        >>> model.loss(torch.tensor([[10, 20, 30, 40]])).ndim
        0
        """
        ids, mask = prepare_tokens(self.config, tokens, mask)
        if targets is None:
            targets = next_tokens(ids, mask)
        x = self.final_norm(self._residual_stream(ids, mask, Taps(None), None, None))
        check_targets(self.config, ids, targets)
        return cross_entropy(x.flatten(0, 1), self.unembedding, targets.flatten())


def _embedding(n: int, d_model: int) -> nn.Embedding:
    # nn.Embedding would initialise its weight, which imports torch's compiler on the meta device.
    return nn.Embedding(n, d_model, _weight=torch.empty(n, d_model))
