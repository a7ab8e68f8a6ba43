"""Pythia and GPT-NeoX, written to be read.

    NeoX:  resid = embed_in[tokens]; Block, ..., Block
           logits = final_layer_norm(resid) @ embed_out.T
    Block: resid = resid + attention(input_layernorm(resid)) + mlp(post_attention_layernorm(resid))

Attention and MLP of a block read the same residual stream, so that there is none between them; with
`use_parallel_residual: false` the MLP reads the stream after attention. Each block rotates a share
of the features of its queries and keys, by default a quarter, by angles proportional to their
positions. Parameters have the names of the Hugging Face checkpoints.

Source: Black et al. 2022, "GPT-NeoX-20B: An Open-Source Autoregressive Language Model"; Biderman et
al. 2023, "Pythia: A Suite for Analyzing Large Language Models Across Training and Scaling".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from einops import rearrange
from torch import Tensor, nn

from probekit.errors import ConfigError
from probekit.model.config import Component, Kind, WeightNames, check_between_0_and_1
from probekit.model.families import gpt2
from probekit.model.families import rotary as shared
from probekit.model.layers.modules import LayerNorm, Linear, attend_heads
from probekit.model.passes.context import BlockContext
from probekit.model.passes.taps import Taps
from probekit.model.sites.catalogue import Site, heads_of, table
from probekit.products import GELU, GELU_TANH

# Formulas if the MLP reads the stream after attention, and if both read the same stream.
_IN_SEQUENCE = {site.name: site.formula for site in gpt2.SITES if site.name != "hook_pos_embed"}
_IN_SEQUENCE |= shared.FORMULAS | {
    "hook_embed": "embed_in[tokens]",
    **heads_of("input_layernorm(resid_pre)", biases=True),
    "blocks.{l}.attn.hook_rot_q": "q, its first rotary_ndims features rotated by its position",
    "blocks.{l}.attn.hook_rot_k": "k, its first rotary_ndims features rotated by its position",
    "blocks.{l}.mlp.hook_pre": "post_attention_layernorm(resid_mid) W_in + b_in",
    "blocks.{l}.mlp.hook_post": "gelu(pre)",
}
_IN_PARALLEL = _IN_SEQUENCE | {
    "blocks.{l}.ln2.hook_scale": "sqrt(var(resid_pre) + eps)",
    "blocks.{l}.ln2.hook_normalized": "(resid_pre - mean) / scale",
    "blocks.{l}.mlp.hook_pre": "post_attention_layernorm(resid_pre) W_in + b_in",
    "blocks.{l}.hook_resid_post": "resid_pre + attn_out + mlp_out",
}
del _IN_PARALLEL["blocks.{l}.hook_resid_mid"]
SITES_IN_SEQUENCE = table(_IN_SEQUENCE)
SITES_IN_PARALLEL = table(_IN_PARALLEL)

_BLOCK = "layers.{l}."
_ATTENTION = (
    ("attention.query_key_value", ("d_model", "3 d_model")),
    ("attention.dense", ("d_model", "d_model")),
)
_MLP = (("mlp.dense_h_to_4h", ("d_model", "d_mlp")), ("mlp.dense_4h_to_h", ("d_mlp", "d_model")))
_NORM = (("d_model",), "has_bias")  # axes, and the member that turns on the bias
COMPONENTS = (  # in forward order
    Component("token embedding", "embed_in", ("d_vocab", "d_model")),
    Component("input_layernorm", _BLOCK + "input_layernorm", *_NORM),
    *(Component(n, _BLOCK + n, axes, "attention_bias", "attention") for n, axes in _ATTENTION),
    Component("post_attention_layernorm", _BLOCK + "post_attention_layernorm", *_NORM),
    *(Component(name, _BLOCK + name, axes, "has_bias", "MLP") for name, axes in _MLP),
    Component("final norm", "final_layer_norm", *_NORM),
    Component("unembedding", "embed_out", ("d_vocab", "d_model"), tied="tie_word_embeddings"),
)

WEIGHTS = WeightNames(
    prefix="gpt_neox.",
    embedding="embed_in.weight",
    unembedding="embed_out.weight",
    layers="layers.",
    sizes=(
        ("embed_in.weight", ("vocab_size", "hidden_size")),
        ("layers.0.mlp.dense_h_to_4h.weight", ("intermediate_size",)),
    ),
    # Causal masks and frequencies in old checkpoints.
    buffers=r"\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)$",
    switches=(
        ("embed_out.weight", '"tie_word_embeddings": false'),
        ("query_key_value.bias", '"attention_bias": true'),
        ("attention.dense.bias", '"attention_bias": true'),
    ),
    other_names=(("lm_head.weight", "embed_out.weight"),),  # in transformers 5
    norm="final_layer_norm",
    heads="attention.dense",
    neurons="mlp.dense_4h_to_h",
)

ACTIVATIONS = ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh")
# Names of `shared.OUTSIDE`, and defaults: the base, and the share of rotated features.
_OLD_NAMES = {"rotary_emb_base": 1e4, "rotary_pct": 0.25}


@dataclass(frozen=True)
class NeoXConfig(shared.RotaryConfig):
    """Sizes and switches of a Pythia or GPT-NeoX; the defaults are those of Pythia 70M.

    >>> config = NeoXConfig(num_attention_heads=4)
    >>> config.d_head, config.rotary.partial_rotary_factor
    (128, 0.25)

    Raises:
        ConfigError: a size is not a positive integer, the number of heads does not divide the
            width, or another number or a switch is invalid.
    """

    TITLE: ClassVar[str] = "GPT-NeoX"
    KINDS: ClassVar[Mapping[str, Kind]] = {"gpt_neox": Kind()}
    WEIGHTS: ClassVar[WeightNames] = WEIGHTS
    OTHER_KEYS: ClassVar[frozenset[str]] = shared.RotaryConfig.OTHER_KEYS | {*_OLD_NAMES}
    ROTATES_PART: ClassVar[bool] = True
    components: ClassVar[tuple[Component, ...]] = COMPONENTS
    norm_is_centred: ClassVar[bool] = True
    has_bias: ClassVar[bool] = True  # norms and MLPs have biases

    model_type: str = "gpt_neox"
    vocab_size: int = 50304
    hidden_size: int = 512
    intermediate_size: int = 2048
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    layer_norm_eps: float = 1e-5
    hidden_act: str = "gelu"  # the others are its approximation by tanh
    rotary: shared.RotaryPositions = field(
        default_factory=lambda: shared.RotaryPositions(partial_rotary_factor=0.25)
    )
    use_parallel_residual: bool = True  # attention and MLP read the same residual stream
    attention_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between_0_and_1(self, ("layer_norm_eps",))
        if self.hidden_act not in ACTIVATIONS:
            raise ConfigError(
                f"hidden_act is {self.hidden_act!r}. Allowed: {', '.join(ACTIVATIONS)}."
            )

    @classmethod
    def computed(cls, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rotary positions."""
        names = dict(zip(shared.OUTSIDE, _OLD_NAMES.items(), strict=True))
        return {"rotary": shared.RotaryPositions.from_hub(entries, names)}

    @property
    def site_rows(self) -> tuple[Site, ...]:
        """The table of sites; parallel blocks have no `hook_resid_mid`."""
        return SITES_IN_PARALLEL if self.use_parallel_residual else SITES_IN_SEQUENCE

    @property
    def norm_epsilon(self) -> float:
        """Number that the layer norms add to the variance."""
        return self.layer_norm_eps


class NeoXAttention(nn.Module):
    """Causal attention of several heads with rotated queries and keys."""

    def __init__(self, config: NeoXConfig) -> None:
        super().__init__()
        self.n_heads, d_model = config.n_heads, config.d_model
        self.query_key_value = Linear(d_model, 3 * d_model, bias=config.attention_bias)
        self.dense = Linear(d_model, d_model, bias=config.attention_bias)

    def forward(self, x: Tensor, context: BlockContext, tap: Taps) -> Tensor:
        """Return the output of attention; arguments and shape as in `GroupedAttention`."""
        qkv = rearrange(
            self.query_key_value(x),
            "batch pos (n_heads qkv d_head) -> qkv batch pos n_heads d_head",
            qkv=3, n_heads=self.n_heads,
        )  # fmt: skip
        # Indexed, not unpacked: torch forbids in-place changes to unpacked views.
        q, k, v = tap("hook_q", qkv[0]), tap("hook_k", qkv[1]), tap("hook_v", qkv[2])
        q = tap("hook_rot_q", shared.rotate(q, context.angles))
        k = tap("hook_rot_k", shared.rotate(k, context.angles))
        return attend_heads(q, k, v, self.dense, context, tap)


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


class NeoXBlock(shared.ResidualBlock):
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

    def forward(self, resid: Tensor, context: BlockContext, tap: Taps) -> Tensor:
        """Return the residual stream after this block; arguments as in `ResidualBlock`."""
        if not self.is_parallel:
            return super().forward(resid, context, tap)
        resid = tap("hook_resid_pre", resid)
        attn_out = tap("hook_attn_out", self._attn_out(resid, context, tap))
        resid = context.selected(resid)
        out = resid + attn_out + tap("hook_mlp_out", self._mlp_out(resid, tap))
        return tap("hook_resid_post", out)

    def _attn_out(self, resid: Tensor, context: BlockContext, tap: Taps) -> Tensor:
        normed = self.input_layernorm(resid, tap.within("ln1"))
        return cast(Tensor, self.attention(normed, context, tap.within("attn")))

    def _mlp_out(self, resid: Tensor, tap: Taps) -> Tensor:
        normed = self.post_attention_layernorm(resid, tap.within("ln2"))
        return cast(Tensor, self.mlp(normed, tap.within("mlp")))


class NeoX(shared.RotaryNetwork):
    """Pythia or GPT-NeoX with a tap at every site; arguments as in `RotaryNetwork`.

    >>> import torch
    >>> sizes = {"vocab_size": 97, "hidden_size": 24, "intermediate_size": 11}
    >>> model = NeoX(NeoXConfig(**sizes, num_hidden_layers=2, num_attention_heads=6))
    >>> logits, cache = model.run_with_cache(torch.tensor([[3, 14, 15]]), ["blocks.*.attn.hook_z"])
    >>> logits.shape, cache["z", 1].shape
    (torch.Size([1, 3, 97]), torch.Size([1, 3, 6, 4]))
    """

    CONFIG = NeoXConfig
    BLOCK = NeoXBlock
    NORM = LayerNorm
