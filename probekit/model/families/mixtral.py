"""Mixtral, a mixture of experts, written to be read.

    Mixtral: resid = embed_tokens[tokens]; Block, ..., Block; logits = norm(resid) @ lm_head.T
    Block:   resid = resid + self_attn(input_layernorm(resid))
             resid = resid + mlp(post_attention_layernorm(resid))
    mlp:     share = softmax(gate(x)); sum of share * expert(x) over the experts with largest
             shares, after these are divided by their sum

A Mistral with `num_local_experts` MLPs in each block; `num_experts_per_tok` of them compute a
token. The checkpoints call the MLP `block_sparse_moe`, and the maps of an expert w1, w3 and w2;
here they have the names of the other families: mlp, gate_proj, up_proj and down_proj.

Source: Jiang et al. 2024, "Mixtral of Experts".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from probekit.model.config import Component, Kind, WeightNames
from probekit.model.families import olmoe
from probekit.model.families import rotary as shared
from probekit.model.sites.catalogue import GROUPED, Site, table

SITES = table(
    shared.GATED_FORMULAS
    | shared.NORMS_OF_INPUTS
    | shared.WITHOUT_BIASES
    | olmoe.OF_EXPERTS
    | {
        "blocks.{l}.attn.hook_rot_q": "q rotated by its position",
        "blocks.{l}.attn.hook_rot_k": "k rotated by its position",
        "blocks.{l}.mlp.hook_chosen_weights": "softmax(router) * chosen, divided by its sum",
    },
    GROUPED,
)
_BASE = 1e6  # of the rotations, by default


@dataclass(frozen=True)
class MixtralConfig(shared.GatedConfig):
    """Sizes and switches of a Mixtral; the defaults are those of the hub.

    >>> MixtralConfig(num_local_experts=16).axis_sizes["n_experts"]
    16

    Raises:
        ConfigError: a size is not a positive integer, the heads cannot be grouped, more experts are
            chosen than there are, or another number or a switch is invalid.
    """

    TITLE: ClassVar[str] = "Mixtral"
    KINDS: ClassVar[Mapping[str, Kind]] = {"mixtral": Kind()}
    WEIGHTS: ClassVar[WeightNames] = replace(
        olmoe.OLMoEConfig.WEIGHTS,
        sizes=olmoe.sizes("num_local_experts", "intermediate_size"),
        switches=shared.GATED_WEIGHTS.switches,
        renamed=(
            (".block_sparse_moe.", ".mlp."),
            (".w1.", ".gate_proj."),
            (".w3.", ".up_proj."),
            (".w2.", ".down_proj."),
        ),
    )
    REQUIRED: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **shared.GatedConfig.REQUIRED,
        "attention_bias": (False, None),
    }
    OTHER_NAMES: ClassVar[Mapping[str, str]] = {"num_local_experts": "num_experts"}
    site_rows: ClassVar[tuple[Site, ...]] = SITES

    model_type: str = "mixtral"
    intermediate_size: int = 14336  # d_mlp, of one expert
    num_key_value_heads: int | None = 8
    head_dim: int | None = None  # d_head; None means d_model / n_heads
    max_position_embeddings: int = 131072
    rotary: shared.RotaryPositions = field(default_factory=lambda: shared.RotaryPositions(_BASE))
    rms_norm_eps: float = 1e-5
    sliding_window: int | None = None  # number of tokens that each block attends to
    num_local_experts: int = 8  # n_experts
    num_experts_per_tok: int = 2  # that compute a token
    bos_token_id: int | list[int] | None = field(default=1, compare=False, kw_only=True)
    eos_token_id: int | list[int] | None = field(default=2, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        olmoe.check_chosen(self.num_experts_per_tok, self.num_local_experts, "num_local_experts")

    @classmethod
    def computed(cls, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rotary positions."""
        outside = {**shared.OUTSIDE, "rope_theta": ("rope_theta", _BASE)}
        return {"rotary": shared.RotaryPositions.from_hub(entries, outside)}

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Size of each axis that does not depend on the input."""
        return super().axis_sizes | {"n_experts": self.num_local_experts}

    @property
    def components(self) -> tuple[Component, ...]:
        """The modules with parameters, in the order of the forward pass."""
        return shared.components(
            before=("input_layernorm",),
            between=("post_attention_layernorm",),
            biases=("", "", ""),
            mlp=olmoe.experts_mlp(),
        )


class MixtralBlock(shared.PreNormBlock):
    """Transformer block with grouped attention and experts."""

    def __init__(self, config: MixtralConfig) -> None:
        experts = olmoe.Experts(config, config.d_mlp, config.num_local_experts, is_normalized=True)
        super().__init__(config, shared.GroupedAttention(config, qkv_bias=False), experts)


class Mixtral(olmoe.ExpertsNetwork):
    """Mixtral with a tap at every site; arguments as in `RotaryNetwork`.

    >>> import torch
    >>> sizes = {"vocab_size": 97, "hidden_size": 24, "intermediate_size": 11}
    >>> heads = {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}
    >>> model = Mixtral(MixtralConfig(**sizes, **heads, num_local_experts=5))
    >>> logits, cache = model.run_with_cache(torch.tensor([[3, 14, 15]]), ["blocks.*.mlp.hook_*"])
    >>> cache["chosen_weights", 0].shape, cache["chosen", 0].sum(-1)
    (torch.Size([1, 3, 5]), tensor([[2., 2., 2.]]))
    """

    CONFIG = MixtralConfig
    BLOCK = MixtralBlock
