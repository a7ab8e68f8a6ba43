"""Random initialisation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from probekit.model.decoder import Decoder


def initialise(
    model: Decoder, seed: int, output_maps: str | tuple[str, ...], norm_weight: float = 1.0
) -> None:
    """Initialise all weights in place: matrices from a normal distribution, biases 0, gains 1.

    The standard deviation is 0.02, or `config.initializer_range` if the config has one. For the
    output maps of the 2 n_layers sublayers it is divided by sqrt(2 n_layers). torch's global
    generator is not used.

    Args:
        model: the network.
        seed: random seed.
        output_maps: ends of the names of the output maps of sublayers.
        norm_weight: weight of a norm whose gain is 1.

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
    std = getattr(model.config, "initializer_range", 0.02)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            # The only vectors called `weight` are those of norms.
            nn.init.constant_(parameter, norm_weight if name.endswith("weight") else 0.0)
        else:
            depth = 2 * model.config.n_layers if name.endswith(output_maps) else 1
            nn.init.normal_(parameter, std=std / math.sqrt(depth), generator=generator)
