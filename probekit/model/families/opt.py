"""OPT, written to be read.

    OPT:   resid = embed_tokens[tokens] + embed_positions[2 + positions]; Block, ..., Block
           logits = final_layer_norm(resid) @ embed_tokens.T
    Block: resid = resid + self_attn(self_attn_layer_norm(resid))
           resid = resid + fc2(relu(fc1(final_layer_norm(resid))))

Positions are learned vectors; the first two rows of their matrix are never read. Parameters have
the names of the Hugging Face checkpoints.

Source: Zhang et al. 2022, "OPT: Open Pre-trained Transformer Language Models".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch.nn.functional as F
from torch import Tensor, nn

from probekit.model import config as base
from probekit.model.families import gpt2
from probekit.model.families.rotary import ResidualBlock
from probekit.model.layers.modules import LayerNorm, Linear, attend_heads
from probekit.model.network import FamilyNetwork, embedding, stream_of
from probekit.model.passes.context import BlockContext, Context
from probekit.model.passes.taps import Taps
from probekit.model.sites.catalogue import Site, heads_of, table
from probekit.products import RELU, to_device

_OF_GPT2 = {site.name: site.formula for site in gpt2.SITES}
SITES = table(
    _OF_GPT2
    | {
        "hook_embed": "embed_tokens[tokens]",
        "hook_pos_embed": "embed_positions[2 + positions]",
        **heads_of("self_attn_layer_norm(resid_pre)", biases=True),
        "blocks.{l}.mlp.hook_pre": "final_layer_norm(resid_mid) W_in + b_in",
        "blocks.{l}.mlp.hook_post": "relu(pre)",
    }
)

_BLOCK = "decoder.layers.{l}."
_ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")
_SQUARE, _BIAS = ("d_model", "d_model"), "has_bias"
COMPONENTS = (  # in forward order
    base.Component("token embedding", "decoder.embed_tokens", ("d_vocab", "d_model")),
    base.Component("position embedding", "decoder.embed_positions", ("n_positions", "d_model")),
    base.Component("ln1", _BLOCK + "self_attn_layer_norm", ("d_model",), _BIAS),
    *(
        base.Component(f"attn.{name}", f"{_BLOCK}self_attn.{name}", _SQUARE, _BIAS, "attention")
        for name in _ATTENTION
    ),
    base.Component("ln2", _BLOCK + "final_layer_norm", ("d_model",), _BIAS),
    base.Component("mlp.fc1", _BLOCK + "fc1", ("d_model", "d_mlp"), _BIAS, "MLP"),
    base.Component("mlp.fc2", _BLOCK + "fc2", ("d_mlp", "d_model"), _BIAS, "MLP"),
    base.Component("final norm", "decoder.final_layer_norm", ("d_model",), _BIAS),
    base.Component("unembedding", "lm_head", ("d_vocab", "d_model"), tied="tie_word_embeddings"),
)

WEIGHTS = base.WeightNames(
    embedding="decoder.embed_tokens.weight",
    layers="decoder.layers.",
    sizes=(
        ("decoder.embed_tokens.weight", ("vocab_size", "hidden_size")),
        ("decoder.layers.0.fc1.weight", ("ffn_dim",)),
    ),
    norm="decoder.final_layer_norm",
    heads="self_attn.out_proj",
    neurons="fc2",
)

EPSILON = 1e-5  # of the layer norms: config.json has no key for it
UNUSED_POSITIONS = 2  # rows before that of the first position


@dataclass(frozen=True)
class OPTConfig(base.ModelConfig):
    """Sizes and switches of an OPT; the defaults are those of OPT 125M.

    >>> OPTConfig().d_head, OPTConfig().n_ctx
    (64, 2048)

    Raises:
        ConfigError: a size is not a positive integer, the number of heads does not divide the
            width, or a switch or the `model_type` is invalid.
    """

    TITLE: ClassVar[str] = "OPT"
    KINDS: ClassVar[Mapping[str, base.Kind]] = {"opt": base.Kind()}
    WEIGHTS: ClassVar[base.WeightNames] = WEIGHTS
    VOCABULARY: ClassVar[Sequence[tuple[str, ...]]] = (
        *base.ModelConfig.VOCABULARY,
        ("vocab.json", "merges.txt", "tokenizer_config.json"),
    )
    REQUIRED: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "activation_function": ("relu",),
        "do_layer_norm_before": (True,),
        "_remove_final_layer_norm": (False,),
        "enable_bias": (True,),
        "layer_norm_elementwise_affine": (True,),
    }
    # Other widths of the embeddings need maps to and from the residual stream.
    REPEATS: ClassVar[Mapping[str, str]] = {"word_embed_proj_dim": "hidden_size"}
    site_rows: ClassVar[tuple[Site, ...]] = SITES
    components: ClassVar[tuple[base.Component, ...]] = COMPONENTS
    norm_is_centred: ClassVar[bool] = True
    norm_epsilon: ClassVar[float] = EPSILON
    has_bias: ClassVar[bool] = True  # all maps and norms have biases

    model_type: str = "opt"
    vocab_size: int = 50272  # d_vocab
    hidden_size: int = 768  # d_model
    ffn_dim: int = 3072  # d_mlp
    num_hidden_layers: int = 12  # n_layers
    num_attention_heads: int = 12  # n_heads
    max_position_embeddings: int = 2048  # n_ctx
    tie_word_embeddings: bool = True  # the unembedding is the token embedding
    bos_token_id: int | list[int] | None = field(default=2, compare=False, kw_only=True)
    eos_token_id: int | list[int] | None = field(default=2, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_divides("num_attention_heads", "hidden_size")

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Size of each axis that does not depend on the input."""
        return {
            "d_model": self.hidden_size,
            "n_heads": self.num_attention_heads,
            "d_head": self.hidden_size // self.num_attention_heads,
            "d_mlp": self.ffn_dim,
            "d_vocab": self.vocab_size,
            "n_ctx": self.max_position_embeddings,
            "n_positions": self.max_position_embeddings + UNUSED_POSITIONS,
            "n_layers": self.num_hidden_layers,
            "1": 1,  # the axis of a norm's scale
        }


class OPTAttention(nn.Module):
    """Causal multi-head attention."""

    def __init__(self, config: OPTConfig) -> None:
        super().__init__()
        self.n_heads, d_model = config.n_heads, config.d_model
        self.q_proj = Linear(d_model, d_model)
        self.k_proj = Linear(d_model, d_model)
        self.v_proj = Linear(d_model, d_model)
        self.out_proj = Linear(d_model, d_model)

    def forward(self, x: Tensor, context: BlockContext, tap: Taps) -> Tensor:
        """Return the output of attention; arguments and shape as in `Attention` of gpt2.py."""
        q = tap("hook_q", self.q_proj(x).unflatten(-1, (self.n_heads, -1)))
        k = tap("hook_k", self.k_proj(x).unflatten(-1, (self.n_heads, -1)))
        v = tap("hook_v", self.v_proj(x).unflatten(-1, (self.n_heads, -1)))
        return attend_heads(q, k, v, self.out_proj, context, tap)


class OPTBlock(ResidualBlock):
    """Transformer block: attention and MLP, each after a layer norm and added to the stream."""

    def __init__(self, config: OPTConfig) -> None:
        super().__init__()
        self.self_attn_layer_norm = LayerNorm(config.d_model, EPSILON)
        self.self_attn = OPTAttention(config)
        self.final_layer_norm = LayerNorm(config.d_model, EPSILON)
        self.fc1 = Linear(config.d_model, config.d_mlp)
        self.fc2 = Linear(config.d_mlp, config.d_model)

    def _attn_out(self, resid: Tensor, context: BlockContext, tap: Taps) -> Tensor:
        normed = self.self_attn_layer_norm(resid, tap.within("ln1"))
        return cast(Tensor, self.self_attn(normed, context, tap.within("attn")))

    def _mlp_out(self, resid: Tensor, tap: Taps) -> Tensor:
        normed, in_mlp = self.final_layer_norm(resid, tap.within("ln2")), tap.within("mlp")
        post = in_mlp("hook_post", self.fc1.activated(normed, RELU, in_mlp))  # [batch pos d_mlp]
        return cast(Tensor, self.fc2(post))


class OPT(FamilyNetwork):
    """OPT with a tap at every site; arguments as in `GPT2`.

    >>> import torch
    >>> sizes = {"vocab_size": 97, "hidden_size": 24, "ffn_dim": 11}
    >>> model = OPT(OPTConfig(**sizes, num_hidden_layers=2, num_attention_heads=6))
    >>> logits, cache = model.run_with_cache(torch.tensor([[3, 14, 15]]), ["blocks.*.attn.hook_q"])
    >>> logits.shape, cache["q", 0].shape
    (torch.Size([1, 3, 97]), torch.Size([1, 3, 6, 4]))
    """

    CONFIG = OPTConfig
    config: OPTConfig

    def _build(self) -> None:
        config, d_model = self.config, self.config.d_model
        parts = {
            "embed_tokens": embedding(config.vocab_size, d_model),
            "embed_positions": embedding(config.axis_sizes["n_positions"], d_model),
            "layers": nn.ModuleList(OPTBlock(config) for _ in range(config.n_layers)),
            "final_layer_norm": LayerNorm(d_model, EPSILON),
        }
        self.decoder = nn.ModuleDict(parts)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(d_model, config.vocab_size, bias=False)

    @property
    def position_embedding(self) -> Tensor:
        """Embedding of every position, shape [n_ctx d_model]."""
        return self.get_parameter("decoder.embed_positions.weight")[UNUSED_POSITIONS:]

    def embedded(self, tokens: Tensor, context: Context, tap: Taps) -> Tensor:
        """Return the residual stream before the first block, shape [batch pos d_model]."""
        embed = stream_of(tap("hook_embed", F.embedding(tokens, self.token_embedding)))
        positions = to_device(context.positions, context.device)
        return embed + tap("hook_pos_embed", F.embedding(positions, self.position_embedding))
