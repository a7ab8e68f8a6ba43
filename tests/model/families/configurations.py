"""Tiny networks of every family, built by transformers with random weights: the reference.

A family joins the parity tests by rows of CONFIGURATIONS.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
)
from transformers.masking_utils import eager_mask

# Sizes differ where swapping them would be a mistake. No id ends a generation early.
SIZES = {
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 11,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 160,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def rms_norms_in_own_dtype(model):
    """Replace norms that compute in float32 by torch's, so that float64 is exact."""
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            norm = nn.RMSNorm(module.weight.shape, module.variance_epsilon, dtype=torch.float64)
            norm.weight = module.weight
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, norm)


class ExactGemmaNorm(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.weight, self.eps = norm.weight, norm.eps

    def forward(self, x):
        return nn.functional.rms_norm(x, self.weight.shape, 1 + self.weight, self.eps)


def exact_attention(module, q, k, v, mask, scaling, softcap=None, **_):
    """Eager attention whose softmax is in the dtype of the scores."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.mT * scaling
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    pattern = (scores + mask).softmax(-1)
    return (pattern @ v).transpose(1, 2), pattern


AttentionInterface.register("exact", exact_attention)
AttentionMaskInterface.register("exact", eager_mask)


def gemma_in_own_dtype(model):
    """Replace norms and softmax that compute in float32, and the rounded scale of embeddings."""
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, ExactGemmaNorm(module))
    embedding = model.model.embed_tokens
    embedding.embed_scale.fill_(embedding.scalar_embed_scale)
    if model.config.model_type == "gemma2":
        model.set_attn_implementation("exact")


@dataclass(frozen=True)
class Configuration:
    """A tiny network.

    Attributes:
        name: name in the tests.
        model_type: of transformers.
        settings: entries of its config that differ from SIZES.
        in_float64: makes the reference compute everything in float64.
        spread: standard deviation of the random weights.
        gain: mean weight of the norms.
        attention: implementation; sdpa of transformers cannot cap scores, so Gemma 2 takes eager.
        omitted: the entry of SIZES that the config does not have.
    """

    name: str
    model_type: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    in_float64: Callable[[nn.Module], None] = rms_norms_in_own_dtype
    spread: float = 0.25
    gain: float = 1.0
    attention: str = "sdpa"
    omitted: str = ""

    def reference(self, dtype=torch.float32, attention=None):
        """Return the reference with random weights, norms and biases included."""
        sizes = {k: v for k, v in SIZES.items() if k != self.omitted}
        config = AutoConfig.for_model(self.model_type, **(sizes | dict(self.settings)))
        model = AutoModelForCausalLM.from_config(
            config, attn_implementation=attention or self.attention
        )
        generator = torch.Generator().manual_seed(0)
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * self.spread
            is_gain = parameter.ndim == 1 and name.endswith("weight")
            parameter.data = noise + (self.gain if is_gain else 0.0)
        model = model.to(dtype).eval().requires_grad_(False)
        if dtype == torch.float64:
            self.in_float64(model)
        return model


def rope(kind="default", theta=10000.0, **numbers):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **numbers}}


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
UPPER_WINDOWS = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
ALTERNATING = {
    "use_sliding_window": True,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}


def neox(name, share=0.25, theta=10000.0, **settings):
    rotary = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": share}
    return Configuration(name, "gpt_neox", {"rope_parameters": rotary, **settings})


def gemma(name, kind, sizes, **settings):
    """A Gemma of some key-value heads, width of a head, scale of the scores and window."""
    names = ("num_key_value_heads", "head_dim", "query_pre_attn_scalar", "sliding_window")
    settings |= dict(zip(names, sizes, strict=True))
    attention = "eager" if kind == "gemma2" else "sdpa"
    return Configuration(name, kind, settings, gemma_in_own_dtype, gain=0.0, attention=attention)


def caps(scores, logits):
    return {"attn_logit_softcapping": scores, "final_logit_softcapping": logits}


FULL, SLIDING = "full_attention", "sliding_attention"


def two_ropes(theta=1e6, local=1e4, **scaling):
    kind = "linear" if scaling else "default"
    return {
        FULL: {"rope_type": kind, "rope_theta": theta, **scaling},
        SLIDING: {"rope_type": "default", "rope_theta": local},
    }


CONFIGURATIONS = (
    Configuration("llama2", "llama"),
    Configuration("llama2 with biases", "llama", {"attention_bias": True, "mlp_bias": True}),
    Configuration(
        "llama2 with linear scaling", "llama", {"num_key_value_heads": 1} | rope("linear", factor=4)
    ),
    Configuration(
        "llama3", "llama", {"num_key_value_heads": 2} | rope("llama3", 500000.0, **LLAMA3)
    ),
    Configuration(
        "llama3 tied",
        "llama",
        {"num_key_value_heads": 3, "tie_word_embeddings": True, "head_dim": 6}
        | rope("llama3", 500.0, **LLAMA3 | {"factor": 32.0}),
    ),
    Configuration("llama3 without scaling", "llama", {"num_key_value_heads": 2} | rope(theta=5e5)),
    Configuration("mistral", "mistral", {"num_key_value_heads": 2, "sliding_window": 5}),
    Configuration(
        "mistral, window of 2",
        "mistral",
        {"num_key_value_heads": 6, "sliding_window": 2, "head_dim": 8},
    ),
    Configuration(
        "mistral without window", "mistral", {"num_key_value_heads": 3, "sliding_window": None}
    ),
    Configuration("qwen2", "qwen2", {"num_key_value_heads": 2}),
    Configuration("qwen2 with windows", "qwen2", {"num_key_value_heads": 3} | UPPER_WINDOWS),
    Configuration(
        "qwen2 alternating",
        "qwen2",
        {"num_key_value_heads": 6, "tie_word_embeddings": True} | ALTERNATING,
    ),
    Configuration("qwen3", "qwen3", {"num_key_value_heads": 2, "head_dim": 10}),
    Configuration(
        "qwen3 tied",
        "qwen3",
        {"num_key_value_heads": 6, "head_dim": 4, "tie_word_embeddings": True} | rope(theta=1e6),
    ),
    Configuration(
        "qwen3 with biases and windows",
        "qwen3",
        {"num_key_value_heads": 3, "head_dim": 8, "attention_bias": True} | UPPER_WINDOWS,
    ),
    # Caps are small enough to bend the scores and logits of these weights.
    gemma("gemma2", "gemma2", (2, 10, 7, 5), **caps(2.0, 3.0)),
    gemma(
        "gemma2 with biases",
        "gemma2",
        (6, 4, 4, 3),
        **caps(5.0, 1.5) | {"layer_types": [FULL, SLIDING, SLIDING], "attention_bias": True},
    ),
    gemma(
        "gemma2 without caps, untied",
        "gemma2",
        (1, 8, 144, 2),
        **caps(None, None) | rope(theta=500.0) | {"tie_word_embeddings": False},
    ),
    gemma("gemma3", "gemma3_text", (2, 10, 7, 5), sliding_window_pattern=3),
    gemma(
        "gemma3 with scaling",
        "gemma3_text",
        (1, 8, 8, 3),
        layer_types=[SLIDING, FULL, SLIDING],
        rope_parameters=two_ropes(1e4, 50.0, factor=8.0),
    ),
    gemma(
        "gemma3 with a cap of logits",
        "gemma3_text",
        (6, 4, 20, 2),
        layer_types=[FULL, SLIDING, SLIDING],
        final_logit_softcapping=2.0,
        attention_bias=True,
        rope_parameters=two_ropes(300.0, 20.0),
    ),
    neox("neox", share=0.5, attention_dropout=0.1, hidden_dropout=0.1),
    neox("neox in sequence", share=1.0, use_parallel_residual=False, hidden_act="gelu_new"),
    neox(
        "neox tied, without biases",
        num_attention_heads=2,
        attention_bias=False,
        theta=500.0,
        tie_word_embeddings=True,
    ),
    neox("neox with a fast activation", num_attention_heads=3, hidden_act="gelu_fast"),
    neox(
        "neox with scaling",
        use_parallel_residual=False,
        rope_parameters=rope("linear", factor=4.0)["rope_parameters"]
        | {"partial_rotary_factor": 0.5},
        layer_norm_eps=1e-3,
    ),
    Configuration("olmo2", "olmo2", {"num_key_value_heads": 2} | rope(theta=500000.0)),
    Configuration(
        "olmo2 with biases, tied",
        "olmo2",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-2,
        },
    ),
    Configuration("olmo2 with scaling", "olmo2", rope("llama3", 500.0, **LLAMA3)),
    Configuration("gpt2", "gpt2", {"n_inner": 11, "resid_pdrop": 0.1}, omitted="intermediate_size"),
)

# Rows that stand for their family in tests too slow for all rows, ...
TYPICAL = (
    "llama3", "mistral", "qwen2 with windows", "qwen3", "gemma2", "gemma3", "neox",
    "neox in sequence", "olmo2",
)  # fmt: skip
# ... and one for each network, in the slowest.
ONE_PER_NETWORK = ("qwen3", "gemma2", "neox", "olmo2")


def rows(names):
    """The rows of CONFIGURATIONS with these names."""
    by_name = {row.name: row for row in CONFIGURATIONS}
    return [by_name[name] for name in names]
