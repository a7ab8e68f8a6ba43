"""What the families with rotary positions share: positions, config, modules and network.

Source of the rotation: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position
Embedding"; of its scaling for longer texts: Peng et al. 2023, "YaRN: Efficient Context Window
Extension of Large Language Models", and the code published with Llama 3.1. The features of a head
are paired as in the published checkpoints: i with i + half.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probekit.errors import ConfigError, nearest
from probekit.model import config as base
from probekit.model.config import Component
from probekit.model.layers.modules import LayerNorm, Linear, Norm, attend_heads
from probekit.model.network import FamilyNetwork, embedding, stream_of
from probekit.model.passes.context import BlockContext, Context, causal
from probekit.model.passes.taps import Taps
from probekit.model.sites.catalogue import heads_of
from probekit.products import Activation, to_device

# Keys of `rope_parameters` that every kind of scaling reads.
_SHARED = ("rope_theta", "partial_rotary_factor", "rope_type")
# Key of `rope_parameters` -> its name outside of this section, and its default.
Names = Mapping[str, tuple[str, float]]
OUTSIDE = {"rope_theta": ("rope_theta", 1e4), _SHARED[1]: (_SHARED[1], 1.0)}
FULL, SLIDING = "full_attention", "sliding_attention"  # types of blocks
_BOTH = ("rope_scaling", "rope_parameters")
FIRST_LENGTH = "original_max_position_embeddings"
_YARN = "beta_fast beta_slow attention_factor mscale mscale_all_dim truncate"
_LLAMA3 = f"factor low_freq_factor high_freq_factor {FIRST_LENGTH}"


@dataclass(frozen=True)
class RotaryPositions:
    """Base and scaling of rotary positions; the names are those of `rope_parameters` on the hub.

    Attributes:
        KINDS: keys that each type of scaling reads; it needs all of them.
        OPTIONAL: keys that each type reads if they are there.
        rope_theta: base of the wavelengths.
        rope_type: `default`, `linear` (positions are divided by `factor`), `llama3` and `yarn`
            (only long wavelengths are multiplied by `factor`, with a transition that is linear in
            the number of turns or in the index of the pair), or, in Phi-3, `longrope`.
        partial_rotary_factor: share of the features of a head that is rotated.
        factor: how much longer the texts are than those of the first training.
        low_freq_factor: pairs with at most this number of turns over a text of the first training
            have their wavelength multiplied by `factor`.
        high_freq_factor: pairs with at least this number of turns keep their wavelength.
        original_max_position_embeddings: number of tokens of a text in the first training.
        beta_slow: `low_freq_factor` of `yarn`; None means 1.
        beta_fast: `high_freq_factor` of `yarn`; None means 32.
        truncate: whether the first and last pair of the transition are rounded outwards; None means
            true.
        attention_factor: factor of rotated queries and of rotated keys, for `yarn`; None computes
            it from `factor`, and from `mscale` and `mscale_all_dim` if both are given.
        mscale: factor of log(factor) in the numerator of `attention_factor`.
        mscale_all_dim: factor of log(factor) in its denominator.
        short_factor: number that multiplies the wavelength of each pair, for `longrope`.
        long_factor: the same for texts longer than those of the first training, which are refused.

    Raises:
        ConfigError: the type is unknown, a number is missing or not positive, `low_freq_factor` is
            not below `high_freq_factor`, or `beta_slow` above `beta_fast`.
    """

    KINDS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "default": (),
        "linear": ("factor",),
        "llama3": tuple(_LLAMA3.split()),
        "yarn": ("factor", FIRST_LENGTH),
    }
    OPTIONAL: ClassVar[Mapping[str, tuple[str, ...]]] = {"yarn": tuple(_YARN.split())}

    rope_theta: float = 10000.0
    rope_type: str = "default"
    partial_rotary_factor: float = 1.0
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None
    beta_slow: float | None = None
    beta_fast: float | None = None
    truncate: bool | None = None
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.rope_type not in tuple(self.KINDS):  # it may be of any type
            raise ConfigError(
                f"rope_type is {self.rope_type!r}. {nearest(str(self.rope_type), self.KINDS)} "
                f"probekit computes no other scaling of rotary positions. {base.OTHER_MODELS}"
            )
        if not isinstance(self.truncate, bool | None):
            raise ConfigError(f"truncate must be true or false, not {self.truncate!r}.")
        optional = (
            name
            for name in self.OPTIONAL.get(self.rope_type, ())
            if name != "truncate" and getattr(self, name) is not None
        )
        needed = ("rope_theta", "partial_rotary_factor", *self.KINDS[self.rope_type])
        for name in (*needed, *optional):
            value = getattr(self, name)
            for number in value if isinstance(value, tuple) else (value,):
                if not base.is_number(number) or not number > 0:
                    raise ConfigError(
                        f"{name} of the rotary positions ({self.rope_type}) must be a positive "
                        f"number, not {number!r}."
                    )
        low, high = self.low_freq_factor, self.high_freq_factor
        if self.rope_type == "llama3" and not cast(float, low) < cast(float, high):
            raise ConfigError(f"low_freq_factor={low} must be below high_freq_factor={high}.")
        slow, fast = self.beta_slow or 1.0, self.beta_fast or 32.0
        if self.rope_type == "yarn" and (slow > fast or self.rope_theta == 1):
            raise ConfigError(
                f"beta_slow={slow} must not exceed beta_fast={fast}, nor rope_theta be 1."
            )

    @property
    def scale(self) -> float:
        """Factor of rotated queries and of rotated keys: `attention_factor` of `yarn`, else 1.

        >>> RotaryPositions(0.5, "yarn", factor=math.e, original_max_position_embeddings=8).scale
        1.1
        """
        if self.rope_type != "yarn" or self.attention_factor is not None:
            return self.attention_factor or 1.0
        longer = max(0.0, math.log(cast(float, self.factor)))
        if self.mscale and self.mscale_all_dim:
            return (0.1 * self.mscale * longer + 1) / (0.1 * self.mscale_all_dim * longer + 1)
        return 0.1 * longer + 1

    def to_json(self) -> dict[str, Any]:
        """Return the entries of `rope_parameters`, without those that the type does not read."""
        optional = self.OPTIONAL.get(self.rope_type, ())
        read = (*_SHARED, *self.KINDS[self.rope_type], *optional)
        entries = ((key, value) for key, value in asdict(self).items() if key in read)
        values = {key: one for key, one in entries if one is not None or key not in optional}
        return {key: list(one) if isinstance(one, tuple) else one for key, one in values.items()}

    @classmethod
    def from_hub(
        cls, entries: Mapping[str, Any], outside: Names = OUTSIDE, sections: Sequence[str] = _BOTH
    ) -> Self:
        """Return the rotary positions that the entries of a config.json describe.

        Releases of transformers before 5 write `rope_theta` and `rope_scaling`, later ones
        `rope_parameters`.

        Args:
            entries: contents of the file.
            outside: keys that may be outside of the section: their name there, and their default.
            sections: old and new name of the section.

        >>> RotaryPositions.from_hub({"rope_theta": 5e5, "rope_scaling": None}).rope_theta
        500000.0

        Raises:
            ConfigError: a section is not an object, the type of scaling or one of its keys is
                unknown, a number is invalid, or two names of a key have different values.
        """
        given = [name for name in sections if base.value_of(entries, name)] or sections[-1:]
        found = [cls._of_section(entries, name, outside) for name in given]
        both = {"rope_scaling": found[0].to_json(), "rope_parameters": found[-1].to_json()}
        base.value_of(both, *both)
        return found[0]

    @classmethod
    def _of_section(cls, entries: Mapping[str, Any], name: str, outside: Names) -> Self:
        """Return the rotary positions of one section, with keys from outside where it has none."""
        section = base.value_of(entries, name) or {}
        if not isinstance(section, Mapping):
            raise ConfigError(f"{name} must be an object, not {section!r}.")
        kind = base.value_of(section, "rope_type", "type")
        kind = "default" if kind is None else "longrope" if kind == "su" else kind  # an old name
        if not isinstance(kind, str) or kind not in cls.KINDS:
            return cls(rope_type=kind)  # raises
        known = (*_SHARED, *cls.KINDS[kind], *cls.OPTIONAL.get(kind, ()))
        # Types that do not read the length of the first training may have it all the same.
        not_read = {"type", FIRST_LENGTH}.difference(known)
        entered = ((k, v) for k, v in section.items() if v is not None and k not in not_read)
        given: dict[str, Any] = dict(entered)
        for key in cls.KINDS.get("longrope", ()):
            given |= {key: tuple(given[key])} if isinstance(given.get(key), list) else {}
        if unknown := [key for key in given if key not in known]:
            raise ConfigError(
                f"Unknown key {unknown[0]!r} of the rotary positions ({kind}). "
                f"{nearest(unknown[0], known)}"
            )
        for key, (other, default) in outside.items():
            value = base.value_of(entries, other, f"{name}.{key}")
            given[key] = default if value is None else value
        return cls(**(given | {"rope_type": kind}))


def frequencies(rotary: RotaryPositions, d_head: int) -> Tensor:
    """Return the angle by which each pair of features turns per position, shape [n_pairs].

    In float32, in which the models were trained, whatever the dtype of the weights.

    >>> frequencies(RotaryPositions(), 4)
    tensor([1.0000, 0.0100])
    """
    n_rotated = int(d_head * rotary.partial_rotary_factor)
    # Pair i turns by rope_theta ** -(2 i / n_rotated).
    exponent = torch.arange(0, n_rotated, 2, dtype=torch.float32, device="cpu") / n_rotated
    wavelength = rotary.rope_theta**exponent
    if rotary.rope_type == "longrope":  # texts that need `long_factor` are refused
        wavelength = (
            torch.tensor(rotary.short_factor, dtype=torch.float32, device="cpu") * wavelength
        )
    plain = 1.0 / wavelength
    if rotary.rope_type == "linear":
        assert rotary.factor is not None
        return plain / rotary.factor  # the same angles as with positions / factor
    if rotary.rope_type == "yarn":
        unchanged = _unchanged_by_yarn(rotary, n_rotated)
        stretched = 1.0 / (cast(float, rotary.factor) * wavelength)
        return (1 - unchanged) * stretched + unchanged * plain
    if rotary.rope_type != "llama3":
        return plain
    # Long wavelengths are stretched by `factor`. Source: the code published with Llama 3.1
    # (models/llama3/reference_impl/model.py). Pairs that turn less than `low` times are stretched,
    # those that turn more than `high` times are kept.
    factor, low, high, trained = (cast(float, getattr(rotary, key)) for key in _LLAMA3.split())
    turns = trained / (2 * math.pi / plain)  # of each pair over a text of the first training
    unchanged = ((turns - low) / (high - low)).clamp(0, 1)  # weight of `plain`; 0 is stretched
    return (1 - unchanged) * plain / factor + unchanged * plain


def _unchanged_by_yarn(rotary: RotaryPositions, n_rotated: int) -> Tensor:
    """Return the share of each pair that keeps its wavelength, shape [n_pairs].

    Source: Peng et al. 2023, section 3.2; with `truncate` as in the code published with it.
    """

    def pair_with(n_turns: float) -> float:  # over a text of the first training
        longest = cast(int, rotary.original_max_position_embeddings) / (n_turns * 2 * math.pi)
        return n_rotated * math.log(longest) / (2 * math.log(rotary.rope_theta))

    first, last = pair_with(rotary.beta_fast or 32), pair_with(rotary.beta_slow or 1)
    if rotary.truncate is not False:
        first, last = math.floor(first), math.ceil(last)
    # The published code bounds `last` by the number of features, not of pairs.
    first, last = max(first, 0), min(last, n_rotated - 1)
    length = 0.001 if first == last else last - first
    pairs = torch.arange(n_rotated // 2, dtype=torch.float32, device="cpu")
    return 1 - ((pairs - first) / length).clamp(0, 1)


def turn(positions: Tensor, frequency: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the angles at positions, shape [batch pos 1 n_pairs] each.

    Args:
        positions: position of each token, shape [batch pos].
        frequency: angle per position, shape [n_pairs].
        scale: factor of both.
    """
    angles = positions[:, :, None, None].float() * frequency.to(positions.device)
    return scale * angles.cos(), scale * angles.sin()


def rotate(x: Tensor, angles: tuple[Tensor, ...]) -> Tensor:
    """Return the heads with their first 2 n_pairs features rotated, in the dtype of `x`.

    Args:
        x: queries or keys, shape [batch pos n_heads d_head].
        angles: cosine and sine, see `turn`.

    >>> quarter = turn(torch.tensor([[1]]), torch.tensor([math.pi / 2]))
    >>> rotate(torch.tensor([[[[1.0, 0.0, 5.0]]]]), quarter).round().tolist()
    [[[[-0.0, 1.0, 5.0]]]]
    """
    cos, sin = angles
    n_pairs = cos.shape[-1]
    a, b, rest = x.tensor_split((n_pairs, 2 * n_pairs), dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1).to(x.dtype)


FORMULAS = {  # of the sites that most families with rotary positions compute in the same way
    "blocks.{l}.hook_resid_pre": "embed, or resid_post of block l-1",
    "blocks.{l}.attn.hook_attn_scores": "rot_q rot_k / sqrt(d_head), -inf where masked",
    "blocks.{l}.attn.hook_pattern": "softmax(attn_scores) over key_pos",
    "blocks.{l}.attn.hook_z": "pattern v",
    "blocks.{l}.attn.hook_result": "z W_O per head, without b_O",
    "blocks.{l}.hook_attn_out": "z W_O + b_O",
    "blocks.{l}.hook_resid_mid": "resid_pre + attn_out",
    "blocks.{l}.hook_resid_post": "resid_mid + mlp_out",
}
GATED_FORMULAS = FORMULAS | {
    "hook_embed": "embed_tokens[tokens]",
    "ln_final.hook_scale": "sqrt(mean(resid_post of the last block^2) + eps)",
    "ln_final.hook_normalized": "resid_post / scale",
}
WITHOUT_BIASES = heads_of("input_layernorm(resid_pre)", biases=False) | {
    "blocks.{l}.attn.hook_result": "z W_O per head",
    "blocks.{l}.hook_attn_out": "z W_O",
}
NORMS_OF_INPUTS = {  # of attention and of the MLP
    "blocks.{l}.ln1.hook_scale": "sqrt(mean(resid_pre^2) + eps)",
    "blocks.{l}.ln1.hook_normalized": "resid_pre / scale",
    "blocks.{l}.ln2.hook_scale": "sqrt(mean(resid_mid^2) + eps)",
    "blocks.{l}.ln2.hook_normalized": "resid_mid / scale",
}
NORMS_OF_HEADS = {
    "blocks.{l}.attn.q_norm.hook_scale": "sqrt(mean(q^2) + eps) per head",
    "blocks.{l}.attn.q_norm.hook_normalized": "q / scale",
    "blocks.{l}.attn.k_norm.hook_scale": "sqrt(mean(k^2) + eps) per head",
    "blocks.{l}.attn.k_norm.hook_normalized": "k / scale",
}

GATED_WEIGHTS = base.WeightNames(
    embedding="embed_tokens.weight",
    layers="layers.",
    sizes=(
        ("embed_tokens.weight", ("vocab_size", "hidden_size")),
        ("layers.0.mlp.gate_proj.weight", ("intermediate_size",)),
    ),
    buffers=r"\.rotary_emb\.inv_freq$",
)


def components(
    before: tuple[str, ...] = (),
    of_heads: tuple[str, ...] = (),
    between: tuple[str, ...] = (),
    after: tuple[str, ...] = (),
    biases: tuple[str, str, str] = ("attention_bias", "attention_bias", ""),
    mlp: tuple[Component, ...] = (),
) -> tuple[Component, ...]:
    """Return the modules with parameters of a network with gated MLPs, in forward order.

    Args:
        before: norms before attention.
        of_heads: axis of the norm of queries, and of that of keys; empty for no such norms.
        between: norms between attention and MLP.
        after: norms after the MLP.
        biases: members of the config that turn on the biases of queries, keys and values, of the
            output of attention, and of the MLP; empty for none.
        mlp: modules of the MLP if it is not a gated one.
    """
    qkv_bias, output_bias, mlp_bias = biases

    def norms(names: tuple[str, ...]) -> tuple[Component, ...]:
        return tuple(Component(name, f"layers.{{l}}.{name}", ("d_model",)) for name in names)

    def attention(name: str, *axes: str, bias: str = "") -> Component:
        return Component(f"attn.{name}", f"layers.{{l}}.self_attn.{name}", axes, bias, "attention")

    queries, keys = "n_heads d_head", "n_kv_heads d_head"
    return (
        Component("token embedding", "embed_tokens", ("d_vocab", "d_model")),
        *norms(before),
        attention("q_proj", "d_model", queries, bias=qkv_bias),
        attention("k_proj", "d_model", keys, bias=qkv_bias),
        attention("v_proj", "d_model", keys, bias=qkv_bias),
        # q_norm and k_norm; neither if `of_heads` is empty.
        *(attention(f"{of}_norm", axis) for of, axis in zip("qk", of_heads, strict=False)),
        attention("o_proj", queries, "d_model", bias=output_bias),
        *norms(between),
        *(mlp or gated_mlp(mlp_bias)),
        *norms(after),
        Component("final norm", "norm", ("d_model",)),
        Component("unembedding", "lm_head", ("d_vocab", "d_model"), tied="tie_word_embeddings"),
    )


def gated_mlp(
    bias: str = "", part: str = "MLP", layers: tuple[int, ...] | None = None
) -> tuple[Component, ...]:
    """Return the modules of a gated MLP; arguments as in `Component`."""
    axes = ("d_model", "d_mlp")
    maps = {"gate_proj": axes, "up_proj": axes, "down_proj": axes[::-1]}
    return tuple(
        Component(f"mlp.{name}", f"layers.{{l}}.mlp.{name}", one, bias, part, layers=layers)
        for name, one in maps.items()
    )


def check_layer_types(types: object, n_layers: int) -> None:
    """Raise ConfigError unless `types` is a list with `FULL` or `SLIDING` for each layer.

    Raises:
        ConfigError: it is something else.
    """
    is_list = isinstance(types, list | tuple) and len(types) == n_layers
    if not is_list or not all(one in (FULL, SLIDING) for one in cast(Sequence[object], types)):
        raise ConfigError(
            f"layer_types must be a list of {FULL} or {SLIDING} for each of {n_layers} layers, "
            f"not {types!r}."
        )


@dataclass(frozen=True)
class RotaryConfig(base.ModelConfig):
    """Sizes and switches that the families with rotary positions share.

    Attributes:
        ROTATES_PART: whether the family can rotate a part of the features of a head.

    Raises:
        ConfigError: a size is not a positive integer, the number of heads does not divide the
            width, or a switch, the `model_type` or the share of rotated features is invalid.
    """

    REPEATS: ClassVar[Mapping[str, str]] = {
        "head_dim": "d_head",
        **{key: f"rotary.{key}" for key in OUTSIDE},
    }
    OTHER_KEYS: ClassVar[frozenset[str]] = frozenset(_BOTH)
    ROTATES_PART: ClassVar[bool] = False
    COMPUTED: ClassVar[frozenset[str]] = frozenset({"rotary"})

    model_type: str
    vocab_size: int = 32000  # d_vocab
    hidden_size: int = 4096  # d_model
    intermediate_size: int = 11008  # d_mlp
    num_hidden_layers: int = 32  # n_layers
    num_attention_heads: int = 32  # n_heads
    max_position_embeddings: int = 2048  # n_ctx
    rotary: RotaryPositions = field(default_factory=RotaryPositions)
    attention_bias: bool = False  # the maps of attention have a bias
    tie_word_embeddings: bool = False  # the unembedding is the token embedding

    def __post_init__(self) -> None:
        super().__post_init__()
        if getattr(self, "head_dim", None) is None:  # d_head is d_model / n_heads
            self.check_divides("num_attention_heads", "hidden_size")
        for rotary in (self.rotary_in(None), self.rotary_in(1)):
            share = rotary.partial_rotary_factor
            if share != 1 and not (self.ROTATES_PART and share < 1):
                allowed = "at most 1" if self.ROTATES_PART else "1"
                raise ConfigError(f"partial_rotary_factor is {share!r}. Allowed: {allowed}.")

    @classmethod
    def computed(cls, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rotary positions."""
        return {"rotary": RotaryPositions.from_hub(entries)}

    def to_json(self) -> dict[str, Any]:
        """Return sizes and switches under the keys of config.json, without special tokens."""
        return super().to_json() | {"rope_parameters": self.rotary.to_json()}

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Number of tokens that each block attends to; None for all."""
        return (getattr(self, "sliding_window", None),) * self.num_hidden_layers

    def rotary_in(self, window: int | None) -> RotaryPositions:  # noqa: ARG002
        """Return the rotary positions of the blocks with this window, or without one if None."""
        return self.rotary

    def scale_in(self, window: int | None) -> float:
        """Return the factor of rotated queries and keys in the blocks with this window."""
        return self.rotary_in(window).scale

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Size of each axis that does not depend on the input."""
        d_head = getattr(self, "head_dim", None) or self.hidden_size // self.num_attention_heads
        return {
            "d_model": self.hidden_size,
            "n_heads": self.num_attention_heads,
            "d_head": d_head,
            "d_mlp": self.intermediate_size,
            "d_vocab": self.vocab_size,
            "n_ctx": self.max_position_embeddings,
            "n_layers": self.num_hidden_layers,
            "1": 1,  # the axis of a norm's scale
        }


@dataclass(frozen=True)
class GatedConfig(RotaryConfig):
    """What the families with RMS norms, grouped heads and gated MLPs have in addition.

    Raises:
        ConfigError: the heads cannot be grouped, `rms_norm_eps` is not between 0 and 1, or as in
            `RotaryConfig`.
    """

    WEIGHTS: ClassVar[base.WeightNames] = GATED_WEIGHTS
    REQUIRED: ClassVar[Mapping[str, tuple[Any, ...]]] = {"hidden_act": ("silu",)}
    norm_is_centred: ClassVar[bool] = False

    num_key_value_heads: int | None = None  # n_kv_heads; None means n_heads
    rms_norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        base.check_between_0_and_1(self, ("rms_norm_eps",))
        if self.num_key_value_heads is not None:
            self.check_divides("num_key_value_heads", "num_attention_heads")

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Size of each axis that does not depend on the input."""
        sizes, n_kv_heads = super().axis_sizes, self.num_key_value_heads or self.num_attention_heads
        d_model, n_heads = sizes["d_model"], sizes["n_heads"]
        # The first dict fixes the order: `n_kv_heads` is listed after `n_heads`.
        return {"d_model": d_model, "n_heads": n_heads, "n_kv_heads": n_kv_heads} | sizes

    @property
    def norm_epsilon(self) -> float:
        """Number that the RMS norms add to the mean square."""
        return self.rms_norm_eps


@dataclass(frozen=True)
class LayerTypesConfig(GatedConfig):
    """What the families have in addition whose blocks are of two types, with and without a window.

    Attributes:
        PERIODS: of each `model_type`, every how many blocks one attends to all tokens, if the
            config has no `layer_types`.
        BASES: of each `model_type` in which each type of blocks has rotary positions of its own:
            name outside of a section and default of `rope_theta`, for full and sliding attention.

    Raises:
        ConfigError: `layer_types` is not a list with a type for each block, or as in `GatedConfig`.
    """

    COMPUTED: ClassVar[frozenset[str]] = frozenset({"rotary", "rotary_in_windows"})
    PERIODS: ClassVar[Mapping[str, int]]
    BASES: ClassVar[Mapping[str, tuple[tuple[str, float], tuple[str, float]]]]

    rotary_in_windows: RotaryPositions = field(default_factory=RotaryPositions)  # with BASES
    sliding_window: int = 4096
    layer_types: tuple[str, ...] | None = None  # which blocks have a window

    def __post_init__(self) -> None:
        super().__post_init__()
        check_layer_types(self.types_of_layers, self.num_hidden_layers)

    @classmethod
    def computed(cls, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rotary positions of both types of blocks, and the type of each block.

        Releases of transformers before 5 write `rope_theta` and `rope_scaling`, which is that of
        blocks without a window, later ones a section for each type.

        Raises:
            ConfigError: a key is unknown, a number is invalid, or two names of a key differ.
        """
        types, read = entries.get("layer_types"), RotaryPositions.from_hub
        # Anything but a list is reported when the config is made.
        found = {"layer_types": tuple(types) if isinstance(types, list) else types}
        if (bases := cls.BASES.get(str(entries.get("model_type")))) is None:
            return found | super().computed(entries)
        sections = entries.get("rope_parameters") or {}
        if not isinstance(sections, Mapping) or not sections.keys() <= {FULL, SLIDING}:
            raise ConfigError(
                f"rope_parameters must have the sections {FULL} and {SLIDING}, not {sections!r}."
            )
        full, sliding = (f"rope_parameters.{kind}" for kind in (FULL, SLIDING))
        rotary = read(entries, {"rope_theta": bases[0]}, ("rope_scaling", full))
        local = read(entries, {"rope_theta": bases[1]}, (sliding,))
        if False in (rotary.truncate, local.truncate):
            raise ConfigError(
                "truncate is false in the rotary positions of a type of blocks, where transformers "
                "does not read it. Remove it, or set it to true."
            )
        return found | {"rotary": rotary, "rotary_in_windows": local}

    def to_json(self) -> dict[str, Any]:
        """Return sizes and switches under the keys of config.json, without special tokens."""
        entries = super().to_json()
        if "layer_types" in entries:  # not all kinds read it
            entries["layer_types"] = list(self.types_of_layers)
        if self.model_type in self.BASES:
            local = self.rotary_in_windows.to_json()
            entries["rope_parameters"] = {FULL: entries["rope_parameters"], SLIDING: local}
        return entries

    @property
    def types_of_layers(self) -> tuple[str, ...]:
        """Type of the attention of each block: `full_attention` or `sliding_attention`."""
        if self.layer_types is not None:
            return self.layer_types
        return types_by_period(self.num_hidden_layers, self.PERIODS[self.model_type])

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Number of tokens that each block attends to; None for all."""
        return tuple(self.sliding_window if t == SLIDING else None for t in self.types_of_layers)

    def rotary_in(self, window: int | None) -> RotaryPositions:
        """Return the rotary positions of the blocks with this window, or without one if None."""
        has_own = window is not None and self.model_type in self.BASES
        return self.rotary_in_windows if has_own else self.rotary


def types_by_period(n_layers: int, period: int) -> tuple[str, ...]:
    """Return the types of blocks if every `period`-th block attends to all tokens.

    >>> types_by_period(3, 2)
    ('sliding_attention', 'full_attention', 'sliding_attention')
    """
    return tuple(SLIDING if layer % period else FULL for layer in range(1, n_layers + 1))


class RMSNorm(Norm):
    """Division by the root mean square of the last axis, then a gain; computed in float32 or wider.

    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization".
    """

    def forward(self, x: Tensor, tap: Taps) -> Tensor:
        """Return x / sqrt(mean(x^2) + eps) times the gain, shape [... width]."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = tap("hook_scale", (wide.square().mean(-1, keepdim=True) + self.eps).sqrt())
        normalized = tap("hook_normalized", wide / scale)
        return (normalized * self.gain).to(self.weight.dtype)


class GatedMLP(nn.Module):
    """Feed-forward layer down(activation(gate(x)) * up(x)) with d_mlp neurons.

    Args:
        d_model: width of the residual stream.
        d_mlp: number of neurons.
        activation: function of the gate.
        bias: whether the three maps have a bias.

    Source: Shazeer 2020, "GLU Variants Improve Transformer".
    """

    def __init__(self, d_model: int, d_mlp: int, activation: Activation, *, bias: bool) -> None:
        super().__init__()
        self.gate_proj = Linear(d_model, d_mlp, bias=bias)
        self.up_proj = Linear(d_model, d_mlp, bias=bias)
        self.down_proj = Linear(d_mlp, d_model, bias=bias)
        self.activation = activation

    def forward(self, x: Tensor, tap: Taps) -> Tensor:
        """Return the output of the MLP, shape [batch pos d_model]."""
        gate = self.gate_proj.activated(x, self.activation, tap)  # [batch pos d_mlp]
        pre_linear = tap("hook_pre_linear", self.up_proj(x))  # [batch pos d_mlp]
        return cast(Tensor, self.down_proj(tap("hook_post", gate * pre_linear)))


class ResidualBlock(nn.Module):
    """Transformer block: the outputs of attention and of the MLP are added to the residual stream.

    A family defines its modules, `_attn_out` and `_mlp_out`.
    """

    def forward(self, resid: Tensor, context: BlockContext, tap: Taps) -> Tensor:
        """Return the residual stream after this block, shape [batch pos d_model].

        With `context.at` the axis n_at is in place of pos.

        Args:
            resid: residual stream before this block, shape [batch pos d_model].
            context: visibility, earlier keys and values, and positions of the queries.
            tap: taps at the sites of this block.
        """
        resid = tap("hook_resid_pre", resid)
        attn_out = tap("hook_attn_out", self._attn_out(resid, context, tap))
        resid = tap("hook_resid_mid", context.selected(resid) + attn_out)
        return self.after_attention(resid, tap)

    def after_attention(self, resid: Tensor, tap: Taps) -> Tensor:
        """Return the residual stream after this block, from that after its attention."""
        return tap("hook_resid_post", resid + tap("hook_mlp_out", self._mlp_out(resid, tap)))

    @abstractmethod
    def _attn_out(self, resid: Tensor, context: BlockContext, tap: Taps) -> Tensor:
        """Return the output of attention, shape [batch pos d_model], or [batch n_at d_model]."""

    @abstractmethod
    def _mlp_out(self, resid: Tensor, tap: Taps) -> Tensor:
        """Return the output of the MLP, from the residual stream after attention."""


class GroupedAttention(nn.Module):
    """Causal attention with rotated queries and keys; groups of heads share a key and a value.

    Args:
        config: sizes and switches.
        norms: norms of queries and keys before the rotation; None for none.
        qkv_bias: whether the maps to queries, keys and values have a bias.
        divisor: number that the scores are divided by; None means sqrt(d_head).
        softcap: cap c of the scores s, which become c tanh(s / c); None for none.
    """

    def __init__(
        self,
        config: GatedConfig,
        norms: tuple[RMSNorm, RMSNorm] | None = None,
        *,
        qkv_bias: bool,
        divisor: float | None = None,
        softcap: float | None = None,
    ) -> None:
        super().__init__()
        self.d_head, self.divisor, self.softcap = config.d_head, divisor, softcap
        d_model, heads = config.d_model, config.n_heads * config.d_head
        kv_heads = config.n_kv_heads * config.d_head
        self.q_proj = Linear(d_model, heads, bias=qkv_bias)
        self.k_proj = Linear(d_model, kv_heads, bias=qkv_bias)
        self.v_proj = Linear(d_model, kv_heads, bias=qkv_bias)
        self.o_proj = Linear(heads, d_model, bias=config.attention_bias)
        self.has_norms = norms is not None
        if norms is not None:
            self.q_norm, self.k_norm = norms

    def forward(self, x: Tensor, context: BlockContext, tap: Taps) -> Tensor:
        """Return the output of attention, shape [batch pos d_model], or [batch n_at d_model].

        Args:
            x: input of the maps, shape [batch pos d_model].
            context: visibility, earlier keys and values, and positions of the queries.
            tap: taps at the sites of this module.
        """
        q = tap("hook_q", self.q_proj(x).unflatten(-1, (-1, self.d_head)))
        k = tap("hook_k", self.k_proj(x).unflatten(-1, (-1, self.d_head)))
        v = tap("hook_v", self.v_proj(x).unflatten(-1, (-1, self.d_head)))
        if self.has_norms:
            q, k = self.q_norm(q, tap.within("q_norm")), self.k_norm(k, tap.within("k_norm"))
        q = tap("hook_rot_q", rotate(q, context.angles))
        k = tap("hook_rot_k", rotate(k, context.angles))
        return attend_heads(
            q, k, v, self.o_proj, context, tap, divisor=self.divisor, softcap=self.softcap
        )


class PreNormBlock(ResidualBlock):
    """Transformer block: attention and MLP, each after an RMS norm, added to the stream."""

    def __init__(self, config: GatedConfig, self_attn: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.d_model, config.rms_norm_eps)
        self.self_attn = self_attn
        self.post_attention_layernorm = RMSNorm(config.d_model, config.rms_norm_eps)
        self.mlp = mlp

    def _attn_out(self, resid: Tensor, context: BlockContext, tap: Taps) -> Tensor:
        normed = self.input_layernorm(resid, tap.within("ln1"))
        return cast(Tensor, self.self_attn(normed, context, tap.within("attn")))

    def _mlp_out(self, resid: Tensor, tap: Taps) -> Tensor:
        normed = self.post_attention_layernorm(resid, tap.within("ln2"))
        return cast(Tensor, self.mlp(normed, tap.within("mlp")))


def visible_in_window(context: Context, window: int | None) -> Tensor | None:
    """Return the attention mask of a sliding window, shape [batch 1 query key].

    A query attends to the last `window` real tokens, its own included. If there is no window, or
    there are no more columns than it has, the result is `context.visible`.

    >>> context = Context.of(torch.tensor([[5, 6, 7]]), None, None, torch.device("cpu"))
    >>> visible_in_window(context, 2)[0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    n_new = context.positions.shape[1]
    n_keys = context.n_before + n_new
    if window is None or n_keys <= window:
        return context.visible
    visible = context.visible
    device = (context.positions if visible is None else visible).device
    places = torch.arange(n_keys, device=device)[None]
    if context.mask is not None:
        places = context.mask.to(device).cumsum(-1) - 1  # counts real tokens
    distance = places[:, -n_new:, None] - places[:, None, :]  # [batch query key]
    if visible is None:
        visible = causal(n_new, n_keys, device)
    return to_device(visible & (distance < window)[:, None], context.device)


class RotaryNetwork(FamilyNetwork):
    """Token embeddings, blocks with rotary positions, a norm, and the unembedding.

    Its modules have the names in `config.WEIGHTS`.

    Args:
        config: sizes and switches.
        seed: random seed for the initialisation. None leaves the weights on the meta device,
            without storage, to be filled by `load_state_dict(..., assign=True)`.

    Attributes:
        BLOCK: class of the blocks, made from the config.
        NORM: class of the last norm.
    """

    BLOCK: type[nn.Module]
    NORM: type[RMSNorm | LayerNorm] = RMSNorm
    config: RotaryConfig

    def __init__(self, config: RotaryConfig, seed: int | None = 0) -> None:
        super().__init__(config, seed)
        # By window. They are neither parameters nor buffers, so they stay in float32.
        self.frequencies = {
            window: frequencies(config.rotary_in(window), config.d_head)
            for window in set(config.windows)
        }

    def _build(self) -> None:
        config = self.config
        names, d_vocab, d_model = config.WEIGHTS, config.vocab_size, config.hidden_size
        self.add_module(names.embedding.removesuffix(".weight"), embedding(d_vocab, d_model))
        blocks = [self._block(layer) for layer in range(config.num_hidden_layers)]
        self.add_module(names.layers.removesuffix("."), nn.ModuleList(blocks))
        self.add_module(names.norm, self.NORM(d_model, config.norm_epsilon))
        if not config.tie_word_embeddings:
            unembedding = nn.Linear(d_model, d_vocab, bias=False)
            self.add_module(names.unembedding.removesuffix(".weight"), unembedding)

    def _block(self, layer: int) -> nn.Module:  # noqa: ARG002
        """Return a block without weights; a family with several kinds of blocks overrides it."""
        return self.BLOCK(self.config)

    def embedded(self, tokens: Tensor, context: Context, tap: Taps) -> Tensor:  # noqa: ARG002
        """Return the residual stream before the first block, shape [batch pos d_model]."""
        return stream_of(tap("hook_embed", F.embedding(tokens, self.token_embedding)))

    def block_inputs(self, context: Context) -> list[tuple[Any, ...]]:
        """Return visibility and angles for each block."""
        positions = to_device(context.positions, context.device)
        inputs = {
            window: (
                visible_in_window(context, window),
                turn(positions, frequency, self.config.scale_in(window)),
            )
            for window, frequency in self.frequencies.items()
        }
        return [inputs[window] for window in self.config.windows]
