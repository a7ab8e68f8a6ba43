"""Reading the state dict of a GPT-2 from a checkpoint, with a check of all names and shapes."""

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

MAX_FAULTS = 200  # mismatches that an error lists

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}

# The hub stores these maps as Conv1D, [in, out]; nn.Linear is [out, in].
_CONV1D = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")

# Suffix of extra tensors, and the entry of config.json that makes them part of the model.
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

    Tensors are read one at a time from a memory map, to avoid a second copy in memory.

    Args:
        folder: folder with weights in a format of the hub or of OpenAI.
        like: state dict of the model to fill; only names and shapes are used.
        dtype: dtype of the returned tensors.

    Raises:
        MissingError: the folder has no weight file.
        CheckpointError: the weights cannot be read, or names or shapes differ from those of `like`.
    """
    checkpoint = open_checkpoint(folder)
    path, tensors = checkpoint.path, checkpoint.tensors
    _drop_redundant(tensors, like)
    expected = {name: tuple(transposed(name, tensor).shape) for name, tensor in like.items()}
    _check(path, {name: tensor.shape for name, tensor in tensors.items()}, expected)
    # Largest first: each tensor is in memory twice while it is copied.
    names = sorted(tensors, key=lambda name: -math.prod(tensors[name].shape))
    return {name: _converted(path, name, tensors.pop(name).read(), dtype) for name in names}


def transposed(name: str, tensor: Tensor) -> Tensor:
    """Return a linear map transposed between [in, out] and [out, in]; other tensors unchanged.

    >>> transposed("h.0.mlp.c_fc.weight", torch.zeros(4, 1)).shape
    torch.Size([1, 4])
    """
    return tensor.T if _CONV1D.search(name) else tensor


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return the torch dtype of a name.

    >>> as_dtype("bfloat16")
    torch.bfloat16

    Raises:
        ConfigError: the dtype is not supported.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ConfigError(f"Unsupported dtype {name!r}. {nearest(name, DTYPES)}")
    return DTYPES[name]


def _converted(path: Path, name: str, stored: Tensor, dtype: torch.dtype) -> Tensor:
    if stored.dtype not in DTYPES.values():
        stored_dtype = str(stored.dtype).removeprefix("torch.")
        raise CheckpointError(
            f"{path}: {name} has the dtype {stored_dtype}. Allowed: {', '.join(DTYPES)}."
        )
    source = transposed(name, stored)
    converted = torch.empty(source.shape, dtype=dtype).copy_(source)
    wider = "bfloat16 or float32" if dtype == torch.float16 else "float64"
    overflow = f"they exceed {str(dtype).removeprefix('torch.')}; load the model in {wider}"
    for numbers, reason in ((stored, "the file is damaged"), (converted, overflow)):
        if not all(map(math.isfinite, torch.stack(torch.aminmax(numbers)).tolist())):
            raise CheckpointError(f"{path}: {name} has values that are not finite: {reason}.")
    return converted


def _drop_redundant(tensors: dict[str, StoredTensor], like: Mapping[str, Tensor]) -> None:
    """Drop biases of 0 that the model lacks, and an unembedding equal to the embedding."""
    for name in tensors.keys() - like.keys():
        if _is_bias(name, like) and not tensors[name].read().any():
            del tensors[name]
    tied, embedding = tensors.get("lm_head.weight"), tensors.get("wte.weight")
    if "lm_head.weight" in like or not tied or not embedding:
        return
    if torch.equal(tied.read(), embedding.read()):
        del tensors["lm_head.weight"]


def _check(
    path: Path, shapes: Mapping[str, TensorShape], expected: Mapping[str, TensorShape]
) -> None:
    faults = [f"missing: {name} {expected[name]}" for name in expected.keys() - shapes.keys()]
    extra = shapes.keys() - expected.keys()
    faults += [f"extra: {name} {shapes[name]}" for name in extra]
    faults += [
        f"wrong shape: {name} is {shapes[name]}, must be {expected[name]}"
        for name in expected.keys() & shapes.keys()
        if shapes[name] != expected[name]
    ]
    if faults:
        shown = sorted(faults)[:MAX_FAULTS]
        rest = [f"and {len(faults) - MAX_FAULTS} more"] if len(faults) > MAX_FAULTS else []
        remedies = _remedies(extra, expected) if len(extra) == len(faults) else []
        raise CheckpointError(
            f"{path} does not contain the GPT-2 that its config describes; its tensors have "
            f"{_described(shapes)}:\n  " + "\n  ".join([*shown, *rest, *remedies])
        )


def _remedies(extra: Collection[str], expected: Collection[str]) -> list[str]:
    """Return a sentence with the config entry that would make all extra tensors part of the model.

    The list is empty if no entry does.

    >>> _remedies({"lm_head.weight"}, {"wte.weight"})
    ['To load the extra tensors, set in config.json: "tie_word_embeddings": false.']
    """
    if not all(name == "lm_head.weight" or _is_bias(name, expected) for name in extra):
        return []
    entries = [entry for end, entry in _SWITCHES if all(name.endswith(end) for name in extra)]
    return [f"To load the extra tensors, set in config.json: {entry}." for entry in entries[:1]]


def _is_bias(name: str, expected: Collection[str]) -> bool:
    """Return whether a tensor is the bias of a module of the model to fill."""
    return name.endswith(".bias") and name.removesuffix("bias") + "weight" in expected


def _described(shapes: Mapping[str, TensorShape]) -> str:
    """Return the sizes that the shapes of the tensors imply.

    >>> _described({"wte.weight": (97, 21), "wpe.weight": (16, 21), "h.0.ln_1.bias": (21,)})
    'n_layer=1, vocab_size=97, n_embd=21, n_positions=16'
    """
    blocks = {name.split(".")[1] for name in shapes if name.startswith("h.")}
    sizes = {"n_layer": len(blocks)}
    for name, keys in (("wte", ("vocab_size", "n_embd")), ("wpe", ("n_positions", "n_embd"))):
        sizes |= dict(zip(keys, shapes.get(f"{name}.weight", ()), strict=False))
    return ", ".join(f"{key}={size}" for key, size in sizes.items())
