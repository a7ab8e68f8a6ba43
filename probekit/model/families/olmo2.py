"""OLMo 2 and OLMo 3, written to be read.

    OLMo 2: resid = embed_tokens[tokens]; Block, ..., Block; logits = norm(resid) @ lm_head.T
    Block:  resid = resid + post_attention_layernorm(attn(resid))
            resid = resid + post_feedforward_layernorm(mlp(resid))

Attention and MLP read the residual stream as it is; what they add to it is normalized. Queries and
keys are each normalized over all heads together, then rotated by angles proportional to their
positions. In OLMo 3 three of four blocks attend to a sliding window, and only the others scale the
angles for longer texts. Parameters have the names of the Hugging Face checkpoints.

Source: OLMo team 2024, "2 OLMo 2 Furious"; OLMo team 2025, "Olmo 3".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from probekit.errors import ConfigError
from probekit.model.config import Component, Kind, WeightNames
from probekit.model.families import rotary as shared
from probekit.model.passes.context import BlockContext
from probekit.model.passes.taps import Taps
from probekit.model.sites.catalogue import GROUPED, Site, heads_of, table
from probekit.products import SILU

_FORMULAS = shared.GATED_FORMULAS | {
    **heads_of("resid_pre", biases=True),
    "blocks.{l}.attn.q_norm.hook_scale": "sqrt(mean(q^2) + eps) over all heads together",
    "blocks.{l}.attn.q_norm.hook_normalized": "q / scale",
    "blocks.{l}.attn.k_norm.hook_scale": "sqrt(mean(k^2) + eps) over all heads together",
    "blocks.{l}.attn.k_norm.hook_normalized": "k / scale",
    "blocks.{l}.attn.hook_rot_q": "q_norm(q) rotated by its position",
    "blocks.{l}.attn.hook_rot_k": "k_norm(k) rotated by its position",
    "blocks.{l}.attn.hook_result": "z W_O per head, without b_O, before the norm",
    "blocks.{l}.ln1_post.hook_scale": "sqrt(mean((z W_O + b_O)^2) + eps)",
    "blocks.{l}.ln1_post.hook_normalized": "(z W_O + b_O) / scale",
    "blocks.{l}.hook_attn_out": "post_attention_layernorm(z W_O + b_O)",
    "blocks.{l}.mlp.hook_pre": "resid_mid W_gate",
    "blocks.{l}.mlp.hook_pre_linear": "resid_mid W_up",
    "blocks.{l}.mlp.hook_post": "silu(pre) * pre_linear",
    "blocks.{l}.ln2_post.hook_scale": "sqrt(mean((post W_down)^2) + eps)",
    "blocks.{l}.ln2_post.hook_normalized": "post W_down / scale",
    "blocks.{l}.hook_mlp_out": "post_feedforward_layernorm(post W_down)",
}
_SCALES = ("blocks.{l}.attn.q_norm.hook_scale", "blocks.{l}.attn.k_norm.hook_scale")
_BASE = 5e5  # of the rotations of an OLMo 3, by default
SITES = table(_FORMULAS, {**GROUPED, **dict.fromkeys(_SCALES, ("batch", "pos", "1"))})


@dataclass(frozen=True)
class OLMo2Config(shared.LayerTypesConfig):
    """Sizes and switches of an OLMo 2 or 3; the defaults are those of the hub.

    >>> OLMo2Config(num_attention_heads=32, num_key_value_heads=8).axis_sizes["n_kv_heads"]
    8
    >>> OLMo2Config(model_type="olmo3").windows[:4]
    (4096, 4096, 4096, None)

    Raises:
        ConfigError: a size is not a positive integer, the heads cannot be grouped, or another
            number or a switch is invalid.
    """

    TITLE: ClassVar[str] = "OLMo 2"
    KINDS: ClassVar[Mapping[str, Kind]] = {
        "olmo2": Kind(),
        "olmo3": Kind(reads=frozenset({"sliding_window", "layer_types"})),
    }
    PERIODS: ClassVar[Mapping[str, int]] = {"olmo2": 1, "olmo3": 4}
    BASES: ClassVar[Mapping[str, Any]] = {"olmo3": (("rope_theta", _BASE), ("rope_theta", _BASE))}
    WEIGHTS: ClassVar[WeightNames] = replace(
        shared.GATED_WEIGHTS,
        switches=(*shared.GATED_WEIGHTS.switches, ("q_proj.bias", '"attention_bias": true')),
        after_heads="post_attention_layernorm",
    )
    site_rows: ClassVar[tuple[Site, ...]] = SITES

    model_type: str = "olmo2"
    vocab_size: int = 50304
    rms_norm_eps: float = 1e-5
    eos_token_id: int | list[int] | None = field(default=50279, compare=False, kw_only=True)

    @classmethod
    def computed(cls, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Return the rotary positions of both types of blocks, and the type of each block.

        Raises:
            ConfigError: as in `LayerTypesConfig`, or an OLMo 3 has another base outside of the
                sections.
        """
        outside = entries.get("rope_theta")
        if entries.get("model_type") == "olmo3" and outside not in (None, _BASE):
            raise ConfigError(
                f"rope_theta is {outside!r}: releases of transformers before 5 read it for all "
                "blocks, later ones for those without a window. Write it into both sections of "
                f"rope_parameters, {shared.FULL} and {shared.SLIDING}."
            )
        return super().computed(entries)

    @property
    def components(self) -> tuple[Component, ...]:
        """The modules with parameters, in the order of the forward pass."""
        return shared.components(
            of_heads=("n_heads d_head", "n_kv_heads d_head"),
            between=("post_attention_layernorm",),
            after=("post_feedforward_layernorm",),
        )


class NormOfAllHeads(shared.RMSNorm):
    """RMS norm of queries or keys over all heads together, with a gain for each feature."""

    def forward(self, x: Tensor, tap: Taps) -> Tensor:
        """Return the norm of queries or keys, shape [batch pos heads d_head]."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean_square = wide.square().mean((-2, -1)).unsqueeze(-1)
        scale = tap("hook_scale", (mean_square + self.eps).sqrt())  # [batch pos 1]
        normalized = tap("hook_normalized", wide / scale.unsqueeze(-1))
        return (normalized * self.gain.view(x.shape[-2:])).to(self.weight.dtype)


def attention_of(config: shared.GatedConfig) -> shared.GroupedAttention:
    """Return attention that normalizes queries and keys over all heads together."""
    q_norm, k_norm = (
        NormOfAllHeads(n_heads * config.d_head, config.rms_norm_eps)
        for n_heads in (config.n_heads, config.n_kv_heads)
    )
    return shared.GroupedAttention(config, (q_norm, k_norm), qkv_bias=config.attention_bias)


class OLMo2Block(shared.ResidualBlock):
    """Transformer block: attention and gated MLP, each before an RMS norm, added to the stream."""

    def __init__(self, config: OLMo2Config) -> None:
        super().__init__()
        eps = config.rms_norm_eps
        self.self_attn = attention_of(config)
        self.post_attention_layernorm = shared.RMSNorm(config.d_model, eps)
        self.mlp = shared.GatedMLP(config.d_model, config.d_mlp, SILU, bias=False)
        self.post_feedforward_layernorm = shared.RMSNorm(config.d_model, eps)

    def _attn_out(self, resid: Tensor, context: BlockContext, tap: Taps) -> Tensor:
        heads_out = self.self_attn(self._as_weights(resid), context, tap.within("attn"))
        return cast(Tensor, self.post_attention_layernorm(heads_out, tap.within("ln1_post")))

    def _mlp_out(self, resid: Tensor, tap: Taps) -> Tensor:
        neurons_out = self.mlp(self._as_weights(resid), tap.within("mlp"))
        return cast(Tensor, self.post_feedforward_layernorm(neurons_out, tap.within("ln2_post")))

    def _as_weights(self, resid: Tensor) -> Tensor:
        """Return the stream in the dtype of the weights, since no norm comes before the maps."""
        return resid.to(self.post_attention_layernorm.weight.dtype)


class OLMo2(shared.RotaryNetwork):
    """OLMo 2 or 3 with a tap at every site; arguments as in `RotaryNetwork`.

    >>> sizes = {"vocab_size": 97, "hidden_size": 24, "intermediate_size": 11}
    >>> heads = {"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}
    >>> model = OLMo2(OLMo2Config(**sizes, **heads))
    >>> logits, cache = model.run_with_cache(torch.tensor([[3, 14, 15]]), ["blocks.*.attn.hook_k"])
    >>> logits.shape, cache["k", 0].shape
    (torch.Size([1, 3, 97]), torch.Size([1, 3, 2, 4]))
    """

    CONFIG = OLMo2Config
    BLOCK = OLMo2Block
