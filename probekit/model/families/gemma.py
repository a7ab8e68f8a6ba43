"""Gemma 2 and Gemma 3 (text): sizes and switches.

They are one network, `probekit.model.gemma`, with these differences:

    gemma2       scores and logits have softcaps; windows in every other block
    gemma3_text  queries and keys pass an RMS norm per head; blocks with a window have a rotary base
                 of their own, and are five of six

Source of the keys and their defaults: config.json of the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from probekit.errors import CheckpointError, ConfigError
from probekit.model.config import (
    MAX_LAYERS,
    ModelConfig,
    check_between_0_and_1,
    check_keys,
    check_layer_types,
    check_required,
    check_sizes,
    check_switches,
    is_number,
)
from probekit.model.families.gemma_tables import (
    FROM_OUTPUT,
    NORM_COMPONENTS,
    SITES_OF_GEMMA2,
    SITES_OF_GEMMA3,
    UP_TO_MAPS,
)
from probekit.model.families.rotary import RotaryPositions
from probekit.model.parameters import Component
from probekit.model.sites.sites import Sites
from probekit.model.weights.names import WeightNames

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

_FULL, _SLIDING = "full_attention", "sliding_attention"
_MODEL_TYPES = ("gemma2", "gemma3_text")
# The hub's values of keys that a config.json of Gemma 3 leaves out.
_DEFAULTS_3 = {
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
}
_OF_GEMMA3 = frozenset({"rope_local_base_freq", "sliding_window_pattern"})


@dataclass(frozen=True)
class GemmaConfig(ModelConfig):
    """Sizes and switches of a Gemma 2 or 3; the defaults are those of Gemma 2 2B.

    >>> config = GemmaConfig()
    >>> config.n_heads, config.n_kv_heads, config.d_head, config.windows[:2]
    (8, 4, 256, (4096, None))

    Raises:
        ConfigError: a size is not a positive integer, the heads cannot be grouped, or a switch is
            invalid or belongs to another `model_type`.
    """

    TITLE: ClassVar[str] = "Gemma"
    WEIGHTS: ClassVar[WeightNames] = WEIGHTS
    REQUIRED: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "hidden_activation": ("gelu_pytorch_tanh",),
        "hidden_act": ("gelu_pytorch_tanh", None),
        "use_bidirectional_attention": (False, None),
    }
    OTHER_KEYS: ClassVar[frozenset[str]] = frozenset(
        # The last one repeats sliding_window_pattern in files that list layer_types.
        {"rope_parameters", "rope_theta", "rope_scaling", "cache_implementation"}
        | {"sliding_window_size", "_sliding_window_pattern"}
    )

    model_type: str = "gemma2"
    vocab_size: int = 256000  # d_vocab
    hidden_size: int = 2304  # d_model
    intermediate_size: int = 9216  # d_mlp
    num_hidden_layers: int = 26  # n_layers
    num_attention_heads: int = 8  # n_heads
    num_key_value_heads: int = 4  # n_kv_heads
    head_dim: int = 256  # d_head
    max_position_embeddings: int = 8192  # n_ctx
    rms_norm_eps: float = 1e-6
    rotary: RotaryPositions = field(default_factory=RotaryPositions)
    rotary_in_windows: RotaryPositions = field(default_factory=RotaryPositions)
    attention_bias: bool = False  # the four maps of attention have a bias
    query_pre_attn_scalar: float = 256  # scores are divided by its square root
    sliding_window: int = 4096
    layer_types: tuple[str, ...] | None = None  # which blocks have a window
    attn_logit_softcapping: float | None = 50.0  # of Gemma 2
    final_logit_softcapping: float | None = 30.0
    tie_word_embeddings: bool = True  # the unembedding is the token embedding
    # Not used for the forward pass.
    bos_token_id: int | list[int] | None = field(default=None, compare=False)
    eos_token_id: int | list[int] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        sizes = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"]
        sizes += ["num_attention_heads", "num_key_value_heads", "head_dim", "sliding_window"]
        check_sizes(self, [*sizes, "max_position_embeddings"], "num_hidden_layers")
        check_between_0_and_1(self, ("rms_norm_eps",))
        check_switches(self, ("attention_bias", "tie_word_embeddings"))
        if self.model_type not in _MODEL_TYPES:
            raise ConfigError(
                f"model_type is {self.model_type!r}. Allowed: {', '.join(_MODEL_TYPES)}."
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"num_key_value_heads={self.num_key_value_heads} does not divide "
                f"num_attention_heads={self.num_attention_heads}."
            )
        self._check_numbers()
        check_layer_types(self.types_of_layers, (_FULL, _SLIDING), self.num_hidden_layers)

    def _check_numbers(self) -> None:
        for name in (
            "query_pre_attn_scalar",
            "attn_logit_softcapping",
            "final_logit_softcapping",
        ):
            value = getattr(self, name)
            is_absent = value is None and name.endswith("softcapping")
            if not is_absent and (not is_number(value) or not value > 0):
                raise ConfigError(f"{name} must be a positive number, not {value!r}.")
        if self.has_norms_of_heads and self.attn_logit_softcapping is not None:
            raise ConfigError(
                f"attn_logit_softcapping is {self.attn_logit_softcapping!r}. Allowed for "
                "gemma3_text: null, because the published code of Gemma 3 has no such cap."
            )
        for rotary in (self.rotary, self.rotary_in_windows):
            if rotary.partial_rotary_factor != 1:
                raise ConfigError(
                    f"partial_rotary_factor is {rotary.partial_rotary_factor!r}. Allowed: 1, "
                    "because Gemma rotates all features of a head."
                )

    @classmethod
    def from_hub(cls, entries: Mapping[str, Any], path: Path | str) -> Self:
        """Return the config described by the entries of a config.json.

        Raises:
            CheckpointError: an entry is invalid or unknown, or describes another network.
        """
        check_required(entries, {"model_type": _MODEL_TYPES, **cls.REQUIRED}, path)
        is_gemma3 = entries.get("model_type") == "gemma3_text"
        names = {entry.name for entry in fields(cls)} - {"rotary", "rotary_in_windows"}
        known = names | cls.REQUIRED.keys() | cls.OTHER_KEYS | (_OF_GEMMA3 if is_gemma3 else set())
        check_keys(entries, known, path, cls.TITLE)
        defaults = _DEFAULTS_3 if is_gemma3 else {}
        given = {**defaults, **{key: entries[key] for key in names if key in entries}}
        try:
            given |= _rotary_of_gemma3(entries) if is_gemma3 else _rotary_of_gemma2(entries)
            given["layer_types"] = _types_of_layers(entries, given)
            config = cls(**given)
        except ConfigError as error:
            raise CheckpointError(f"{path}: {error}") from error
        check_required(
            entries, {"sliding_window_size": (config.sliding_window, None)}, path
        )  # a second spelling in some files of Gemma 2
        return config

    def to_json(self) -> dict[str, Any]:
        """Return sizes and switches under the keys of config.json, without special tokens."""
        unread = ("rotary", "rotary_in_windows")
        own = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.compare}
        own = {key: value for key, value in own.items() if key not in unread}
        own["layer_types"] = list(self.types_of_layers)
        rotary = self.rotary.to_json()
        if self.model_type == "gemma3_text":
            rotary = {_FULL: rotary, _SLIDING: self.rotary_in_windows.to_json()}
        return own | {"rope_parameters": rotary}

    @property
    def types_of_layers(self) -> tuple[str, ...]:
        """Type of the attention of each block: `full_attention` or `sliding_attention`."""
        if self.layer_types is not None:
            return self.layer_types
        return _pattern(self.num_hidden_layers, 6 if self.has_norms_of_heads else 2)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Number of tokens that each block attends to; None for all."""
        return tuple(self.sliding_window if t == _SLIDING else None for t in self.types_of_layers)

    @property
    def has_norms_of_heads(self) -> bool:
        """Whether queries and keys pass an RMS norm per head."""
        return self.model_type == "gemma3_text"

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Size of each axis that does not depend on the input."""
        return {
            "d_model": self.hidden_size,
            "n_heads": self.num_attention_heads,
            "n_kv_heads": self.num_key_value_heads,
            "d_head": self.head_dim,
            "d_mlp": self.intermediate_size,
            "d_vocab": self.vocab_size,
            "n_ctx": self.max_position_embeddings,
            "n_layers": self.num_hidden_layers,
            "1": 1,
        }

    @property
    def sites(self) -> Sites:
        """The sites of the network."""
        rows = SITES_OF_GEMMA3 if self.has_norms_of_heads else SITES_OF_GEMMA2
        return Sites(rows, self.axis_sizes)

    @property
    def components(self) -> tuple[Component, ...]:
        """The modules with parameters, in the order of the forward pass."""
        norms = NORM_COMPONENTS if self.has_norms_of_heads else ()
        return (*UP_TO_MAPS, *norms, *FROM_OUTPUT)

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


def _pattern(n_layers: int, period: int) -> tuple[str, ...]:
    """Return the types of blocks if every `period`-th block attends to all tokens.

    >>> _pattern(3, 2)
    ('sliding_attention', 'full_attention', 'sliding_attention')
    """
    return tuple(_SLIDING if layer % period else _FULL for layer in range(1, n_layers + 1))


def _types_of_layers(
    entries: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[str, ...] | None:
    """Return the types of the blocks; None means the default of the `model_type`.

    Raises:
        ConfigError: the period is not a positive integer.
    """
    types, period = entries.get("layer_types"), entries.get("sliding_window_pattern")
    if types is not None:
        return tuple(types) if isinstance(types, list) else types
    if period is None:
        return None
    if not isinstance(period, int) or isinstance(period, bool) or period < 1:
        raise ConfigError(f"sliding_window_pattern must be a positive integer, not {period!r}.")
    n_layers = given.get("num_hidden_layers", GemmaConfig.num_hidden_layers)
    is_possible = isinstance(n_layers, int) and n_layers <= MAX_LAYERS
    return _pattern(n_layers, period) if is_possible else None


def _rotary_of_gemma2(entries: Mapping[str, Any]) -> dict[str, RotaryPositions]:
    rotary = RotaryPositions.from_hub(entries)
    return {"rotary": rotary, "rotary_in_windows": rotary}


def _rotary_of_gemma3(entries: Mapping[str, Any]) -> dict[str, RotaryPositions]:
    """Return the rotary positions of both types of blocks.

    Releases of transformers before 5 write `rope_theta`, `rope_scaling` and `rope_local_base_freq`,
    later ones a section for each type.

    Raises:
        ConfigError: a key is unknown, or a number is invalid.
    """
    sections = entries.get("rope_parameters") or {}
    if not isinstance(sections, Mapping) or not sections.keys() <= {_FULL, _SLIDING}:
        raise ConfigError(
            f"rope_parameters must have the sections {_FULL} and {_SLIDING}, not {sections!r}."
        )
    full = sections.get(_FULL) or entries.get("rope_scaling")
    local = {"rope_theta": entries.get("rope_local_base_freq")}
    return {
        "rotary": RotaryPositions.from_hub(
            {"rope_parameters": full, "rope_theta": entries.get("rope_theta")}, theta=1e6
        ),
        "rotary_in_windows": RotaryPositions.from_hub(
            local | {"rope_parameters": sections.get(_SLIDING)}
        ),
    }
