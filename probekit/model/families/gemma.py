"""Gemma 2 and the language model of Gemma 3, written to be read.

    Gemma: resid = sqrt(d_model) embed_tokens[tokens]; Block, ..., Block
           logits = cap(norm(resid) @ embed_tokens.T)
    Block: resid = resid + post_attention_layernorm(attn(input_layernorm(resid)))
           resid = resid + post_feedforward_layernorm(mlp(pre_feedforward_layernorm(resid)))

The gain of a norm is 1 + weight. cap(x) = c tanh(x / c) bounds the logits, and in Gemma 2 the
attention scores. Most blocks attend to a sliding window; in Gemma 3 these rotate queries and keys
with a smaller base. Parameters have the names of the Hugging Face checkpoints. Of a Gemma 3 that
also reads images, only the language model is computed, which is that of the text models.

Source: Gemma Team 2024, "Gemma 2: Improving Open Language Models at a Practical Size"; Gemma Team
2025, "Gemma 3 Technical Report".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from probekit.errors import CheckpointError, ConfigError
from probekit.model import config as base
from probekit.model.families import rotary as shared
from probekit.model.layers.modules import cross_entropy
from probekit.model.network import stream_of
from probekit.model.passes.context import BlockContext, Context
from probekit.model.passes.taps import Taps
from probekit.model.sites.catalogue import GROUPED, Site, table
from probekit.products import GELU_TANH

_FORMULAS = (
    shared.GATED_FORMULAS
    | shared.NORMS_OF_INPUTS
    | shared.WITHOUT_BIASES
    | {
        "hook_embed": "sqrt(d_model) embed_tokens[tokens]",
        "blocks.{l}.attn.hook_result": "z W_O per head, before the norm that follows attention",
        "blocks.{l}.ln1_post.hook_scale": "sqrt(mean((z W_O)^2) + eps)",
        "blocks.{l}.ln1_post.hook_normalized": "z W_O / scale",
        "blocks.{l}.hook_attn_out": "post_attention_layernorm(z W_O)",
        "blocks.{l}.mlp.hook_pre": "pre_feedforward_layernorm(resid_mid) W_gate",
        "blocks.{l}.mlp.hook_pre_linear": "pre_feedforward_layernorm(resid_mid) W_up",
        "blocks.{l}.mlp.hook_post": "gelu_tanh(pre) * pre_linear",
        "blocks.{l}.ln2_post.hook_scale": "sqrt(mean((post W_down)^2) + eps)",
        "blocks.{l}.ln2_post.hook_normalized": "post W_down / scale",
        "blocks.{l}.hook_mlp_out": "post_feedforward_layernorm(post W_down)",
    }
)
_SCORES_2 = {
    "blocks.{l}.attn.hook_rot_q": "q rotated by its position",
    "blocks.{l}.attn.hook_rot_k": "k rotated by its position",
    "blocks.{l}.attn.hook_attn_scores": (
        "c tanh(rot_q rot_k / (c sqrt(query_pre_attn_scalar))) with c = attn_logit_softcapping, "
        "-inf where masked"
    ),
}
_SCORES_3 = shared.NORMS_OF_HEADS | {
    "blocks.{l}.attn.hook_rot_q": "q_norm(q) rotated by its position, with the base of the block",
    "blocks.{l}.attn.hook_rot_k": "k_norm(k) rotated by its position, with the base of the block",
    "blocks.{l}.attn.hook_attn_scores": (
        "rot_q rot_k / sqrt(query_pre_attn_scalar), -inf where masked"
    ),
}
# Keys outside of the language model of a Gemma 3 that also reads images.
_OUTSIDE = ("text_config", "vision_config", "mm_tokens_per_image", "tie_word_embeddings")
SITES_OF_GEMMA2 = table(_FORMULAS | _SCORES_2, GROUPED)
SITES_OF_GEMMA3 = table(_FORMULAS | _SCORES_3, GROUPED)


@dataclass(frozen=True)
class GemmaConfig(shared.LayerTypesConfig):
    """Sizes and switches of a Gemma 2 or 3; the defaults are those of Gemma 2 2B.

    >>> config = GemmaConfig()
    >>> config.n_heads, config.n_kv_heads, config.d_head, config.windows[:2]
    (8, 4, 256, (4096, None))

    Raises:
        ConfigError: a size is not a positive integer, the heads cannot be grouped, or another
            number or a switch is invalid or belongs to another `model_type`.
    """

    TITLE: ClassVar[str] = "Gemma"
    KINDS: ClassVar[Mapping[str, base.Kind]] = {
        "gemma2": base.Kind(),
        "gemma3_text": base.Kind(
            reads=frozenset({"rope_local_base_freq", "sliding_window_pattern"}),
            defaults={
                "vocab_size": 262208,
                "max_position_embeddings": 131072,
                "final_logit_softcapping": None,
                "attn_logit_softcapping": None,
            },
        ),
    }
    WEIGHTS: ClassVar[base.WeightNames] = replace(
        shared.GATED_WEIGHTS,
        nested=r"(model\.)?language_model\.",
        buffers=rf"{shared.GATED_WEIGHTS.buffers}|^(vision_tower|multi_modal_projector)\.",
        after_heads="post_attention_layernorm",
    )
    REQUIRED: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "hidden_activation": ("gelu_pytorch_tanh",),
        "hidden_act": ("gelu_pytorch_tanh", None),
        "use_bidirectional_attention": (False, None),
    }
    REPEATS: ClassVar[Mapping[str, str]] = {
        **shared.GatedConfig.REPEATS,
        "sliding_window_size": "sliding_window",
    }
    # As in the published models.
    PERIODS: ClassVar[Mapping[str, int]] = {"gemma2": 2, "gemma3_text": 6}
    BASES: ClassVar[Mapping[str, Any]] = {
        "gemma3_text": (("rope_theta", 1e6), ("rope_local_base_freq", 1e4))
    }

    model_type: str = "gemma2"
    vocab_size: int = 256000
    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_hidden_layers: int = 26
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 256  # d_head
    max_position_embeddings: int = 8192
    query_pre_attn_scalar: float = 256  # scores are divided by its square root
    attn_logit_softcapping: float | None = 50.0  # of Gemma 2
    final_logit_softcapping: float | None = 30.0
    tie_word_embeddings: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"):
            value = getattr(self, name)
            is_absent = value is None and name.endswith("softcapping")
            if not is_absent and (not base.is_number(value) or not value > 0):
                raise ConfigError(f"{name} must be a positive number, not {value!r}.")
        if self.model_type == "gemma3_text" and self.attn_logit_softcapping is not None:
            raise ConfigError(
                f"attn_logit_softcapping is {self.attn_logit_softcapping!r}. Allowed for "
                "gemma3_text: null, because the published code of Gemma 3 has no such cap."
            )

    @classmethod
    def from_hub(
        cls, entries: Mapping[str, Any], path: Path | str, ignore: Sequence[str] = ()
    ) -> Self:
        """Return the config described by the entries of a config.json.

        If the model also reads images, it is that of its language model, a `gemma3_text`.

        Raises:
            CheckpointError: an entry is invalid or unknown, or describes a network that the
                family's code does not compute.
        """
        if entries.get("model_type") == "gemma3":
            try:
                entries = of_language_model(entries)
            except ConfigError as error:
                raise CheckpointError(f"{path}: {error}") from error
        return super().from_hub(entries, path, ignore)

    @classmethod
    def computed(cls, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rotary positions of both types of blocks, and the type of each block.

        Without `layer_types`, the types follow from `sliding_window_pattern` or the `model_type`.

        Raises:
            ConfigError: a key is unknown, a number is invalid, the period is not a positive
                integer, or two names of a key differ.
        """
        found, period = super().computed(entries), entries.get("sliding_window_pattern")
        if period is not None:
            if not isinstance(period, int) or isinstance(period, bool) or period < 1:
                raise ConfigError(
                    f"sliding_window_pattern must be a positive integer, not {period!r}."
                )
            n_layers = entries.get("num_hidden_layers", cls.num_hidden_layers)
            # An impossible number is reported when the config is made.
            is_possible = isinstance(n_layers, int) and n_layers <= base.MAX_LAYERS
            pattern = shared.types_by_period(n_layers, period) if is_possible else None
            both = {"layer_types": found["layer_types"], "sliding_window_pattern": pattern}
            found["layer_types"] = base.value_of(both, *both)
        return found

    @property
    def has_norms_of_heads(self) -> bool:
        """Whether queries and keys pass an RMS norm per head."""
        return self.model_type == "gemma3_text"

    @property
    def site_rows(self) -> tuple[Site, ...]:
        """The table of sites of the `model_type`."""
        return SITES_OF_GEMMA3 if self.has_norms_of_heads else SITES_OF_GEMMA2

    @property
    def components(self) -> tuple[base.Component, ...]:
        """The modules with parameters, in the order of the forward pass."""
        return shared.components(
            before=("input_layernorm",),
            of_heads=("d_head", "d_head") if self.has_norms_of_heads else (),
            between=("post_attention_layernorm", "pre_feedforward_layernorm"),
            after=("post_feedforward_layernorm",),
        )


def of_language_model(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of the language model, from those of a Gemma 3 that also reads images.

    Outside of `text_config`, ids of tokens and `tie_word_embeddings` are read. Other keys that may
    change the computation, and do not repeat one of `text_config`, are renamed to `gemma3.KEY`,
    which is unknown.

    >>> text = {"model_type": "gemma3_text", "hidden_size": 24}
    >>> of_language_model({"model_type": "gemma3", "text_config": text, "logit_scale": 2})
    {'model_type': 'gemma3_text', 'hidden_size': 24, 'tie_word_embeddings': True,
     'gemma3.logit_scale': 2}

    Raises:
        ConfigError: `text_config` is not that of a language model, caps the logits, or has another
            `tie_word_embeddings`.
    """
    text, tied = entries.get("text_config") or {}, entries.get("tie_word_embeddings", True)
    if not isinstance(text, Mapping) or text.get("model_type", "gemma3_text") != "gemma3_text":
        raise ConfigError(f"text_config must be that of a gemma3_text, not {text!r:.80}.")
    if (cap := text.get("final_logit_softcapping")) is not None:
        raise ConfigError(
            f"final_logit_softcapping of text_config is {cap!r}. Allowed: null, because the "
            "published code of a Gemma 3 with images has no such cap."
        )
    both = {"tie_word_embeddings": tied, "text_config": text}
    base.value_of(both, "tie_word_embeddings", "text_config.tie_word_embeddings")
    found = {**text, "model_type": "gemma3_text", "tie_word_embeddings": tied}
    for key, value in entries.items():
        if key in ("bos_token_id", "eos_token_id", "quantization_config") and value is not None:
            found[key] = value
        elif not (key in _OUTSIDE or base.is_harmless(key, value) or text.get(key) == value):
            found[f"gemma3.{key}"] = value
    return found


class GemmaNorm(shared.RMSNorm):
    """RMS norm with the gain 1 + weight, computed in float32 for half-precision weights."""

    weight_of_gain_1 = 0.0

    @property
    def gain(self) -> Tensor:
        """Factor of each feature, shape [width]."""
        return 1 + self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))


class GemmaBlock(shared.ResidualBlock):
    """Transformer block: attention and gated MLP, each between two norms, added to the stream."""

    def __init__(self, config: GemmaConfig) -> None:
        super().__init__()
        width, eps = config.d_model, config.rms_norm_eps
        norms = None
        if config.has_norms_of_heads:
            norms = (GemmaNorm(config.d_head, eps), GemmaNorm(config.d_head, eps))
        self.input_layernorm = GemmaNorm(width, eps)
        self.self_attn = shared.GroupedAttention(
            config,
            norms,
            qkv_bias=config.attention_bias,
            divisor=math.sqrt(config.query_pre_attn_scalar),
            softcap=config.attn_logit_softcapping,
        )
        self.post_attention_layernorm = GemmaNorm(width, eps)
        self.pre_feedforward_layernorm = GemmaNorm(width, eps)
        self.mlp = shared.GatedMLP(width, config.d_mlp, GELU_TANH, bias=False)
        self.post_feedforward_layernorm = GemmaNorm(width, eps)

    def _attn_out(self, resid: Tensor, context: BlockContext, tap: Taps) -> Tensor:
        normed = self.input_layernorm(resid, tap.within("ln1"))
        heads_out = self.self_attn(normed, context, tap.within("attn"))
        return cast(Tensor, self.post_attention_layernorm(heads_out, tap.within("ln1_post")))

    def _mlp_out(self, resid: Tensor, tap: Taps) -> Tensor:
        normed = self.pre_feedforward_layernorm(resid, tap.within("ln2"))
        neurons_out = self.mlp(normed, tap.within("mlp"))
        return cast(Tensor, self.post_feedforward_layernorm(neurons_out, tap.within("ln2_post")))


class Gemma(shared.RotaryNetwork):
    """Gemma 2 or Gemma 3 (text) with a tap at every site; arguments as in `RotaryNetwork`.

    >>> sizes = {"vocab_size": 97, "hidden_size": 24, "intermediate_size": 11, "head_dim": 10}
    >>> heads = {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}
    >>> model = Gemma(GemmaConfig(**sizes, **heads))
    >>> logits, cache = model.run_with_cache(torch.tensor([[3, 14, 15]]), ["blocks.*.attn.hook_q"])
    >>> logits.shape, cache["q", 0].shape
    (torch.Size([1, 3, 97]), torch.Size([1, 3, 6, 10]))
    """

    CONFIG = GemmaConfig
    BLOCK = GemmaBlock
    NORM = GemmaNorm
    config: GemmaConfig

    def capped(self, logits: Tensor) -> Tensor:
        """Return logits after the softcap; unchanged if the config has none."""
        cap = self.config.final_logit_softcapping
        return logits if cap is None else cap * (logits / cap).tanh()

    def mean_loss(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of the logits of `x`, shape [n_tokens d_model]."""
        cap = self.config.final_logit_softcapping
        return cross_entropy(x, self.unembedding, targets, softcap=cap)

    def embedded(self, tokens: Tensor, context: Context, tap: Taps) -> Tensor:  # noqa: ARG002
        """Return the residual stream before the first block, shape [batch pos d_model]."""
        embed = F.embedding(tokens, self.token_embedding)
        # The published code rounds the scale to the dtype of the weights.
        scale = torch.tensor(math.sqrt(self.config.d_model), dtype=embed.dtype, device=embed.device)
        return stream_of(tap("hook_embed", embed * scale))
