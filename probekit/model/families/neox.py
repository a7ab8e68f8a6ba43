"""Pythia and other GPT-NeoX models: sizes and switches, sites, and parameters.

`probekit.model.neox` computes them. In the published models attention and MLP are parallel: both
read the residual stream before the block, so there is no `hook_resid_mid`.

Source of the keys and their defaults: config.json of the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from probekit.errors import CheckpointError, ConfigError, nearest
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
from probekit.model.sites.catalogue import table
from probekit.model.sites.sites import Sites
from probekit.model.weights.names import WeightNames

_ATTENTION = {  # in forward order
    "hook_embed": "embed_in[tokens]",
    "blocks.{l}.hook_resid_pre": "embed, or resid_post of block l-1",
    "blocks.{l}.ln1.hook_scale": "sqrt(var(resid_pre) + eps)",
    "blocks.{l}.ln1.hook_normalized": "(resid_pre - mean) / scale",
    "blocks.{l}.attn.hook_q": "input_layernorm(resid_pre) W_Q + b_Q",
    "blocks.{l}.attn.hook_k": "input_layernorm(resid_pre) W_K + b_K",
    "blocks.{l}.attn.hook_v": "input_layernorm(resid_pre) W_V + b_V",
    "blocks.{l}.attn.hook_rot_q": "q, its first features rotated by its position",
    "blocks.{l}.attn.hook_rot_k": "k, its first features rotated by its position",
    "blocks.{l}.attn.hook_attn_scores": "rot_q rot_k / sqrt(d_head), -inf where masked",
    "blocks.{l}.attn.hook_pattern": "softmax(attn_scores) over key_pos",
    "blocks.{l}.attn.hook_z": "pattern v",
    "blocks.{l}.attn.hook_result": "z W_O per head, without b_O",
    "blocks.{l}.hook_attn_out": "z W_O + b_O",
}
_PARALLEL_MLP = {
    "blocks.{l}.ln2.hook_scale": "sqrt(var(resid_pre) + eps)",
    "blocks.{l}.ln2.hook_normalized": "(resid_pre - mean) / scale",
    "blocks.{l}.mlp.hook_pre": "post_attention_layernorm(resid_pre) W_in + b_in",
    "blocks.{l}.mlp.hook_post": "gelu(pre)",
    "blocks.{l}.hook_mlp_out": "post W_out + b_out",
    "blocks.{l}.hook_resid_post": "resid_pre + attn_out + mlp_out",
}
_SEQUENTIAL_MLP = {
    "blocks.{l}.hook_resid_mid": "resid_pre + attn_out",
    "blocks.{l}.ln2.hook_scale": "sqrt(var(resid_mid) + eps)",
    "blocks.{l}.ln2.hook_normalized": "(resid_mid - mean) / scale",
    "blocks.{l}.mlp.hook_pre": "post_attention_layernorm(resid_mid) W_in + b_in",
    "blocks.{l}.mlp.hook_post": "gelu(pre)",
    "blocks.{l}.hook_mlp_out": "post W_out + b_out",
    "blocks.{l}.hook_resid_post": "resid_mid + mlp_out",
}
_OUTPUT = {
    "ln_final.hook_scale": "sqrt(var(resid_post of the last block) + eps)",
    "ln_final.hook_normalized": "(resid_post - mean) / scale",
}
PARALLEL_SITES = table(_ATTENTION | _PARALLEL_MLP | _OUTPUT)
SEQUENTIAL_SITES = table(_ATTENTION | _SEQUENTIAL_MLP | _OUTPUT)

_ATTN, _MLP = "layers.{l}.attention", "layers.{l}.mlp"
_IN, _OUT, _NORM_BIAS = ("d_model", "d_mlp"), ("d_mlp", "d_model"), "norm_bias"
COMPONENTS = (  # in forward order
    Component("token embedding", "embed_in", ("d_vocab", "d_model")),
    Component("input_layernorm", "layers.{l}.input_layernorm", ("d_model",), _NORM_BIAS),
    Component(
        "attention.query_key_value",
        f"{_ATTN}.query_key_value",
        ("d_model", "3 d_model"),
        "attention_bias",
        "attention",
    ),
    Component(
        "attention.dense", f"{_ATTN}.dense", ("d_model", "d_model"), "attention_bias", "attention"
    ),
    Component(
        "post_attention_layernorm", "layers.{l}.post_attention_layernorm", ("d_model",), _NORM_BIAS
    ),
    Component("mlp.dense_h_to_4h", f"{_MLP}.dense_h_to_4h", _IN, "mlp_bias", "MLP"),
    Component("mlp.dense_4h_to_h", f"{_MLP}.dense_4h_to_h", _OUT, "mlp_bias", "MLP"),
    Component("final norm", "final_layer_norm", ("d_model",), _NORM_BIAS),
    Component("unembedding", "embed_out", ("d_vocab", "d_model"), tied="tie_word_embeddings"),
)

WEIGHTS = WeightNames(
    prefix="gpt_neox.",
    embedding="embed_in.weight",
    unembedding="embed_out.weight",
    layers="layers.",
    n_layers="num_hidden_layers",
    sizes=(
        ("embed_in.weight", ("vocab_size", "hidden_size")),
        ("layers.0.mlp.dense_h_to_4h.weight", ("intermediate_size",)),
    ),
    # Causal masks and frequencies in the published checkpoints.
    buffers=r"\.attention\.(masked_)?bias$|\.rotary_emb\.inv_freq$",
    other_names=(("lm_head.weight", "embed_out.weight"),),  # in transformers 5
    switches=(
        ("embed_out.weight", '"tie_word_embeddings": false'),
        (".bias", '"attention_bias": true'),
    ),
)

# Values of hidden_act, and `approximate` of torch's GELU.
GELUS = {"gelu": "none", "gelu_new": "tanh", "gelu_fast": "tanh", "gelu_pytorch_tanh": "tanh"}
# Names of the rotary positions in GPT-NeoX, and those of all other families.
_ROTARY = {"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"}


@dataclass(frozen=True)
class NeoXConfig(ModelConfig):
    """Sizes and switches of a Pythia or GPT-NeoX; the defaults are the hub's, of GPT-NeoX 20B.

    >>> config = NeoXConfig(hidden_size=512, num_attention_heads=8)
    >>> config.d_head, config.sites.describe("blocks.0.hook_resid_post").formula
    (64, 'resid_pre + attn_out + mlp_out')

    Raises:
        ConfigError: a size is not a positive integer, num_attention_heads does not divide
            hidden_size, or a switch or the activation is invalid.
    """

    TITLE: ClassVar[str] = "GPT-NeoX"
    WEIGHTS: ClassVar[WeightNames] = WEIGHTS
    REQUIRED: ClassVar[Mapping[str, tuple[Any, ...]]] = {"model_type": ("gpt_neox",)}
    # Rotary positions, dropout rates of training, and code for pipelines of transformers.
    OTHER_KEYS: ClassVar[frozenset[str]] = frozenset(
        {*_ROTARY, *_ROTARY.values(), "rope_parameters", "rope_scaling"}
        | {"hidden_dropout", "classifier_dropout", "custom_pipelines"}
    )

    vocab_size: int = 50432  # d_vocab
    hidden_size: int = 6144  # d_model
    intermediate_size: int = 24576  # d_mlp
    num_hidden_layers: int = 44  # n_layers
    num_attention_heads: int = 64  # n_heads
    max_position_embeddings: int = 2048  # n_ctx
    hidden_act: str = "gelu"  # exact, or one of the names of its tanh approximation
    layer_norm_eps: float = 1e-5
    rotary: RotaryPositions = field(
        default_factory=lambda: RotaryPositions(partial_rotary_factor=0.25)
    )
    use_parallel_residual: bool = True  # the MLP reads the stream before attention, not after it
    attention_bias: bool = True  # the two maps of attention have a bias
    tie_word_embeddings: bool = False  # the unembedding is the token embedding
    # Not used for the forward pass.
    bos_token_id: int | list[int] | None = field(default=None, compare=False)
    eos_token_id: int | list[int] | None = field(default=None, compare=False)

    mlp_bias: ClassVar[bool] = True
    norm_bias: ClassVar[bool] = True

    def __post_init__(self) -> None:
        sizes = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"]
        sizes += ["num_attention_heads", "max_position_embeddings"]
        check_sizes(self, sizes, "num_hidden_layers")
        check_between_0_and_1(self, ("layer_norm_eps",))
        switches = ("use_parallel_residual", "attention_bias", "tie_word_embeddings")
        check_switches(self, switches)
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"num_attention_heads={self.num_attention_heads} does not divide "
                f"hidden_size={self.hidden_size}."
            )
        if self.hidden_act not in GELUS:
            raise ConfigError(
                f"hidden_act is {self.hidden_act!r}. {nearest(str(self.hidden_act), GELUS)} "
                "probekit computes no other activation in a GPT-NeoX."
            )
        if self.rotary.partial_rotary_factor > 1:
            raise ConfigError(
                "The share of a head that is rotated (rotary_pct) must be at most 1, not "
                f"{self.rotary.partial_rotary_factor}."
            )

    @classmethod
    def from_hub(cls, entries: Mapping[str, Any], path: Path | str) -> Self:
        """Return the config described by the entries of a config.json.

        Raises:
            CheckpointError: an entry is invalid or unknown, or describes another network.
        """
        names = {entry.name for entry in fields(cls)} - {"rotary"}
        check_required(entries, cls.REQUIRED, path)
        check_keys(entries, names | cls.REQUIRED.keys() | cls.OTHER_KEYS, path, cls.TITLE)
        given = {key: entries[key] for key in names if key in entries}
        try:
            return cls(**given, rotary=_rotary_of(entries))
        except ConfigError as error:
            raise CheckpointError(f"{path}: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """Return sizes and switches under the keys of config.json, without special tokens."""
        own = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.compare}
        del own["rotary"]
        return own | {"model_type": "gpt_neox", "rope_parameters": self.rotary.to_json()}

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Size of each axis that does not depend on the input."""
        return {
            "d_model": self.hidden_size,
            "n_heads": self.num_attention_heads,
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
        rows = PARALLEL_SITES if self.use_parallel_residual else SEQUENTIAL_SITES
        return Sites(rows, self.axis_sizes)

    @property
    def components(self) -> tuple[Component, ...]:
        """The modules with parameters, in the order of the forward pass."""
        return COMPONENTS

    @property
    def norm_epsilon(self) -> float:
        """Number that the layer norms add to the variance."""
        return self.layer_norm_eps

    @property
    def norm_is_centred(self) -> bool:
        """Whether the norms subtract the mean; true for layer norms."""
        return True

    @property
    def end_of_text(self) -> int | list[int] | None:
        """Id of the end-of-text token or tokens, if the checkpoint has any."""
        return self.eos_token_id


def _rotary_of(entries: Mapping[str, Any]) -> RotaryPositions:
    """Return the rotary positions that the entries of a config.json describe."""
    given = {key: value for key, value in entries.items() if value is not None}
    for own, general in _ROTARY.items():
        if own in given and given.setdefault(general, given[own]) != given[own]:
            raise ConfigError(
                f"{own} is {given[own]} and {general} is {given[general]}. They are two names of "
                "one number: remove the wrong one."
            )
    return RotaryPositions.from_hub(given, share=0.25)
