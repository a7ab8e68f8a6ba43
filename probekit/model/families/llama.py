"""Llama 2 and 3, Mistral, Qwen2 and Qwen3, written to be read.

    Llama: resid = embed_tokens[tokens]; Block, ..., Block; logits = norm(resid) @ lm_head.T
    Block: resid = resid + attn(input_layernorm(resid))
           resid = resid + mlp(post_attention_layernorm(resid))

There are no position embeddings: each block rotates its queries and keys by angles proportional to
their positions. Groups of query heads share a key and a value. They are one network with switches:

    mistral  every block has a sliding window, unless `sliding_window` is null
    qwen2    queries, keys and values have biases; the upper blocks may have a sliding window
    qwen3    queries and keys pass an RMS norm per head; the width of a head is apart from d_model

Parameters have the names of the Hugging Face checkpoints; config.json of the published ones is the
source of the keys and their defaults.

Source: Touvron et al. 2023, "Llama 2: Open Foundation and Fine-Tuned Chat Models"; Jiang et al.
2023, "Mistral 7B"; Yang et al. 2024, "Qwen2 Technical Report"; Yang et al. 2025, "Qwen3 Technical
Report".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from probekit.errors import ConfigError
from probekit.model.config import Component, Kind, is_number
from probekit.model.families import rotary as shared
from probekit.model.sites.catalogue import GROUPED, Site, heads_of, table
from probekit.products import SILU

_FORMULAS = (
    shared.GATED_FORMULAS
    | shared.NORMS_OF_INPUTS
    | {
        **heads_of("input_layernorm(resid_pre)", biases=True),
        "blocks.{l}.attn.hook_rot_q": "q, normalized in Qwen3, rotated by its position",
        "blocks.{l}.attn.hook_rot_k": "k, normalized in Qwen3, rotated by its position",
        "blocks.{l}.mlp.hook_pre": "post_attention_layernorm(resid_mid) W_gate + b_gate",
        "blocks.{l}.mlp.hook_pre_linear": "post_attention_layernorm(resid_mid) W_up + b_up",
        "blocks.{l}.mlp.hook_post": "silu(pre) * pre_linear",
        "blocks.{l}.hook_mlp_out": "post W_down + b_down",
    }
)
SITES = table(_FORMULAS, GROUPED)
SITES_WITH_NORMS_OF_HEADS = table(_FORMULAS | shared.NORMS_OF_HEADS, GROUPED)

_WINDOW_KEYS = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")


@dataclass(frozen=True)
class LlamaConfig(shared.GatedConfig):
    """Sizes and switches of a Llama, Mistral, Qwen2 or Qwen3; the defaults are those of Llama 2 7B.

    >>> config = LlamaConfig(num_attention_heads=32, num_key_value_heads=8)
    >>> config.d_head, config.axis_sizes["n_kv_heads"]
    (128, 8)
    >>> LlamaConfig(model_type="qwen2").qkv_bias
    True

    Raises:
        ConfigError: a size is not a positive integer, the heads cannot be grouped, or another
            number or a switch is invalid.
    """

    TITLE: ClassVar[str] = "Llama"
    KINDS: ClassVar[Mapping[str, Kind]] = {
        # Keys that not all kinds read, and values of absent keys.
        "llama": Kind(frozenset({"attention_bias", "mlp_bias"})),
        "mistral": Kind(
            frozenset({"sliding_window"}), {"num_key_value_heads": 8, "sliding_window": 4096}
        ),
        "qwen2": Kind(frozenset(_WINDOW_KEYS), {"num_key_value_heads": 32, "sliding_window": 4096}),
        "qwen3": Kind(
            frozenset({"attention_bias", *_WINDOW_KEYS}),
            {"num_key_value_heads": 32, "sliding_window": 4096, "head_dim": 128},
        ),
    }

    model_type: str = "llama"
    head_dim: int | None = None  # d_head; None means d_model / n_heads
    mlp_bias: bool = False
    use_sliding_window: bool = False  # of Qwen: the blocks from max_window_layers have a window
    sliding_window: int | None = None
    max_window_layers: float = 28
    layer_types: tuple[str, ...] | None = None  # of Qwen, if use_sliding_window: which blocks

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.max_window_layers):
            raise ConfigError(
                f"max_window_layers must be a number, not {self.max_window_layers!r}."
            )
        if self.layer_types is not None:
            shared.check_layer_types(self.layer_types, self.num_hidden_layers)

    @classmethod
    def computed(cls, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rotary positions, and a list of types of blocks as a tuple."""
        found, types = super().computed(entries), entries.get("layer_types")
        return (found | {"layer_types": tuple(types)}) if isinstance(types, list) else found

    def to_hub(self) -> dict[str, Any]:
        """Return the contents of config.json, with special tokens."""
        entries = super().to_hub()
        if self.head_dim is None:  # transformers computes it from an absent key, not from null
            del entries["head_dim"]
            # For Qwen3, an absent key means 128.
            if "head_dim" in self.KINDS[self.model_type].defaults:
                entries["head_dim"] = self.d_head
        return entries

    @property
    def qkv_bias(self) -> bool:
        """Whether the maps to queries, keys and values have a bias."""
        return self.attention_bias or self.model_type == "qwen2"

    @property
    def has_norms_of_heads(self) -> bool:
        """Whether queries and keys pass an RMS norm per head."""
        return self.model_type == "qwen3"

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Number of tokens that each block attends to; None for all.

        >>> LlamaConfig(model_type="mistral", sliding_window=4096).windows[0]
        4096
        """
        layers = range(self.num_hidden_layers)
        if self.model_type == "mistral":
            return tuple(self.sliding_window for _ in layers)
        if not self.use_sliding_window:
            return tuple(None for _ in layers)
        first, full, sliding = self.max_window_layers, shared.FULL, shared.SLIDING
        types = self.layer_types or [sliding if layer >= first else full for layer in layers]
        return tuple(self.sliding_window if type_ == sliding else None for type_ in types)

    @property
    def site_rows(self) -> tuple[Site, ...]:
        """The table of sites of the `model_type`."""
        return SITES_WITH_NORMS_OF_HEADS if self.has_norms_of_heads else SITES

    @property
    def components(self) -> tuple[Component, ...]:
        """The modules with parameters, in the order of the forward pass."""
        return shared.components(
            before=("input_layernorm",),
            of_heads=("d_head", "d_head") if self.has_norms_of_heads else (),
            between=("post_attention_layernorm",),
            biases=("qkv_bias", "attention_bias", "mlp_bias"),
        )


class LlamaBlock(shared.PreNormBlock):
    """Transformer block with grouped attention and a gated MLP."""

    def __init__(self, config: LlamaConfig) -> None:
        eps, norms = config.rms_norm_eps, None
        if config.has_norms_of_heads:
            norms = (shared.RMSNorm(config.d_head, eps), shared.RMSNorm(config.d_head, eps))
        attention = shared.GroupedAttention(config, norms, qkv_bias=config.qkv_bias)
        mlp = shared.GatedMLP(config.d_model, config.d_mlp, SILU, bias=config.mlp_bias)
        super().__init__(config, attention, mlp)


class Llama(shared.RotaryNetwork):
    """Llama, Mistral, Qwen2 or Qwen3 with a tap at every site; arguments as in `RotaryNetwork`.

    >>> import torch
    >>> sizes = {"vocab_size": 97, "hidden_size": 24, "intermediate_size": 11}
    >>> heads = {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}
    >>> model = Llama(LlamaConfig(**sizes, **heads))
    >>> logits, cache = model.run_with_cache(torch.tensor([[3, 14, 15]]), ["blocks.*.attn.hook_k"])
    >>> logits.shape, cache["k[kv_head=1]", 0].shape
    (torch.Size([1, 3, 97]), torch.Size([1, 3, 4]))
    """

    CONFIG = LlamaConfig
    BLOCK = LlamaBlock
