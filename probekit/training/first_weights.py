"""The network before training."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from probekit.model.gpt2 import GPT2
from probekit.training.recipe import Recipe


def first_model(recipe: Recipe, d_vocab: int) -> GPT2:
    """Return the network that a run begins with, drawn by the seed of the recipe."""
    model = GPT2(recipe.model.config(d_vocab), seed=recipe.seed)
    if recipe.model.position_waves:
        with torch.no_grad():
            positions = model.position_embedding
            positions.copy_(waves(*positions.shape) * recipe.model.position_waves)
    return model


def waves(n_positions: int, d_model: int) -> Tensor:
    """Return sines and cosines of the position, of mean square 1, shape [n_ctx d_model].

    The wavelengths go from 2 pi tokens to 2 pi contexts, so that moving by a token is the same
    rotation everywhere: a head that looks at the token before needs to learn but one.

    Source: Vaswani et al. 2017, section 3.5, whose longest wave is 2 pi times 10,000 tokens.

    >>> waves(256, 64).pow(2).mean().round(decimals=2)
    tensor(1.)
    """
    pairs = torch.arange(d_model, dtype=torch.float64) // 2
    phase = torch.arange(d_model) % 2 * (math.pi / 2)  # a cosine is a sine a quarter ahead
    frequency = n_positions ** (-pairs / max(1, d_model // 2))
    position = torch.arange(n_positions, dtype=torch.float64)[:, None]
    return (math.sqrt(2) * torch.sin(position * frequency + phase)).float()
