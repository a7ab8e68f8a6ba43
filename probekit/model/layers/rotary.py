"""Rotary positions: queries and keys are rotated by angles proportional to their position.

Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding". The
features of a head are paired as in the published checkpoints: i with i + half.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from probekit.model.families.rotary import RotaryPositions

Turn = tuple[Tensor, Tensor]  # cosine and sine of every angle, shape [batch pos 1 n_pairs] each


def frequencies(rotary: RotaryPositions, d_head: int) -> Tensor:
    """Return the angle by which each pair of features turns per position, shape [n_pairs].

    In float32, in which the models were trained, whatever the dtype of the weights.

    >>> frequencies(RotaryPositions(), 4)
    tensor([1.0000, 0.0100])
    """
    n_rotated = int(d_head * rotary.partial_rotary_factor)
    exponent = torch.arange(0, n_rotated, 2, dtype=torch.float32, device="cpu") / n_rotated
    plain = 1.0 / rotary.rope_theta**exponent
    if rotary.rope_type == "linear":
        assert rotary.factor is not None
        return plain / rotary.factor
    return _of_llama3(plain, rotary) if rotary.rope_type == "llama3" else plain


def _of_llama3(plain: Tensor, rotary: RotaryPositions) -> Tensor:
    """Return the frequencies of Llama 3.1: long wavelengths are stretched by `factor`.

    Source: the code published with Llama 3.1 (models/llama3/reference_impl/model.py).
    """
    trained, low, high = (
        rotary.original_max_position_embeddings,
        rotary.low_freq_factor,
        rotary.high_freq_factor,
    )
    assert trained is not None
    assert low is not None
    assert high is not None
    assert rotary.factor is not None
    wavelength = 2 * math.pi / plain  # in tokens
    turns = trained / wavelength  # of each pair over a text of the first training
    kept = ((turns - low) / (high - low)).clamp(0, 1)  # 1: unchanged, 0: stretched
    return (1 - kept) * plain / rotary.factor + kept * plain


def turn(positions: Tensor, frequency: Tensor) -> Turn:
    """Return cosine and sine of the angles at positions, shape [batch pos 1 n_pairs] each.

    Args:
        positions: position of each token, shape [batch pos].
        frequency: angle per position, shape [n_pairs].
    """
    angles = positions[:, :, None, None].float() * frequency.to(positions.device)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, angles: Turn) -> Tensor:
    """Return the heads with their first 2 n_pairs features rotated, in the dtype of `x`.

    Args:
        x: queries or keys, shape [batch pos n_heads d_head].
        angles: cosine and sine, see `turn`.

    >>> quarter = turn(torch.tensor([[1]]), torch.tensor([math.pi / 2]))
    >>> rotate(torch.tensor([[[[1.0, 0.0, 5.0]]]]), quarter).round().tolist()
    [[[[-0.0, 1.0, 5.0]]]]
    """
    cos, sin = angles
    n_pairs = cos.shape[-1]
    a, b, rest = x.tensor_split((n_pairs, 2 * n_pairs), dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1).to(x.dtype)
