"""GPT-2, written to be read.

    GPT2:  resid = wte[tokens] + wpe[positions]; Block, ..., Block; logits = ln_f(resid) @ wte.T
    Block: resid = resid + attn(ln_1(resid)); resid = resid + mlp(ln_2(resid))

Every intermediate tensor passes through a tap at its site: `tap("hook_x", x)` returns x, or the
value that the caller of the forward pass substitutes for it. families/gpt2.py lists all sites.
Parameters have the names of the Hugging Face checkpoints.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", and the code
published with it (tanh GELU, layer norm before each sublayer, learned position embeddings).
"""

from __future__ import annotations

from typing import cast

import torch
from einops import rearrange
from torch import Tensor, nn

from probekit.model.decoder import Decoder, embedding, stream_of
from probekit.model.families.gpt2 import GPT2Config
from probekit.model.initialisation import initialise
from probekit.model.layers.attention import attend_heads, project_heads, select_positions
from probekit.model.layers.layer_norm import LayerNorm
from probekit.model.layers.linear import Linear
from probekit.model.passes.context import Context
from probekit.model.passes.kv_cache import Extend
from probekit.model.passes.taps import Taps
from probekit.products import GELU_TANH


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
        pdrop = self.pdrop if self.training else 0.0
        z = tap("hook_z", attend_heads(q, k, v, visible, tap, at=at, pdrop=pdrop))
        return project_heads(z, self.c_proj, tap)


class MLP(nn.Module):
    """Feed-forward layer with d_mlp neurons and a tanh GELU."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.c_fc = Linear(config.n_embd, config.d_mlp, bias=config.bias)
        self.c_proj = Linear(config.d_mlp, config.n_embd, bias=config.bias)

    def forward(self, x: Tensor, tap: Taps) -> Tensor:
        """Return the output of the MLP, shape [batch pos d_model]."""
        # GPT-2 was trained with this approximation; the exact GELU gives slightly wrong logits.
        post = self.c_fc.activated(x, GELU_TANH, tap)  # [batch pos d_mlp]
        return cast(Tensor, self.c_proj(tap("hook_post", post)))


class Block(nn.Module):
    """Transformer block: attention and MLP, each after a layer norm and added to the residual."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(config.n_embd, config.layer_norm_epsilon, bias=config.bias)
        self.attn = Attention(config)
        self.ln_2 = LayerNorm(config.n_embd, config.layer_norm_epsilon, bias=config.bias)
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
        return self.after_attention(resid, tap)

    def after_attention(self, resid: Tensor, tap: Taps) -> Tensor:
        """Return the residual stream after this block, from that after its attention."""
        mlp_out = self.mlp(self.ln_2(resid, tap.within("ln2")), tap.within("mlp"))
        return tap("hook_resid_post", resid + tap("hook_mlp_out", self.drop(mlp_out)))


class GPT2(Decoder):
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

    CONFIG = GPT2Config
    config: GPT2Config

    def __init__(self, config: GPT2Config, seed: int | None = 0) -> None:
        super().__init__(config)
        with torch.device("meta"):
            self.wte = embedding(config.vocab_size, config.n_embd)
            self.wpe = embedding(config.n_positions, config.n_embd)
            self.drop = nn.Dropout(config.embd_pdrop)
            self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
            self.ln_f = LayerNorm(config.n_embd, config.layer_norm_epsilon, bias=config.bias)
            if not config.tie_word_embeddings:
                self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if seed is not None:
            self.to_empty(device="cpu")
            initialise(self, seed, output_maps="c_proj.weight")
        self.eval()  # no dropout until model.train()

    @property
    def token_embedding(self) -> Tensor:
        """Embedding of every token, shape [d_vocab d_model]."""
        return self.wte.weight

    @property
    def blocks(self) -> nn.ModuleList:
        """The blocks, in order."""
        return self.h

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

    def head_output(self, layer: int) -> tuple[Tensor, Tensor | None]:
        """Return W_O of a layer's heads, [d_model (n_heads d_head)], and its bias, [d_model]."""
        c_proj = cast(Block, self.h[layer]).attn.c_proj
        return c_proj.weight, c_proj.bias

    def mlp_output(self, layer: int) -> Tensor:
        """Return W_out of a layer's MLP, shape [d_model d_mlp]."""
        return cast(Block, self.h[layer]).mlp.c_proj.weight

    def residual_stream(self, tokens: Tensor, context: Context, tap: Taps) -> Tensor:
        """Return the residual stream after the last block, shape [batch pos d_model]."""
        embed = stream_of(tap("hook_embed", self.wte(tokens)))
        pos_embed = tap("hook_pos_embed", self.wpe(context.positions.to(self.device)))
        return self.run_blocks(self.drop(embed + pos_embed), context, tap)

    def run_blocks(self, resid: Tensor, context: Context, tap: Taps, start: int = 0) -> Tensor:
        """Return the residual stream after the last block, from that before block `start`."""
        for layer in range(start, len(self.h)):
            at = context.at if layer == len(self.h) - 1 else None
            taps, extend = tap.within(f"blocks.{layer}"), context.extend(layer)
            resid = self.h[layer](resid, context.visible, taps, at, extend)
        return resid

    def normed(self, resid: Tensor, tap: Taps) -> Tensor:
        """Return the final layer norm of the residual stream."""
        return cast(Tensor, self.ln_f(resid, tap))
