"""Llama 2 and 3, Mistral, Qwen2 and Qwen3: sizes and switches, sites, and parameters.

They are one network, `probekit.model.llama`, with these switches:

    mistral  every block has a sliding window
    qwen2    queries, keys and values have biases; the upper blocks may have a sliding window
    qwen3    queries and keys pass an RMS norm per head; the width of a head is apart from d_model

Source of the keys and their defaults: config.json of the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from probekit.errors import CheckpointError, ConfigError
from probekit.model.config import (
    ModelConfig,
    check_between_0_and_1,
    check_keys,
    check_layer_types,
    check_required,
    check_sizes,
    check_switches,
    is_number,
)
from probekit.model.families.rotary import RotaryPositions
from probekit.model.parameters import Component
from probekit.model.sites.catalogue import GROUPED, table
from probekit.model.sites.sites import Sites
from probekit.model.weights.names import WeightNames

_BEFORE_ROTATION = {  # in forward order
    "hook_embed": "embed_tokens[tokens]",
    "blocks.{l}.hook_resid_pre": "embed, or resid_post of block l-1",
    "blocks.{l}.ln1.hook_scale": "sqrt(mean(resid_pre^2) + eps)",
    "blocks.{l}.ln1.hook_normalized": "resid_pre / scale",
    "blocks.{l}.attn.hook_q": "input_layernorm(resid_pre) W_Q + b_Q",
    "blocks.{l}.attn.hook_k": "input_layernorm(resid_pre) W_K + b_K",
    "blocks.{l}.attn.hook_v": "input_layernorm(resid_pre) W_V + b_V",
}
_NORMS_OF_HEADS = {
    "blocks.{l}.attn.q_norm.hook_scale": "sqrt(mean(q^2) + eps) per head",
    "blocks.{l}.attn.q_norm.hook_normalized": "q / scale",
    "blocks.{l}.attn.k_norm.hook_scale": "sqrt(mean(k^2) + eps) per head",
    "blocks.{l}.attn.k_norm.hook_normalized": "k / scale",
}
_FROM_ROTATION = {
    "blocks.{l}.attn.hook_rot_q": "q, normalized in Qwen3, rotated by its position",
    "blocks.{l}.attn.hook_rot_k": "k, normalized in Qwen3, rotated by its position",
    "blocks.{l}.attn.hook_attn_scores": "rot_q rot_k / sqrt(d_head), -inf where masked",
    "blocks.{l}.attn.hook_pattern": "softmax(attn_scores) over key_pos",
    "blocks.{l}.attn.hook_z": "pattern v",
    "blocks.{l}.attn.hook_result": "z W_O per head, without b_O",
    "blocks.{l}.hook_attn_out": "z W_O + b_O",
    "blocks.{l}.hook_resid_mid": "resid_pre + attn_out",
    "blocks.{l}.ln2.hook_scale": "sqrt(mean(resid_mid^2) + eps)",
    "blocks.{l}.ln2.hook_normalized": "resid_mid / scale",
    "blocks.{l}.mlp.hook_pre": "post_attention_layernorm(resid_mid) W_gate + b_gate",
    "blocks.{l}.mlp.hook_pre_linear": "post_attention_layernorm(resid_mid) W_up + b_up",
    "blocks.{l}.mlp.hook_post": "silu(pre) * pre_linear",
    "blocks.{l}.hook_mlp_out": "post W_down + b_down",
    "blocks.{l}.hook_resid_post": "resid_mid + mlp_out",
    "ln_final.hook_scale": "sqrt(mean(resid_post of the last block^2) + eps)",
    "ln_final.hook_normalized": "resid_post / scale",
}
SITES = table(_BEFORE_ROTATION | _FROM_ROTATION, GROUPED)
SITES_WITH_NORMS_OF_HEADS = table(_BEFORE_ROTATION | _NORMS_OF_HEADS | _FROM_ROTATION, GROUPED)

_ATTN, _MLP = "layers.{l}.self_attn", "layers.{l}.mlp"
_KEYS = ("d_model", "n_kv_heads d_head")
_BEFORE_NORMS = (  # in forward order
    Component("token embedding", "embed_tokens", ("d_vocab", "d_model")),
    Component("input_layernorm", "layers.{l}.input_layernorm", ("d_model",)),
    Component(
        "attn.q_proj", f"{_ATTN}.q_proj", ("d_model", "n_heads d_head"), "qkv_bias", "attention"
    ),
    Component("attn.k_proj", f"{_ATTN}.k_proj", _KEYS, "qkv_bias", "attention"),
    Component("attn.v_proj", f"{_ATTN}.v_proj", _KEYS, "qkv_bias", "attention"),
)
_NORM_COMPONENTS = (
    Component("attn.q_norm", f"{_ATTN}.q_norm", ("d_head",), part="attention"),
    Component("attn.k_norm", f"{_ATTN}.k_norm", ("d_head",), part="attention"),
)
_AFTER_NORMS = (
    Component(
        "attn.o_proj", f"{_ATTN}.o_proj", ("n_heads d_head", "d_model"), "output_bias", "attention"
    ),
    Component("post_attention_layernorm", "layers.{l}.post_attention_layernorm", ("d_model",)),
    Component("mlp.gate_proj", f"{_MLP}.gate_proj", ("d_model", "d_mlp"), "mlp_bias", "MLP"),
    Component("mlp.up_proj", f"{_MLP}.up_proj", ("d_model", "d_mlp"), "mlp_bias", "MLP"),
    Component("mlp.down_proj", f"{_MLP}.down_proj", ("d_mlp", "d_model"), "mlp_bias", "MLP"),
    Component("final norm", "norm", ("d_model",)),
    Component("unembedding", "lm_head", ("d_vocab", "d_model"), tied="tie_word_embeddings"),
)

WEIGHTS = WeightNames(
    prefix="model.",
    embedding="embed_tokens.weight",
    unembedding="lm_head.weight",
    layers="layers.",
    n_layers="num_hidden_layers",
    sizes=(
        ("embed_tokens.weight", ("vocab_size", "hidden_size")),
        ("layers.0.mlp.gate_proj.weight", ("intermediate_size",)),
    ),
    buffers=r"\.rotary_emb\.inv_freq$",
    switches=(("lm_head.weight", '"tie_word_embeddings": false'),),
)


@dataclass(frozen=True)
class _Kind:
    """What is special about the models of one `model_type`.

    Attributes:
        reads: keys of config.json that only some kinds read.
        defaults: the hub's values of absent keys that differ from those of Llama.
    """

    reads: frozenset[str]
    defaults: Mapping[str, Any]


_WINDOW_KEYS = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
_KINDS = {
    "llama": _Kind(frozenset({"attention_bias", "mlp_bias"}), {}),
    "mistral": _Kind(
        frozenset({"sliding_window"}), {"num_key_value_heads": 8, "sliding_window": 4096}
    ),
    "qwen2": _Kind(frozenset(_WINDOW_KEYS), {"num_key_value_heads": 32, "sliding_window": 4096}),
    "qwen3": _Kind(
        frozenset({"attention_bias", *_WINDOW_KEYS}),
        {"num_key_value_heads": 32, "sliding_window": 4096, "head_dim": 128},
    ),
}
_OF_SOME_KINDS = frozenset(key for kind in _KINDS.values() for key in kind.reads)
_LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class LlamaConfig(ModelConfig):
    """Sizes and switches of a Llama, Mistral, Qwen2 or Qwen3; the defaults are those of Llama 2 7B.

    >>> config = LlamaConfig(num_attention_heads=32, num_key_value_heads=8)
    >>> config.d_head, config.axis_sizes["n_kv_heads"]
    (128, 8)
    >>> LlamaConfig(model_type="qwen2").qkv_bias
    True

    Raises:
        ConfigError: a size is not a positive integer, the heads cannot be grouped, or a switch is
            invalid or belongs to another `model_type`.
    """

    TITLE: ClassVar[str] = "Llama"
    WEIGHTS: ClassVar[WeightNames] = WEIGHTS
    REQUIRED: ClassVar[Mapping[str, tuple[Any, ...]]] = {"hidden_act": ("silu",)}
    OTHER_KEYS: ClassVar[frozenset[str]] = frozenset(
        {"rope_parameters", "rope_theta", "rope_scaling"}
    )

    model_type: str = "llama"
    vocab_size: int = 32000  # d_vocab
    hidden_size: int = 4096  # d_model
    intermediate_size: int = 11008  # d_mlp
    num_hidden_layers: int = 32  # n_layers
    num_attention_heads: int = 32  # n_heads
    num_key_value_heads: int | None = None  # n_kv_heads; None means n_heads
    head_dim: int | None = None  # d_head; None means d_model / n_heads
    max_position_embeddings: int = 2048  # n_ctx
    rms_norm_eps: float = 1e-6
    rotary: RotaryPositions = field(default_factory=RotaryPositions)
    attention_bias: bool = False  # the four maps of attention have a bias
    mlp_bias: bool = False
    use_sliding_window: bool = False  # of Qwen: the blocks from max_window_layers have a window
    sliding_window: int | None = None
    max_window_layers: int = 28
    layer_types: tuple[str, ...] | None = None  # of Qwen: which blocks have a window
    tie_word_embeddings: bool = False  # the unembedding is the token embedding
    # Not used for the forward pass.
    bos_token_id: int | list[int] | None = field(default=None, compare=False)
    eos_token_id: int | list[int] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        sizes = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"]
        sizes += ["num_attention_heads", "max_position_embeddings"]
        optional = ("num_key_value_heads", "head_dim", "sliding_window")
        sizes += [name for name in optional if getattr(self, name) is not None]
        check_sizes(self, sizes, "num_hidden_layers")
        check_between_0_and_1(self, ("rms_norm_eps",))
        check_switches(
            self, ("attention_bias", "mlp_bias", "use_sliding_window", "tie_word_embeddings")
        )
        if self.model_type not in _KINDS:
            raise ConfigError(f"model_type is {self.model_type!r}. Allowed: {', '.join(_KINDS)}.")
        if self.num_key_value_heads and self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"num_key_value_heads={self.num_key_value_heads} does not divide "
                f"num_attention_heads={self.num_attention_heads}."
            )
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"num_attention_heads={self.num_attention_heads} does not divide "
                f"hidden_size={self.hidden_size}."
            )
        if not is_number(self.max_window_layers):
            raise ConfigError(
                f"max_window_layers must be a number, not {self.max_window_layers!r}."
            )
        if self.layer_types is not None:
            check_layer_types(self.layer_types, _LAYER_TYPES, self.num_hidden_layers)

    @classmethod
    def from_hub(cls, entries: Mapping[str, Any], path: Path | str) -> Self:
        """Return the config described by the entries of a config.json.

        Raises:
            CheckpointError: an entry is invalid or unknown, or describes another network.
        """
        check_required(entries, {"model_type": tuple(_KINDS), **cls.REQUIRED}, path)
        kind = _KINDS[entries.get("model_type", "llama")]
        names = {entry.name for entry in fields(cls)} - (_OF_SOME_KINDS - kind.reads) - {"rotary"}
        check_keys(entries, names | cls.REQUIRED.keys() | cls.OTHER_KEYS, path, cls.TITLE)
        given = {**kind.defaults, **{key: entries[key] for key in names if key in entries}}
        if isinstance(given.get("layer_types"), list):
            given["layer_types"] = tuple(given["layer_types"])
        try:
            return cls(**given, rotary=RotaryPositions.from_hub(entries))
        except ConfigError as error:
            raise CheckpointError(f"{path}: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Return sizes and switches under the keys of config.json, without special tokens."""
        unread = (_OF_SOME_KINDS - _KINDS[self.model_type].reads) | {"rotary"}
        own = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.compare}
        own = {key: value for key, value in own.items() if key not in unread}
        if self.layer_types is not None:
            own["layer_types"] = list(self.layer_types)
        return own | {"rope_parameters": self.rotary.to_json()}

    def to_hub(self) -> dict[str, Any]:
        """Return the contents of config.json, with special tokens."""
        entries = super().to_hub()
        if self.head_dim is None:  # transformers computes it from an absent key, not from null
            del entries["head_dim"]
            if "head_dim" in _KINDS[self.model_type].defaults:
                entries["head_dim"] = self.d_head
        return entries

    @property
    def qkv_bias(self) -> bool:
        """Whether the maps to queries, keys and values have a bias."""
        return self.attention_bias or self.model_type == "qwen2"

    @property
    def output_bias(self) -> bool:
        """Whether the map from the heads to the residual stream has a bias."""
        return self.attention_bias

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
        types = self.layer_types or tuple(
            _LAYER_TYPES[layer >= self.max_window_layers] for layer in layers
        )
        return tuple(self.sliding_window if kind == _LAYER_TYPES[1] else None for kind in types)

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Size of each axis that does not depend on the input."""
        return {
            "d_model": self.hidden_size,
            "n_heads": self.num_attention_heads,
            "n_kv_heads": self.num_key_value_heads or self.num_attention_heads,
            "d_head": self.head_dim or self.hidden_size // self.num_attention_heads,
            "d_mlp": self.intermediate_size,
            "d_vocab": self.vocab_size,
            "n_ctx": self.max_position_embeddings,
            "n_layers": self.num_hidden_layers,
            "1": 1,
        }

    @property
    def sites(self) -> Sites:
        """The sites of the network."""
        rows = SITES_WITH_NORMS_OF_HEADS if self.has_norms_of_heads else SITES
        return Sites(rows, self.axis_sizes)

    @property
    def components(self) -> tuple[Component, ...]:
        """The modules with parameters, in the order of the forward pass."""
        norms = _NORM_COMPONENTS if self.has_norms_of_heads else ()
        return (*_BEFORE_NORMS, *norms, *_AFTER_NORMS)

    @property
    def norm_epsilon(self) -> float:
        """Number that the RMS norms add to the mean square."""
        return self.rms_norm_eps

    @property
    def norm_is_centred(self) -> bool:
        """Whether the norms subtract the mean; false for RMS norms."""
        return False

    @property
    def end_of_text(self) -> int | list[int] | None:
        """Id of the end-of-text token or tokens, if the checkpoint has any."""
        return self.eos_token_id
