"""Qwen3-MoE, a mixture of experts, written to be read.

    Qwen3-MoE: resid = embed_tokens[tokens]; Block, ..., Block; logits = norm(resid) @ lm_head.T
    Block:     resid = resid + self_attn(input_layernorm(resid))
               resid = resid + mlp(post_attention_layernorm(resid))
    mlp:       share = softmax(gate(x)); sum of share * expert(x) over the experts with largest
               shares; in a dense block the gated MLP of Qwen3

Attention is that of Qwen3: queries and keys pass an RMS norm per head, and the width of a head is
apart from d_model. The blocks in `mlp_only_layers`, and all but every `decoder_sparse_step`-th one,
are dense; the published models have none. Parameters have the names of the Hugging Face
checkpoints.

Source: Yang et al. 2025, "Qwen3 Technical Report".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import nn

from probekit.errors import ConfigError
from probekit.model.config import Component, Kind, WeightNames
from probekit.model.families import olmoe
from probekit.model.families import rotary as shared
from probekit.model.sites.catalogue import GROUPED, Site, heads_of, table
from probekit.products import SILU

_OF_NEURONS = {  # in dense blocks
    "blocks.{l}.mlp.hook_pre": "post_attention_layernorm(resid_mid) W_gate",
    "blocks.{l}.mlp.hook_pre_linear": "post_attention_layernorm(resid_mid) W_up",
    "blocks.{l}.mlp.hook_post": "silu(pre) * pre_linear",
}
_MLP_OUT = "blocks.{l}.hook_mlp_out"
SITES = table(
    shared.GATED_FORMULAS
    | shared.NORMS_OF_INPUTS
    | shared.NORMS_OF_HEADS
    | _OF_NEURONS
    | olmoe.OF_EXPERTS
    | {
        **heads_of("input_layernorm(resid_pre)", biases=True),
        "blocks.{l}.attn.hook_rot_q": "q_norm(q) rotated by its position",
        "blocks.{l}.attn.hook_rot_k": "k_norm(k) rotated by its position",
        _MLP_OUT: f"{olmoe.OF_EXPERTS[_MLP_OUT]}; in dense blocks post W_down",
    },
    GROUPED,
)


@dataclass(frozen=True)
class Qwen3MoeConfig(shared.GatedConfig):
    """Sizes and switches of a Qwen3-MoE; the defaults are those of the hub.

    >>> Qwen3MoeConfig(num_hidden_layers=6, decoder_sparse_step=2).with_experts
    (1, 3, 5)

    Raises:
        ConfigError: a size is not a positive integer, the heads cannot be grouped, more experts are
            chosen than there are, or another number or a switch is invalid.
    """

    TITLE: ClassVar[str] = "Qwen3-MoE"
    KINDS: ClassVar[Mapping[str, Kind]] = {"qwen3_moe": Kind()}
    WEIGHTS: ClassVar[WeightNames] = replace(
        olmoe.OLMoEConfig.WEIGHTS, sizes=olmoe.sizes("num_experts", "moe_intermediate_size")
    )
    OTHER_NAMES: ClassVar[Mapping[str, str]] = {"num_experts": "num_local_experts"}
    OTHER_KEYS: ClassVar[frozenset[str]] = shared.GatedConfig.OTHER_KEYS | {"max_window_layers"}

    model_type: str = "qwen3_moe"
    vocab_size: int = 151936
    hidden_size: int = 2048
    intermediate_size: int = 6144  # d_mlp, of dense blocks
    num_hidden_layers: int = 24
    num_key_value_heads: int | None = 4
    head_dim: int | None = None  # d_head; None means d_model / n_heads
    max_position_embeddings: int = 32768
    use_sliding_window: bool = False
    sliding_window: int | None = 4096  # if use_sliding_window: of all blocks
    decoder_sparse_step: int = 1  # every how many blocks one has experts
    mlp_only_layers: tuple[int, ...] = ()  # blocks without experts all the same
    moe_intermediate_size: int = 768  # d_expert
    num_experts: int = 128  # n_experts
    num_experts_per_tok: int = 8  # that compute a token
    norm_topk_prob: bool = False  # the weights of the chosen experts sum to 1

    def __post_init__(self) -> None:
        super().__post_init__()
        olmoe.check_chosen(self.num_experts_per_tok, self.num_experts)
        dense, layers = self.mlp_only_layers, range(self.num_hidden_layers)
        is_list = isinstance(dense, tuple) and all(type(one) is int for one in dense)
        if not is_list or not {*dense} <= {*layers}:
            raise ConfigError(
                f"mlp_only_layers must be a list of integers from 0 to {layers[-1]}, not {dense!r}."
            )

    @classmethod
    def computed(cls, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rotary positions, and the blocks without experts as a tuple.

        Raises:
            ConfigError: a key of the rotary positions is unknown, a number is invalid, or only some
                blocks have a window.
        """
        if entries.get("use_sliding_window") and entries.get("max_window_layers") is not None:
            raise ConfigError(
                f"max_window_layers is {entries['max_window_layers']!r} and use_sliding_window is "
                "true, but in this network transformers gives a window to all blocks. Remove one "
                "of them."
            )
        dense = entries.get("mlp_only_layers")
        dense = () if dense is None else tuple(dense) if isinstance(dense, list) else dense
        return super().computed(entries) | {"mlp_only_layers": dense}

    def to_hub(self) -> dict[str, Any]:
        """Return the contents of config.json, with special tokens."""
        entries = super().to_hub()
        if self.head_dim is None:  # transformers computes it from an absent key, not from null
            del entries["head_dim"]
        return entries

    @property
    def with_experts(self) -> tuple[int, ...]:
        """The blocks whose MLP has experts; the others are dense."""
        step = self.decoder_sparse_step
        layers = range(step - 1, self.num_hidden_layers, step)
        return tuple(sorted({*layers}.difference(self.mlp_only_layers)))

    @property
    def dense(self) -> tuple[int, ...]:
        """The blocks whose MLP has no experts."""
        return tuple(sorted({*range(self.num_hidden_layers)}.difference(self.with_experts)))

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Number of tokens that each block attends to; None for all."""
        window = self.sliding_window if self.use_sliding_window else None
        return (window,) * self.num_hidden_layers

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Size of each axis that does not depend on the input."""
        sizes = {"n_experts": self.num_experts, "d_expert": self.moe_intermediate_size}
        if not self.dense:
            sizes["d_mlp"] = self.moe_intermediate_size
        return super().axis_sizes | sizes

    @property
    def site_rows(self) -> tuple[Site, ...]:
        """The table of sites: those of experts and of neurons are in the blocks that have them."""
        layers = dict.fromkeys(_OF_NEURONS, self.dense)
        layers |= {name: self.with_experts for name in olmoe.OF_EXPERTS if name != _MLP_OUT}
        # In a network with one kind of blocks, a site is in all of them or in none.
        found = (site for site in SITES if layers.get(site.name) != ())
        if not self.dense or not self.with_experts:
            return tuple(found)
        return tuple(replace(site, layers=layers.get(site.name)) for site in found)

    @property
    def components(self) -> tuple[Component, ...]:
        """The modules with parameters, in the order of the forward pass."""
        dense, with_experts = self.dense, self.with_experts
        if not dense:
            mlp = olmoe.experts_mlp("d_expert")
        elif not with_experts:
            mlp = shared.gated_mlp()
        else:
            mlp = shared.gated_mlp(part="dense MLP", layers=dense)
            mlp += olmoe.experts_mlp("d_expert", with_experts)
        return shared.components(
            before=("input_layernorm",),
            of_heads=("d_head", "d_head"),
            between=("post_attention_layernorm",),
            mlp=mlp,
        )


class Qwen3Moe(olmoe.ExpertsNetwork):
    """Qwen3-MoE with a tap at every site; arguments as in `RotaryNetwork`.

    >>> import torch
    >>> sizes = {"vocab_size": 97, "hidden_size": 24, "moe_intermediate_size": 11, "head_dim": 10}
    >>> heads = {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}
    >>> config = Qwen3MoeConfig(**sizes, **heads, num_experts=9, mlp_only_layers=(0,))
    >>> _, cache = Qwen3Moe(config).run_with_cache(torch.tensor([[3, 14, 15]]), ["*.mlp.hook_*"])
    >>> [name for name in cache if name.endswith(("post", "chosen"))]
    ['blocks.0.mlp.hook_post', 'blocks.1.mlp.hook_chosen']
    """

    CONFIG = Qwen3MoeConfig
    config: Qwen3MoeConfig

    def _block(self, layer: int) -> nn.Module:
        """Return a block without weights, with experts or dense."""
        config, eps = self.config, self.config.rms_norm_eps
        norms = (shared.RMSNorm(config.d_head, eps), shared.RMSNorm(config.d_head, eps))
        attention = shared.GroupedAttention(config, norms, qkv_bias=config.attention_bias)
        mlp: nn.Module = shared.GatedMLP(config.d_model, config.d_mlp, SILU, bias=False)
        if layer in config.with_experts:
            sizes = config.moe_intermediate_size, config.num_experts
            mlp = olmoe.Experts(config, *sizes, is_normalized=config.norm_topk_prob)
        return shared.PreNormBlock(config, attention, mlp)
