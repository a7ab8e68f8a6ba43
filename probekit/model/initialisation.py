"""Random initialisation of GPT-2."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from probekit.model.gpt2 import GPT2


def initialise(model: GPT2, seed: int) -> None:
    """Initialise all weights in place: matrices from a normal distribution, biases 0, gains 1.

    The standard deviation is `config.initializer_range`, 0.02 by default. For the output maps of
    the 2 n_layer sublayers it is divided by sqrt(2 n_layer). torch's global generator is not used.

    Source: Radford et al. 2019, section 2.3, which scales "the weights of residual layers"; the
    standard deviation 0.02 is from the code published with it (model.py). That code draws the
    position embeddings with 0.01 and does not scale by 1 / sqrt(2 n_layer). We use 0.02 for them
    and scale, like `transformers`.

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
