"""An opened checkpoint: which tensors lie in it, under which names, before any is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from probekit.errors import CheckpointError, MissingError
from probekit.model.text.vocabulary import vocabulary_files
from probekit.model.weights.digests import origin_of_digest
from probekit.model.weights.hub_files import has_own_checksum, open_weights, shard_of_tensors
from probekit.model.weights.openai import HPARAMS, open_openai
from probekit.model.weights.sources import WEIGHT_FILES
from probekit.model.weights.stored import StoredTensor

# Any of these makes a folder a checkpoint; the first that is there is read.
CHECKPOINT_FILES = (*WEIGHT_FILES, HPARAMS)

# Buffers of old checkpoints that hold the causal mask, no weights.
_MASK_BUFFER = re.compile(r"^h\.\d+\.attn\.(masked_)?bias$")


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint, none of whose numbers is read yet.

    Attributes:
        path: the file that it was opened by.
        tensors: by the names of the bare GPT-2, without masks, linear maps as [in, out].
    """

    path: Path
    tensors: dict[str, StoredTensor]


def open_checkpoint(source: Path) -> Checkpoint:
    """Return what is kept in a folder, in the first format found there, or in one file of weights.

    >>> from probekit.model.weights.sources import MINI
    >>> open_checkpoint(MINI).tensors["h.0.attn.c_attn.weight"].shape
    (256, 768)

    Raises:
        MissingError: the folder has no file of weights.
        CheckpointError: the file is damaged or of no known format.
    """
    path = source if source.is_file() else _weight_file(source)
    stored = open_openai(path) if path.name == HPARAMS else open_weights(path)
    return Checkpoint(path, _bare(path, stored))


def file_checks(folder: Path) -> dict[str, str]:
    """Return, for each file that a model is read from, what its contents were compared with.

    >>> from probekit.model.weights.sources import MINI
    >>> file_checks(MINI)["config.json"]
    'digests.json'
    """
    weights = _weight_file(folder)
    paths = [weights, folder / "config.json", *vocabulary_files(folder)]
    if weights.name.endswith(".index.json"):
        paths += [folder / name for name in sorted(set(shard_of_tensors(weights).values()))]
    return {path.name: check_of(path) for path in sorted(paths) if path.is_file()}


def check_of(path: Path) -> str:
    """Return what the contents of a file of a model were compared with when it was read."""
    own = "checksum in the file" if has_own_checksum(path) else "nothing: it has no digest"
    return origin_of_digest(path) or own


def _weight_file(folder: Path) -> Path:
    for name in CHECKPOINT_FILES:
        if (folder / name).is_file():
            return folder / name
    there = sorted(path.name for path in folder.glob("*.safetensors"))
    raise MissingError(
        f"{folder} has neither {' nor '.join(CHECKPOINT_FILES)}."
        + f" It has {', '.join(there)}: rename it where it is the whole model." * bool(there)
    )


def _bare(path: Path, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors under the names of the bare GPT-2, without masks."""
    bare = {name.removeprefix("transformer."): tensor for name, tensor in stored.items()}
    if len(bare) < len(stored):
        twice = sorted(name for name in bare if name in stored and f"transformer.{name}" in stored)
        raise CheckpointError(f"{path} holds tensors with and without prefix: {', '.join(twice)}.")
    return {name: tensor for name, tensor in bare.items() if not _MASK_BUFFER.match(name)}
