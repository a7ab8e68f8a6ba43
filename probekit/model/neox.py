"""Pythia and GPT-NeoX, written to be read.

    NeoX:  resid = embed_in[tokens]; Block, ..., Block
           logits = final_layer_norm(resid) @ embed_out.T
    Block: resid = resid + attention(input_layernorm(resid)) + mlp(post_attention_layernorm(resid))

Attention and MLP of a block read the same residual stream, so that there is none between them. Each
block rotates a quarter of the features of its queries and keys by angles proportional to their
positions. families/neox.py lists the sites. Parameters have the names of the Hugging Face
checkpoints.

Source: Black et al. 2022, "GPT-NeoX-20B: An Open-Source Autoregressive Language Model"; Biderman et
al. 2023, "Pythia: A Suite for Analyzing Large Language Models Across Training and Scaling".
"""

from __future__ import annotations

from typing import cast

import torch
from einops import rearrange
from torch import Tensor, nn

from probekit.model.decoder import Decoder, embedding, stream_of
from probekit.model.families.neox import NeoXConfig
from probekit.model.initialisation import initialise
from probekit.model.layers.attention import attend_heads, project_heads, select_positions
from probekit.model.layers.layer_norm import LayerNorm
from probekit.model.layers.linear import Linear
from probekit.model.layers.rotary import Turn, frequencies, rotate, turn
from probekit.model.passes.context import Context
from probekit.model.passes.kv_cache import Extend
from probekit.model.passes.taps import Taps
from probekit.products import GELU, GELU_TANH


class NeoXAttention(nn.Module):
    """Causal attention of several heads with rotated queries and keys."""

    def __init__(self, config: NeoXConfig) -> None:
        super().__init__()
        self.n_heads, d_model = config.n_heads, config.d_model
        self.query_key_value = Linear(d_model, 3 * d_model, bias=config.attention_bias)
        self.dense = Linear(d_model, d_model, bias=config.attention_bias)

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
        qkv = rearrange(
            self.query_key_value(x),
            "batch pos (n_heads qkv d_head) -> qkv batch pos n_heads d_head",
            qkv=3, n_heads=self.n_heads,
        )  # fmt: skip
        # Indexed, not unpacked: torch forbids in-place changes to unpacked views.
        q, k, v = tap("hook_q", qkv[0]), tap("hook_k", qkv[1]), tap("hook_v", qkv[2])
        q, k = tap("hook_rot_q", rotate(q, angles)), tap("hook_rot_k", rotate(k, angles))
        if extend is not None:
            k, v = extend(k, v)  # [batch key_pos n_heads d_head]
        z = tap("hook_z", attend_heads(q, k, v, visible, tap, at=at))
        return project_heads(z, self.dense, tap)


class NeoXMLP(nn.Module):
    """Feed-forward layer with d_mlp neurons and a GELU, exact or approximated by tanh."""

    def __init__(self, config: NeoXConfig) -> None:
        super().__init__()
        self.dense_h_to_4h = Linear(config.d_model, config.d_mlp)
        self.dense_4h_to_h = Linear(config.d_mlp, config.d_model)
        self.activation = GELU if config.hidden_act == "gelu" else GELU_TANH

    def forward(self, x: Tensor, tap: Taps) -> Tensor:
        """Return the output of the MLP, shape [batch pos d_model]."""
        post = self.dense_h_to_4h.activated(x, self.activation, tap)  # [batch pos d_mlp]
        return cast(Tensor, self.dense_4h_to_h(tap("hook_post", post)))


class NeoXBlock(nn.Module):
    """Transformer block: attention and MLP, each after a layer norm and added to the stream.

    Parallel blocks read the same residual stream twice; in others the MLP reads the stream after
    attention.
    """

    def __init__(self, config: NeoXConfig) -> None:
        super().__init__()
        self.is_parallel = config.use_parallel_residual
        self.input_layernorm = LayerNorm(config.d_model, config.layer_norm_eps)
        self.attention = NeoXAttention(config)
        self.post_attention_layernorm = LayerNorm(config.d_model, config.layer_norm_eps)
        self.mlp = NeoXMLP(config)

    def forward(
        self, resid: Tensor, visible: Tensor | None, angles: Turn, tap: Taps,
        at: Tensor | None = None, extend: Extend | None = None,
    ) -> Tensor:  # fmt: skip
        """Return the residual stream after this block; arguments as in `NeoXAttention`."""
        resid = tap("hook_resid_pre", resid)
        normed = self.input_layernorm(resid, tap.within("ln1"))
        attn_out = self.attention(normed, visible, angles, tap.within("attn"), at, extend)
        if at is not None:
            resid = select_positions(resid, at)
        attn_out = tap("hook_attn_out", attn_out)
        if self.is_parallel:
            return tap("hook_resid_post", resid + attn_out + self._mlp_out(resid, tap))
        return self.after_attention(tap("hook_resid_mid", resid + attn_out), tap)

    def after_attention(self, resid: Tensor, tap: Taps) -> Tensor:
        """Return the residual stream after a sequential block, from that after its attention."""
        return tap("hook_resid_post", resid + self._mlp_out(resid, tap))

    def _mlp_out(self, resid: Tensor, tap: Taps) -> Tensor:
        normed = self.post_attention_layernorm(resid, tap.within("ln2"))
        return tap("hook_mlp_out", self.mlp(normed, tap.within("mlp")))


class NeoX(Decoder):
    """Pythia or GPT-NeoX with a tap at every site.

    Args:
        config: sizes and switches.
        seed: random seed for the initialisation. None leaves the weights on the meta device,
            without storage, to be filled by `load_state_dict(..., assign=True)`.

    >>> sizes = {"vocab_size": 97, "hidden_size": 24, "intermediate_size": 11}
    >>> model = NeoX(NeoXConfig(**sizes, num_hidden_layers=2, num_attention_heads=6))
    >>> logits, cache = model.run_with_cache(torch.tensor([[3, 14, 15]]), ["blocks.*.attn.hook_z"])
    >>> logits.shape, cache["z", 1].shape
    (torch.Size([1, 3, 97]), torch.Size([1, 3, 6, 4]))
    """

    CONFIG = NeoXConfig
    config: NeoXConfig

    def __init__(self, config: NeoXConfig, seed: int | None = 0) -> None:
        super().__init__(config)
        self.frequencies = frequencies(config.rotary, config.d_head)  # no parameter, and no buffer
        with torch.device("meta"):
            self.embed_in = embedding(config.vocab_size, config.hidden_size)
            layers = range(config.num_hidden_layers)
            self.layers = nn.ModuleList(NeoXBlock(config) for _ in layers)
            self.final_layer_norm = LayerNorm(config.hidden_size, config.layer_norm_eps)
            if not config.tie_word_embeddings:
                self.embed_out = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if seed is not None:
            self.to_empty(device="cpu")
            initialise(self, seed, output_maps=("attention.dense.weight", "dense_4h_to_h.weight"))
        self.eval()

    @property
    def token_embedding(self) -> Tensor:
        """Embedding of every token, shape [d_vocab d_model]."""
        return self.embed_in.weight

    @property
    def blocks(self) -> nn.ModuleList:
        """The blocks, in order."""
        return self.layers

    @property
    def unembedding(self) -> Tensor:
        """Matrix from the output of the final norm to the logits, shape [d_vocab d_model]."""
        unembedding = self.embed_in if self.config.tie_word_embeddings else self.embed_out
        return unembedding.weight

    @property
    def position_embedding(self) -> None:
        """None: there are no learned position embeddings."""
        return

    @property
    def final_norm_gain(self) -> Tensor:
        """Gain of the final layer norm, shape [d_model]."""
        return self.final_layer_norm.weight

    @property
    def final_norm_bias(self) -> Tensor | None:
        """Bias of the final layer norm, shape [d_model]."""
        return self.final_layer_norm.bias

    def head_output(self, layer: int) -> tuple[Tensor, Tensor | None]:
        """Return W_O of a layer's heads, [d_model (n_heads d_head)], and its bias, [d_model]."""
        dense = cast(NeoXBlock, self.layers[layer]).attention.dense
        return dense.weight, dense.bias

    def mlp_output(self, layer: int) -> Tensor:
        """Return W_out of a layer's MLP, shape [d_model d_mlp]."""
        return cast(NeoXBlock, self.layers[layer]).mlp.dense_4h_to_h.weight

    def residual_stream(self, tokens: Tensor, context: Context, tap: Taps) -> Tensor:
        """Return the residual stream after the last block, shape [batch pos d_model]."""
        resid = stream_of(tap("hook_embed", self.embed_in(tokens)))
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
        """Return the final layer norm of the residual stream."""
        return cast(Tensor, self.final_layer_norm(resid, tap))
