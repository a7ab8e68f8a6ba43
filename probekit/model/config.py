"""Sizes and switches of a GPT-2, under the names of the hub's config.json."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from probekit.errors import CheckpointError, ConfigError, MissingError
from probekit.model.weights.json_files import read_json

# Upper limits that catch typing errors; no GPT-2 comes near them.
MAX_SIZE = 10**7
MAX_LAYERS = 1000

HPARAMS = "hparams.json"  # of OpenAI's original checkpoints


@dataclass(frozen=True)
class GPT2Config:
    """Sizes and switches of one GPT-2; the defaults are those of GPT-2 small.

    The comment after each size is the name of the axis that has this size.

    Source: config.json of the published checkpoints; `bias` and `qkv_bias` are our additions.

    >>> GPT2Config(n_layer=4, n_head=3, n_embd=21).d_head
    7
    >>> GPT2Config(bias=False).has_qkv_bias
    False

    Raises:
        ConfigError: a size is not a positive integer, n_head does not divide n_embd, a dropout
            rate is outside [0, 1), or a switch is not a boolean.
    """

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
    # Not used for the forward pass; saved for other programs that read the checkpoint.
    bos_token_id: int | list[int] | None = field(default=None, compare=False)
    eos_token_id: int | list[int] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")
        for name in sizes if self.n_inner is None else (*sizes, "n_inner"):
            size, most = getattr(self, name), MAX_LAYERS if name == "n_layer" else MAX_SIZE
            if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= most:
                raise ConfigError(f"{name} must be an integer from 1 to {most:,}, not {size!r}.")
        if self.n_embd % self.n_head:
            raise ConfigError(f"n_head={self.n_head} does not divide n_embd={self.n_embd}.")
        for name in ("layer_norm_epsilon", "initializer_range"):
            if not is_number(getattr(self, name)) or not 0 < getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} must be a number between 0 and 1, not {getattr(self, name)!r}."
                )
        for name in ("embd_pdrop", "attn_pdrop", "resid_pdrop"):
            if not is_number(getattr(self, name)) or not 0 <= getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} must be a dropout rate of at least 0 and below 1, not "
                    f"{getattr(self, name)!r}."
                )
        for name in ("bias", "has_qkv_bias", "tie_word_embeddings"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(
                    f"{name.removeprefix('has_')} must be true or false, not "
                    f"{getattr(self, name)!r}."
                )

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return self.n_embd // self.n_head

    @property
    def d_mlp(self) -> int:
        """Number of MLP neurons in a block."""
        return 4 * self.n_embd if self.n_inner is None else self.n_inner

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
            "d_head": self.d_head,
            "d_mlp": self.d_mlp,
            "d_vocab": self.vocab_size,
            "n_ctx": self.n_positions,
            "n_layers": self.n_layer,
            "1": 1,
        }

    def to_json(self) -> dict[str, Any]:
        """Return sizes and switches under the keys of config.json, without the special tokens."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.compare}


def is_number(value: object) -> bool:
    """Return whether a value is an int or a float; booleans are not numbers.

    >>> is_number(0.5), is_number(True)
    (True, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


PUBLISHED = {
    "gpt2": GPT2Config(),
    "gpt2-medium": GPT2Config(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": GPT2Config(n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": GPT2Config(n_layer=48, n_head=25, n_embd=1600),
}
KNOWN_MODELS = ("mini", *PUBLISHED)

# Values that a config.json must have so that gpt2.py computes the same network. The first of each
# is the hub's default for an absent key.
_REQUIRED = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
}


def read_config(folder: Path) -> GPT2Config:
    """Return the config in `folder`/config.json.

    Raises:
        MissingError: there is no config.json.
        CheckpointError: the file is not JSON, or describes a network that gpt2.py does not compute.
    """
    path = folder / "config.json"
    if not path.exists():
        raise MissingError(
            f"{folder} has no config.json. A model folder contains config.json and "
            "model.safetensors or pytorch_model.bin."
        )
    entries = read_json(path)
    for key, allowed in _REQUIRED.items():
        if entries.get(key, allowed[0]) not in allowed:
            raise CheckpointError(
                f"{path}: {key} is {entries[key]!r}. Allowed: {' or '.join(map(repr, allowed))}, "
                "because probekit computes no other variant."
            )
    known = {entry.name for entry in fields(GPT2Config)}
    try:
        return GPT2Config(**{key: value for key, value in entries.items() if key in known})
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error


# OpenAI's names of sizes -> ours.
_SIZES = {
    "n_vocab": "vocab_size",
    "n_ctx": "n_positions",
    "n_embd": "n_embd",
    "n_head": "n_head",
    "n_layer": "n_layer",
}


def read_hparams(folder: Path) -> GPT2Config:
    """Return the config in `folder`/hparams.json.

    Raises:
        MissingError: there is no hparams.json.
        CheckpointError: a size is missing or invalid, or there is an unknown key.
    """
    path = folder / HPARAMS
    sizes = read_json(path)
    if sizes.keys() != _SIZES.keys():
        raise CheckpointError(
            f"{path} must have exactly the keys {', '.join(_SIZES)}; it has {', '.join(sizes)}."
        )
    try:
        return GPT2Config(**{_SIZES[key]: size for key, size in sizes.items()})
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error


def model_config(folder: Path) -> GPT2Config:
    """Return the config of the model in a folder, from config.json or else OpenAI's hparams.json.

    Raises:
        MissingError: it has neither.
        CheckpointError: the folder contains another kind of model.
    """
    is_original = (folder / HPARAMS).is_file() and not (folder / "config.json").is_file()
    return read_hparams(folder) if is_original else read_config(folder)
