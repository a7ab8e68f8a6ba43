"""Tiny networks of every family, built by transformers with random weights: the reference.

A family joins the parity tests by rows of CONFIGURATIONS.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

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


@dataclass(frozen=True)
class Configuration:
    """A tiny network.

    Attributes:
        name: name in the tests.
        model_type: of transformers.
        settings: entries of its config that differ from SIZES.
        in_float64: makes the reference compute everything in float64.
        spread: standard deviation of the random weights.
    """

    name: str
    model_type: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    in_float64: Callable[[nn.Module], None] = rms_norms_in_own_dtype
    spread: float = 0.25

    def reference(self, dtype=torch.float32, attention="sdpa"):
        """Return the reference with random weights, norms and biases included."""
        config = AutoConfig.for_model(self.model_type, **(SIZES | dict(self.settings)))
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        generator = torch.Generator().manual_seed(0)
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * self.spread
            is_gain = parameter.ndim == 1 and name.endswith("weight")
            parameter.data = noise + (1.0 if is_gain else 0.0)
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
)
