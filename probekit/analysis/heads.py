"""Attention heads: scores of their patterns, the known heads of GPT-2 small, and their weights.

Source: repeated random tokens as in Olsson et al. 2022, "In-context Learning and Induction Heads".
Only the repetition is predictable in them, so a head that attends to the token after an earlier
occurrence is an induction head. The known heads are those most often named in the literature since
Wang et al. 2022, "Interpretability in the Wild".

Weights are those of the hub's files: linear maps are [in, out], x @ W + b. Layer norms are not
folded: the gain of the norm before attention is not part of W_Q, W_K and W_V.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from probekit.errors import ConfigError, DataError
from probekit.model.network import Network
from probekit.model.sites.catalogue import layer_of
from probekit.provenance import digest
from probekit.terminal import SILENT, Watcher

Floats = NDArray[np.float32]
Wide = NDArray[np.float64]

# results/network.py defines each score in words.
_WEIGHTS = ("previous_token", "duplicate_token", "induction", "first_token")
HEAD_SCORES = (*_WEIGHTS, "entropy", "distance")
KNOWN_HEADS = {  # (layer, head) by score
    "previous_token": ((4, 11),),
    "induction": ((5, 5), (5, 1), (6, 9), (7, 2), (7, 10)),
    "duplicate_token": ((3, 0), (0, 1)),
}
# Digest of the float32 position embeddings, which identify GPT-2 small whatever its name.
_WPE_OF_GPT2_SMALL = "8ef840e2c9b1b4f950baa790cc1aa824c619334d0dc89efb787c3303548164ea"


def head_scores(patterns: Tensor, ids: Tensor) -> dict[str, Tensor]:
    """Return the scores in `HEAD_SCORES` of every head, by name.

    Each score is a mean over the query positions for which it is defined: all except the first,
    which attends only to itself; for `duplicate_token` and `induction`, those with an earlier
    matching token. It is NaN if it is defined for none, as in a text without repeated tokens.

    Args:
        patterns: attention weights of shape (..., n_heads, n, n), floating point, queries in rows.
        ids: token ids, shape (n,), at least one.

    Returns:
        Tensors of shape (..., n_heads), in float32, or float64 for float64 patterns.

    Source: the scores of Olsson et al. 2022, "In-context Learning and Induction Heads", and Wang et
    al. 2022, "Interpretability in the Wild". They use random tokens that occur twice. For tokens
    that occur more often, as in text, we sum the weights on all earlier occurrences.

    >>> patterns = torch.tensor([[[1.0, 0, 0], [1, 0, 0], [0, 1, 0]]])
    >>> scores = head_scores(patterns, torch.tensor([5, 6, 5]))
    >>> {name: score.item() for name, score in scores.items() if name != "entropy"}
    {'previous_token': 1.0, 'duplicate_token': 0.0, 'induction': 1.0, 'first_token': 0.5,
     'distance': 1.0}
    """
    patterns = patterns.to(torch.promote_types(patterns.dtype, torch.float32))
    heads = patterns.shape[:-2]
    # The coefficient of each attention weight in each score, shape (n, n).
    ids = ids.to(patterns.device)
    position = torch.arange(len(ids), device=ids.device)
    back = position[:, None] - position  # query position minus key position
    is_same = ids[:, None] == ids
    follows_same = torch.zeros_like(is_same)
    follows_same[:, 1:] = is_same[:, :-1]
    after_first = (position > 0)[:, None]
    templates = {
        "previous_token": _mean_over_rows(back == 1),
        "duplicate_token": _mean_over_rows(is_same & (back > 0)),
        "induction": _mean_over_rows(follows_same & (back > 0)),
        "first_token": _mean_over_rows((position == 0) & after_first),
        "distance": _mean_over_rows(back > 0) * back,
    }
    # Every score except the entropy is the sum of a pattern times a template. `summed` has a row
    # for each template and a column for each head (of all leading axes).
    columns = torch.stack([*templates.values()]).to(patterns.dtype).flatten(1)
    summed = columns @ patterns.reshape(-1, back.numel()).T
    scores = dict(zip(templates, summed.reshape(-1, *heads).unbind(), strict=True))
    # Mean over all rows but the first; heads are computed one by one to save memory.
    means = [torch.special.entr(head[1:]).sum(-1).mean() for head in patterns.flatten(0, -3)]
    scores["entropy"] = torch.stack(means).reshape(heads)
    return {name: scores[name] for name in HEAD_SCORES}


def _mean_over_rows(counted: Tensor) -> Tensor:
    """Return 1 / (number of rows with a True entry) at True entries, 0 elsewhere; NaN if no row."""
    return counted.double() / counted.any(-1).sum()


def known_heads(model: Network) -> dict[str, tuple[tuple[int, int], ...]]:
    """Return the known heads of GPT-2 small as (layer, head) by score; empty for other models.

    >>> from probekit import GPT2
    >>> known_heads(GPT2.from_pretrained("mini"))
    {}
    """
    if model.position_embedding is None:
        return {}
    embedding = model.position_embedding.detach().cpu().float().contiguous()
    return KNOWN_HEADS if digest([embedding.numpy().tobytes()]) == _WPE_OF_GPT2_SMALL else {}


def random_repeats(
    pool: Sequence[int], n: int, length: int, *, seed: int = 0, bos: int | None = None
) -> list[Tensor]:
    """Return n sequences of `length` distinct random tokens, each repeated once.

    Args:
        pool: distinct ids to sample from.
        n: number of sequences.
        length: length of the repeated part.
        seed: random seed.
        bos: id to put before each sequence; None for none.

    >>> [ids.tolist() for ids in random_repeats(range(10), 1, 3, bos=50)]
    [[50, 4, 1, 7, 4, 1, 7]]

    Raises:
        ConfigError: `n` is below 1, or `length` is not from 1 to the size of the pool.
    """
    if n < 1:
        raise ConfigError(f"The number of random sequences is {n}. Allowed: at least 1.")
    if not 1 <= length <= len(pool):
        raise ConfigError(
            f"The length of the repeated part is {length}. Allowed: 1 to {len(pool)}."
        )
    generator = torch.Generator().manual_seed(seed)
    ids, prefix = torch.tensor(pool), torch.tensor([] if bos is None else [bos], dtype=torch.int64)
    halves = [ids[torch.randperm(len(ids), generator=generator)[:length]] for _ in range(n)]
    return [torch.cat([prefix, half, half]) for half in halves]


def score_heads(
    model: Network, sequences: Sequence[Tensor], watcher: Watcher = SILENT
) -> pd.DataFrame:
    """Return the mean of each score over the sequences, one row per score, layer and head.

    The columns are `score`, `layer`, `head`, `value` (mean), `sd` (sample standard deviation over
    sequences; NaN for a single one) and `n` (number of sequences for which the score is defined).

    >>> from probekit import GPT2
    >>> rows = score_heads(GPT2.from_pretrained("mini"), random_repeats(range(1, 100), 2, 5))
    >>> len(rows), rows["score"].nunique(), set(rows["n"])
    (144, 6, {2})

    Raises:
        DataError: there is no sequence, or one is empty or longer than the context.
    """
    if not sequences:
        raise DataError("There is no sequence to score heads on. Give at least one.")
    per_text = []
    for number, ids in enumerate(sequences, start=1):
        per_text.append(_scores(model, ids))
        watcher.progress("heads", number, len(sequences))
    tables = []
    for name in per_text[0]:
        values = torch.stack([scores[name] for scores in per_text]).double().cpu().numpy()
        layer, head = np.indices(values.shape[1:]).reshape(2, -1)
        # A row for each text, a column for each head, in the order of `layer` and `head`. The
        # statistics leave out NaN.
        frame = pd.DataFrame(values.reshape(len(per_text), -1))
        of_texts = {"value": frame.mean(), "sd": frame.std(), "n": frame.count()}
        tables.append(pd.DataFrame({"score": name, "layer": layer, "head": head, **of_texts}))
    return pd.concat(tables, ignore_index=True)


def _scores(model: Network, ids: Tensor) -> dict[str, Tensor]:
    """Return the scores (n_layers, n_heads) of one text; only one layer's patterns are kept.

    They are NaN in layers without patterns.
    """
    layers: dict[int | None, dict[str, Tensor]] = {}

    def tap(site: str, pattern: Tensor) -> Tensor:
        """Store the scores of a layer, and return its pattern unchanged."""
        layers[layer_of(site)] = head_scores(pattern[0].to(ids.device), ids)
        return pattern

    with torch.inference_mode():
        model(ids[None], tap=tap, sites="blocks.*.attn.hook_pattern", logits=False)
    first = next(iter(layers.values()))
    none = {name: torch.full_like(score, torch.nan) for name, score in first.items()}
    of_layers = [layers.get(layer, none) for layer in range(model.config.n_layers)]
    return {name: torch.stack([scores[name] for scores in of_layers]) for name in first}


def summarise(tensors: Iterable[tuple[str, Tensor]]) -> pd.DataFrame:
    """Return name, shape, dtype, mean, std, norm, least and most of each tensor, one per row.

    `norm` is the Frobenius norm, `std` the population standard deviation, `least` and `most` are
    minimum and maximum; sums are in float64. For an empty tensor the norm is 0 and the other
    statistics are NaN.

    >>> rows = summarise([("wpe.weight", torch.tensor([[3.0, -4.0]]))])
    >>> rows[["mean", "std", "norm"]].iloc[0].tolist()
    [-0.5, 3.5, 5.0]
    """
    rows = []
    for name, tensor in tensors:
        wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
        mean = float(wide.mean(dtype=torch.float64))
        norm, n = float(torch.linalg.vector_norm(wide, dtype=torch.float64)), tensor.numel()
        least, most = map(float, torch.aminmax(wide)) if n else (math.nan, math.nan)
        # Mean square minus squared mean, which rounding can make negative.
        std = math.sqrt(max(norm**2 / n - mean**2, 0.0)) if n else math.nan
        dtype = str(tensor.dtype).removeprefix("torch.")
        rows.append((name, tuple(tensor.shape), dtype, mean, std, norm, least, most))
    columns = ["name", "shape", "dtype", "mean", "std", "norm", "least", "most"]
    return pd.DataFrame(rows, columns=columns)


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
    # From (d_model, 3, n_heads, d_head) to (3, n_heads, d_model, d_head).
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
    """Raise DataError unless a weight has the shape, and its rows are divisible among the heads."""
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
        "OV": product_spectra(parts["value"], w_o.transpose(0, 2, 1)),  # W_V (W_O^T)^T
    }


def product_spectra(a: Floats, b: Floats) -> Wide:
    """Return the singular values of a b^T for stacks of tall matrices, shape (n, columns).

    With QR decompositions a = Q R and b = P S, a b^T = Q (R S^T) P^T has the singular values of
    the small R S^T.

    >>> a = np.array([[[3.0], [4.0]]], np.float32)
    >>> product_spectra(a, a)
    array([[25.]])
    """
    r, s = (np.linalg.qr(m.astype(np.float64)).R for m in (a, b))
    return np.linalg.svd(r @ s.transpose(0, 2, 1), compute_uv=False)


def head_norms(parts: dict[str, Floats]) -> Wide:
    """Return the Frobenius norm of each part of each head, shape (n_parts, n_heads)."""
    return np.stack([np.linalg.norm(w.astype(np.float64), axis=(1, 2)) for w in parts.values()])
