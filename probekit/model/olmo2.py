"""OLMo 2, written to be read.

    OLMo 2: resid = embed_tokens[tokens]; Block, ..., Block; logits = norm(resid) @ lm_head.T
    Block:  resid = resid + post_attention_layernorm(attn(resid))
            resid = resid + post_feedforward_layernorm(mlp(resid))

Attention and MLP read the residual stream as it is; what they add to it is normalized. Queries and
keys are each normalized over all heads together, then rotated by angles proportional to their
positions. Parameters have the names of the Hugging Face checkpoints.

Source: OLMo team 2024, "2 OLMo 2 Furious".
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from probekit.model.decoder import Decoder, embedding, stream_of
from probekit.model.families.olmo2 import OLMo2Config
from probekit.model.initialisation import initialise
from probekit.model.layers.attention import attend_heads, project_heads, select_positions
from probekit.model.layers.gated_mlp import GatedMLP
from probekit.model.layers.linear import Linear
from probekit.model.layers.rms_norm import RMSNorm
from probekit.model.layers.rotary import Turn, frequencies, rotate, turn
from probekit.model.passes.context import Context
from probekit.model.passes.kv_cache import Extend
from probekit.model.passes.taps import Taps
from probekit.products import SILU


class NormOfAllHeads(RMSNorm):
    """RMS norm of queries or keys over all heads together, with a gain for each feature."""

    def forward(self, x: Tensor, tap: Taps) -> Tensor:
        """Return the norm of queries or keys, shape [batch pos heads d_head]."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean_square = wide.square().mean((-2, -1)).unsqueeze(-1)
        scale = tap("hook_scale", (mean_square + self.eps).sqrt())  # [batch pos 1]
        normalized = tap("hook_normalized", wide / scale.unsqueeze(-1))
        return (normalized * self.gain.view(x.shape[-2:])).to(self.weight.dtype)


class OLMo2Attention(nn.Module):
    """Causal attention with rotated queries and keys; groups of heads share a key and a value."""

    def __init__(self, config: OLMo2Config) -> None:
        super().__init__()
        self.d_head, d_model, bias = config.d_head, config.d_model, config.attention_bias
        heads, kv_heads = config.n_heads * self.d_head, config.n_kv_heads * self.d_head
        self.q_proj = Linear(d_model, heads, bias=bias)
        self.k_proj = Linear(d_model, kv_heads, bias=bias)
        self.v_proj = Linear(d_model, kv_heads, bias=bias)
        self.o_proj = Linear(heads, d_model, bias=bias)
        self.q_norm = NormOfAllHeads(heads, config.rms_norm_eps)
        self.k_norm = NormOfAllHeads(kv_heads, config.rms_norm_eps)

    def forward(
        self, x: Tensor, visible: Tensor | None, angles: Turn, tap: Taps,
        at: Tensor | None = None, extend: Extend | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the output of attention, shape [batch pos d_model], or [batch n_at d_model].

        Args:
            x: residual stream, shape [batch pos d_model].
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
        q, k = self.q_norm(q, tap.within("q_norm")), self.k_norm(k, tap.within("k_norm"))
        q, k = tap("hook_rot_q", rotate(q, angles)), tap("hook_rot_k", rotate(k, angles))
        if extend is not None:
            k, v = extend(k, v)  # [batch key_pos n_kv_heads d_head]
        z = tap("hook_z", attend_heads(q, k, v, visible, tap, at=at))
        return project_heads(z, self.o_proj, tap)


class OLMo2Block(nn.Module):
    """Transformer block: attention and gated MLP, each before an RMS norm and added to the stream.

    Args:
        config: sizes and switches.
    """

    def __init__(self, config: OLMo2Config) -> None:
        super().__init__()
        self.self_attn = OLMo2Attention(config)
        self.post_attention_layernorm = RMSNorm(config.d_model, config.rms_norm_eps)
        self.mlp = GatedMLP(config.d_model, config.d_mlp, SILU, bias=False)
        self.post_feedforward_layernorm = RMSNorm(config.d_model, config.rms_norm_eps)

    def forward(
        self, resid: Tensor, visible: Tensor | None, angles: Turn, tap: Taps,
        at: Tensor | None = None, extend: Extend | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the residual stream after this block; arguments as in `OLMo2Attention`."""
        resid = tap("hook_resid_pre", resid)
        x = self._as_weights(resid)
        heads_out = self.self_attn(x, visible, angles, tap.within("attn"), at, extend)
        attn_out = self.post_attention_layernorm(heads_out, tap.within("ln1_post"))
        if at is not None:
            resid = select_positions(resid, at)
        resid = tap("hook_resid_mid", resid + tap("hook_attn_out", attn_out))
        return self.after_attention(resid, tap)

    def after_attention(self, resid: Tensor, tap: Taps) -> Tensor:
        """Return the residual stream after this block, from that after its attention."""
        neurons_out = self.mlp(self._as_weights(resid), tap.within("mlp"))
        mlp_out = self.post_feedforward_layernorm(neurons_out, tap.within("ln2_post"))
        return tap("hook_resid_post", resid + tap("hook_mlp_out", mlp_out))

    def _as_weights(self, resid: Tensor) -> Tensor:
        """Return the stream in the dtype of the weights, since no norm comes before the maps."""
        return resid.to(self.post_attention_layernorm.weight.dtype)


class OLMo2(Decoder):
    """OLMo 2 with a tap at every site.

    Args:
        config: sizes and switches.
        seed: random seed for the initialisation. None leaves the weights on the meta device,
            without storage, to be filled by `load_state_dict(..., assign=True)`.

    >>> sizes = {"vocab_size": 97, "hidden_size": 24, "intermediate_size": 11}
    >>> heads = {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}
    >>> model = OLMo2(OLMo2Config(**sizes, **heads))
    >>> logits, cache = model.run_with_cache(torch.tensor([[3, 14, 15]]), ["blocks.*.attn.hook_k"])
    >>> logits.shape, cache["k", 0].shape
    (torch.Size([1, 3, 97]), torch.Size([1, 3, 2, 4]))
    """

    CONFIG = OLMo2Config
    config: OLMo2Config

    def __init__(self, config: OLMo2Config, seed: int | None = 0) -> None:
        super().__init__(config)
        self.frequencies = frequencies(config.rotary, config.d_head)  # no parameter, and no buffer
        with torch.device("meta"):
            self.embed_tokens = embedding(config.vocab_size, config.hidden_size)
            self.layers = nn.ModuleList(OLMo2Block(config) for _ in range(config.n_layers))
            self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
            if not config.tie_word_embeddings:
                self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if seed is not None:
            self.to_empty(device="cpu")
            initialise(self, seed, output_maps=("o_proj.weight", "down_proj.weight"))
        self.eval()

    @property
    def token_embedding(self) -> Tensor:
        """Embedding of every token, shape [d_vocab d_model]."""
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
        """Gain of the final RMS norm, shape [d_model]."""
        return self.norm.gain

    @property
    def final_norm_bias(self) -> None:
        """None: an RMS norm has no bias."""
        return

    def attention_norm_gain(self, layer: int) -> Tensor:
        """Return the gain of the norm between the heads of a layer and the stream, [d_model]."""
        return cast(OLMo2Block, self.layers[layer]).post_attention_layernorm.gain

    def head_output(self, layer: int) -> tuple[Tensor, Tensor | None]:
        """Return W_O of a layer's heads, [d_model (n_heads d_head)], and its bias, [d_model]."""
        o_proj = cast(OLMo2Block, self.layers[layer]).self_attn.o_proj
        return o_proj.weight, o_proj.bias

    def mlp_output(self, layer: int) -> Tensor:
        """Return W_out of a layer's MLP, shape [d_model d_mlp]."""
        return cast(OLMo2Block, self.layers[layer]).mlp.down_proj.weight

    def residual_stream(self, tokens: Tensor, context: Context, tap: Taps) -> Tensor:
        """Return the residual stream after the last block, shape [batch pos d_model]."""
        resid = stream_of(tap("hook_embed", self.embed_tokens(tokens)))
        return self.run_blocks(resid, context, tap)

    def run_blocks(self, resid: Tensor, context: Context, tap: Taps, start: int = 0) -> Tensor:
        """Return the residual stream after the last block, from that before block `start`."""
        angles = turn(context.positions.to(self.device), self.frequencies)
        for layer in range(start, len(self.layers)):
            at = context.at if layer == len(self.layers) - 1 else None
            taps, extend = tap.within(f"blocks.{layer}"), context.extend(layer)
            resid = self.layers[layer](resid, context.visible, angles, taps, at, extend)
        return resid

    def normed(self, resid: Tensor, tap: Taps) -> Tensor:
        """Return the final RMS norm of the residual stream."""
        return cast(Tensor, self.norm(resid, tap))
