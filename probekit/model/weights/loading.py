"""Filling a GPT-2 from a checkpoint: every tensor's name and shape is accounted for."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor

from probekit.errors import CheckpointError, ConfigError, nearest
from probekit.model.weights.checkpoint import open_checkpoint
from probekit.model.weights.stored import StoredTensor

MAX_FAULTS = 200  # shown of a checkpoint

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}

# The hub stores these as Conv1D, [in, out]; a Linear is [out, in].
_CONV1D = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")

# What all extra tensors end with, and the entry of config.json that makes them part of the model.
_SWITCHES = (
    ("lm_head.weight", '"tie_word_embeddings": false'),
    (".c_attn.bias", '"qkv_bias": true'),
    (".bias", '"bias": true'),
)

TensorShape = tuple[int, ...]


def read_checkpoint(
    folder: Path, like: Mapping[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return the state dict of the GPT-2 in `folder`, linear maps as [out, in].

    The file is mapped and read tensor by tensor: there is never a second copy of the whole.

    Args:
        folder: with weights in one of the formats of the hub, or OpenAI's own.
        like: the state dict to fill; only its names and shapes count.
        dtype: of the tensors returned, whatever those stored have.

    Raises:
        MissingError: the folder lacks a file of weights.
        CheckpointError: the weights cannot be read, or are not those of the model to fill.
    """
    checkpoint = open_checkpoint(folder)
    path, tensors = checkpoint.path, checkpoint.tensors
    _drop_idle(tensors, like)
    wanted = {name: tuple(turned(name, tensor).shape) for name, tensor in like.items()}
    _check(path, {name: tensor.shape for name, tensor in tensors.items()}, wanted)
    # The largest first: while it is copied, it is in memory twice, and it alone.
    names = sorted(tensors, key=lambda name: -math.prod(tensors[name].shape))
    return {name: _ready(path, name, tensors.pop(name).read(), dtype) for name in names}


def turned(name: str, tensor: Tensor) -> Tensor:
    """Return a linear map turned between [in, out] and [out, in], any other tensor as it is.

    >>> turned("h.0.mlp.c_fc.weight", torch.zeros(4, 1)).shape
    torch.Size([1, 4])
    """
    return tensor.T if _CONV1D.search(name) else tensor


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return the dtype of a name.

    >>> as_dtype("bfloat16")
    torch.bfloat16

    Raises:
        ConfigError: GPT-2 does not compute in it.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ConfigError(f"No GPT-2 computes in {name!r}. {nearest(name, DTYPES)}")
    return DTYPES[name]


def _ready(path: Path, name: str, stored: Tensor, dtype: torch.dtype) -> Tensor:
    if stored.dtype not in DTYPES.values():
        kind = str(stored.dtype).removeprefix("torch.")
        raise CheckpointError(
            f"{path}: {name} holds numbers of {kind}; weights are {', '.join(DTYPES)}."
        )
    source = turned(name, stored)
    ready = torch.empty(source.shape, dtype=dtype).copy_(source)
    wider = "bfloat16 or float32" if dtype == torch.float16 else "float64"
    overflow = f"they exceed {str(dtype).removeprefix('torch.')}; load them as {wider}"
    for numbers, why in ((stored, "the file is damaged"), (ready, overflow)):
        # An overflow or a NaN spreads from the first token on.
        if not all(map(math.isfinite, torch.stack(torch.aminmax(numbers)).tolist())):
            raise CheckpointError(f"{path}: {name} holds numbers that are not finite: {why}.")
    return ready


def _drop_idle(tensors: dict[str, StoredTensor], like: Mapping[str, Tensor]) -> None:
    """Drop what changes nothing: biases of 0, an unembedding that only repeats the embedding."""
    for name in tensors.keys() - like.keys():
        if _is_bias(name, like) and not tensors[name].read().any():
            del tensors[name]
    tied, embedding = tensors.get("lm_head.weight"), tensors.get("wte.weight")
    if "lm_head.weight" in like or not tied or not embedding:
        return
    if torch.equal(tied.read(), embedding.read()):
        del tensors["lm_head.weight"]


def _check(
    path: Path, shapes: Mapping[str, TensorShape], wanted: Mapping[str, TensorShape]
) -> None:
    faults = [f"missing: {name} {wanted[name]}" for name in wanted.keys() - shapes.keys()]
    extra = shapes.keys() - wanted.keys()
    faults += [f"extra: {name} {shapes[name]}" for name in extra]
    faults += [
        f"wrong shape: {name} is {shapes[name]}, must be {wanted[name]}"
        for name in wanted.keys() & shapes.keys()
        if shapes[name] != wanted[name]
    ]
    if faults:
        shown = sorted(faults)[:MAX_FAULTS]
        rest = [f"and {len(faults) - MAX_FAULTS} more"] if len(faults) > MAX_FAULTS else []
        mends = _mends(extra, wanted) if len(extra) == len(faults) else []
        raise CheckpointError(
            f"{path} does not hold the GPT-2 that the config beside it describes; its tensors "
            f"are {_described(shapes)}:\n  " + "\n  ".join([*shown, *rest, *mends])
        )


def _mends(extra: Collection[str], wanted: Collection[str]) -> list[str]:
    """Return how to have the extra tensors, where one entry of the config asks for all of them.

    >>> _mends({"lm_head.weight"}, {"wte.weight"})
    ['To use what is extra, config.json must say "tie_word_embeddings": false.']
    """
    if not all(name == "lm_head.weight" or _is_bias(name, wanted) for name in extra):
        return []
    entries = [entry for end, entry in _SWITCHES if all(name.endswith(end) for name in extra)]
    return [f"To use what is extra, config.json must say {entry}." for entry in entries[:1]]


def _is_bias(name: str, wanted: Collection[str]) -> bool:
    """Return whether a tensor is the bias of a module that the model to fill has."""
    return name.endswith(".bias") and name.removesuffix("bias") + "weight" in wanted


def _described(shapes: Mapping[str, TensorShape]) -> str:
    """Return the sizes that the tensors speak of.

    >>> _described({"wte.weight": (97, 21), "wpe.weight": (16, 21), "h.0.ln_1.bias": (21,)})
    'of n_layer=1, vocab_size=97, n_embd=21, n_positions=16'
    """
    blocks = {name.split(".")[1] for name in shapes if name.startswith("h.")}
    sizes = {"n_layer": len(blocks)}
    for name, keys in (("wte", ("vocab_size", "n_embd")), ("wpe", ("n_positions", "n_embd"))):
        sizes |= dict(zip(keys, shapes.get(f"{name}.weight", ()), strict=False))
    return f"of {', '.join(f'{key}={size}' for key, size in sizes.items())}"
