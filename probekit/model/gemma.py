"""Gemma 2 and Gemma 3 (text), written to be read.

    Gemma: resid = sqrt(d_model) embed_tokens[tokens]; Block, ..., Block
           logits = cap(norm(resid) @ embed_tokens.T)
    Block: resid = resid + post_attention_layernorm(attn(input_layernorm(resid)))
           resid = resid + post_feedforward_layernorm(mlp(pre_feedforward_layernorm(resid)))

The gain of a norm is 1 + weight. cap(x) = c tanh(x / c) bounds the logits, and in Gemma 2 the
attention scores. Most blocks attend to a sliding window; in Gemma 3 these rotate queries and keys
with a smaller base. families/gemma.py lists the sites. Parameters have the names of the Hugging
Face checkpoints.

Source: Gemma Team 2024, "Gemma 2: Improving Open Language Models at a Practical Size"; Gemma Team
2025, "Gemma 3 Technical Report".
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn

from probekit.model.decoder import Decoder, embedding, stream_of
from probekit.model.families.gemma import GemmaConfig
from probekit.model.initialisation import initialise
from probekit.model.layers.attention import attend_heads, project_heads, select_positions
from probekit.model.layers.cross_entropy import cross_entropy
from probekit.model.layers.gated_mlp import GatedMLP
from probekit.model.layers.linear import Linear
from probekit.model.layers.rms_norm import RMSNorm
from probekit.model.layers.rotary import Turn, frequencies, rotate, turn
from probekit.model.passes.context import Context
from probekit.model.passes.kv_cache import Extend
from probekit.model.passes.taps import Taps
from probekit.products import GELU_TANH


class GemmaNorm(RMSNorm):
    """RMS norm with the gain 1 + weight, computed in float32 for half-precision weights."""

    @property
    def gain(self) -> Tensor:
        """Factor of each feature, shape [width]."""
        return 1 + self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))


class GemmaAttention(nn.Module):
    """Causal attention with rotated queries and keys; groups of heads share a key and a value."""

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__()
        self.d_head, d_model, bias = config.d_head, config.d_model, config.attention_bias
        heads, kv_heads = config.n_heads * self.d_head, config.n_kv_heads * self.d_head
        self.divisor = math.sqrt(config.query_pre_attn_scalar)
        self.softcap = config.attn_logit_softcapping
        self.q_proj = Linear(d_model, heads, bias=bias)
        self.k_proj = Linear(d_model, kv_heads, bias=bias)
        self.v_proj = Linear(d_model, kv_heads, bias=bias)
        self.o_proj = Linear(heads, d_model, bias=bias)
        self.has_norms = config.has_norms_of_heads
        if self.has_norms:
            self.q_norm = GemmaNorm(self.d_head, config.rms_norm_eps)
            self.k_norm = GemmaNorm(self.d_head, config.rms_norm_eps)

    def forward(
        self, x: Tensor, visible: Tensor | None, angles: Turn, tap: Taps,
        at: Tensor | None = None, extend: Extend | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the output of attention, shape [batch pos d_model], or [batch n_at d_model].

        Args:
            x: normalized residual stream, shape [batch pos d_model].
            visible: True where a query attends to a key, shape [batch 1 pos key_pos]; None means a
                causal mask.
            angles: cosine and sine of the angles of every position.
            tap: taps at the sites of this module.
            at: positions of the queries, shape [batch n_at]; None means all.
            extend: function that puts the cached keys and values before the new ones, see
                `KeyValueCache.extend`; None without a cache.
        """
        q = tap("hook_q", self.q_proj(x).unflatten(-1, (-1, self.d_head)))
        k = tap("hook_k", self.k_proj(x).unflatten(-1, (-1, self.d_head)))
        v = tap("hook_v", self.v_proj(x).unflatten(-1, (-1, self.d_head)))
        if self.has_norms:
            q, k = self.q_norm(q, tap.within("q_norm")), self.k_norm(k, tap.within("k_norm"))
        q, k = tap("hook_rot_q", rotate(q, angles)), tap("hook_rot_k", rotate(k, angles))
        if extend is not None:
            k, v = extend(k, v)  # [batch key_pos n_kv_heads d_head]
        z = attend_heads(q, k, v, visible, tap, at=at, divisor=self.divisor, softcap=self.softcap)
        return project_heads(tap("hook_z", z), self.o_proj, tap)


class GemmaBlock(nn.Module):
    """Transformer block: attention and gated MLP, each between two norms and added to the stream.

    Args:
        config: sizes and switches.
        window: number of tokens that a query attends to; None for all.
    """

    def __init__(self, config: GemmaConfig, window: int | None) -> None:
        super().__init__()
        self.window = window
        width, eps = config.d_model, config.rms_norm_eps
        self.input_layernorm = GemmaNorm(width, eps)
        self.self_attn = GemmaAttention(config)
        self.post_attention_layernorm = GemmaNorm(width, eps)
        self.pre_feedforward_layernorm = GemmaNorm(width, eps)
        self.mlp = GatedMLP(width, config.d_mlp, GELU_TANH, bias=False)
        self.post_feedforward_layernorm = GemmaNorm(width, eps)

    def forward(
        self, resid: Tensor, visible: Tensor | None, angles: Turn, tap: Taps,
        at: Tensor | None = None, extend: Extend | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the residual stream after this block; arguments as in `GemmaAttention`."""
        resid = tap("hook_resid_pre", resid)
        normed = self.input_layernorm(resid, tap.within("ln1"))
        heads_out = self.self_attn(normed, visible, angles, tap.within("attn"), at, extend)
        attn_out = self.post_attention_layernorm(heads_out, tap.within("ln1_post"))
        if at is not None:
            resid = select_positions(resid, at)
        resid = tap("hook_resid_mid", resid + tap("hook_attn_out", attn_out))
        return self.after_attention(resid, tap)

    def after_attention(self, resid: Tensor, tap: Taps) -> Tensor:
        """Return the residual stream after this block, from that after its attention."""
        normed = self.pre_feedforward_layernorm(resid, tap.within("ln2"))
        neurons_out = self.mlp(normed, tap.within("mlp"))
        mlp_out = self.post_feedforward_layernorm(neurons_out, tap.within("ln2_post"))
        return tap("hook_resid_post", resid + tap("hook_mlp_out", mlp_out))


class Gemma(Decoder):
    """Gemma 2 or Gemma 3 (text) with a tap at every site.

    Args:
        config: sizes and switches.
        seed: random seed for the initialisation. None leaves the weights on the meta device,
            without storage, to be filled by `load_state_dict(..., assign=True)`.

    >>> sizes = {"vocab_size": 97, "hidden_size": 24, "intermediate_size": 11, "head_dim": 10}
    >>> heads = {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}
    >>> model = Gemma(GemmaConfig(**sizes, **heads))
    >>> logits, cache = model.run_with_cache(torch.tensor([[3, 14, 15]]), ["blocks.*.attn.hook_q"])
    >>> logits.shape, cache["q", 0].shape
    (torch.Size([1, 3, 97]), torch.Size([1, 3, 6, 10]))
    """

    CONFIG = GemmaConfig
    config: GemmaConfig

    def __init__(self, config: GemmaConfig, seed: int | None = 0) -> None:
        super().__init__(config)
        self.frequencies = {  # no parameters, and no buffers
            None: frequencies(config.rotary, config.d_head),
            config.sliding_window: frequencies(config.rotary_in_windows, config.d_head),
        }
        with torch.device("meta"):
            self.embed_tokens = embedding(config.vocab_size, config.hidden_size)
            self.layers = nn.ModuleList(GemmaBlock(config, window) for window in config.windows)
            self.norm = GemmaNorm(config.hidden_size, config.rms_norm_eps)
            if not config.tie_word_embeddings:
                self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if seed is not None:
            self.to_empty(device="cpu")
            maps = ("o_proj.weight", "down_proj.weight")
            initialise(self, seed, output_maps=maps, norm_weight=0.0)
        self.eval()

    @property
    def token_embedding(self) -> Tensor:
        """Embedding of every token before the scale, shape [d_vocab d_model]."""
        return self.embed_tokens.weight

    @property
    def blocks(self) -> nn.ModuleList:
        """The blocks, in order."""
        return self.layers

    @property
    def unembedding(self) -> Tensor:
        """Matrix from the output of the final norm to the logits, shape [d_vocab d_model]."""
        unembedding = self.embed_tokens if self.config.tie_word_embeddings else self.lm_head
        return unembedding.weight

    @property
    def position_embedding(self) -> None:
        """None: there are no learned position embeddings."""
        return

    @property
    def final_norm_gain(self) -> Tensor:
        """Gain of the final RMS norm, 1 + weight, shape [d_model]."""
        return self.norm.gain

    @property
    def final_norm_bias(self) -> None:
        """None: an RMS norm has no bias."""
        return

    def head_output(self, layer: int) -> tuple[Tensor, Tensor | None]:
        """Return W_O of a layer's heads, [d_model (n_heads d_head)], and its bias, [d_model]."""
        o_proj = cast(GemmaBlock, self.layers[layer]).self_attn.o_proj
        return o_proj.weight, o_proj.bias

    def mlp_output(self, layer: int) -> Tensor:
        """Return W_out of a layer's MLP, shape [d_model d_mlp]."""
        return cast(GemmaBlock, self.layers[layer]).mlp.down_proj.weight

    def attention_norm_gain(self, layer: int) -> Tensor:
        """Gain of the norm between the heads of a layer and the stream, shape [d_model]."""
        return cast(GemmaBlock, self.layers[layer]).post_attention_layernorm.gain

    def capped(self, logits: Tensor) -> Tensor:
        """Return logits after the softcap."""
        cap = self.config.final_logit_softcapping
        return logits if cap is None else cap * (logits / cap).tanh()

    def mean_loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of the logits of `x`, shape [n_tokens d_model]."""
        cap = self.config.final_logit_softcapping
        return cross_entropy(x, self.unembedding, targets, softcap=cap)

    def residual_stream(self, tokens: Tensor, context: Context, tap: Taps) -> Tensor:
        """Return the residual stream after the last block, shape [batch pos d_model]."""
        embed = self.embed_tokens(tokens)
        # The published code rounds the scale to the dtype of the weights.
        scale = torch.tensor(math.sqrt(self.config.d_model), dtype=embed.dtype, device=embed.device)
        resid = stream_of(tap("hook_embed", embed * scale))
        return self.run_blocks(resid, context, tap)

    def run_blocks(self, resid: Tensor, context: Context, tap: Taps, start: int = 0) -> Tensor:
        """Return the residual stream after the last block, from that before block `start`."""
        positions, windows = context.positions.to(self.device), set(self.config.windows)
        angles = {window: turn(positions, self.frequencies[window]) for window in windows}
        visible = {window: context.visible_in(window) for window in windows}
        for layer in range(start, len(self.layers)):
            block = cast(GemmaBlock, self.layers[layer])
            at = context.at if layer == len(self.layers) - 1 else None
            taps, extend = tap.within(f"blocks.{layer}"), context.extend(layer)
            window = block.window
            resid = block(resid, visible[window], angles[window], taps, at, extend)
        return resid

    def normed(self, resid: Tensor, tap: Taps) -> Tensor:
        """Return the final RMS norm of the residual stream."""
        return cast(Tensor, self.norm(resid, tap))
