"""Writing a network in the format of the hub: config.json and model.safetensors."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from probekit.files import write_atomic
from probekit.model.config import ModelConfig
from probekit.model.weights.digests import read_digests, write_digests
from probekit.model.weights.hub_files import DIGEST
from probekit.model.weights.loading import transposed
from probekit.provenance import digest, pretty_json

_DTYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float64: "F64",
}


def write_checkpoint(folder: Path, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """Write config.json, model.safetensors and digests.json, as transformers reads them.

    The digests are written last. If the folder already had digests of older files, the files of an
    interrupted call fail verification. The header of model.safetensors also contains a digest, for
    copies of that file alone.

    Raises:
        StoreError: a file cannot be written.
        CheckpointError: the existing digests.json is damaged.
    """
    read_digests(folder)  # fails before gigabytes are written
    names = config.WEIGHTS
    stored = {
        names.in_checkpoint(name): transposed(names, name, tensor)
        for name, tensor in sorted(tensors.items())
    }
    dtype = str(tensors[names.embedding].dtype).removeprefix("torch.")
    header = _header(stored, digest(_chunks(stored)))
    files = {
        "config.json": [pretty_json({"dtype": dtype, **config.to_hub()}).encode()],
        "model.safetensors": chain([header], _chunks(stored)),
    }
    write_digests(folder, {name: write_atomic(folder / name, files[name]) for name in files})


def _header(stored: Mapping[str, Tensor], tensor_digest: str) -> bytes:
    """Return the header of a safetensors file: the length of a JSON object, and the object."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", DIGEST: tensor_digest}}
    end = 0
    for name, tensor in stored.items():
        start, end = end, end + tensor.nbytes
        entries[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the tensors
    return struct.pack("<Q", len(text)) + text


def _chunks(stored: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of each tensor, one at a time to save memory."""
    for tensor in stored.values():
        contiguous = tensor.detach().cpu().contiguous()
        yield contiguous.flatten().view(torch.uint8).numpy().data
