"""Reading a hub checkpoint: every tensor's name and shape is accounted for."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from probekit.errors import CheckpointError, MissingError
from probekit.model.config import GPT2Config, read_config
from probekit.model.sources import WEIGHT_FILES

MAX_FAULTS = 200  # shown of a checkpoint

# The hub stores these as Conv1D, [in, out]; a Linear is [out, in].
_CONV1D = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")
# Buffers of old checkpoints that hold the causal mask, no weights.
_MASK_BUFFER = re.compile(r"^h\.\d+\.attn\.(masked_)?bias$")


def read_checkpoint(folder: Path) -> tuple[GPT2Config, dict[str, Tensor]]:
    """Return the config and the state dict of the GPT-2 in `folder`, linear maps as [out, in].

    >>> from probekit.model.sources import MINI
    >>> config, tensors = read_checkpoint(MINI)
    >>> tensors["h.0.attn.c_attn.weight"].shape
    torch.Size([768, 256])

    Raises:
        MissingError: the folder lacks config.json or a file of weights.
        CheckpointError: the weights cannot be read or are not those of the config.
    """
    config = read_config(folder)
    path = _weight_file(folder)
    tensors = _without_prefix(path, _read_tensors(path))
    _check(path, tensors, _hub_shapes(config))
    return config, {
        name: tensor.T.contiguous() if _CONV1D.search(name) else tensor
        for name, tensor in tensors.items()
    }


def _weight_file(folder: Path) -> Path:
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    raise MissingError(f"{folder} has neither {' nor '.join(WEIGHT_FILES)}.")


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        # weights_only refuses every pickle that would run code.
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged or not a safetensors file: {error}") from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} holds more than tensors, and reading it could run code: it is refused. "
            "Convert it to model.safetensors where you trust it."
        ) from error
    except (RuntimeError, EOFError, ValueError, LookupError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged or not a PyTorch file ({error}).") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}).") from error
    if not isinstance(tensors, Mapping) or not all(
        isinstance(name, str) and _is_plain(tensor) for name, tensor in tensors.items()
    ):
        raise CheckpointError(f"{path} must hold a dictionary of named tensors.")
    return dict(tensors)


def _is_plain(tensor: object) -> bool:
    return (
        isinstance(tensor, Tensor)
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
    )


def _without_prefix(path: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under the names of the bare GPT-2, without masks and the tied copy."""
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    if len(bare) < len(tensors):
        twice = sorted(
            name for name in bare if name in tensors and f"transformer.{name}" in tensors
        )
        raise CheckpointError(f"{path} holds tensors with and without prefix: {', '.join(twice)}.")
    tied, embedding = bare.get("lm_head.weight"), bare.get("wte.weight")
    if tied is not None and embedding is not None and torch.equal(tied, embedding):
        del bare["lm_head.weight"]
    return {name: tensor for name, tensor in bare.items() if not _MASK_BUFFER.match(name)}


def _hub_shapes(config: GPT2Config) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor of a hub checkpoint, linear maps as [in, out]."""
    d, d_mlp = config.n_embd, config.d_mlp
    block = {
        "ln_1.weight": (d,), "ln_1.bias": (d,),
        "attn.c_attn.weight": (d, 3 * d), "attn.c_attn.bias": (3 * d,),
        "attn.c_proj.weight": (d, d), "attn.c_proj.bias": (d,),
        "ln_2.weight": (d,), "ln_2.bias": (d,),
        "mlp.c_fc.weight": (d, d_mlp), "mlp.c_fc.bias": (d_mlp,),
        "mlp.c_proj.weight": (d_mlp, d), "mlp.c_proj.bias": (d,),
    }  # fmt: skip
    return {
        "wte.weight": (config.vocab_size, d),
        "wpe.weight": (config.n_positions, d),
        **{f"h.{n}.{name}": s for n in range(config.n_layer) for name, s in block.items()},
        "ln_f.weight": (d,),
        "ln_f.bias": (d,),
    }


def _check(
    path: Path, tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    faults = [f"missing: {name} {shapes[name]}" for name in shapes.keys() - tensors.keys()]
    faults += [f"extra: {name} {tuple(tensors[name].shape)}" for name in tensors.keys() - shapes]
    faults += [
        f"wrong shape: {name} is {tuple(tensors[name].shape)}, must be {shapes[name]}"
        for name in shapes.keys() & tensors.keys()
        if tuple(tensors[name].shape) != shapes[name]
    ]
    if faults:
        shown = sorted(faults)[:MAX_FAULTS]
        rest = [f"and {len(faults) - MAX_FAULTS} more"] if len(faults) > MAX_FAULTS else []
        raise CheckpointError(
            f"{path} does not hold the GPT-2 that config.json beside it describes:\n  "
            + "\n  ".join([*shown, *rest])
        )
    strange = [name for name, tensor in tensors.items() if not tensor.is_floating_point()]
    if strange:
        raise CheckpointError(f"{path}: {', '.join(strange)} are not floating-point numbers.")
