"""Writing a GPT-2 as the hub keeps it: config.json and model.safetensors."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from probekit.model.config import GPT2Config
from probekit.model.weights.hub_files import DIGEST
from probekit.model.weights.loading import turned
from probekit.provenance import digest, pretty_json, write_atomic

_DTYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float64: "F64",
}


def write_checkpoint(folder: Path, config: GPT2Config, tensors: Mapping[str, Tensor]) -> None:
    """Write the two files, the names and layout those of transformers' GPT2LMHeadModel.

    The header of the weights holds a digest of their bytes, which loading looks at.

    Raises:
        StoreError: they cannot be written; what was there stays valid.
    """
    stored = {_hub_name(name): turned(name, tensor) for name, tensor in sorted(tensors.items())}
    header = _header(stored, digest(_chunks(stored)))
    write_atomic(folder / "model.safetensors", chain([header], _chunks(stored)))
    write_atomic(folder / "config.json", pretty_json(hub_config(config, tensors)))


def hub_config(config: GPT2Config, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the contents of config.json, under the hub's keys."""
    dtype = str(tensors["wte.weight"].dtype).removeprefix("torch.")
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "dtype": dtype,
        **config.to_json(),
        **{key: _special_token(config, key) for key in ("bos_token_id", "eos_token_id")},
    }


def _special_token(config: GPT2Config, key: str) -> int | list[int] | None:
    """Return the id that begins or ends a text: the config's, or the published `<|endoftext|>`."""
    is_published = config.vocab_size == GPT2Config.vocab_size
    kept: int | list[int] | None = getattr(config, key)
    return config.vocab_size - 1 if kept is None and is_published else kept


def _hub_name(name: str) -> str:
    return name if name.startswith("lm_head.") else f"transformer.{name}"


def _header(stored: Mapping[str, Tensor], promised: str) -> bytes:
    """Return the first bytes of a safetensors file: the length of a JSON, and the JSON."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", DIGEST: promised}}
    end = 0
    for name, tensor in stored.items():
        start, end = end, end + tensor.nbytes
        entries[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers that follow are aligned
    return struct.pack("<Q", len(text)) + text


def _chunks(stored: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of each tensor, one at a time: all together would be a second model."""
    for tensor in stored.values():
        own = tensor.detach().cpu().contiguous()
        yield own.flatten().view(torch.uint8).numpy().data
