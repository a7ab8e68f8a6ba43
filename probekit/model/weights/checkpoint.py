"""Opening a checkpoint: names and shapes of its tensors, which are read later.

The formats are those of the hub (safetensors or PyTorch, single or sharded), and OpenAI's original
checkpoints of GPT-2.
"""

import json
import mmap
import re
import struct
import warnings
import zipfile
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import torch
from safetensors import safe_open
from torch import Tensor

from probekit.errors import CheckpointError, MissingError
from probekit.files import regular, state_of
from probekit.model.config import WeightNames
from probekit.model.weights import files
from probekit.model.weights.files import StoredTensor, reading_tensor
from probekit.model.weights.other_formats import open_openai, open_pytorch
from probekit.model.weights.sources import HPARAMS, WEIGHT_FILES, vocabulary_files
from probekit.provenance import digest

# Supported dtypes by their names in the header of a safetensors file.
CODES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
# In order of precedence: the first that exists is read.
CHECKPOINT_FILES = (*WEIGHT_FILES, HPARAMS, "ckpt.pt")
_PYTORCH = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint; its tensors are read on demand.

    Attributes:
        path: weight file, or the index of its shards.
        tensors: tensors by name, without the family's prefix and without buffers; linear maps as
            they are stored, which for GPT-2 is [in, out].
    """

    path: Path
    tensors: dict[str, StoredTensor]


def open_checkpoint(source: Path, names: WeightNames) -> Checkpoint:
    """Return the checkpoint in a weight file, or in the first known weight file of a folder.

    >>> from probekit.model.families.gpt2 import WEIGHTS
    >>> from probekit.model.weights.sources import MINI
    >>> open_checkpoint(MINI, WEIGHTS).tensors["h.0.attn.c_attn.weight"].shape
    (256, 768)

    Raises:
        MissingError: the folder has no weight file, or lacks one of its shards or variables, or
            TensorFlow is not installed.
        CheckpointError: the file is damaged or has an unknown format.
    """
    path = source if source.is_file() else _weight_file(source)
    wrapped = open_openai(path) if path.name == HPARAMS else open_weights(path)
    bare = names.unwrapped(wrapped)
    stored = {bare[name]: tensor for name, tensor in wrapped.items()}
    if renamed := [name for name in wrapped if bare[name] != name]:
        warnings.warn(f"{path}: {renamed[0]} is read as {bare[renamed[0]]}.", stacklevel=2)
    by_network_name = {names.in_network(name): tensor for name, tensor in stored.items()}
    if len(by_network_name) < len(wrapped):
        count = Counter(names.in_network(bare[name]) for name in wrapped)
        twice = sorted(name for name, times in count.items() if times > 1)
        raise CheckpointError(
            f"{path} contains these tensors twice, for example with and without the prefix "
            f"`{names.prefix}`: {', '.join(twice)}."
        )
    parameters = [name for name in by_network_name if not re.search(names.buffers, name)]
    return Checkpoint(path, {name: by_network_name[name] for name in parameters})


def file_checks(folder: Path) -> dict[str, str]:
    """Return how weights, config, vocabulary and chat template are verified, by file name.

    TensorFlow verifies the variables of an original GPT-2, which are not listed.

    >>> from probekit.model.weights.sources import MINI
    >>> file_checks(MINI)["config.json"]
    'digests.json'
    """
    weights = _weight_file(folder)
    texts = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
    paths = {weights, *(folder / name for name in texts), *vocabulary_files(folder)}
    paths.add(folder / "chat_template.jinja")
    if weights.name.endswith(".index.json"):
        paths |= {folder / name for name in files.shard_of_tensors(weights).values()}
    return {path.name: check_of(path) for path in sorted(paths) if path.is_file()}


def check_of(path: Path) -> str:
    """Return the source of the digest or checksum that a model file was verified against.

    >>> from probekit.model.weights.sources import MINI
    >>> check_of(MINI / "model.safetensors")
    'digests.json'
    """
    if origin := files.origin_of_digest(path):
        return origin
    has_checksum = zipfile.is_zipfile(path)  # a zip archive has one of each member
    if path.suffix == ".safetensors":
        with reading_tensor(path), safe_open(regular(path), "pt") as file:
            has_checksum = DIGEST in (file.metadata() or {})
    return "checksum in the file" if has_checksum else "nothing: it has no digest"


def _weight_file(folder: Path) -> Path:
    """Return the first known weight file of a folder, in order of precedence."""
    for name in CHECKPOINT_FILES:
        if (folder / name).is_file():
            return folder / name
    problem = f"{folder} has neither {' nor '.join(CHECKPOINT_FILES)}."
    endings = (".safetensors", *_PYTORCH)
    others = ", ".join(sorted(path.name for path in folder.glob("*") if path.suffix in endings))
    if others:
        problem += f" It has {others}: rename it if it contains the whole model."
    raise MissingError(problem)


# Metadata key with the digest of the tensors' bytes, in files that we write.
DIGEST = "blake3"


def open_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file by name; each read maps the bytes of one tensor.

    >>> from probekit.model.weights.sources import MINI
    >>> open_safetensors(MINI / "model.safetensors")["transformer.wte.weight"].shape
    (8192, 256)

    Raises:
        CheckpointError: the file is damaged.
    """
    with reading_tensor(path):
        opened, is_verified = state_of(path), files.verify(path)
        # numpy, because for torch the library maps the whole file as writable memory, which the
        # system refuses for a file that is larger than memory.
        with safe_open(path, "np") as file:  # checks the header
            metadata = file.metadata() or {}
        with path.open("rb") as content:
            (size,) = struct.unpack("<Q", content.read(8))
            entries = json.loads(content.read(size))
        # The digest in the header is used if the file has none elsewhere.
        if (
            not is_verified
            and DIGEST in metadata
            and digest(files.chunks(path, 8 + size)) != metadata[DIGEST]
        ):
            raise CheckpointError(
                f"{path} is damaged: its tensors do not match the digest in its header. Copy or "
                "download it again."
            )
    entries.pop("__metadata__", None)

    def read(name: str) -> Tensor:
        if state_of(path) != opened:
            raise CheckpointError(f"{path} changed while its weights were used. Load them again.")
        code, shape = entries[name]["dtype"], entries[name]["shape"]
        start, stop = (8 + size + offset for offset in entries[name]["data_offsets"])
        if code not in CODES or start == stop:  # nothing can be mapped of an empty tensor
            with reading_tensor(path), safe_open(path, "pt") as file:
                return cast(Tensor, file.get_tensor(name))
        page = start - start % mmap.ALLOCATIONGRANULARITY
        with reading_tensor(path), path.open("rb") as content:
            mapped = mmap.mmap(content.fileno(), stop - page, access=mmap.ACCESS_COPY, offset=page)
            return torch.frombuffer(mapped, dtype=CODES[code], offset=start - page).view(shape)

    return {
        name: StoredTensor(tuple(entry["shape"]), partial(read, name), is_mapped=True)
        for name, entry in entries.items()
    }


def open_shards(index: Path) -> dict[str, StoredTensor]:
    """Return the tensors of all shards in an index.

    Raises:
        MissingError: a shard is missing.
        CheckpointError: index and shards list different tensors, or a file is damaged.
    """
    shards = files.shard_of_tensors(index)
    absent = [name for name in sorted(set(shards.values())) if not (index.parent / name).is_file()]
    if absent:
        raise MissingError(f"{index} lists shards that are not in its folder: {', '.join(absent)}.")
    stored: dict[str, StoredTensor] = {}
    actual: list[tuple[str, str]] = []  # names of a tensor and of its shard, as in `shards`
    for shard in sorted(set(shards.values())):
        tensors = open_weights(index.parent / shard)
        actual += [(tensor, shard) for tensor in tensors]
        stored |= tensors
    # A tied unembedding may be listed and in no shard.
    unembeddings = ("lm_head.weight", "embed_out.weight")
    listed = {
        one for one in shards.items() if one[0] in stored or not one[0].endswith(unembeddings)
    }
    if differing := sorted({tensor for tensor, _ in set(actual) ^ listed}):
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
    openers = {".safetensors": open_safetensors, ".json": open_shards}
    openers |= dict.fromkeys(_PYTORCH, open_pytorch)
    if path.suffix not in openers:
        raise CheckpointError(
            f"{path} is not a weight file. Allowed extensions: {', '.join(openers)}."
        )
    return openers[path.suffix](path)
