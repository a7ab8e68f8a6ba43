"""Phi-3, Phi-3.5 and Phi-4, written to be read.

    Phi-3: resid = embed_tokens[tokens]; Block, ..., Block; logits = norm(resid) @ lm_head.T
    Block: resid = resid + self_attn(input_layernorm(resid))
           resid = resid + mlp(post_attention_layernorm(resid))

Queries, keys and values come from one matrix, and so do both inputs of the gated MLP. Positions are
rotary. Models for long texts stretch the wavelength of each pair of features by a number of its own
(longrope), one for texts up to the length of the first training and another for longer texts. Only
the first is computed: with the second, a text of one token more would change every activation.
Parameters have the names of the Hugging Face checkpoints.

Source: Abdin et al. 2024, "Phi-3 Technical Report"; Ding et al. 2024, "LongRoPE: Extending LLM
Context Window Beyond 2 Million Tokens".
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from torch import Tensor, nn

from probekit.errors import ConfigError
from probekit.model.config import Component, Kind, value_of
from probekit.model.families import rotary as shared
from probekit.model.layers.modules import Linear, attend_heads
from probekit.model.passes.context import BlockContext
from probekit.model.passes.taps import Taps
from probekit.model.sites.catalogue import GROUPED, Site, table
from probekit.products import SILU

SITES = table(
    shared.GATED_FORMULAS
    | shared.NORMS_OF_INPUTS
    | shared.WITHOUT_BIASES
    | {
        "blocks.{l}.attn.hook_rot_q": "q rotated by its position, times attention_factor",
        "blocks.{l}.attn.hook_rot_k": "k rotated by its position, times attention_factor",
        "blocks.{l}.mlp.hook_pre": "post_attention_layernorm(resid_mid) W_gate",
        "blocks.{l}.mlp.hook_pre_linear": "post_attention_layernorm(resid_mid) W_up",
        "blocks.{l}.mlp.hook_post": "silu(pre) * pre_linear",
        "blocks.{l}.hook_mlp_out": "post W_down",
    },
    GROUPED,
)

_ATTENTION, _MLP = "layers.{l}.self_attn.", "layers.{l}.mlp."
COMPONENTS = (  # in forward order
    Component("token embedding", "embed_tokens", ("d_vocab", "d_model")),
    Component("input_layernorm", "layers.{l}.input_layernorm", ("d_model",)),
    Component("attn.qkv_proj", _ATTENTION + "qkv_proj", ("d_model", "d_qkv"), part="attention"),
    Component("attn.o_proj", _ATTENTION + "o_proj", ("n_heads d_head", "d_model"), "", "attention"),
    Component("post_attention_layernorm", "layers.{l}.post_attention_layernorm", ("d_model",)),
    Component("mlp.gate_up_proj", _MLP + "gate_up_proj", ("d_model", "2 d_mlp"), part="MLP"),
    Component("mlp.down_proj", _MLP + "down_proj", ("d_mlp", "d_model"), part="MLP"),
    Component("final norm", "norm", ("d_model",)),
    Component("unembedding", "lm_head", ("d_vocab", "d_model"), tied="tie_word_embeddings"),
)

_PADDING = 32000  # the hub's default id of the padding token


@dataclass(frozen=True)
class Phi3Positions(shared.RotaryPositions):
    """Rotary positions of a Phi-3, `default` or `longrope`."""

    KINDS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "default": (),
        "longrope": ("short_factor", "long_factor"),
    }


@dataclass(frozen=True)
class Phi3Config(shared.GatedConfig):
    """Sizes and switches of a Phi-3; the defaults are those of the hub.

    >>> Phi3Config(num_attention_heads=24, num_key_value_heads=8).axis_sizes["d_qkv"]
    5120
    >>> factors = {"short_factor": (1.0,) * 48, "long_factor": (2.0,) * 48}
    >>> rotary = Phi3Positions(rope_type="longrope", **factors)
    >>> Phi3Config(max_position_embeddings=131072, rotary=rotary).n_ctx
    4096

    Raises:
        ConfigError: a size is not a positive integer, the heads cannot be grouped, or another
            number is invalid.
    """

    TITLE: ClassVar[str] = "Phi-3"
    KINDS: ClassVar[Mapping[str, Kind]] = {"phi3": Kind()}
    ROTATES_PART: ClassVar[bool] = True
    site_rows: ClassVar[tuple[Site, ...]] = SITES
    components: ClassVar[tuple[Component, ...]] = COMPONENTS

    model_type: str = "phi3"
    vocab_size: int = 32064
    hidden_size: int = 3072
    intermediate_size: int = 8192
    max_position_embeddings: int = 4096
    rotary: Phi3Positions = field(default_factory=Phi3Positions)
    rms_norm_eps: float = 1e-5
    sliding_window: int | None = None  # number of tokens that each block attends to
    original_max_position_embeddings: int = 4096  # length of texts in the first training
    bos_token_id: int | list[int] | None = field(default=1, compare=False, kw_only=True)
    eos_token_id: int | list[int] | None = field(default=32000, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attention_bias:
            raise ConfigError("attention_bias must be false: Phi-3 has no biases.")
        if not isinstance(self.rotary, Phi3Positions):  # those of Llama have other kinds
            raise ConfigError(f"rotary must be Phi3Positions, not {type(self.rotary).__name__}.")
        n_pairs = int(self.d_head * self.rotary.partial_rotary_factor) // 2
        factors = (self.rotary.short_factor, self.rotary.long_factor)
        are_lists = all(isinstance(one, tuple) and len(one) == n_pairs for one in factors)
        if self.rotary.rope_type == "longrope" and not are_lists:
            raise ConfigError(
                f"short_factor and long_factor of longrope must be lists of {n_pairs} positive "
                "numbers, one for each rotated pair of features."
            )

    @classmethod
    def computed(cls, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rotary positions."""
        # Lengths are read outside of the section, as by the hub.
        inside = (f"{one}.{shared.FIRST_LENGTH}" for one in ("rope_scaling", "rope_parameters"))
        value_of({shared.FIRST_LENGTH: 4096, **entries}, shared.FIRST_LENGTH, *inside)
        return {"rotary": Phi3Positions.from_hub(entries)}

    def to_hub(self) -> dict[str, Any]:
        """Return the contents of config.json, with special tokens."""
        # transformers' default for an absent id of padding is outside a small vocabulary.
        is_small = self.vocab_size <= _PADDING
        return super().to_hub() | ({"pad_token_id": None} if is_small else {})

    @property
    def attention_factor(self) -> float:
        """Factor of the rotated features of queries and keys; 1 without longrope."""
        n_first = self.original_max_position_embeddings
        longer = self.max_position_embeddings / n_first
        if self.rotary.rope_type != "longrope" or longer <= 1:
            return 1.0
        return math.sqrt(1 + math.log(longer) / math.log(n_first))

    def scale_in(self, window: int | None) -> float:  # noqa: ARG002
        """Return the factor of rotated queries and keys."""
        return self.attention_factor

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Size of each axis that does not depend on the input; n_ctx is that of short texts."""
        sizes = super().axis_sizes
        sizes["d_qkv"] = (sizes["n_heads"] + 2 * sizes["n_kv_heads"]) * sizes["d_head"]
        if self.rotary.rope_type == "longrope":
            sizes["n_ctx"] = min(sizes["n_ctx"], self.original_max_position_embeddings)
        return sizes


class Phi3Attention(nn.Module):
    """Causal attention with rotated queries and keys; groups of heads share a key and a value."""

    def __init__(self, config: Phi3Config) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = config.n_heads, config.n_kv_heads
        self.qkv_proj = Linear(config.d_model, config.axis_sizes["d_qkv"], bias=False)
        self.o_proj = Linear(config.n_heads * config.d_head, config.d_model, bias=False)

    def forward(self, x: Tensor, context: BlockContext, tap: Taps) -> Tensor:
        """Return the output of attention; arguments and shape as in `GroupedAttention`."""
        n_rows = self.n_heads + 2 * self.n_kv_heads
        qkv = self.qkv_proj(x).unflatten(-1, (n_rows, -1))  # the heads of q, then of k, then of v
        first_value = self.n_heads + self.n_kv_heads
        q = tap("hook_q", qkv[:, :, : self.n_heads])
        k = tap("hook_k", qkv[:, :, self.n_heads : first_value])
        v = tap("hook_v", qkv[:, :, first_value:])
        q = tap("hook_rot_q", shared.rotate(q, context.angles))
        k = tap("hook_rot_k", shared.rotate(k, context.angles))
        return attend_heads(q, k, v, self.o_proj, context, tap)


class Phi3MLP(nn.Module):
    """Feed-forward layer down(silu(gate) * up) with d_mlp neurons; one matrix gives gate and up."""

    def __init__(self, config: Phi3Config) -> None:
        super().__init__()
        self.d_mlp = config.d_mlp
        self.gate_up_proj = Linear(config.d_model, 2 * config.d_mlp, bias=False)
        self.down_proj = Linear(config.d_mlp, config.d_model, bias=False)

    def forward(self, x: Tensor, tap: Taps) -> Tensor:
        """Return the output of the MLP, shape [batch pos d_model]."""
        gate_up = self.gate_up_proj(x)  # [batch pos 2*d_mlp]
        # Contiguous, because the last bits of silu depend on the memory layout.
        pre = tap("hook_pre", gate_up[..., : self.d_mlp].contiguous())
        pre_linear = tap("hook_pre_linear", gate_up[..., self.d_mlp :])
        return cast(Tensor, self.down_proj(tap("hook_post", SILU(pre) * pre_linear)))


class Phi3Block(shared.PreNormBlock):
    """Transformer block whose attention and MLP compute their inputs with one matrix each."""

    def __init__(self, config: Phi3Config) -> None:
        super().__init__(config, Phi3Attention(config), Phi3MLP(config))


class Phi3(shared.RotaryNetwork):
    """Phi-3 with a tap at every site; arguments as in `RotaryNetwork`.

    >>> import torch
    >>> sizes = {"vocab_size": 97, "hidden_size": 24, "intermediate_size": 11}
    >>> heads = {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}
    >>> model = Phi3(Phi3Config(**sizes, **heads))
    >>> logits, cache = model.run_with_cache(torch.tensor([[3, 14, 15]]), ["blocks.*.attn.hook_k"])
    >>> logits.shape, cache["k", 0].shape
    (torch.Size([1, 3, 97]), torch.Size([1, 3, 2, 4]))
    """

    CONFIG = Phi3Config
    BLOCK = Phi3Block
    config: Phi3Config
