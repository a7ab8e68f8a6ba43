"""Weight files of the Hugging Face hub: safetensors or PyTorch, single or sharded."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from probekit.errors import CheckpointError, MissingError
from probekit.model.weights.digests import CHUNK, verify
from probekit.model.weights.json_files import shard_of_tensors
from probekit.model.weights.stored import StoredTensor, reading_tensor
from probekit.provenance import digest

# Metadata key with the digest of the tensors' bytes, in files that we write.
DIGEST = "blake3"


def open_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file by name; each read maps the file again.

    >>> from probekit.model.weights.sources import MINI
    >>> open_safetensors(MINI / "model.safetensors")["transformer.wte.weight"].shape
    (8192, 256)

    Raises:
        CheckpointError: the file is damaged.
    """
    with reading_tensor(path):
        with safe_open(path, "pt") as file:
            names, metadata = file.keys(), file.metadata() or {}
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
        _check_bytes(path, metadata)
    return {
        name: StoredTensor(shape, partial(_read_safetensors, path, name))
        for name, shape in shapes.items()
    }


def _read_safetensors(path: Path, name: str) -> Tensor:
    with reading_tensor(path), safe_open(path, "pt") as file:
        tensor: Tensor = file.get_tensor(name)
        return tensor


def _check_bytes(path: Path, metadata: Mapping[str, str]) -> None:
    """Verify the digest of the file or, without one, the digest in its header."""
    if verify(path):
        return
    expected = metadata.get(DIGEST)
    if expected is not None and digest(tensor_bytes(path)) != expected:
        raise CheckpointError(
            f"{path} is damaged: its tensors do not match the digest in its header. Copy or "
            "download it again."
        )


def has_own_checksum(path: Path) -> bool:
    """Return whether a weight file contains a checksum of its tensors.

    >>> from probekit.model.weights.sources import MINI
    >>> has_own_checksum(MINI / "model.safetensors")
    True
    """
    if path.suffix != ".safetensors":
        return path.suffix == ".bin" and zipfile.is_zipfile(path)
    with reading_tensor(path), safe_open(path, "pt") as file:
        return DIGEST in (file.metadata() or {})


def tensor_bytes(path: Path) -> Iterator[bytes]:
    """Yield the bytes after the header of a safetensors file, in chunks."""
    with path.open("rb") as file:
        (header,) = struct.unpack("<Q", file.read(8))
        file.seek(8 + header)
        while chunk := file.read(CHUNK):
            yield chunk


def open_pytorch(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a PyTorch file by name; each read maps the file again.

    Files written before PyTorch 1.6 cannot be mapped and are read completely.

    Raises:
        CheckpointError: the file is damaged or contains other objects than tensors.
    """
    with reading_tensor(path):
        verify(path)
    is_mapped = zipfile.is_zipfile(path)
    if is_mapped:
        with reading_tensor(path), zipfile.ZipFile(path) as archive:
            # torch.load does not verify the checksums.
            if (damaged := archive.testzip()) is not None:
                raise CheckpointError(
                    f"{path} is damaged: its member {damaged} has a wrong checksum."
                )
    tensors = _load_pytorch(path, mmap=is_mapped)
    return {
        name: StoredTensor(
            tuple(tensor.shape),
            partial(_read_pytorch, path, name) if is_mapped else partial(Tensor.detach, tensor),
        )
        for name, tensor in tensors.items()
    }


def _read_pytorch(path: Path, name: str) -> Tensor:
    return _load_pytorch(path, mmap=True)[name].detach()  # the file may contain an nn.Parameter


def _load_pytorch(path: Path, *, mmap: bool) -> dict[str, Tensor]:
    with reading_tensor(path):
        # weights_only rejects pickles that would run code.
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    if not isinstance(tensors, Mapping) or not all(
        isinstance(name, str) and _is_plain(tensor) for name, tensor in tensors.items()
    ):
        raise CheckpointError(f"{path} must contain a dictionary of named tensors.")
    return dict(tensors)


def _is_plain(tensor: object) -> bool:
    return (
        isinstance(tensor, Tensor)
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
    )


def open_shards(index: Path) -> dict[str, StoredTensor]:
    """Return the tensors of all shards in an index.

    Raises:
        MissingError: a shard is missing.
        CheckpointError: index and shards list different tensors, or a file is damaged.
    """
    shards = shard_of_tensors(index)
    absent = [name for name in sorted(set(shards.values())) if not (index.parent / name).is_file()]
    if absent:
        raise MissingError(f"{index} lists shards that are not in its folder: {', '.join(absent)}.")
    stored: dict[str, StoredTensor] = {}
    actual: list[tuple[str, str]] = []
    for name in sorted(set(shards.values())):
        tensors = open_weights(index.parent / name)
        actual += [(tensor, name) for tensor in tensors]
        stored |= tensors
    if differing := sorted({tensor for tensor, _ in set(actual) ^ set(shards.items())}):
        raise CheckpointError(
            f"{index} and its shards disagree on which shard contains: {', '.join(differing)}."
        )
    return stored


def open_weights(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a weight file or of an index of shards.

    Raises:
        MissingError: a shard is missing.
        CheckpointError: a file is damaged, or its extension is unknown.
    """
    openers = {".safetensors": open_safetensors, ".bin": open_pytorch, ".json": open_shards}
    if path.suffix not in openers:
        raise CheckpointError(
            f"{path} is not a weight file. Allowed extensions: {', '.join(openers)}."
        )
    return openers[path.suffix](path)
