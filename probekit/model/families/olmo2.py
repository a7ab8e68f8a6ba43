"""OLMo 2: sizes and switches, sites, and parameters of `probekit.model.olmo2`.

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
    check_required,
    check_sizes,
    check_switches,
)
from probekit.model.families.rotary import RotaryPositions
from probekit.model.parameters import Component
from probekit.model.sites.catalogue import GROUPED, Axes, table
from probekit.model.sites.sites import Sites
from probekit.model.weights.names import WeightNames

_FORMULAS = {  # in forward order
    "hook_embed": "embed_tokens[tokens]",
    "blocks.{l}.hook_resid_pre": "embed, or resid_post of block l-1",
    "blocks.{l}.attn.hook_q": "resid_pre W_Q + b_Q",
    "blocks.{l}.attn.hook_k": "resid_pre W_K + b_K",
    "blocks.{l}.attn.hook_v": "resid_pre W_V + b_V",
    "blocks.{l}.attn.q_norm.hook_scale": "sqrt(mean(q^2) + eps) over all heads together",
    "blocks.{l}.attn.q_norm.hook_normalized": "q / scale",
    "blocks.{l}.attn.k_norm.hook_scale": "sqrt(mean(k^2) + eps) over all heads together",
    "blocks.{l}.attn.k_norm.hook_normalized": "k / scale",
    "blocks.{l}.attn.hook_rot_q": "q_norm(q) rotated by its position",
    "blocks.{l}.attn.hook_rot_k": "k_norm(k) rotated by its position",
    "blocks.{l}.attn.hook_attn_scores": "rot_q rot_k / sqrt(d_head), -inf where masked",
    "blocks.{l}.attn.hook_pattern": "softmax(attn_scores) over key_pos",
    "blocks.{l}.attn.hook_z": "pattern v",
    "blocks.{l}.attn.hook_result": "z W_O per head, without b_O, before the norm",
    "blocks.{l}.ln1_post.hook_scale": "sqrt(mean((z W_O + b_O)^2) + eps)",
    "blocks.{l}.ln1_post.hook_normalized": "(z W_O + b_O) / scale",
    "blocks.{l}.hook_attn_out": "post_attention_layernorm(z W_O + b_O)",
    "blocks.{l}.hook_resid_mid": "resid_pre + attn_out",
    "blocks.{l}.mlp.hook_pre": "resid_mid W_gate",
    "blocks.{l}.mlp.hook_pre_linear": "resid_mid W_up",
    "blocks.{l}.mlp.hook_post": "silu(pre) * pre_linear",
    "blocks.{l}.ln2_post.hook_scale": "sqrt(mean((post W_down)^2) + eps)",
    "blocks.{l}.ln2_post.hook_normalized": "post W_down / scale",
    "blocks.{l}.hook_mlp_out": "post_feedforward_layernorm(post W_down)",
    "blocks.{l}.hook_resid_post": "resid_mid + mlp_out",
    "ln_final.hook_scale": "sqrt(mean(resid_post of the last block^2) + eps)",
    "ln_final.hook_normalized": "resid_post / scale",
}
_SCALE_OF_ALL_HEADS: Axes = ("batch", "pos", "1")
SITES = table(
    _FORMULAS,
    {
        **GROUPED,
        "blocks.{l}.attn.q_norm.hook_scale": _SCALE_OF_ALL_HEADS,
        "blocks.{l}.attn.k_norm.hook_scale": _SCALE_OF_ALL_HEADS,
    },
)

_ATTN, _MLP = "layers.{l}.self_attn", "layers.{l}.mlp"
_BIAS, _QUERIES, _KEYS = "attention_bias", "n_heads d_head", "n_kv_heads d_head"
COMPONENTS = (  # in forward order
    Component("token embedding", "embed_tokens", ("d_vocab", "d_model")),
    Component("attn.q_proj", f"{_ATTN}.q_proj", ("d_model", _QUERIES), _BIAS, "attention"),
    Component("attn.k_proj", f"{_ATTN}.k_proj", ("d_model", _KEYS), _BIAS, "attention"),
    Component("attn.v_proj", f"{_ATTN}.v_proj", ("d_model", _KEYS), _BIAS, "attention"),
    Component("attn.q_norm", f"{_ATTN}.q_norm", (_QUERIES,), part="attention"),
    Component("attn.k_norm", f"{_ATTN}.k_norm", (_KEYS,), part="attention"),
    Component("attn.o_proj", f"{_ATTN}.o_proj", (_QUERIES, "d_model"), _BIAS, "attention"),
    Component("post_attention_layernorm", "layers.{l}.post_attention_layernorm", ("d_model",)),
    Component("mlp.gate_proj", f"{_MLP}.gate_proj", ("d_model", "d_mlp"), part="MLP"),
    Component("mlp.up_proj", f"{_MLP}.up_proj", ("d_model", "d_mlp"), part="MLP"),
    Component("mlp.down_proj", f"{_MLP}.down_proj", ("d_mlp", "d_model"), part="MLP"),
    Component("post_feedforward_layernorm", "layers.{l}.post_feedforward_layernorm", ("d_model",)),
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
    switches=(
        ("lm_head.weight", '"tie_word_embeddings": false'),
        ("q_proj.bias", '"attention_bias": true'),
    ),
)


@dataclass(frozen=True)
class OLMo2Config(ModelConfig):
    """Sizes and switches of an OLMo 2; the defaults are those of the hub.

    >>> OLMo2Config(num_attention_heads=32, num_key_value_heads=8).axis_sizes["n_kv_heads"]
    8

    Raises:
        ConfigError: a size is not a positive integer, the heads cannot be grouped or do not divide
            the width, or a switch is invalid.
    """

    TITLE: ClassVar[str] = "OLMo 2"
    WEIGHTS: ClassVar[WeightNames] = WEIGHTS
    REQUIRED: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "model_type": ("olmo2",),
        "hidden_act": ("silu",),
    }
    OTHER_KEYS: ClassVar[frozenset[str]] = frozenset(
        {"rope_parameters", "rope_theta", "rope_scaling"}
    )

    vocab_size: int = 50304  # d_vocab
    hidden_size: int = 4096  # d_model
    intermediate_size: int = 11008  # d_mlp
    num_hidden_layers: int = 32  # n_layers
    num_attention_heads: int = 32  # n_heads
    num_key_value_heads: int | None = None  # n_kv_heads; None means n_heads
    max_position_embeddings: int = 2048  # n_ctx
    rms_norm_eps: float = 1e-5
    rotary: RotaryPositions = field(default_factory=RotaryPositions)
    attention_bias: bool = False  # the four maps of attention have a bias
    tie_word_embeddings: bool = False  # the unembedding is the token embedding
    # Not used for the forward pass.
    bos_token_id: int | list[int] | None = field(default=None, compare=False)
    eos_token_id: int | list[int] | None = field(default=50279, compare=False)

    def __post_init__(self) -> None:
        sizes = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"]
        sizes += ["num_attention_heads", "max_position_embeddings"]
        sizes += ["num_key_value_heads"] if self.num_key_value_heads is not None else []
        check_sizes(self, sizes, "num_hidden_layers")
        check_between_0_and_1(self, ("rms_norm_eps",))
        check_switches(self, ("attention_bias", "tie_word_embeddings"))
        for whole, part in (
            ("hidden_size", "num_attention_heads"),
            ("num_attention_heads", "num_key_value_heads"),
        ):
            if getattr(self, whole) % (getattr(self, part) or 1):
                raise ConfigError(
                    f"{part}={getattr(self, part)} does not divide {whole}={getattr(self, whole)}."
                )

    @classmethod
    def from_hub(cls, entries: Mapping[str, Any], path: Path | str) -> Self:
        """Return the config described by the entries of a config.json.

        Raises:
            CheckpointError: an entry is invalid or unknown, or describes another network.
        """
        check_required(entries, cls.REQUIRED, path)
        names = {entry.name for entry in fields(cls)} - {"rotary"}
        check_keys(entries, names | cls.REQUIRED.keys() | cls.OTHER_KEYS, path, cls.TITLE)
        given = {key: entries[key] for key in names if key in entries}
        try:
            return cls(**given, rotary=RotaryPositions.from_hub(entries))
        except ConfigError as error:
            raise CheckpointError(f"{path}: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Return sizes and switches under the keys of config.json, without special tokens."""
        own = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.compare}
        del own["rotary"]
        return {"model_type": "olmo2", **own, "rope_parameters": self.rotary.to_json()}

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Size of each axis that does not depend on the input."""
        return {
            "d_model": self.hidden_size,
            "n_heads": self.num_attention_heads,
            "n_kv_heads": self.num_key_value_heads or self.num_attention_heads,
            "d_head": self.hidden_size // self.num_attention_heads,
            "d_mlp": self.intermediate_size,
            "d_vocab": self.vocab_size,
            "n_ctx": self.max_position_embeddings,
            "n_layers": self.num_hidden_layers,
            "1": 1,
        }

    @property
    def sites(self) -> Sites:
        """The sites of the network."""
        return Sites(SITES, self.axis_sizes)

    @property
    def components(self) -> tuple[Component, ...]:
        """The modules with parameters, in the order of the forward pass."""
        return COMPONENTS

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
