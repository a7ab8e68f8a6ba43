"""Reading the JSON files of a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from probekit.errors import CheckpointError, MissingError
from probekit.model.weights.digests import read_verified

_MAX_DEPTH = 100  # of lists and objects in each other; published files have at most 10


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a model folder.

    >>> from probekit.model.weights.sources import MINI
    >>> read_json(MINI / "config.json")["n_layer"]
    6

    Raises:
        MissingError: the file does not exist or cannot be read.
        CheckpointError: the file is not a regular one, does not match its digest, or is not a JSON
            object.
    """
    try:
        return json_object(path, read_verified(path))
    except OSError as error:
        raise MissingError(f"{path} cannot be read: {error.strerror}.") from error


def json_object(path: Path, content: bytes) -> dict[str, Any]:
    """Return the object in the contents of a JSON file.

    >>> json_object(Path("config.json"), b'{"n_layer": 6}')
    {'n_layer': 6}

    Args:
        path: the file, for messages.
        content: its bytes.

    Raises:
        CheckpointError: it is not a JSON object in UTF-8, or has a number, a character or a nesting
            that other programs cannot read.
    """
    try:
        value = json.loads(content.decode())
        if b"\\ud" in content.lower():  # a pair of them is a character, a single one is none
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must contain a JSON object, not a {type(value).__name__}.")
    inner: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        parts = [part.values() if isinstance(part, dict) else part for part in inner]
        inner = [item for part in parts for item in part if isinstance(item, dict | list)]
    if inner:
        raise CheckpointError(f"{path} has more than {_MAX_DEPTH} lists and objects in each other.")
    return value


def shard_of_tensors(index: Path) -> dict[str, str]:
    """Return the file name of each tensor from the index of a sharded model.

    Raises:
        CheckpointError: the index is damaged, or a shard is not a weight file in its folder.
    """
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise CheckpointError(f"{index} has no weight_map from tensors to files.")
    for shard in shards.values():
        is_file_name = isinstance(shard, str) and Path(shard).name == shard
        if not is_file_name or Path(shard).suffix not in (".safetensors", ".bin"):
            raise CheckpointError(
                f"{index} lists the shard {shard!r}. Allowed: a .safetensors or .bin file in the "
                "folder of the index."
            )
    return shards
