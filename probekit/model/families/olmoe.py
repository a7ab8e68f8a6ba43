"""OLMoE, a mixture of experts, written to be read.

    OLMoE: resid = embed_tokens[tokens]; Block, ..., Block; logits = norm(resid) @ lm_head.T
    Block: resid = resid + self_attn(input_layernorm(resid))
           resid = resid + mlp(post_attention_layernorm(resid))
    mlp:   share = softmax(gate(x)); sum of share * expert(x) over the experts with largest shares

Each token passes through `num_experts_per_tok` of the `num_experts` MLPs of a block. Queries and
keys are each normalized over all heads together, then rotated by angles proportional to their
positions. Parameters have the names of the Hugging Face checkpoints.

Source: Muennighoff et al. 2024, "OLMoE: Open Mixture-of-Experts Language Models".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from probekit.errors import ConfigError
from probekit.model.config import Component, Kind, WeightNames
from probekit.model.families import olmo2
from probekit.model.families import rotary as shared
from probekit.model.layers.modules import Linear
from probekit.model.passes.taps import Taps
from probekit.model.sites.catalogue import Site, heads_of, table
from probekit.products import SILU, is_derived

_OF_OLMO2 = {site.name: site for site in olmo2.SITES}
_NORMS_OF_HEADS = {name: site.formula for name, site in _OF_OLMO2.items() if "_norm." in name}
OF_EXPERTS = {  # formulas of the sites of experts
    "blocks.{l}.mlp.hook_router": "post_attention_layernorm(resid_mid) W_gate",
    "blocks.{l}.mlp.hook_chosen": "1 for the num_experts_per_tok largest of router, else 0",
    "blocks.{l}.mlp.hook_chosen_weights": (
        "softmax(router) * chosen, divided by its sum if norm_topk_prob"
    ),
    "blocks.{l}.hook_mlp_out": "sum of chosen_weights * expert(post_attention_layernorm(mid))",
}
SITES = table(
    shared.GATED_FORMULAS
    | shared.NORMS_OF_INPUTS
    | _NORMS_OF_HEADS
    | {
        **heads_of("input_layernorm(resid_pre)", biases=True),
        "blocks.{l}.attn.hook_rot_q": "q_norm(q) rotated by its position",
        "blocks.{l}.attn.hook_rot_k": "k_norm(k) rotated by its position",
        **OF_EXPERTS,
    },
    {name: site.axes for name, site in _OF_OLMO2.items()},
)


def experts_mlp(
    d_expert: str = "d_mlp", layers: tuple[int, ...] | None = None
) -> tuple[Component, ...]:
    """Return the modules of an MLP of experts.

    Args:
        d_expert: axis of the neurons of an expert.
        layers: the blocks that have experts; None for all.
    """
    inputs, outputs = ("n_experts", "d_model", d_expert), ("n_experts", d_expert, "d_model")
    maps = {"gate": ("d_model", "n_experts"), "experts.gate_proj": inputs}
    maps |= {"experts.up_proj": inputs, "experts.down_proj": outputs}
    mlp = "layers.{l}.mlp."
    return tuple(
        Component(
            name=f"mlp.{name}",
            module=mlp + name.replace("experts.", "experts.{e}."),
            axes=axes,
            part="MLP",
            layers=layers,
        )
        for name, axes in maps.items()
    )


def sizes(n_experts: str, d_expert: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return `WeightNames.sizes` of a network of experts, given the keys of their sizes."""
    return (
        ("embed_tokens.weight", ("vocab_size", "hidden_size")),
        ("layers.0.mlp.gate.weight", (n_experts,)),
        ("layers.0.mlp.experts.0.gate_proj.weight", (d_expert,)),
    )


@dataclass(frozen=True)
class OLMoEConfig(shared.GatedConfig):
    """Sizes and switches of an OLMoE; the defaults are those of the hub.

    >>> OLMoEConfig(intermediate_size=1024).axis_sizes["n_experts"]
    64

    Raises:
        ConfigError: a size is not a positive integer, the heads cannot be grouped, more experts are
            chosen than there are, or another number or a switch is invalid.
    """

    TITLE: ClassVar[str] = "OLMoE"
    KINDS: ClassVar[Mapping[str, Kind]] = {"olmoe": Kind()}
    WEIGHTS: ClassVar[WeightNames] = replace(
        shared.GATED_WEIGHTS,
        sizes=sizes("num_experts", "intermediate_size"),
        switches=(*shared.GATED_WEIGHTS.switches, ("q_proj.bias", '"attention_bias": true')),
        neurons="down_proj",
        stacked=(
            ("mlp.experts.gate_up_proj", ("gate_proj", "up_proj")),
            ("mlp.experts.down_proj", ("down_proj",)),
        ),
    )
    REQUIRED: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **shared.GatedConfig.REQUIRED,
        "clip_qkv": (None,),
    }
    OTHER_NAMES: ClassVar[Mapping[str, str]] = {"num_experts": "num_local_experts"}
    site_rows: ClassVar[tuple[Site, ...]] = SITES

    model_type: str = "olmoe"
    vocab_size: int = 50304
    hidden_size: int = 2048
    intermediate_size: int = 2048  # d_mlp, of one expert
    num_hidden_layers: int = 16
    num_attention_heads: int = 16
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    num_experts: int = 64  # n_experts
    num_experts_per_tok: int = 8  # that compute a token
    norm_topk_prob: bool = False  # the weights of the chosen experts sum to 1
    eos_token_id: int | list[int] | None = field(default=50279, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_chosen(self.num_experts_per_tok, self.num_experts)

    @property
    def axis_sizes(self) -> dict[str, int]:
        """Size of each axis that does not depend on the input."""
        return super().axis_sizes | {"n_experts": self.num_experts}

    @property
    def components(self) -> tuple[Component, ...]:
        """The modules with parameters, in the order of the forward pass."""
        return shared.components(
            before=("input_layernorm",),
            of_heads=("n_heads d_head", "n_kv_heads d_head"),
            between=("post_attention_layernorm",),
            mlp=experts_mlp(),
        )


def check_chosen(n_chosen: int, n_experts: int, name: str = "num_experts") -> None:
    """Raise ConfigError if more experts are chosen for a token than there are, given by `name`.

    Raises:
        ConfigError: `n_chosen` exceeds `n_experts`.
    """
    if n_chosen > n_experts:
        raise ConfigError(f"num_experts_per_tok={n_chosen} exceeds {name}={n_experts}.")


class Experts(nn.Module):
    """Gated MLPs, the experts, and a router that chooses some of them for each token.

    Args:
        config: config of the network, with `num_experts_per_tok`.
        d_expert: number of neurons of an expert.
        n_experts: number of experts.
        is_normalized: whether the weights of the chosen experts are divided by their sum.
    """

    def __init__(self, config: Any, d_expert: int, n_experts: int, *, is_normalized: bool) -> None:
        super().__init__()
        self.n_chosen, self.is_normalized = config.num_experts_per_tok, is_normalized
        d_model = config.d_model
        self.gate = Linear(d_model, n_experts, bias=False)
        experts = (shared.GatedMLP(d_model, d_expert, SILU, bias=False) for _ in range(n_experts))
        self.experts = nn.ModuleList(experts)

    def forward(self, x: Tensor, tap: Taps) -> Tensor:
        """Return the weighted sum of the chosen experts, shape [batch pos d_model]."""
        router = tap("hook_router", self.gate(x))  # [batch pos n_experts]
        share = router.softmax(-1, dtype=torch.promote_types(router.dtype, torch.float32))
        is_tapped = tap.wants("hook_chosen", "hook_chosen_weights")
        largest = share.topk(self.n_chosen, -1).indices
        chosen = tap("hook_chosen", torch.zeros_like(share).scatter(-1, largest, 1.0))
        weights = share * chosen
        if self.is_normalized:
            total = weights.sum(-1, keepdim=True)
            weights = weights / total.where(total != 0, 1.0)  # 0 if an edit chooses no expert
        weights = tap("hook_chosen_weights", weights)
        # An expert of weight 0 is computed only if the derivative by that weight may be requested.
        has_gradient = is_derived(weights)
        computed = (weights != 0) | (is_tapped and has_gradient)
        numbers, rows = computed.flatten(0, 1).T.nonzero(as_tuple=True)  # sorted by expert
        n_rows = numbers.bincount(minlength=len(self.experts)).tolist()
        tokens, weights = x.flatten(0, 1), weights.flatten(0, 1)
        out = torch.zeros_like(tokens, dtype=weights.dtype)
        for number, own in enumerate(torch.split(rows, n_rows)):
            if len(own) or has_gradient:
                of_expert = self.experts[number](tokens[own], Taps(None))
                out.index_add_(0, own, weights[own, number, None] * of_expert)
        return out.view(x.shape).to(x.dtype)


class ExpertsNetwork(shared.RotaryNetwork):
    """A network with experts in all blocks or in some; arguments as in `RotaryNetwork`."""

    def mlp_output(self, layer: int) -> Tensor:
        """Return W_out of a layer's MLP, shape [d_model d_mlp].

        Raises:
            ConfigError: the MLP has experts, which have no single output matrix.
        """
        mlp = f"{self.config.WEIGHTS.layers}{layer}.mlp"
        if isinstance(experts := self.get_submodule(mlp), Experts):
            raise ConfigError(
                f"The MLP of block {layer} has {len(experts.experts)} experts, and no single "
                f"output matrix. Read model.get_parameter('{mlp}.experts.0.down_proj.weight')."
            )
        return self.get_parameter(f"{mlp}.down_proj.weight")


class OLMoEBlock(shared.PreNormBlock):
    """Transformer block with grouped attention and experts."""

    def __init__(self, config: OLMoEConfig) -> None:
        is_normalized = config.norm_topk_prob
        experts = Experts(config, config.d_mlp, config.num_experts, is_normalized=is_normalized)
        super().__init__(config, olmo2.attention_of(config), experts)


class OLMoE(ExpertsNetwork):
    """OLMoE with a tap at every site; arguments as in `RotaryNetwork`.

    >>> sizes = {"vocab_size": 97, "hidden_size": 24, "intermediate_size": 11, "num_experts": 5}
    >>> heads = {"num_hidden_layers": 2, "num_attention_heads": 6, "num_experts_per_tok": 2}
    >>> model = OLMoE(OLMoEConfig(**sizes, **heads))
    >>> logits, cache = model.run_with_cache(torch.tensor([[3, 14, 15]]), ["blocks.*.mlp.hook_*"])
    >>> cache["chosen", 0].sum(-1)
    tensor([[2., 2., 2.]])
    """

    CONFIG = OLMoEConfig
    BLOCK = OLMoEBlock
