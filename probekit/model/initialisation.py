"""The weights that a GPT-2 starts from."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from probekit.model.gpt2 import GPT2


def initialise(model: GPT2, seed: int) -> None:
    """Draw all weights anew: N(0, 0.02), zero biases, layer norms that do nothing.

    What a sublayer adds to the residual stream starts smaller with depth, by 1 / sqrt(2 n_layer),
    for there are 2 n_layer of them. The global generator is left alone.

    Source: Radford et al. 2019, section 2.3, which scales "the weights of residual layers"; the
    width 0.02 from the code published with it. We differ from that code (model.py) in two places,
    as transformers does: it draws the position embeddings with 0.01, and lacks 1 / sqrt(2 n_layer).

    >>> from probekit import GPT2, GPT2Config
    >>> sizes = {"n_layer": 8, "n_head": 3, "n_embd": 96, "vocab_size": 97, "n_positions": 16}
    >>> model = GPT2(GPT2Config(**sizes), seed=1)
    >>> round(model.wte.weight.std().item(), 3), round(model.h[0].mlp.c_proj.weight.std().item(), 3)
    (0.02, 0.005)
    """
    generator = torch.Generator().manual_seed(seed)
    std = model.config.initializer_range
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            is_norm_weight = ".ln_" in f".{name}" and name.endswith("weight")
            nn.init.constant_(parameter, 1.0 if is_norm_weight else 0.0)
        else:
            depth = 2 * model.config.n_layer if name.endswith("c_proj.weight") else 1
            nn.init.normal_(parameter, std=std / math.sqrt(depth), generator=generator)
