"""Statistics of weights: a summary of each tensor, and the matrices of attention heads.

Weights are those of the hub's files: linear maps are [in, out], x @ W + b. Layer norms are not
folded: the gain of the norm before attention is not part of W_Q, W_K and W_V.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from probekit.errors import DataError

Floats = NDArray[np.float32]
Wide = NDArray[np.float64]


def summarise(tensors: Iterable[tuple[str, Tensor]]) -> pd.DataFrame:
    """Return name, shape, dtype, mean, std, norm, least and most of each tensor, one per row.

    `norm` is the Frobenius norm, `std` the population standard deviation, `least` and `most` are
    minimum and maximum; sums are in float64. For an empty tensor the norm is 0 and the other
    statistics are NaN.

    >>> rows = summarise([("wpe.weight", torch.tensor([[3.0, -4.0]]))])
    >>> rows[["mean", "std", "norm"]].iloc[0].tolist()
    [-0.5, 3.5, 5.0]
    """
    return pd.DataFrame([_row(name, tensor) for name, tensor in tensors])


def _row(name: str, tensor: Tensor) -> dict[str, object]:
    wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
    mean = float(wide.mean(dtype=torch.float64))
    norm = float(torch.linalg.vector_norm(wide, dtype=torch.float64))
    n = tensor.numel()
    least, most = torch.aminmax(wide) if n else (math.nan, math.nan)
    return {
        "name": name,
        "shape": tuple(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "mean": mean,
        "std": math.sqrt(max(norm**2 / n - mean**2, 0.0)) if n else math.nan,
        "norm": norm,
        "least": float(least),
        "most": float(most),
    }


def query_key_value(c_attn: Floats, n_head: int) -> dict[str, Floats]:
    """Return W_Q, W_K and W_V of every head, each of shape (n_heads, d_model, d_head).

    Args:
        c_attn: c_attn.weight, shape (d_model, 3 d_model): all queries, then keys, then values.
        n_head: number of heads.

    >>> parts = query_key_value(np.zeros((6, 18), np.float32), n_head=2)
    >>> parts["key"].shape
    (2, 6, 3)

    Raises:
        DataError: the shape is not (d_model, 3 d_model), or `n_head` does not divide d_model.
    """
    _check(c_attn, (len(c_attn), 3 * len(c_attn)), "c_attn.weight", n_head)
    parts = c_attn.reshape(len(c_attn), 3, n_head, -1).transpose(1, 2, 0, 3)
    return dict(zip(("query", "key", "value"), parts, strict=True))


def output(c_proj: Floats, n_head: int) -> Floats:
    """Return W_O of every head, shape (n_heads, d_head, d_model), from attn.c_proj.weight.

    Raises:
        DataError: the matrix is not square, or `n_head` does not divide d_model.
    """
    _check(c_proj, (len(c_proj), len(c_proj)), "attn.c_proj.weight", n_head)
    return c_proj.reshape(n_head, -1, len(c_proj))


def _check(weight: Floats, shape: tuple[int, int], name: str, n_head: int) -> None:
    if weight.shape != shape or len(weight) % n_head:
        raise DataError(
            f"{name} has the shape {weight.shape}, which does not fit {n_head} heads. It must be "
            f"{shape}, and {n_head} must divide {len(weight)}. Check the number of heads."
        )


def circuits(parts: dict[str, Floats], w_o: Floats) -> dict[str, Wide]:
    """Return the singular values of W_QK and W_OV of every head, each of shape (n_heads, d_head).

    W_QK = W_Q W_K^T is the bilinear form of the attention scores, before division by sqrt(d_head).
    W_OV = W_V W_O maps an attended residual to the head's output. Both have the shape (d_model,
    d_model) and at most rank d_head; the other singular values are 0.

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits".
    """
    return {
        "QK": product_spectra(parts["query"], parts["key"]),
        "OV": product_spectra(parts["value"], w_o.transpose(0, 2, 1)),
    }


def product_spectra(a: Floats, b: Floats) -> Wide:
    """Return the singular values of a b^T for stacks of tall matrices, shape (n, columns).

    With QR decompositions a = Q R and b = P S, they are the singular values of the small R S^T.

    >>> a = np.array([[[3.0], [4.0]]], np.float32)
    >>> product_spectra(a, a)
    array([[25.]])
    """
    r, s = (np.linalg.qr(m.astype(np.float64)).R for m in (a, b))
    return np.linalg.svd(r @ s.transpose(0, 2, 1), compute_uv=False)


def head_norms(parts: dict[str, Floats]) -> Wide:
    """Return the Frobenius norm of each part of each head, shape (n_parts, n_heads)."""
    return np.stack(
        [np.linalg.norm(part.astype(np.float64), axis=(1, 2)) for part in parts.values()]
    )
