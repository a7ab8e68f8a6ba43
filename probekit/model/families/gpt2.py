"""GPT-2, written to be read.

    GPT2:  resid = wte[tokens] + wpe[positions]; Block, ..., Block; logits = ln_f(resid) @ wte.T
    Block: resid = resid + attn(ln_1(resid)); resid = resid + mlp(ln_2(resid))

Every intermediate tensor passes through a tap at its site: `tap("hook_x", x)` returns x, or the
value that the caller of the forward pass substitutes for it. `SITES` lists them all.
Parameters have the names of the Hugging Face checkpoints.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", and the code
published with it (tanh GELU, layer norm before each sublayer, learned position embeddings).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from einops import rearrange
from torch import Tensor, nn

from probekit.errors import ConfigError
from probekit.model.config import (
    Component,
    Kind,
    ModelConfig,
    WeightNames,
    check_between_0_and_1,
    is_number,
)
from probekit.model.layers.modules import LayerNorm, Linear, attend_heads
from probekit.model.network import FamilyNetwork, embedding, stream_of
from probekit.model.passes.context import BlockContext, Context
from probekit.model.passes.taps import Taps
from probekit.model.sites.catalogue import Site, heads_of, table
from probekit.model.weights.sources import VOCABULARY_FILES
from probekit.products import GELU_TANH, to_device

SITES = table(
    {  # in forward order
        "hook_embed": "wte[tokens]",
        "hook_pos_embed": "wpe[positions]",
        "blocks.{l}.hook_resid_pre": "embed + pos_embed, or resid_post of block l-1",
        "blocks.{l}.ln1.hook_scale": "sqrt(var(resid_pre) + eps)",
        "blocks.{l}.ln1.hook_normalized": "(resid_pre - mean) / scale",
        **heads_of("ln_1(resid_pre)", biases=True),
        "blocks.{l}.attn.hook_attn_scores": "q k / sqrt(d_head), -inf where masked",
        "blocks.{l}.attn.hook_pattern": "softmax(attn_scores) over key_pos",
        "blocks.{l}.attn.hook_z": "pattern v",
        "blocks.{l}.attn.hook_result": "z W_O per head, without b_O",
        "blocks.{l}.hook_attn_out": "z W_O + b_O",
        "blocks.{l}.hook_resid_mid": "resid_pre + attn_out",
        "blocks.{l}.ln2.hook_scale": "sqrt(var(resid_mid) + eps)",
        "blocks.{l}.ln2.hook_normalized": "(resid_mid - mean) / scale",
        "blocks.{l}.mlp.hook_pre": "ln_2(resid_mid) W_in + b_in",
        "blocks.{l}.mlp.hook_post": "gelu_tanh(pre)",
        "blocks.{l}.hook_mlp_out": "post W_out + b_out",
        "blocks.{l}.hook_resid_post": "resid_mid + mlp_out",
        "ln_final.hook_scale": "sqrt(var(resid_post of the last block) + eps)",
        "ln_final.hook_normalized": "(resid_post - mean) / scale",
    }
)

# In forward order: name, module, axes of the weight, member that turns on the bias, sublayer.
COMPONENTS = (
    Component("token embedding", "wte", ("d_vocab", "d_model")),
    Component("position embedding", "wpe", ("n_ctx", "d_model")),
    Component("ln_1", "h.{l}.ln_1", ("d_model",), "bias"),
    Component(
        "attn.c_attn", "h.{l}.attn.c_attn", ("d_model", "3 d_model"), "has_qkv_bias", "attention"
    ),
    Component("attn.c_proj", "h.{l}.attn.c_proj", ("d_model", "d_model"), "bias", "attention"),
    Component("ln_2", "h.{l}.ln_2", ("d_model",), "bias"),
    Component("mlp.c_fc", "h.{l}.mlp.c_fc", ("d_model", "d_mlp"), "bias", "MLP"),
    Component("mlp.c_proj", "h.{l}.mlp.c_proj", ("d_mlp", "d_model"), "bias", "MLP"),
    Component("final norm", "ln_f", ("d_model",), "bias"),
    Component("unembedding", "lm_head", ("d_vocab", "d_model"), tied="tie_word_embeddings"),
)

WEIGHTS = WeightNames(
    prefix="transformer.",
    embedding="wte.weight",
    layers="h.",
    n_layers="n_layer",
    sizes=(("wte.weight", ("vocab_size", "n_embd")), ("wpe.weight", ("n_positions", "n_embd"))),
    buffers=r"^h\.\d+\.attn\.(masked_)?bias$",  # causal masks in old checkpoints
    transposed=r"\.(c_attn|c_proj|c_fc)\.weight$",  # the hub stores them as Conv1D
    switches=(
        ("lm_head.weight", '"tie_word_embeddings": false'),
        (".c_attn.bias", '"qkv_bias": true'),
        (".bias", '"bias": true'),
    ),
    norm="ln_f",
    heads="attn.c_proj",
    neurons="mlp.c_proj",
)


@dataclass(frozen=True)
class GPT2Config(ModelConfig):
    """Sizes and switches of one GPT-2; the defaults are those of GPT-2 small.

    The comment after each size is the name of the axis that has this size.

    Source: config.json of the published checkpoints; `bias` and `qkv_bias` are our additions.

    >>> GPT2Config(n_layer=4, n_head=3, n_embd=21).d_head
    7
    >>> GPT2Config(bias=False).has_qkv_bias
    False

    Raises:
        ConfigError: a size is not a positive integer, n_head does not divide n_embd, a dropout
            rate is outside [0, 1), another number is not between 0 and 1, or a switch is not a
            boolean.
    """

    TITLE: ClassVar[str] = "GPT-2"
    KINDS: ClassVar[Mapping[str, Kind]] = {"gpt2": Kind()}
    WEIGHTS: ClassVar[WeightNames] = WEIGHTS
    VOCABULARY: ClassVar[Sequence[tuple[str, ...]]] = VOCABULARY_FILES
    REQUIRED: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    }
    OTHER_NAMES: ClassVar[Mapping[str, str]] = {
        "n_embd": "hidden_size",
        "n_positions": "max_position_embeddings",
        "n_head": "num_attention_heads",
        "n_layer": "num_hidden_layers",
    }
    OTHER_KEYS: ClassVar[frozenset[str]] = frozenset({"n_ctx"})  # of old files, with n_positions
    site_rows: ClassVar[tuple[Site, ...]] = SITES
    components: ClassVar[tuple[Component, ...]] = COMPONENTS
    norm_is_centred: ClassVar[bool] = True

    vocab_size: int = 50257  # d_vocab
    n_positions: int = 1024  # n_ctx
    n_embd: int = 768  # d_model
    n_layer: int = 12  # n_layers
    n_head: int = 12  # n_heads
    n_inner: int | None = None  # d_mlp; None means 4 * n_embd
    layer_norm_epsilon: float = 1e-5
    initializer_range: float = 0.02
    embd_pdrop: float = 0.1  # dropout rate on the sum of the embeddings, in training only
    attn_pdrop: float = 0.1  # on the attention pattern
    resid_pdrop: float = 0.1  # on the output of each sublayer
    bias: bool = True  # linear maps and layer norms have a bias
    qkv_bias: bool | None = None  # c_attn has a bias; None means the value of `bias`
    tie_word_embeddings: bool = True  # the unembedding is the token embedding

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_divides("n_head", "n_embd")
        check_between_0_and_1(self, ("layer_norm_epsilon", "initializer_range"))
        for name in ("embd_pdrop", "attn_pdrop", "resid_pdrop"):
            if not is_number(getattr(self, name)) or not 0 <= getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} must be a dropout rate of at least 0 and below 1, not "
                    f"{getattr(self, name)!r}."
                )

    @property
    def has_qkv_bias(self) -> bool:
        """Whether c_attn, the map to queries, keys and values, has a bias."""
        return self.bias if self.qkv_bias is None else self.qkv_bias

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Size of each axis that does not depend on the input.

        >>> GPT2Config().axis_sizes["d_mlp"]
        3072
        """
        return {
            "d_model": self.n_embd,
            "n_heads": self.n_head,
            "d_head": self.n_embd // self.n_head,
            "d_mlp": 4 * self.n_embd if self.n_inner is None else self.n_inner,
            "d_vocab": self.vocab_size,
            "n_ctx": self.n_positions,
            "n_layers": self.n_layer,
            "1": 1,  # the axis of a norm's scale
        }

    @property
    def norm_epsilon(self) -> float:
        """Number that the layer norms add to the variance."""
        return self.layer_norm_epsilon

    def to_hub(self) -> dict[str, Any]:
        """Return the contents of config.json, with special tokens.

        BOS and EOS are by default `<|endoftext|>` for GPT-2's vocabulary.
        """
        entries = {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "activation_function": "gelu_new",
            **super().to_hub(),
        }
        gpt2_size = type(self).vocab_size  # the default of the field: GPT-2's vocabulary
        for key in ("bos_token_id", "eos_token_id"):
            if entries[key] is None and self.vocab_size == gpt2_size:
                entries[key] = gpt2_size - 1
        return entries


# Configs of the published models, by name on the hub.
PUBLISHED = {
    "gpt2": GPT2Config(),
    "gpt2-medium": GPT2Config(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": GPT2Config(n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": GPT2Config(n_layer=48, n_head=25, n_embd=1600),
}


class Attention(nn.Module):
    """Causal multi-head attention."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.n_heads = config.n_head
        self.pdrop = config.attn_pdrop
        self.c_attn = Linear(config.n_embd, 3 * config.n_embd, bias=config.has_qkv_bias)
        self.c_proj = Linear(config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x: Tensor, context: BlockContext, tap: Taps) -> Tensor:
        """Return the output of attention, shape [batch pos d_model], or [batch n_at d_model].

        Args:
            x: normalized residual stream, shape [batch pos d_model].
            context: visibility, earlier keys and values, and positions of the queries.
            tap: taps at the sites of this module.
        """
        qkv = rearrange(
            self.c_attn(x), "batch pos (qkv n_heads d_head) -> qkv batch pos n_heads d_head",
            qkv=3, n_heads=self.n_heads,
        )  # fmt: skip
        # Indexed, not unpacked: torch forbids in-place changes to unpacked views.
        q, k, v = tap("hook_q", qkv[0]), tap("hook_k", qkv[1]), tap("hook_v", qkv[2])
        pdrop = self.pdrop if self.training else 0.0
        return attend_heads(q, k, v, self.c_proj, context, tap, pdrop=pdrop)


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

    def forward(self, resid: Tensor, context: BlockContext, tap: Taps) -> Tensor:
        """Return the residual stream after this block; arguments and shape as in `Attention`."""
        resid = tap("hook_resid_pre", resid)
        normed = self.ln_1(resid, tap.within("ln1"))
        attn_out = self.attn(normed, context, tap.within("attn"))
        resid = context.selected(resid)
        resid = tap("hook_resid_mid", resid + tap("hook_attn_out", self.drop(attn_out)))
        return self.after_attention(resid, tap)

    def after_attention(self, resid: Tensor, tap: Taps) -> Tensor:
        """Return the residual stream after this block, from that after its attention."""
        mlp_out = self.mlp(self.ln_2(resid, tap.within("ln2")), tap.within("mlp"))
        return tap("hook_resid_post", resid + tap("hook_mlp_out", self.drop(mlp_out)))


class GPT2(FamilyNetwork):
    """GPT-2 with a tap at every site.

    Args:
        config: sizes and switches.
        seed: random seed for GPT-2's initialisation. None leaves the weights on the meta device,
            without storage, to be filled by `load_state_dict(..., assign=True)`.

    >>> import torch
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

    def _build(self) -> None:
        config = self.config
        self.wte = embedding(config.vocab_size, config.n_embd)
        self.wpe = embedding(config.n_positions, config.n_embd)
        self.drop = nn.Dropout(config.embd_pdrop)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = LayerNorm(config.n_embd, config.layer_norm_epsilon, bias=config.bias)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    @property
    def position_embedding(self) -> Tensor:
        """Embedding of every position, shape [n_ctx d_model]."""
        return self.get_parameter("wpe.weight")

    def embedded(self, tokens: Tensor, context: Context, tap: Taps) -> Tensor:
        """Return the residual stream before the first block, shape [batch pos d_model]."""
        embed = stream_of(tap("hook_embed", self.wte(tokens)))
        pos_embed = tap("hook_pos_embed", self.wpe(to_device(context.positions, context.device)))
        return cast(Tensor, self.drop(embed + pos_embed))
