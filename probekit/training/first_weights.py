"""Initial weights of a pretraining run."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from probekit.model.families.gpt2 import GPT2
from probekit.training.recipe import Recipe


def initial_model(recipe: Recipe, d_vocab: int) -> GPT2:
    """Return the network before training, initialised with the seed of the recipe."""
    model = GPT2(recipe.model.config(d_vocab), seed=recipe.seed)
    if recipe.model.position_waves:
        with torch.no_grad():
            positions = model.position_embedding
            positions.copy_(sinusoids(*positions.shape) * recipe.model.position_waves)
    return model


def sinusoids(n_positions: int, d_model: int) -> Tensor:
    """Return sinusoidal position embeddings with mean square 1, shape [n_ctx d_model].

    Wavelengths range from 2 pi tokens to 2 pi n_ctx. A shift by one token is then the same rotation
    at every position, so a head that attends to the previous token has to learn only one.

    Source: Vaswani et al. 2017, section 3.5; there the longest wavelength is 2 pi times 10,000.

    >>> sinusoids(256, 64).pow(2).mean().round(decimals=2)
    tensor(1.)
    """
    pairs = torch.arange(d_model, dtype=torch.float64) // 2
    phase = torch.arange(d_model) % 2 * (math.pi / 2)  # cos(x) = sin(x + pi / 2)
    frequency = n_positions ** (-pairs / max(1, d_model // 2))
    position = torch.arange(n_positions, dtype=torch.float64)[:, None]
    return (math.sqrt(2) * torch.sin(position * frequency + phase)).float()
