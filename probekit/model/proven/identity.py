"""What determines the numbers of a network that transformers computes, and proofs kept under it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from platformdirs import user_cache_path
from torch import Tensor, nn

from probekit.provenance import digest, digest_json

# Entries of a config of transformers that do not change numbers.
_NOTES = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype")


def bytes_of(tensor: Tensor) -> bytes | memoryview:
    """Return the bytes of a tensor."""
    plain = tensor.detach().cpu().contiguous().flatten()
    data: memoryview = plain.view(torch.uint8).numpy().data
    return data


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return the digest of names, dtypes, shapes and bytes of tensors."""
    return digest(
        part
        for name in sorted(tensors)
        for part in (
            f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)};".encode(),
            bytes_of(tensors[name]),
        )
    )


@cache
def _digest_file(path: str) -> str:
    return digest([Path(path).read_bytes()])


def digest_code(model: nn.Module) -> str:
    """Return the digest of the source files of all classes of modules in a model."""
    files: set[str] = set()
    for module in model.modules():
        for one in type(module).__mro__:
            if one.__module__.startswith(("torch.", "builtins")):
                continue
            try:
                files.add(inspect.getfile(one))
            except (OSError, TypeError):  # defined in a session: its bytes are all that there is
                files.add("")
    return digest_json([_digest_file(path) for path in sorted(filter(None, files))])


def settings_of(config: Any) -> dict[str, Any]:
    """Return the entries of a config of transformers that may change numbers, as JSON."""
    entries = config.to_diff_dict() if hasattr(config, "to_diff_dict") else config.to_dict()
    return _plain({key: one for key, one in entries.items() if key not in _NOTES})


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def identity_of_model(model: nn.Module, engine_version: int) -> dict[str, Any]:
    """Return what determines the numbers of a loaded model, but its weights, as JSON."""
    config: Any = model.config
    return {
        "class": type(model).__name__,
        "settings": settings_of(config),
        "attention": str(getattr(config, "_attn_implementation", None)),
        "dtype": sorted({str(one.dtype) for one in model.parameters()}),
        "code": digest_code(model),
        "versions": {name: version(name) for name in ("transformers", "torch")},
        "engine_version": engine_version,
    }


def proofs_folder() -> Path:
    """Return the folder of the proofs: in that of the caches."""
    chosen = os.environ.get("PROBEKIT_CACHE", "")
    root = user_cache_path("probekit") if "://" in chosen or not chosen else Path(chosen)
    return root / "proofs"


def digest_values(values: Iterable[Tensor]) -> str:
    """Return the digest of the values of the texts of a proof."""
    return digest(bytes_of(one) for one in values)
