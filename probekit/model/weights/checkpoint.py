"""Opening a checkpoint: names and shapes of its tensors, which are read later."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from probekit.errors import CheckpointError, MissingError
from probekit.model.config import WeightNames
from probekit.model.text.vocabulary import vocabulary_files
from probekit.model.weights.digests import origin_of_digest
from probekit.model.weights.hub_files import has_own_checksum, open_weights
from probekit.model.weights.json_files import shard_of_tensors
from probekit.model.weights.openai import open_openai
from probekit.model.weights.sources import HPARAMS, WEIGHT_FILES
from probekit.model.weights.stored import StoredTensor

# In order of precedence: the first that exists is read.
CHECKPOINT_FILES = (*WEIGHT_FILES, HPARAMS)


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
        MissingError: the folder has no weight file.
        CheckpointError: the file is damaged or has an unknown format.
    """
    path = source if source.is_file() else _weight_file(source)
    stored = open_openai(path) if path.name == HPARAMS else open_weights(path)
    return Checkpoint(path, _without_prefix(path, stored, names))


def file_checks(folder: Path) -> dict[str, str]:
    """Return how each file of a model is verified, by file name.

    >>> from probekit.model.weights.sources import MINI
    >>> file_checks(MINI)["config.json"]
    'digests.json'
    """
    weights = _weight_file(folder)
    texts = ("config.json", "tokenizer.json", "tokenizer_config.json")
    paths = {weights, *(folder / name for name in texts), *vocabulary_files(folder)}
    if weights.name.endswith(".index.json"):
        paths |= {folder / name for name in shard_of_tensors(weights).values()}
    return {path.name: check_of(path) for path in sorted(paths) if path.is_file()}


def check_of(path: Path) -> str:
    """Return the source of the digest or checksum that a model file was verified against."""
    internal = "checksum in the file" if has_own_checksum(path) else "nothing: it has no digest"
    return origin_of_digest(path) or internal


def _weight_file(folder: Path) -> Path:
    for name in CHECKPOINT_FILES:
        if (folder / name).is_file():
            return folder / name
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    raise MissingError(
        f"{folder} has neither {' nor '.join(CHECKPOINT_FILES)}."
        + f" It has {', '.join(others)}: rename it if it contains the whole model." * bool(others)
    )


def _without_prefix(
    path: Path, stored: Mapping[str, StoredTensor], names: WeightNames
) -> dict[str, StoredTensor]:
    """Remove the family's prefix from the names of tensors, and drop its buffers."""
    short = {names.in_network(name): tensor for name, tensor in stored.items()}
    if len(short) < len(stored):
        count = Counter(map(names.in_network, stored))
        twice = sorted(name for name, times in count.items() if times > 1)
        raise CheckpointError(
            f"{path} contains these tensors twice, for example with and without the prefix "
            f"`{names.prefix}`: {', '.join(twice)}."
        )
    return {name: tensor for name, tensor in short.items() if not re.search(names.buffers, name)}
