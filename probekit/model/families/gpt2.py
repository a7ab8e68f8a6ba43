"""GPT-2: sizes and switches, sites, and parameters; `probekit.model.gpt2` computes it.

Source of the keys: config.json of the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from probekit.errors import CheckpointError, ConfigError
from probekit.model.config import (
    ModelConfig,
    check_between_0_and_1,
    check_sizes,
    check_switches,
    is_number,
)
from probekit.model.parameters import Component
from probekit.model.sites.catalogue import table
from probekit.model.sites.sites import Sites
from probekit.model.weights.json_files import read_json
from probekit.model.weights.names import HPARAMS, VOCABULARY_FILES, WeightNames

SITES = table(
    {  # in forward order
        "hook_embed": "wte[tokens]",
        "hook_pos_embed": "wpe[positions]",
        "blocks.{l}.hook_resid_pre": "embed + pos_embed, or resid_post of block l-1",
        "blocks.{l}.ln1.hook_scale": "sqrt(var(resid_pre) + eps)",
        "blocks.{l}.ln1.hook_normalized": "(resid_pre - mean) / scale",
        "blocks.{l}.attn.hook_q": "ln_1(resid_pre) W_Q + b_Q",
        "blocks.{l}.attn.hook_k": "ln_1(resid_pre) W_K + b_K",
        "blocks.{l}.attn.hook_v": "ln_1(resid_pre) W_V + b_V",
        "blocks.{l}.attn.hook_attn_scores": "q k / sqrt(d_head), -inf where masked",
        "blocks.{l}.attn.hook_pattern": "softmax(attn_scores) over key_pos",
        "blocks.{l}.attn.hook_z": "pattern v",
        "blocks.{l}.attn.hook_result": "z W_O per head, without b_O",
        "blocks.{l}.hook_attn_out": "z W_O + b_O",
        "blocks.{l}.hook_resid_mid": "resid_pre + attn_out",
        "blocks.{l}.ln2.hook_scale": "sqrt(var(resid_mid) + eps)",
        "blocks.{l}.ln2.hook_normalized": "(resid_mid - mean) / scale",
        "blocks.{l}.mlp.hook_pre": "ln_2(resid_mid) W_in + b_in",
        "blocks.{l}.mlp.hook_post": "gelu_tanh(pre)",
        "blocks.{l}.hook_mlp_out": "post W_out + b_out",
        "blocks.{l}.hook_resid_post": "resid_mid + mlp_out",
        "ln_final.hook_scale": "sqrt(var(resid_post of the last block) + eps)",
        "ln_final.hook_normalized": "(resid_post - mean) / scale",
    }
)

COMPONENTS = (  # in forward order
    Component("token embedding", "wte", ("d_vocab", "d_model")),
    Component("position embedding", "wpe", ("n_ctx", "d_model")),
    Component("ln_1", "h.{l}.ln_1", ("d_model",), "bias"),
    Component(
        "attn.c_attn", "h.{l}.attn.c_attn", ("d_model", "3 d_model"), "has_qkv_bias", "attention"
    ),
    Component("attn.c_proj", "h.{l}.attn.c_proj", ("d_model", "d_model"), "bias", "attention"),
    Component("ln_2", "h.{l}.ln_2", ("d_model",), "bias"),
    Component("mlp.c_fc", "h.{l}.mlp.c_fc", ("d_model", "d_mlp"), "bias", "MLP"),
    Component("mlp.c_proj", "h.{l}.mlp.c_proj", ("d_mlp", "d_model"), "bias", "MLP"),
    Component("final norm", "ln_f", ("d_model",), "bias"),
    Component("unembedding", "lm_head", ("d_vocab", "d_model"), tied="tie_word_embeddings"),
)

WEIGHTS = WeightNames(
    prefix="transformer.",
    embedding="wte.weight",
    unembedding="lm_head.weight",
    layers="h.",
    n_layers="n_layer",
    sizes=(
        ("wte.weight", ("vocab_size", "n_embd")),
        ("wpe.weight", ("n_positions", "n_embd")),
    ),
    buffers=r"^h\.\d+\.attn\.(masked_)?bias$",  # causal masks in old checkpoints
    transposed=r"\.(c_attn|c_proj|c_fc)\.weight$",  # the hub stores them as Conv1D
    switches=(
        ("lm_head.weight", '"tie_word_embeddings": false'),
        (".c_attn.bias", '"qkv_bias": true'),
        (".bias", '"bias": true'),
    ),
)


@dataclass(frozen=True)
class GPT2Config(ModelConfig):
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

    TITLE: ClassVar[str] = "GPT-2"
    WEIGHTS: ClassVar[WeightNames] = WEIGHTS
    VOCABULARY: ClassVar[Sequence[tuple[str, ...]]] = VOCABULARY_FILES
    REQUIRED: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "model_type": ("gpt2",),
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    }
    # n_ctx repeats n_positions; the others are about dropout of a classifier, and rounding.
    OTHER_KEYS: ClassVar[frozenset[str]] = frozenset(
        {
            "n_ctx",
            "reorder_and_upcast_attn",
            "summary_activation",
            "summary_first_dropout",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
        }
    )

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
        check_sizes(self, sizes if self.n_inner is None else (*sizes, "n_inner"), "n_layer")
        if self.n_embd % self.n_head:
            raise ConfigError(f"n_head={self.n_head} does not divide n_embd={self.n_embd}.")
        check_between_0_and_1(self, ("layer_norm_epsilon", "initializer_range"))
        for name in ("embd_pdrop", "attn_pdrop", "resid_pdrop"):
            if not is_number(getattr(self, name)) or not 0 <= getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} must be a dropout rate of at least 0 and below 1, not "
                    f"{getattr(self, name)!r}."
                )
        check_switches(self, ("bias", "tie_word_embeddings"))
        if self.qkv_bias is not None:
            check_switches(self, ("qkv_bias",))

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
            "d_head": self.n_embd // self.n_head,
            "d_mlp": 4 * self.n_embd if self.n_inner is None else self.n_inner,
            "d_vocab": self.vocab_size,
            "n_ctx": self.n_positions,
            "n_layers": self.n_layer,
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
        """Number that the layer norms add to the variance."""
        return self.layer_norm_epsilon

    @property
    def norm_is_centred(self) -> bool:
        """Whether the norms subtract the mean; true for layer norms."""
        return True

    @property
    def end_of_text(self) -> int | list[int] | None:
        """Id of the end-of-text token or tokens, if the checkpoint has any."""
        return self.eos_token_id

    @classmethod
    def from_folder(cls, folder: Path) -> GPT2Config:
        """Return the config of a folder, from config.json or else OpenAI's hparams.json."""
        is_original = (folder / HPARAMS).is_file() and not (folder / "config.json").is_file()
        return read_hparams(folder) if is_original else super().from_folder(folder)

    def to_json(self) -> dict[str, Any]:
        """Return sizes and switches under the keys of config.json, without the special tokens."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.compare}

    def to_hub(self) -> dict[str, Any]:
        """Return the contents of config.json, with special tokens.

        BOS and EOS are by default `<|endoftext|>` for GPT-2's vocabulary.
        """
        tokens = {key: getattr(self, key) for key in ("bos_token_id", "eos_token_id")}
        if self.vocab_size == type(self).vocab_size:
            last = self.vocab_size - 1
            tokens = {key: last if token is None else token for key, token in tokens.items()}
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "activation_function": "gelu_new",
            **self.to_json(),
            **tokens,
        }


PUBLISHED = {
    "gpt2": GPT2Config(),
    "gpt2-medium": GPT2Config(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": GPT2Config(n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": GPT2Config(n_layer=48, n_head=25, n_embd=1600),
}
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
