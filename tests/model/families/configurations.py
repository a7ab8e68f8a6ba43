"""Tiny networks of every family, built by transformers with random weights: the reference.

A family joins the parity tests by rows of configurations.yaml.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from ruamel.yaml import YAML
from torch import nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
)
from transformers.masking_utils import eager_mask

# Sizes differ where swapping them would be a mistake. No id ends a generation early.
SIZES = {"vocab_size": 97, "hidden_size": 24, "intermediate_size": 11, "num_hidden_layers": 3}
SIZES |= {"num_attention_heads": 6, "max_position_embeddings": 160}
SIZES |= {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}


TIED = "tie_word_embeddings"
VISION = {"hidden_size": 8, "intermediate_size": 9, "num_hidden_layers": 1}
VISION |= {"num_attention_heads": 2, "image_size": 8, "patch_size": 4}


class ExactNorm(nn.Module):
    """An RMS norm in the dtype of its input; that of transformers computes in float32."""

    def __init__(self, norm, offset):
        super().__init__()
        self.weight, self.offset = norm.weight, offset
        self.eps = norm.eps if hasattr(norm, "eps") else norm.variance_epsilon

    def forward(self, x):
        return nn.functional.rms_norm(x, self.weight.shape, self.offset + self.weight, self.eps)


class ExactRouter(nn.Module):
    """The router of a mixture of experts in the dtype of its input."""

    def __init__(self, router):
        super().__init__()
        self.weight, self.top_k = router.weight, router.top_k
        self.is_normalized = getattr(router, "norm_topk_prob", True)  # Mixtral has no such key

    def forward(self, x):
        logits = x @ self.weight.T
        weights, experts = logits.softmax(-1).topk(self.top_k)
        total = weights.sum(-1, keepdim=True) if self.is_normalized else 1
        return logits, weights / total, experts


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


def in_float64(model, is_gemma):
    """Replace norms and softmax that compute in float32, and the rounded scale of embeddings."""
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, ExactNorm(module, float(is_gemma)))
        if type(module).__name__.endswith("TopKRouter"):
            model.get_submodule(name.rpartition(".")[0]).gate = ExactRouter(module)
    if is_gemma:
        embedding = model.get_input_embeddings()
        embedding.embed_scale.fill_(embedding.scalar_embed_scale)
    if model.config.model_type == "gemma2":
        model.set_attn_implementation("exact")


@dataclass(frozen=True)
class Configuration:
    """A tiny network.

    Attributes:
        name: name in the tests.
        settings: entries of its config that differ from SIZES.
        spread: standard deviation of the random weights.
    """

    name: str
    settings: Mapping[str, Any]
    spread: float = 0.25

    @property
    def model_type(self):
        return self.settings["model_type"]

    @property
    def attention(self):
        """Implementation; sdpa of transformers cannot cap scores, so Gemma 2 takes eager."""
        return "eager" if self.model_type == "gemma2" else "sdpa"

    def reference(self, dtype=torch.float32, attention=None):
        """Return the reference with random weights, norms and biases included."""
        sizes = dict(SIZES)
        if self.model_type in ("gpt2", "opt"):  # they have another key
            del sizes["intermediate_size"]
        sizes |= self.settings
        if self.model_type == "gemma3":  # the language model is a section
            text = sizes | {"model_type": "gemma3_text"}
            sizes = {"model_type": "gemma3", "text_config": text, "vision_config": VISION}
            sizes |= {"mm_tokens_per_image": 4, "tie_word_embeddings": text.get(TIED, True)}
            sizes |= {key: text[key] for key in text if key.endswith("_token_id")}
        config = AutoConfig.for_model(**sizes)
        model = AutoModelForCausalLM.from_config(
            config,
            attn_implementation=attention or self.attention,
            experts_implementation="eager",  # the default needs larger sizes
        )
        is_gemma = self.model_type.startswith("gemma")  # whose gains are 1 + weight
        generator = torch.Generator().manual_seed(0)
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * self.spread
            is_gain = parameter.ndim == 1 and name.endswith("weight") and not is_gemma
            parameter.data = noise + float(is_gain)
        model = model.to(dtype).eval().requires_grad_(False)
        if dtype == torch.float64:
            in_float64(model, is_gemma)
        return model


_ROWS = YAML(typ="safe").load(Path(__file__).with_suffix(".yaml"))
CONFIGURATIONS = tuple(Configuration(name, settings) for name, settings in _ROWS.items())

# Rows that run by day, the others at night: each family and each switch is on in one of them.
BY_DAY = (
    "llama2 with biases", "llama3 tied", "mistral, window of 2", "qwen2 alternating",
    "qwen3 with biases and windows", "gemma2 with biases", "gemma2 without caps, untied",
    "gemma3 with a cap of logits", "neox with scaling", "neox tied, without biases",
    "olmo2 with biases, tied", "opt untied", "phi3 with longrope", "olmoe with normalized weights",
    "llama3 with yarn", "gemma3 with images", "olmo3 with yarn", "mixtral with windows, tied",
    "qwen3_moe with dense blocks", "qwen3_moe with biases",
)  # fmt: skip
# Rows that stand for their family in tests too slow for all rows, ...
TYPICAL = (
    "llama3", "mistral", "qwen2 with windows", "qwen3", "gemma2", "gemma3", "neox",
    "neox in sequence", "olmo2", "opt", "phi3 with longrope",
    "olmoe", "olmo3 with yarn", "gemma3 with images", "mixtral", "qwen3_moe with dense blocks",
)  # fmt: skip
# ... and one for each network, in the slowest.
ONE_PER_NETWORK = (
    "qwen3", "gemma2", "neox", "olmo2", "opt", "phi3", "olmoe", "mixtral",
    "qwen3_moe with dense blocks",
)  # fmt: skip


def rows(names):
    """The rows of CONFIGURATIONS with these names."""
    by_name = {row.name: row for row in CONFIGURATIONS}
    return [by_name[name] for name in names]


def by_day(among):
    """The rows as parameters of a test; those that are not in BY_DAY run at night."""
    night = pytest.mark.nightly
    return [
        pytest.param(row, id=row.name, marks=() if row.name in BY_DAY else night) for row in among
    ]
